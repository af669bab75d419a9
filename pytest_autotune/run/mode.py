"""What a mode may do in a run: the hooks that :mod:`pytest_autotune.modes` fill, and what renderers show of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_autotune.cache.model import Candidate, Entry, Problem
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.notes import Notes
from pytest_autotune.workers.events import Event

if TYPE_CHECKING:
    from pytest_autotune.run.result import Result
    from pytest_autotune.run.sources import Source


@dataclass(frozen=True)
class Finding:
    """One row of what is to be known of a run.

    :param word: what it is, as rows begin: ``"FAILED"``.
    :param problem: in words; what several that are one row have in common.
    :param what: what is to be known of it.
    :param test: the node id of the test that it is of, or of the first one; empty where it is of none.
    :param fails: a test or the run fails for it.
    :param count: of how many problems it is.
    :param more_tests: how many other tests it is of.
    :param detail: what is of interest to few.
    """

    word: str
    problem: str
    what: str
    test: str = ""
    fails: bool = False
    count: int = 1
    more_tests: int = 0
    detail: str = ""

    def __str__(self) -> str:
        return f"{f'{self.test} - ' if self.test else ''}{self.problem}: {self.what}"


@dataclass(frozen=True)
class Section:
    """What a mode says at the end of a run.

    :param name: of the mode.
    :param about: as a user types it again.
    :param lines: what it came to; they stand in the place of the counts.
    :param is_good: nothing of it is to be mended.
    :param data: for the JSON report, plain values.
    """

    name: str
    about: str
    lines: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    is_good: bool = True
    data: Mapping[str, Any] = field(default_factory=dict)


class Mode:
    """A mode in one process. What is not overridden does nothing.

    Its text is the value of its flag, as a user types it.
    """

    #: Of its module and of its flag.
    name = ""
    #: Why it is not to be combined with anything that is loaded or dumped, in words; empty where it may be.
    without_caches = ""
    #: It gives candidates in place of searches, so every test is to ask for every problem anew.
    picks = False

    def sources(
        self, notes: Notes, problem: Problem, candidates: Callable[[], Iterable[Candidate]] | None
    ) -> Sequence[Source]:
        """Where the choice for a lookup comes from, where the mode picks candidates."""
        return ()

    def begin_test(self) -> None:
        """A test begins."""

    def used(self, lookup: Lookup, entry: Entry) -> None:
        """A tuner has used an entry."""

    def test_failed(self, test: str) -> tuple[Sequence[str], Sequence[Event]]:
        """A test has failed: what its report is to say, and what is to be written down.

        :param test: its node id.
        """
        return (), ()

    def section(self, result: Result) -> Section:
        """What it says at the end; its own events are among those that were collected."""
        return Section(self.name, str(self))
