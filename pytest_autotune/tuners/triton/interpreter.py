"""The benchmarker that Triton lacks under its interpreter on a machine without a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.measuring.clocks import HostClock, Runner
from pytest_autotune.tuners.triton.internals import autotuners


def supply_interpreter_benchmark(module: ModuleType) -> Callable[[], None]:
    """Let autotuned kernels run under the interpreter on a machine without a GPU.

    Triton asks its active driver for a benchmarker, and there is none. Where
    there is one, or the kernel brings its own, nothing changes.

    :param module: ``triton.runtime.autotuner``.
    :returns: undoes it.
    """
    autotuner_class: Any = module.Autotuner
    original = autotuner_class.__dict__.get("do_bench")
    if not isinstance(original, cached_property):
        return lambda: None
    benchmarker = original.func

    def do_bench(self: Any) -> Any:
        if is_interpreted := autotuners.interprets(self):
            autotuners.measure_as_triton(self)
        try:
            return benchmarker(self)
        except RuntimeError:
            if not is_interpreted:
                raise
            return interpreter_benchmark

    replacement = cached_property(do_bench)
    replacement.__set_name__(autotuner_class, "do_bench")
    autotuner_class.do_bench = replacement

    def undo() -> None:
        autotuner_class.do_bench = original

    return undo


def interpreter_benchmark(kernel_call: Callable[[], object], quantiles: Sequence[float] = ()) -> list[float]:
    """The time of a call in milliseconds, once per quantile: the better of two, since each is slow."""
    time_us = min(HostClock().launch(Runner(kernel_call), 0.0).time_us() for _ in range(2))
    return [time_us / 1000] * max(len(quantiles), 1)
