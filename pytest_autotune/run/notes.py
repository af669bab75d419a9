"""What a process has to say to the user: notes, what is tuned now, and the guard.

An error of ours costs a line, never a test; ``autotune_debug`` has its traceback written to standard error, too.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import TypeVar

from pytest_autotune.cache.foreign_text import error_message
from pytest_autotune.cache.model import Problem

_T = TypeVar("_T")


class Notes:
    """The lines of one process for the summary, each once.

    :param debug: write the tracebacks of errors, to standard error as it is now: pytest captures it during tests.
    """

    def __init__(self, debug: bool = False) -> None:
        self.notes: list[str] = []
        #: tuner -> why it could not be hooked, or which error of ours left a call of it alone.
        self.unhooked_tuners: dict[str, str] = {}
        self._debug_to = os.dup(2) if debug else None

    def note(self, text: str) -> None:
        """Show the user something in the summary."""
        if text not in self.notes:
            self.notes.append(text)

    def report_bypass(self, tuner: str, reason: str, error: BaseException | None = None) -> None:
        """Note for the user that a tuner, or a part of one, could not be hooked."""
        self._debug(error)
        self.unhooked_tuners[tuner] = reason
        self.note(f"{tuner} was bypassed: {reason}")

    def report_error(
        self, tuner: str, where: str, error: BaseException, more: str = "", *, is_counted: bool = True
    ) -> str:
        """Note an error of ours in one line: it must never fail a test, or the run.

        :param more: the end of the line.
        :param is_counted: no call was tuned for it without being counted: else it fails a limit on misses.
        :returns: the error in words.
        """
        self._debug(error)
        words = " ".join(f"error in {where}: {type(error).__name__}: {error_message(error)}".split())
        self.note(f"{tuner}: {words}{more}")
        if not is_counted:
            self.unhooked_tuners.setdefault(tuner, words)
        return words

    @contextmanager
    def guard(self, tuner: str, where: str) -> Iterator[None]:
        """Note an error of ours that is raised inside, and go on after it; Ctrl-C and time-outs pass."""
        try:
            yield
        except Exception as error:
            self.report_error(tuner, where, error)

    @contextmanager
    def guarded(self, tuner: str, held: AbstractContextManager[_T], otherwise: _T) -> Iterator[_T]:
        """Hold something of ours; ``otherwise`` is given where it cannot be had. What is raised inside passes."""
        with ExitStack() as exits:
            with self.guard(tuner, "the session"):
                otherwise = exits.enter_context(held)
            yield otherwise

    def _debug(self, error: BaseException | None) -> None:
        if self._debug_to is not None and error is not None:
            os.write(self._debug_to, "".join(traceback.format_exception(error)).encode(errors="backslashreplace"))


WAITING_FOR_GPU = "waiting for the GPU"
WAITING_FOR_WORKER = "waiting for another worker's tuning"


@dataclass(frozen=True)
class Stage:
    """How far a tuning has come.

    :param kernel: ``triton:lib.matmul``.
    :param since: when it began, in seconds of :func:`time.time`, which processes of one machine share.
    :param doing: which candidates it tries now, or for what it waits.
    """

    kernel: str
    since: float
    doing: str = ""

    def text(self, now: float) -> str:
        """The stage in words: ``triton:lib.matmul: candidate 3 of 12, 4s``."""
        return f"{self.kernel}: {', '.join(filter(None, [self.doing, f'{max(now - self.since, 0):.0f}s']))}"


class Progress:
    """The tunings of this process; of those inside others, the innermost is reported.

    :param tell: called whenever something changes, with the stage of now, or None when nothing is tuned any more.
    """

    def __init__(
        self, tell: Callable[[Stage | None], object] = lambda stage: None, now: Callable[[], float] = time.time
    ) -> None:
        self._tell = tell
        self._now = now
        self._stages: dict[Problem, Stage] = {}
        #: How many searches have begun.
        self.searches = 0

    @property
    def open_tunings(self) -> list[str]:
        """The problems that are tuned now, as ``tuner:kernel``."""
        return sorted(stage.kernel for stage in self._stages.values())

    def begin(self, problem: Problem, doing: str = "") -> None:
        """A problem is searched, or another process's search waited for; once it ends, call :meth:`end`."""
        stage = self._stages.get(problem) or Stage(problem.name, self._now())
        self._stages[problem] = replace(stage, doing=doing)
        self._tell_innermost()

    def begin_search(self, problem: Problem) -> None:
        self.searches += 1
        self.begin(problem)

    def at(self, problem: Problem, doing: str) -> None:
        if problem in self._stages:
            self.begin(problem, doing)

    def end(self, problem: Problem) -> None:
        """A tuning is over; nothing for one that never began."""
        if self._stages.pop(problem, None) is not None:
            self._tell_innermost()

    def _tell_innermost(self) -> None:
        self._tell([None, *self._stages.values()][-1])
