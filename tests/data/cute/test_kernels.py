"""A suite that uses both tuners of CuTe DSL, and tune(). Only the last test knows pytest-autotune."""

import cutlass
import cutlass.cute as cute
import cutlass.testing
import host
import pytest
import scale_kernels
from cutlass.testing import JitArguments, tune


@cute.testing.autotune_jit(params_dict={"V": [1, 2, 5, 4], "T": [64, 128]}, update_on_change=["N"], iterations=3)
@cute.jit
def scale_tuned(
    src: cute.Tensor, dst: cute.Tensor, N: cutlass.Int32, V: cutlass.Constexpr = 1, T: cutlass.Constexpr = 128
):
    size = cute.size(src)
    scale_kernels.scale_kernel(src, dst, V, T).launch(grid=[(size + V * T - 1) // (V * T), 1, 1], block=[T, 1, 1])


def build(src, dst, V, T):
    compiled = cute.compile(scale_kernels.scale, src, dst, V=V, T=T)
    return lambda: compiled(src, dst)


@pytest.mark.parametrize("size", [1 << 16, 1 << 17])
def test_autotune_jit(size):
    src, dst = host.make_vector(size), host.make_vector(size)
    scale_tuned(src, dst, size)
    scale_tuned(src, dst, size)


@pytest.mark.parametrize("size", [1 << 16, 1 << 17])
def test_tune(size):
    arguments = JitArguments(host.make_vector(size), host.make_vector(size))
    config = tune(build, {"V": [1, 2, 4], "T": [64, 128]}, arguments, iterations=3)
    build(*arguments.args, **config)()


def test_tune_of_the_plugin(autotune_cache):
    src, dst = host.make_vector(1 << 16), host.make_vector(1 << 16)
    config = autotune_cache.tune(
        "scale",
        key={"dtype": cutlass.Float32, "shape": src.shape},
        space={"V": [1, 2, 4, 8], "T": [64, 128]},
        compile=lambda config: cute.compile(scale_kernels.scale, src, dst, **config),
        run=lambda config, kernel: kernel(src, dst),
        compile_threads=4,
        source=scale_kernels.scale,
    )
    assert config.keys() == {"V", "T"}
