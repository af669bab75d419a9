"""A search of CuTe that runs now, and the hooks inside it: one for each benchmark, one for each compilation."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Problem, Value
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.shared.configurations import ConfigurationQuestion, SearchResults
from pytest_autotune.tuners.shared.patches import CallHook, HookedCall

NAME = "cute"


def build_problem(kernel_name: str, key: tuple[Value, ...] = ()) -> Problem:
    """Return the problem of a kernel on the current device. A problem without a key is only named in reports."""
    return Problem(NAME, kernel_name, key, devices.current_gpu() or devices.cpu())


class CuteSearch:
    """A search that takes place, because no cache has a choice that can be used.

    :param tuning: the session's record of this search.
    """

    def __init__(self, question: ConfigurationQuestion, tuning: Tuning) -> None:
        self.tuning = tuning
        self.results = SearchResults(question.configurations)
        #: The configuration that is compiled or benchmarked now, such as ``{"V": 4, "T": 128}``.
        self.config: Mapping[str, Any] = {}
        self._config_count = len(question.candidates())
        self._config_number = 0

    def begin(self, config: Mapping[str, Any]) -> None:
        """Begin to compile and benchmark a configuration."""
        self.config = config
        self._config_number += 1
        self.tuning.report_trial(self._config_number, self._config_count)

    @contextmanager
    def as_current(self) -> Iterator[None]:
        """Have :class:`BenchmarkHook` note the times of this thread's benchmarks for this search."""
        token = _current_search.set(self)
        try:
            yield
        finally:
            _current_search.reset(token)


#: The search that runs in this thread; None if the user's own code benchmarks.
_current_search: ContextVar[CuteSearch | None] = ContextVar("current_search", default=None)


class BenchmarkHook(CallHook):
    """Takes the GPU lock for each benchmark of a search, and notes the time.

    The lock is free while a configuration compiles, so that another worker can measure.
    """

    def ask(self, call: HookedCall) -> None:
        search = _current_search.get()
        if search is not None:
            call.state = search
            call.enter(search.tuning.measuring(find_lock_name()))

    def note(self, call: HookedCall, result: float) -> None:
        """Note the time of the configuration in microseconds, or its error."""
        search = call.state
        if search is None:
            return
        if math.isfinite(result):
            search.results.note_time(search.config, result)
            return
        # A launch failed: CuTe prints the error and returns infinity. Another launch raises the same error.
        search.results.note_failure(search.config, _find_launch_error(call))

    def note_error(self, call: HookedCall, error: Exception) -> None:
        if call.state is not None:
            call.state.results.note_failure(call.state.config, error)


def find_lock_name() -> str:
    """Return the name of the processor that a benchmark locks: empty for the current GPU, ``cpu`` without a GPU."""
    if devices.current_gpu() is None:
        return "cpu"
    return ""


def _find_launch_error(call: HookedCall) -> Exception | str:
    """Launch a kernel that CuTe could not benchmark once more, and return the error."""
    launch = call.arguments["callable"]
    try:
        launch(*call.arguments["args"], **call.arguments["kwargs"])
    except Exception as error:
        return error
    return "it could not be benchmarked"


class CompileHook(CallHook):
    """Lets one thread of this process compile at a time.

    ``cute.compile`` is not safe in threads: nvidia-cutlass-dsl 4.8.1 aborted the process when 4 threads compiled 8
    kernels. Several threads compile if the user calls ``autotune_cache.tune(compile=…)``, or has a thread pool.
    """

    #: A lock that a thread can take again, because a compilation may start another compilation.
    _compiling = threading.RLock()

    def ask(self, call: HookedCall) -> None:
        call.enter(self._compiling)
