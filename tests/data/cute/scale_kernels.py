"""A kernel of CuTe DSL that scales a vector: each thread has ``V`` numbers, each block ``T`` threads."""

import cutlass
import cutlass.cute as cute


@cute.kernel
def scale_kernel(src: cute.Tensor, dst: cute.Tensor, V: cutlass.Constexpr, T: cutlass.Constexpr):
    thread, _, _ = cute.arch.thread_idx()
    block, _, _ = cute.arch.block_idx()
    source = cute.zipped_divide(src, (V,))
    target = cute.zipped_divide(dst, (V,))
    index = block * T + thread
    if index < cute.size(source, mode=[1]):
        target[(None, index)].store(source[(None, index)].load() * cutlass.Float32(2.0))


@cute.jit
def scale(src: cute.Tensor, dst: cute.Tensor, V: cutlass.Constexpr = 1, T: cutlass.Constexpr = 128):
    size = cute.size(src)
    scale_kernel(src, dst, V, T).launch(grid=[(size + V * T - 1) // (V * T), 1, 1], block=[T, 1, 1])
