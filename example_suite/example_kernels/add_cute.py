"""The sum of two vectors on a GPU: a kernel of CuTe DSL, and CuTe's own tuner. Nothing here knows pytest-autotune."""

import cutlass
import cutlass.cute as cute
import torch
from cutlass.cute.runtime import from_dlpack

MOST_VALUES = 8


@cute.kernel
def add_kernel(x: cute.Tensor, y: cute.Tensor, out: cute.Tensor, VALUES: cutlass.Constexpr, THREADS: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    tiled_x, tiled_y = cute.zipped_divide(x, (VALUES,)), cute.zipped_divide(y, (VALUES,))
    tiled_out = cute.zipped_divide(out, (VALUES,))
    index = block * THREADS + thread
    if index < cute.size(tiled_x, mode=[1]):
        tiled_out[(None, index)].store(tiled_x[(None, index)].load() + tiled_y[(None, index)].load())


@cute.testing.autotune_jit(
    params_dict={"VALUES": [1, 2, 4, MOST_VALUES], "THREADS": [64, 128, 256]},
    update_on_change=["size"],
    warmup_iterations=5,
    iterations=20,
)
@cute.jit
def launch_add(
    x: cute.Tensor,
    y: cute.Tensor,
    out: cute.Tensor,
    size: cutlass.Int32,
    VALUES: cutlass.Constexpr = 1,
    THREADS: cutlass.Constexpr = 128,
):
    blocks = (cute.size(x) + VALUES * THREADS - 1) // (VALUES * THREADS)
    add_kernel(x, y, out, VALUES, THREADS).launch(grid=[blocks, 1, 1], block=[THREADS, 1, 1])


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The sum of two vectors of which each thread can load eight numbers at a time."""
    if x.shape != y.shape or x.numel() % MOST_VALUES:
        raise ValueError(f"add() needs equal shapes, a multiple of {MOST_VALUES}: {x.shape}, {y.shape}")
    out = torch.empty_like(x)
    launch_add(*(from_dlpack(tensor, assumed_align=32) for tensor in (x, y, out)), x.numel())
    return out
