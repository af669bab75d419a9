"""The lines that a process has for the summary, the tunings that run in it now, and the guard of our own errors.

An error of pytest-autotune costs a line of the summary, never a test. ``autotune_debug`` also writes its traceback to
standard error.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Protocol, TypeVar

from pytest_autotune.cache.model import Problem
from pytest_autotune.cache.wording import error_message

_T = TypeVar("_T")


class Notes:
    """The lines of one process for the summary, each once.

    :param debug: write the tracebacks of errors to standard error. A copy of its descriptor is kept from the beginning,
        because pytest captures standard error during tests.
    """

    def __init__(self, debug: bool = False) -> None:
        self.notes: list[str] = []
        #: tuner -> why it could not be hooked, or the error of pytest-autotune that left a call to the tuner.
        self.unhooked_tuners: dict[str, str] = {}
        self._debug_descriptor = os.dup(2) if debug else None

    def note(self, text: str) -> None:
        """Show the user a line in the summary."""
        if text not in self.notes:
            self.notes.append(text)

    def report_bypass(self, tuner: str, reason: str, error: BaseException | None = None) -> None:
        """Note for the user that a tuner, or a part of a tuner, could not be hooked."""
        self._write_traceback(error)
        self.unhooked_tuners[tuner] = reason
        self.note(f"{tuner} was bypassed: {reason}")

    def report_error(
        self, tuner: str, place: str, error: BaseException, consequence: str = "", *, is_counted: bool = True
    ) -> str:
        """Note an error of pytest-autotune in one line. It must never fail a test, or the run.

        :param place: the function that raised the error, in words.
        :param consequence: the end of the line.
        :param is_counted: the problem of the call is counted all the same. Otherwise the error fails a limit on misses.
        :returns: the error in words.
        """
        self._write_traceback(error)
        words = " ".join(f"error in {place}: {type(error).__name__}: {error_message(error)}".split())
        self.note(f"{tuner}: {words}{consequence}")
        if not is_counted:
            self.unhooked_tuners.setdefault(tuner, words)
        return words

    @contextmanager
    def guard(self, tuner: str, place: str) -> Iterator[None]:
        """Note an error of pytest-autotune that is raised inside, and go on after it. Ctrl-C and time-outs are raised.

        :param place: the function that is guarded, in words.
        """
        try:
            yield
        except Exception as error:
            self.report_error(tuner, place, error)

    @contextmanager
    def guarded(self, tuner: str, context: AbstractContextManager[_T], default: _T) -> Iterator[_T]:
        """Enter a context of pytest-autotune, and yield its value. An error inside the context is raised as always.

        :param default: the value if the context cannot be entered. The error of entering is noted.
        """
        value = default
        with ExitStack() as exits:
            with self.guard(tuner, "the session"):
                value = exits.enter_context(context)
            yield value

    def _write_traceback(self, error: BaseException | None) -> None:
        if self._debug_descriptor is not None and error is not None:
            text = "".join(traceback.format_exception(error))
            os.write(self._debug_descriptor, text.encode(errors="backslashreplace"))


WAITING_FOR_GPU = "waiting for the GPU"
WAITING_FOR_WORKER = "waiting for another worker's tuning"


@dataclass(frozen=True)
class Stage:
    """The stage of a tuning that runs now.

    :param kernel: ``triton:lib.matmul``.
    :param started_s: the beginning, in seconds of :func:`time.time`, which processes of one machine share.
    :param activity: the candidate that is compiled or measured now, or the thing that the tuning waits for.
    """

    kernel: str
    started_s: float
    activity: str = ""

    def describe(self, now_s: float) -> str:
        """Return the stage in words: ``triton:lib.matmul: candidate 3 of 12, 4s``."""
        seconds = f"{max(now_s - self.started_s, 0):.0f}s"
        if not self.activity:
            return f"{self.kernel}: {seconds}"
        return f"{self.kernel}: {self.activity}, {seconds}"


class ProgressDisplay(Protocol):
    """Shows the user the tuning of a process."""

    def show(self, stage: Stage | None) -> None:
        """Show the stage of now; None if nothing is tuned any more."""


class Progress:
    """The tunings of this process.

    :param display: shows the innermost tuning whenever its stage changes; None to show nothing.
    :param clock: returns the seconds of now; see :class:`Stage`.
    """

    def __init__(self, display: ProgressDisplay | None = None, clock: Callable[[], float] = time.time) -> None:
        self._display = display
        self._clock = clock
        #: The stages of open tunings, the innermost last.
        self._stages: dict[Problem, Stage] = {}

    @property
    def open_tunings(self) -> list[str]:
        """The problems that are tuned now, as ``tuner:kernel``."""
        return sorted(stage.kernel for stage in self._stages.values())

    def begin(self, problem: Problem, activity: str = "") -> None:
        """Begin a search, or the wait for the search of another process. Call :meth:`end` after it."""
        stage = self._stages.get(problem) or Stage(problem.name, self._clock())
        self._stages[problem] = replace(stage, activity=activity)
        self._show_innermost()

    def begin_search(self, problem: Problem) -> None:
        """Begin a search."""
        self.begin(problem)

    def update(self, problem: Problem, activity: str) -> None:
        """Show what an open tuning does now. A problem without an open tuning is ignored."""
        if problem in self._stages:
            self.begin(problem, activity)

    def end(self, problem: Problem) -> None:
        """End a tuning. A problem without an open tuning is ignored."""
        if self._stages.pop(problem, None) is not None:
            self._show_innermost()

    def _show_innermost(self) -> None:
        if self._display is not None:
            # Without an open tuning, only the None is in the list.
            self._display.show([None, *self._stages.values()][-1])
