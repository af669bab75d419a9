"""The search that goes on in this thread, and the hook that sees CuTe benchmark its configurations."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Problem
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.shared.configurations import ConfigurationQuestion, SearchResults
from pytest_autotune.tuners.shared.patches import CallHook, HookedCall

NAME = "cute"


class CuteSearch:
    """One search: the tuning that it belongs to, and the results of its configurations."""

    def __init__(self, question: ConfigurationQuestion, tuning: Tuning) -> None:
        self.tuning = tuning
        self.results = SearchResults(question.configurations)
        #: The configuration that is compiled or benchmarked now.
        self.config: Mapping[str, Any] = {}
        self._count = len(question.candidates())
        self._tried = 0

    def begin(self, config: Mapping[str, Any]) -> None:
        """Begin with a configuration."""
        self.config = config
        self._tried += 1
        self.tuning.report_trial(self._tried, self._count)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        """Be the search of this thread."""
        token = _current_search.set(self)
        try:
            yield
        finally:
            _current_search.reset(token)


_current_search: ContextVar[CuteSearch | None] = ContextVar("current_search", default=None)


class BenchmarkHook(CallHook):
    """Takes the GPU for each benchmark of a search, and notes the time.

    The GPU is free while a configuration compiles, so that another worker can measure.
    """

    def ask(self, call: HookedCall) -> None:
        search = _current_search.get()
        if search is not None:
            call.state = search
            call.enter(search.tuning.measuring(find_lock_name()))

    def note(self, call: HookedCall, result: float) -> None:
        search = call.state
        if search is None:
            return
        if math.isfinite(result):
            search.results.note_time(search.config, result)
        else:
            # CuTe prints the error of a launch and returns infinity. A further launch gives the error again.
            search.results.note_failure(search.config, _launch_again(call))

    def note_error(self, call: HookedCall, error: Exception) -> None:
        if call.state is not None:
            call.state.results.note_failure(call.state.config, error)


def _launch_again(call: HookedCall) -> Exception | str:
    """Launch a configuration that failed, and return its error."""
    arguments = call.arguments
    try:
        arguments["callable"](*arguments["args"], **arguments["kwargs"])
    except Exception as error:
        return error
    return "it could not be benchmarked"


def find_lock_name() -> str:
    """Return the name of the processor that a measurement takes; empty for the current GPU."""
    if devices.current_gpu() is None:
        return "cpu"
    return ""


def build_problem(kernel: str) -> Problem:
    """Return a problem of the current device, without its key."""
    return Problem(NAME, kernel, (), devices.current_gpu() or devices.cpu())


def was_measured(session: Session, tuning: Tuning) -> bool:
    """Whether the choice was measured for this problem, so that it is known to work."""
    return not session.picks_candidates and not tuning.lookup.fallback
