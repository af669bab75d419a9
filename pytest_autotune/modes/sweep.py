"""A sweep: each problem runs with one of its candidates; the seed and the problem decide, and nothing else.

So a failure comes back with the same seed, in any order of the tests, with any workers, for one test alone.
"""

from __future__ import annotations

import hashlib
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.model import Candidate, Entry, Identity, Problem
from pytest_autotune.report.json_report import candidate_mapping, problem_mapping
from pytest_autotune.report.naming import described
from pytest_autotune.report.terminal import NO_LOOKUPS
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.mode import Finding, Mode, Section
from pytest_autotune.run.result import Result
from pytest_autotune.run.session import Session
from pytest_autotune.run.sources import Answer, Source
from pytest_autotune.workers.events import Event

#: The kind of event that tells what a test that failed ran with.
FAILED_WITH = "failed with"
_PART = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True)
class Sweep(Mode):
    """A sweep, or one of several that belong together.

    :param seed: decides by itself; empty in one of several sweeps.
    :param part: the number of this sweep of ``parts``, from 1.
    :param parts: in so many sweeps every candidate has run, of problems that have no more candidates than that.
    :param ran_with: what the current test ran with.
    """

    seed: str = ""
    part: int = 0
    parts: int = 0
    ran_with: dict[Identity, Entry] = field(default_factory=dict, compare=False)

    name = "sweep"
    without_caches = "a sweep loads and dumps nothing"
    picks = True

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Parse a seed such as ``"7"``, ``"2/5"`` for the second of five sweeps.

        :raises ValueError: for anything else.
        """
        if match := _PART.fullmatch(text):
            if 0 < int(match[1]) <= int(match[2]):
                return cls(part=int(match[1]), parts=int(match[2]))
        elif text and "/" not in text:
            return cls(text)
        raise ValueError(f"expected a seed such as 7, or a part such as 2/5, not {text!r}")

    def __str__(self) -> str:
        return f"{self.part}/{self.parts}" if self.parts else self.seed

    def ordered(self, problem: Problem, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates in the order in which a problem tries them; the order in which they are given does not matter.

        Where several sweeps belong together, the first ones of all sweeps are different candidates.
        """
        distinct = {_encoded(candidate): candidate for candidate in candidates}
        prefix = repr((self.seed, problem.digest)).encode()
        ranked = sorted(distinct, key=lambda encoded: hashlib.sha256(prefix + encoded).digest())
        if not ranked:
            return []
        number = len(ranked)
        first = 0
        if self.parts:
            # Spread over more candidates than there are sweeps.
            first = (self.part - 1) * max(number, self.parts) // self.parts % number
        return [distinct[encoded] for encoded in ranked[first:] + ranked[:first]]

    def sources(
        self, session: Session, problem: Problem, candidates: Callable[[], Iterable[Candidate]] | None
    ) -> Sequence[Source]:
        """One for each candidate; where the tuner cannot use it, the next one has the next."""
        if candidates is None:
            session.note(f"{problem.tuner} does not say what its candidates are: in a sweep, too, it chose by itself")
            return ()
        with session.guard(problem.tuner, "candidates()"):
            ordered, refused = self.ordered(problem, candidates()), dict[int, str]()
            return [Swept(ordered, number, refused) for number in range(len(ordered))]
        return ()

    def begin_test(self) -> None:
        self.ran_with.clear()

    def used(self, lookup: Lookup, entry: Entry) -> None:
        self.ran_with[lookup.identity] = entry

    def test_failed(self, test: str) -> tuple[Sequence[str], Sequence[Event]]:
        used = [(asked.problem, entry.choice) for asked, entry in self.ran_with.items()]
        lines = [one_line(f"{problem}: {choice}") for problem, choice in used if choice is not None]
        events = [Event(FAILED_WITH, asked, entry, test) for asked, entry in self.ran_with.items()]
        return lines or ["no candidate of a sweep was asked for"], events

    def section(self, result: Result) -> Section:
        problems = _problems(result)
        failed = sum(any(tests for _, tests in one.ran_with) for one in problems)
        what = f"{counted(len(problems), 'problem')} ran with candidates of --autotune-sweep={self}"
        lines = [what + (f"; {failed} of them in tests that failed" if failed else "")]
        most = max((len(one.candidates) for one in problems), default=0)
        if self.parts and most > self.parts:
            more = sum(len(one.candidates) > self.parts for one in problems)
            lines.append(
                f"{counted(more, 'problem has', 'problems have')} more than {self.parts} candidates, {most} at most: "
                "in so many sweeps all of them run"
            )
        data = {"seed": str(self), "problems": [one.mapping for one in problems]}
        return Section(
            self.name,
            str(self),
            tuple(lines) if problems else (NO_LOOKUPS,),
            (*_failed(problems), *_refused(problems)),
            stands_for_counts=True,
            data={"modes": {self.name: data}},
        )


