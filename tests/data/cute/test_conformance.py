"""The conformance tests of the adapter for CuTe DSL, once for each of its two tuners."""

import functools
from typing import ClassVar

import cutlass.cute as cute
import cutlass.testing
import host
import scale_kernels
from cutlass.testing import JitArguments

from pytest_autotune.testing import AdapterConformance
from pytest_autotune.tuners.cute.adapter import Adapter

SRC, DST = host.make_vector(1 << 16), host.make_vector(1 << 16)
SPACE = {"V": [1, 4], "T": [64]}
REMEMBERS_NOTHING = "tune() remembers nothing, so a second call asks again"


def build(src, dst, V, T):
    compiled = cute.compile(scale_kernels.scale, src, dst, V=V, T=T)
    return lambda: compiled(src, dst)


class CuteConformance(AdapterConformance):
    tuner = "cute"
    adapter = Adapter

    def searches(self):
        # Each search measures two configurations, each with one launch.
        return host.count_measured() // 2


class TestTune(CuteConformance):
    exempt: ClassVar = {
        "test_isolated_calls_share_no_choice_with_other_calls": REMEMBERS_NOTHING,
        "test_two_equal_calls_record_one_entry_with_its_choice": REMEMBERS_NOTHING,
    }

    def tune(self):
        return cutlass.testing.tune(build, SPACE, JitArguments(SRC, DST), warmup_iterations=1, iterations=1)

    def forget(self):
        pass


@functools.cache
def decorate(decorator):
    """Decorate a function once for each hook, as a module does that is imported in a run."""

    def scale(
        src: cute.Tensor,
        dst: cute.Tensor,
        V: scale_kernels.cutlass.Constexpr = 1,
        T: scale_kernels.cutlass.Constexpr = 128,
    ):
        size = cute.size(src)
        scale_kernels.scale_kernel(src, dst, V, T).launch(grid=[(size + V * T - 1) // (V * T), 1, 1], block=[T, 1, 1])

    return cute.testing.autotune_jit(SPACE, [], warmup_iterations=1, iterations=1)(cute.jit(scale))


class TestAutotuneJit(CuteConformance):
    def tune(self):
        tuned = decorate(cute.testing.autotune_jit.__call__)
        tuned(SRC, DST)
        return list(tuned._best_config.values())

    def forget(self):
        tuned = decorate(cute.testing.autotune_jit.__call__)
        tuned._best_kernel.clear()
        tuned._best_config.clear()
