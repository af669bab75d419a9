"""The hooks that a mode of :mod:`pytest_autotune.modes` may fill."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pytest_autotune.cache.model import Entry, Problem
from pytest_autotune.run.lookup import Lookup, Question
from pytest_autotune.run.reporter import Reporter
from pytest_autotune.run.result import RunResult, Section
from pytest_autotune.run.sources import Source
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.workers.events import Event

#: Work that a thread can do beside the tests. Returns whether there was any work.
Job = Callable[[], bool]


@dataclass(frozen=True)
class Suite:
    """The collected tests.

    :param tests: the functions and values that each test is made of; the tests are in their order.
    :param is_part: the files that were collected have more tests.
    """

    tests: tuple[tuple[object, ...], ...]
    is_part: bool


class Mode:
    """A mode in one process. A method that a mode does not override does nothing.

    In a process that runs tests, pytest-autotune calls :meth:`begin_tests` once and :meth:`begin_test` for each test.
    A lookup asks the source of :meth:`build_source`. If a loaded choice is a hit, the lookup calls :meth:`has_turn`
    and :meth:`race`. :meth:`note_used` follows. :meth:`test_failed` is called for each failed test, and :meth:`end`
    after the last test.

    In the process that ends the run, with the events of all processes, :meth:`list_replacing_entries` may be called
    more than once. :meth:`build_section` is called when the run is settled and judged.
    """

    #: The name of the mode's module and of its flag.
    name = ""
    #: The reason, in words, why it is an error to load or dump a cache in this mode; empty if it is no error.
    error_with_caches = ""
    #: The reason, in words, why it is an error to load no cache in this mode; empty if it is no error.
    error_without_loaded = ""
    #: The mode does nothing in a run that loads no cache for all tests.
    needs_loaded = False
    #: The mode gives candidates in place of searches, so every test must ask for every problem again.
    picks_candidates = False

    @property
    def typed_value(self) -> str:
        """The value of the mode's flag, as a user types it; empty for a switch.

        The header of a run names only modes with a value.
        """
        return ""

    def begin_tests(
        self, reporter: Reporter, folder: Path | None, processes: int, jobs: Callable[[], Sequence[Job]]
    ) -> None:
        """Begin a run: all tests are collected, and none has begun.

        :param folder: the run's own folder, which all its processes on this machine share; None if there is none.
        :param processes: the number of processes that run tests on this machine.
        :param jobs: lists the work that the tuners can do beside the tests, the most urgent work first.
        """

    def begin_test(self) -> None:
        """Begin a test."""

    def build_source(self, question: Question, reporter: Reporter) -> Source | None:
        """Return the source of the candidates that the mode picks; None if it picks none for this question."""
        return None

    def has_turn(self, problem: Problem, *, now: bool = False) -> bool:
        """Whether the mode wants to race a loaded choice of this problem before the tuner uses it.

        :param now: also ask whether there is time left for the race.
        """
        return False

    def race(self, reporter: Reporter, tuning: Tuning, contest: Callable[[], Any]) -> None:
        """Race the loaded choice of a tuning. The tuner uses the choice, whatever the result is.

        :param contest: builds the contest: see :meth:`pytest_autotune.run.tuning.Tuning.race`.
        """

    def note_used(self, lookup: Lookup, entry: Entry) -> None:
        """Note that a tuner has used an entry."""

    def test_failed(self, test: str) -> tuple[Sequence[str], Sequence[Event]]:
        """Return lines for the report of a failed test, and events for the log.

        :param test: its node id.
        """
        return (), ()

    def end(self) -> Iterable[Event]:
        """Return the last events for the log. The tests are over."""
        return ()

    def list_replacing_entries(self, events: Sequence[Event], lookups: Sequence[Lookup]) -> Iterable[Entry]:
        """Return the entries that a dump holds in place of the entries that were used.

        :param events: of all modes.
        :param lookups: without those that a single test's cache gave another choice.
        """
        return ()

    def build_section(self, result: RunResult) -> Section:
        """Return the words of the mode at the end. ``result.collected.mode_events`` has the events of all modes."""
        return Section(self.name, self.typed_value)
