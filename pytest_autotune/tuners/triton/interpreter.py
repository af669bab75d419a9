"""Triton's interpreter: the benchmarker that it lacks on a machine without a GPU, and threads that disturb it."""

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
        if is_interpreted := autotuners.is_interpreted(self):
            autotuners.remove_exported_benchmark(self)
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


class InterpreterThreads:
    """The threads that have launched interpreted kernels.

    The interpreter puts functions of its own into Triton's language for each launch, and takes them away afterwards:
    in one thread that makes the launch of another one fail. A lock would not help, because launches of kernels that
    have their choice run no code of ours.
    """

    def __init__(self) -> None:
        #: How often each thread has looked for a choice.
        self._lookups: Counter[int] = Counter()

    def add_lookup(self) -> None:
        """Note that the current thread looks for the choice of an interpreted kernel, and launches it then."""
        self._lookups[threading.get_ident()] += 1

    def begin_search(self) -> InterpretedSearch:
        """Watch the other threads from now on, for a search of the current thread."""
        return InterpretedSearch(self._lookups)


class InterpretedSearch:
    """A search of one thread under the interpreter.

    :param lookups: how often each thread has looked for a choice; it goes on counting.
    """

    def __init__(self, lookups: Counter[int]) -> None:
        self._lookups = lookups
        self._began_with = self._of_others()
        alive = {thread.ident for thread in threading.enumerate()}
        self._had_others = not alive.isdisjoint(self._began_with)

    def may_be_disturbed(self) -> bool:
        """Whether another thread may have launched an interpreted kernel since the search began."""
        return self._had_others or self._of_others() != self._began_with

    def _of_others(self) -> dict[int, int]:
        own = threading.get_ident()
        return {thread: number for thread, number in self._lookups.copy().items() if thread != own}


def interpreter_benchmark(kernel_call: Callable[[], object], quantiles: Sequence[float] = ()) -> list[float]:
    """The time of a call in milliseconds, once per quantile: the better of two, since each is slow."""
    time_us = min(HostClock().launch(Runner(kernel_call), 0.0).time_us() for _ in range(2))
    return [time_us / 1000] * max(len(quantiles), 1)