def parse(text: str) -> Sweep:
    """See :class:`Sweep`."""
    return Sweep.parse(text)


def make(sweep: Sweep) -> Sweep:
    """The mode, by its option."""
    return sweep


class Swept(Source):
    """One candidate of a sweep.

    :param candidates: all of them, in the order of the sweep.
    :param number: of this source's among them.
    :param refused: why those before it could not be used, by number; shared by the sources of one lookup.
    """

    def __init__(self, candidates: Sequence[Candidate], number: int, refused: dict[int, str]) -> None:
        self._candidates = candidates
        self._number = number
        self._refused = refused

    def ask(self, lookup: Lookup) -> Answer:
        noted = tuple(
            replace(candidate, failed=self._refused.get(number, ""))
            for number, candidate in enumerate(self._candidates)
        )
        entry = Entry(lookup.problem, lookup.fingerprint, self._candidates[self._number], noted)
        return Answer(replace(lookup, entry=entry), entry)

    def rejected(self, lookup: Lookup, reason: str) -> Lookup:
        self._refused[self._number] = reason
        return lookup


@dataclass(frozen=True)
class _Problem:
    """A problem in a sweep, from all processes that met it.

    :param ran_with: (candidate, the tests that ran with it and failed): one, or one for each list that pruning left.
    :param candidates: all of them, with why they could not be used.
    """

    problem: Problem
    label: str
    ran_with: tuple[tuple[Candidate, tuple[str, ...]], ...]
    candidates: tuple[Candidate, ...]

    @property
    def mapping(self) -> dict[str, object]:
        return {
            **problem_mapping(self.problem),
            "ran_with": [
                {"candidate": candidate_mapping(one), "failed_tests": list(tests)} for one, tests in self.ran_with
            ],
            "candidates": [*map(candidate_mapping, self.candidates)],
        }


def _problems(result: Result) -> list[_Problem]:
    """What ran with candidates of the sweep; what a tuner chose by itself is not among it."""
    met: defaultdict[Problem, list[Lookup]] = defaultdict(list)
    for _, lookup in result.collected.lookups:
        if lookup.entry is not None and lookup.entry.choice is not None and not lookup.searched:
            met[lookup.problem].append(lookup)
    tests: defaultdict[tuple[Problem, Candidate], set[str]] = defaultdict(set)
    for event in result.collected.others:
        if event.kind == FAILED_WITH and event.entry is not None and event.entry.choice is not None:
            tests[event.entry.problem, event.entry.choice].add(event.test)
    labels = {row.problem: row.label for row in result.rows}
    return [_problem(row, met[row], labels[row], tests) for row in (one.problem for one in result.rows) if row in met]


def _problem(
    problem: Problem, met: Iterable[Lookup], label: str, tests: dict[tuple[Problem, Candidate], set[str]]
) -> _Problem:
    entries = [lookup.entry for lookup in met if lookup.entry is not None]
    choices = sorted({entry.choice for entry in entries if entry.choice is not None}, key=repr)
    known: dict[Candidate, Candidate] = {}
    for candidate in (candidate for entry in entries for candidate in entry.candidates):
        # Of two processes, one may have refused what the other did not come to.
        plain = replace(candidate, failed="")
        known[plain] = max(candidate, known.get(plain, plain), key=lambda one: one.failed)
    ran_with = tuple((choice, tuple(sorted(tests.get((problem, choice), ())))) for choice in choices)
    return _Problem(problem, label, ran_with, tuple(known[plain] for plain in sorted(known, key=repr)))


def _failed(problems: Iterable[_Problem]) -> Iterator[Finding]:
    """What ran in tests that failed."""
    for one in problems:
        for candidate, tests in one.ran_with:
            for test in tests:
                yield Finding("FAILED", described(one.problem, one.label), f"ran with {candidate}", test, fails=True)


def _refused(problems: Iterable[_Problem]) -> Iterator[Finding]:
    """What could not be used."""
    for one in problems:
        for candidate in one.candidates:
            if candidate.failed:
                yield Finding("REFUSED", described(one.problem, one.label), f"{candidate}: {candidate.failed}")


def _encoded(candidate: Candidate) -> bytes:
    return repr((candidate.id, [value.encoded for value in candidate.params])).encode()
