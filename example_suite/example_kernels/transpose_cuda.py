"""The transpose of a matrix on a GPU: a CUDA kernel, compiled by CuPy, and the tuner that chooses its tile."""

from functools import cache

import cupy

import pytest_autotune

SOURCE = r"""
extern "C" __global__ void transpose(const float* in, float* out, int height, int width) {
    __shared__ float tile[TILE][TILE + 1];  // one column more, so that no two rows share a bank
    int x = blockIdx.x * TILE + threadIdx.x;
    int y = blockIdx.y * TILE + threadIdx.y;
    for (int i = 0; i < TILE; i += ROWS)
        if (x < width && y + i < height) tile[threadIdx.y + i][threadIdx.x] = in[(size_t)(y + i) * width + x];
    __syncthreads();
    x = blockIdx.y * TILE + threadIdx.x;
    y = blockIdx.x * TILE + threadIdx.y;
    for (int i = 0; i < TILE; i += ROWS)
        if (x < height && y + i < width) out[(size_t)(y + i) * height + x] = tile[threadIdx.x][threadIdx.y + i];
}
"""
CONFIGS = pytest_autotune.product(
    TILE=[16, 32, 64], ROWS=[2, 4, 8, 16], where=lambda config: config["TILE"] * config["ROWS"] <= 1024
)


@cache
def build(tile: int, rows: int) -> cupy.RawKernel:
    """The kernel for one tile."""
    kernel = cupy.RawKernel(SOURCE, "transpose", options=(f"-DTILE={tile}", f"-DROWS={rows}"))
    kernel.compile()
    return kernel


def transpose(matrix: cupy.ndarray) -> cupy.ndarray:
    """The transpose of a matrix of float32."""
    if matrix.ndim != 2 or matrix.dtype != cupy.float32:
        raise ValueError(f"transpose() needs a matrix of float32: {matrix.shape}, {matrix.dtype}")
    matrix = cupy.ascontiguousarray(matrix)
    height, width = matrix.shape
    out = cupy.empty((width, height), matrix.dtype)

    def launch(config, kernel):
        tile = config["TILE"]
        grid = -(-width // tile), -(-height // tile)
        kernel(grid, (tile, config["ROWS"]), (matrix, out, height, width))

    config = pytest_autotune.tune(
        "example_kernels.transpose_cuda.transpose",
        key={"height": height, "width": width},
        space=CONFIGS,
        run=launch,
        compile=lambda config: build(config["TILE"], config["ROWS"]),
        setup=lambda config: out.fill(0),
        verify=lambda config, _: bool((out == matrix.T).all()),
        measuring=pytest_autotune.Measuring(clock="cupy", flush_l2=True),
        source=[SOURCE, launch],
        device="cuda",
    )
    launch(config, build(config["TILE"], config["ROWS"]))
    return out
