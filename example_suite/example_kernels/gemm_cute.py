"""The Hopper GEMM of CUTLASS's examples, tuned as NVIDIA's guide for CuTe DSL says, with a cache that lasts.

https://docs.nvidia.com/cutlass/latest/media/docs/pythonDSL/guides/autotuning_gemm.html: a search space, an exhaustive
search, compiled kernels that are kept by configuration, and sizes that are rounded to powers of two. ``dense_gemm`` is
``examples/python/CuTeDSL/cute/hopper/kernel/dense_gemm/dense_gemm.py`` of a checkout of CUTLASS, on the path.
"""

import cutlass
import cutlass.cute as cute
import torch
from cuda.bindings.driver import CUstream
from cutlass.cute.runtime import from_dlpack
from dense_gemm import HopperWgmmaGemmKernel

import pytest_autotune

# The guide's use_2cta_instrs and use_tma_store are of Blackwell's kernel: that of Hopper always stores by TMA.
SPACE = pytest_autotune.product(
    mma_tiler_mn=[(64, 64), (64, 128), (128, 64), (128, 128), (128, 256)],
    cluster_shape_mn=[(1, 1), (2, 1), (1, 2)],
)
ACCUMULATOR = cutlass.Float32
#: The compiled kernels. The sizes are dynamic, so that a kernel serves all of them.
kernels = {}


def compile_gemm(config, a, b, c, stream):
    """The compiled kernel of a configuration."""
    key = a.element_type, c.element_type, config["mma_tiler_mn"], config["cluster_shape_mn"]
    if key not in kernels:
        gemm = HopperWgmmaGemmKernel(ACCUMULATOR, config["mma_tiler_mn"], config["cluster_shape_mn"])
        kernels[key] = cute.compile(gemm, a, b, c, stream)
    return kernels[key]


def as_cute(matrix):
    """A matrix of torch as CuTe sees it: a batch of one, with sizes that are not compiled in."""
    batch = matrix.unsqueeze(0).permute(1, 2, 0)
    return from_dlpack(batch, assumed_align=16).mark_layout_dynamic(leading_dim=1)


def gemm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The product of ``a``, and ``b`` transposed, both of float16."""
    (m, k), n = a.shape, b.shape[0]
    out = torch.empty(m, n, dtype=a.dtype, device=a.device)
    tensors = as_cute(a), as_cute(b), as_cute(out)
    stream = CUstream(torch.cuda.current_stream().cuda_stream)

    def is_right(config, _):
        expected = a.float() @ b.float().T
        return bool((out.float() - expected).abs().max() <= 0.02 * expected.abs().max())

    config = pytest_autotune.tune(
        "example_kernels.gemm_cute.gemm",
        key={
            "m": pytest_autotune.power_of_two(m),
            "n": pytest_autotune.power_of_two(n),
            "k": pytest_autotune.power_of_two(k),
            "ab_dtype": tensors[0].element_type,
            "c_dtype": tensors[2].element_type,
            "acc_dtype": ACCUMULATOR,
        },
        space=SPACE,
        compile=lambda config: compile_gemm(config, *tensors, stream),
        compile_threads=1,  # CuTe's compiler aborts in two threads
        run=lambda config, kernel: kernel(*tensors, stream),
        setup=lambda config: out.zero_(),
        verify=is_right,
        invalid=ValueError,  # of tiles that the kernel does not have
        source=compile_gemm,
        version=cutlass.__version__,
        device="cuda",
    )
    compile_gemm(config, *tensors, stream)(*tensors, stream)
    return out
