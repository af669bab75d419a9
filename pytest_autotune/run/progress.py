"""What a process is tuning now, for whoever waits for it: a line on the terminal, or the controller of this worker."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from pytest_autotune.cache.model import Problem

WAITING_FOR_GPU = "waiting for the GPU"
WAITING_FOR_WORKER = "waiting for another worker's tuning"


@dataclass(frozen=True)
class Stage:
    """How far a tuning has come.

    :param kernel: ``triton:lib.matmul``.
    :param since: when it began, in seconds of :func:`time.time`, which processes of one machine share.
    :param number: the candidate that is tried now, from 1; 0 where the tuner does not say.
    :param of: how many there are.
    :param waits: for what it waits; empty where it does not.
    :param racing: candidates take turns, and ``number`` is how many of them are still in the race.
    """

    kernel: str
    since: float
    number: int = 0
    of: int = 0
    waits: str = ""
    racing: bool = False

    def text(self, now: float) -> str:
        """The stage in words: ``triton:lib.matmul: candidate 3 of 12, 4s, waiting for the GPU``."""
        tried = (
            f"{self.number} of {self.of} candidates race" if self.racing else f"candidate {self.number} of {self.of}"
        )
        parts = [tried] if self.number else []
        parts += [f"{max(now - self.since, 0):.0f}s", *filter(None, [self.waits])]
        return f"{self.kernel}: {', '.join(parts)}"


class Progress:
    """The tunings of this process; of those inside others, the innermost is told.

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
    def open(self) -> list[str]:
        """The problems that are tuned now, as ``tuner:kernel``."""
        return sorted(stage.kernel for stage in self._stages.values())

    def begin(self, problem: Problem, waits: str = "") -> None:
        """A problem is searched, or another process's search waited for; once it ends, call :meth:`end`."""
        stage = self._stages.get(problem) or Stage(problem.name, self._now())
        self._set(problem, replace(stage, waits=waits))

    def begin_search(self, problem: Problem) -> None:
        """This process searches."""
        self.searches += 1
        self.begin(problem)

    def waits(self, problem: Problem, waits: str = "") -> None:
        """A tuning waits for something, or no more."""
        if problem in self._stages:
            self._set(problem, replace(self._stages[problem], waits=waits))

    def tries(self, problem: Problem, number: int, of: int) -> None:
        """A tuning tries a candidate.

        :param number: from 1.
        """
        if problem in self._stages:
            self._set(problem, replace(self._stages[problem], number=number, of=of, waits="", racing=False))

    def races(self, problem: Problem, left: int, of: int) -> None:
        """A tuning has its candidates race.

        :param left: how many may still win.
        """
        if problem in self._stages:
            self._set(problem, replace(self._stages[problem], number=left, of=of, waits="", racing=True))

    def end(self, problem: Problem) -> None:
        """A tuning is over; nothing for one that never began."""
        if self._stages and self._stages.pop(problem, None) is not None:
            self._tell(next(reversed(self._stages.values()), None))

    def _set(self, problem: Problem, stage: Stage) -> None:
        self._stages[problem] = stage
        self._tell(next(reversed(self._stages.values())))
