"""What a mode may do in a run: the hooks that :mod:`pytest_autotune.modes` fill, and what renderers show of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_autotune.cache.model import Candidate, Entry, Problem
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.workers.events import Event

if TYPE_CHECKING:
    from pathlib import Path

    from pytest_autotune.run.result import Gate, RunResult
    from pytest_autotune.run.session import Session
    from pytest_autotune.run.sources import Answers
    from pytest_autotune.run.tuning import Tuning

#: What can be done beside the tests, in a thread: returns whether there was anything to do.
Job = Callable[[], bool]


@dataclass(frozen=True)
class Finding:
    """One row of what is to be known of a run.

    :param word: what it is, as rows begin: ``"FAILED"``.
    :param problem: in words; what several that are one row have in common.
    :param test: the node id of the test that it is of, or of the first one; empty where it is of none.
    :param fails: a test or the run fails for it.
    :param count: of how many problems it is.
    """

    word: str
    problem: str
    text: str
    test: str = ""
    is_failure: bool = False
    problem_count: int = 1
    other_test_count: int = 0

    def __str__(self) -> str:
        return f"{f'{self.test} - ' if self.test else ''}{self.problem}: {self.text}"


@dataclass(frozen=True)
class ProblemRemark:
    """What a mode says of one problem.

    :param data: for the JSON report, by key beside those of the lookup.
    :param word: by which such problems are counted and filtered, where they stand out: ``"slower"``.
    """

    text: str
    data: Mapping[str, Any]
    word: str = ""


@dataclass(frozen=True)
class Section:
    """What a mode says at the end of a run.

    :param about: as a user types it again.
    :param lines: what it came to.
    :param stands_for_counts: the lines stand in the place of the counts; else they follow those.
    :param notes: lines in front of the counts.
    :param data: for the JSON report, by key beside those of the run.
    :param gate: what it has judged; None where it judges nothing.
    """

    name: str
    typed_value: str
    lines: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    stands_for_counts: bool = False
    notes: tuple[str, ...] = ()
    problem_remarks: Mapping[Problem, ProblemRemark] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    gate: Gate | None = None


@dataclass(frozen=True)
class Suite:
    """What collection has found.

    :param tests: for each test, in their order, the functions and values that it is made of.
    :param is_part: these are not all tests of the files that were collected.
    """

    tests: tuple[tuple[object, ...], ...]
    is_part: bool


class Mode:
    """A mode in one process. What is not overridden does nothing.

    In a process that runs tests: :meth:`collected`, once; for each test :meth:`begin_test`, for each lookup in it
    :meth:`offers`, or where a loaded choice is a hit :meth:`has_turn` and :meth:`race`, then :meth:`used`, and
    :meth:`test_failed` where it fails; :meth:`end` after the last one. Where the run comes together, with the events of
    all processes: :meth:`replacing`, perhaps more than once, and :meth:`section` when all else is settled and judged.

    Its text is the value of its flag, as a user types it; empty where it has none.
    """

    #: Of its module and of its flag.
    name = ""
    #: Why it is not to be combined with anything that is loaded or dumped, in words; empty where it may be.
    without_caches = ""
    #: What there is not where nothing is loaded, in words; empty where it needs nothing loaded.
    without_loaded = ""
    #: It does nothing where nothing is loaded for all tests.
    needs_loaded = False
    #: It gives candidates in place of searches, so every test is to ask for every problem anew.
    picks_candidates = False

    def __str__(self) -> str:
        return ""

    def begin_tests(
        self, session: Session, folder: Path | None, processes: int, jobs: Callable[[], Sequence[Job]]
    ) -> None:
        """The tests are known, and none has begun.

        :param folder: the run's own, the same for all its processes on this machine; None where there is none.
        :param processes: how many of them run tests here.
        :param jobs: gives what the tuners can do beside the tests, what those need first in front.
        """

    def begin_test(self) -> None:
        """A test begins."""

    def list_answers(
        self, session: Session, lookup: Lookup, candidates: Callable[[], Iterable[Candidate]] | None
    ) -> Answers:
        """What a tuner is to use one after another, where the mode picks candidates; sent back is why it cannot."""
        yield from ()

    def has_turn(self, problem: Problem, *, now: bool = False) -> bool:
        """Whether a loaded choice of this problem is to be raced before it is used.

        :param now: ask as well whether there is time left for it.
        """
        return False

    def race(self, session: Session, tuning: Tuning, contest: Callable[[], Any]) -> None:
        """Race the loaded choice that ``tuning`` has, which is used whatever comes of that.

        :param contest: gives what its tuner brings: see :meth:`pytest_autotune.run.tuning.Tuning.race`.
        """

    def note_used(self, lookup: Lookup, entry: Entry) -> None:
        """A tuner has used an entry."""

    def test_failed(self, test: str) -> tuple[Sequence[str], Sequence[Event]]:
        """A test has failed: what its report is to say, and what is to be written down.

        :param test: its node id.
        """
        return (), ()

    def end(self) -> Iterable[Event]:
        """The tests are over, or the run is: what is to be written down."""
        return ()

    def list_replacing_entries(self, events: Sequence[Event], lookups: Sequence[Lookup]) -> Iterable[Entry]:
        """What a dump is to hold in place of the entries that were used.

        :param events: those of all modes.
        :param lookups: but those that the cache of a single test gave another choice.
        """
        return ()

    def build_section(self, result: RunResult) -> Section:
        """What it says at the end; the events of all modes are in ``result.collected.others``."""
        return Section(self.name, str(self))
