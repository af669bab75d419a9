"""Triton's interpreter: a benchmark for machines without a GPU, and launches in other threads that make it fail."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.measuring.clocks import HostClock, Runner
from pytest_autotune.tuners.triton.internals import autotuners


def supply_interpreter_benchmark(module: ModuleType) -> Callable[[], None]:
    """Let autotuned kernels run under the interpreter on a machine without a GPU.

    Without this function, the search of a kernel would fail: Triton asks its active driver for a benchmark, and a
    machine without a GPU has no driver. Nothing changes if there is a driver, or if the kernel has its own benchmark.

    :param module: ``triton.runtime.autotuner``.
    :returns: a function that restores Triton.
    """
    autotuner_class: Any = module.Autotuner
    original = autotuner_class.__dict__.get("do_bench")
    # This Triton finds its benchmark in another way.
    if not isinstance(original, cached_property):
        return _do_nothing
    supplied = _SuppliedBenchmark(autotuner_class, original)
    replacement = cached_property(supplied.find_benchmark)
    # A property learns its name only in the body of a class, so this one is told its name.
    replacement.__set_name__(autotuner_class, "do_bench")
    autotuner_class.do_bench = replacement
    return supplied.undo


def _do_nothing() -> None:
    pass


class _SuppliedBenchmark:
    """Replaces the property ``do_bench`` of Triton's ``Autotuner``."""

    def __init__(self, autotuner_class: Any, original: cached_property[Any]) -> None:
        self._autotuner_class = autotuner_class
        self._original = original

    def find_benchmark(self, autotuner: Any) -> Any:
        """Return Triton's benchmark for an autotuner; without a driver, the benchmark for interpreted kernels."""
        is_interpreted = autotuners.is_interpreted(autotuner)
        if is_interpreted:
            autotuners.remove_exported_benchmark(autotuner)
        try:
            return self._original.func(autotuner)
        except RuntimeError:
            if not is_interpreted:
                raise
            return interpreter_benchmark

    def undo(self) -> None:
        self._autotuner_class.do_bench = self._original


def interpreter_benchmark(kernel_call: Callable[[], object], quantiles: Sequence[float] = ()) -> list[float]:
    """Return the time of a call in milliseconds: a list with the same time for each quantile.

    Two launches are measured, and the shorter time counts. More launches would take too long under the interpreter.
    """
    clock = HostClock()
    launches = [clock.launch(Runner(kernel_call), busy_us=0.0) for _ in range(2)]
    time_us = min(launch.time_us() for launch in launches)
    return [time_us / 1000] * max(len(quantiles), 1)


class InterpretedSearch:
    """A search under the interpreter, which launches of other threads may disturb.

    For each launch, the interpreter puts its own functions into ``triton.language``, and removes them after the launch.
    The removal makes a launch in another thread fail. The plugin cannot prevent this with a lock, because a launch of a
    kernel that has its choice runs no code of the plugin. A search therefore asks this class whether its failures may
    come from another thread.

    :param lookups: the number of lookups of interpreted kernels by the identifier of their thread. A launch follows
        each lookup. The numbers grow during the search.
    """

    def __init__(self, lookups: Counter[int]) -> None:
        self._lookups = lookups
        self._initial_counts = self._count_lookups_of_other_threads()
        alive = {thread.ident for thread in threading.enumerate()}
        self._had_other_threads = not alive.isdisjoint(self._initial_counts)

    def may_be_disturbed(self) -> bool:
        """Whether another thread may have launched an interpreted kernel since the search began.

        A thread that launched such a kernel before the search may launch it again without a lookup.
        """
        return self._had_other_threads or self._count_lookups_of_other_threads() != self._initial_counts

    def _count_lookups_of_other_threads(self) -> dict[int, int]:
        counts = dict(self._lookups.copy())
        counts.pop(threading.get_ident(), None)
        return counts
