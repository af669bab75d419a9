"""A matrix product on a GPU: a kernel of cuTile, and cuTile's own tuner. Nothing here knows pytest-autotune."""

from functools import cache
from itertools import product

import cuda.tile as ct
import torch
from cuda.tile.tune import exhaustive_search

TILES = [(64, 64, 64), (128, 64, 64), (128, 128, 32), (128, 128, 64), (128, 256, 64)]
SPACE = [{"tile": tile, "occupancy": occupancy} for tile, occupancy in product(TILES, (1, 2))]


@ct.kernel
def matmul_kernel(a, b, out, TM: ct.Constant[int], TN: ct.Constant[int], TK: ct.Constant[int]):
    i, j = ct.bid(0), ct.bid(1)
    total = ct.zeros((TM, TN), ct.float32)
    for k in range(ct.num_tiles(a, axis=1, shape=(TM, TK))):
        left = ct.load(a, index=(i, k), shape=(TM, TK), padding_mode=ct.PaddingMode.ZERO)
        right = ct.load(b, index=(k, j), shape=(TK, TN), padding_mode=ct.PaddingMode.ZERO)
        total = ct.mma(left, right, total)
    ct.store(out, index=(i, j), tile=total.astype(out.dtype))


def find_grid(shape, tile):
    """The number of tiles of a matrix."""
    return ct.cdiv(shape[0], tile[0]), ct.cdiv(shape[1], tile[1])


@cache
def choose(m: int, n: int, k: int, dtype: torch.dtype):
    """The fastest configuration for these sizes: cuTile remembers none, so this does."""
    a = torch.randn(m, k, device="cuda").to(dtype)
    b = torch.randn(k, n, device="cuda").to(dtype)
    out = torch.empty(m, n, dtype=dtype, device="cuda")
    result = exhaustive_search(
        SPACE,
        torch.cuda.current_stream(),
        lambda config: find_grid(out.shape, config["tile"]),
        matmul_kernel,
        lambda config: (a, b, out, *config["tile"]),
        lambda config: {"occupancy": config["occupancy"]},
        quiet=True,
    )
    return result.best.config


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of two matrices."""
    (m, k), n = a.shape, b.shape[1]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    config = choose(m, n, k, a.dtype)
    kernel = matmul_kernel.replace_hints(occupancy=config["occupancy"])
    ct.launch(torch.cuda.current_stream(), find_grid(out.shape, config["tile"]), kernel, (a, b, out, *config["tile"]))
    return out
