"""a @ b on the CPU, in tiles: a hand-written kernel of Numba, and the tuner that chooses the tiles."""

import numba
import numpy as np

import pytest_autotune

# Made once: its digest is worked out once.
TILES = pytest_autotune.product(
    rows=[8, 64],
    columns=[16, 64, 512],
    depth=[8, 64],
    # What one tile of each operand takes, in elements: larger ones fall out of the L1 and L2 caches.
    where=lambda tile: (tile["rows"] + tile["columns"]) * tile["depth"] <= 32768,
)


@numba.njit(fastmath=True, cache=True)
def multiply_tiles(a, b, out, rows, columns, depth):
    m, k = a.shape
    n = b.shape[1]
    for i0 in range(0, m, rows):
        for l0 in range(0, k, depth):
            for j0 in range(0, n, columns):
                for i in range(i0, min(i0 + rows, m)):
                    for l in range(l0, min(l0 + depth, k)):  # noqa: E741
                        factor = a[i, l]
                        for j in range(j0, min(j0 + columns, n)):
                            out[i, j] += factor * b[l, j]


def matmul_cpu(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The product of two matrices of one dtype."""
    if a.ndim != 2 or b.ndim != 2 or a.shape[1] != b.shape[0] or a.dtype != b.dtype:
        raise ValueError(f"matmul_cpu() needs matrices that fit: {a.shape}, {a.dtype} and {b.shape}, {b.dtype}")
    out = np.zeros((a.shape[0], b.shape[1]), a.dtype)
    tile = pytest_autotune.tune(
        "example_kernels.matmul_cpu.multiply_tiles",
        key={"m": a.shape[0], "n": b.shape[1], "k": a.shape[1], "dtype": a.dtype},
        space=TILES,
        run=lambda tile: multiply_tiles(a, b, out, **tile),
        reset=lambda tile: out.fill(0),
        verify=lambda tile, _: np.allclose(out, a @ b, rtol=1e-3),
        source=multiply_tiles,
        device="cpu",
    )
    out.fill(0)
    multiply_tiles(a, b, out, **tile)
    return out
