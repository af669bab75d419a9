"""A sweep: each problem runs with one of its candidates; the seed and the problem decide, and nothing else.

So a failure comes back with the same seed, in any order of the tests, with any workers, for one test alone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.model import Candidate, Entry, Identity, Problem
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.modes import part_of
from pytest_autotune.report.counts import NO_LOOKUPS
from pytest_autotune.report.json_report import build_candidate_mapping, build_problem_mapping
from pytest_autotune.report.naming import describe_problem
from pytest_autotune.run.lookup import Lookup, UsedEntry
from pytest_autotune.run.mode import Mode
from pytest_autotune.run.notes import Notes
from pytest_autotune.run.question import Question
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.section import Finding, Section
from pytest_autotune.run.sources import Answer, Rejection, Source, select_rejections
from pytest_autotune.workers.events import Event

#: The kind of event that tells what a test that failed ran with.
FAILED_WITH = "failed with"


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
    picks_candidates = True

    def __str__(self) -> str:
        return f"{self.part}/{self.parts}" if self.parts else self.seed

    def ordered(self, problem: Problem, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates in the order in which a problem tries them, in whatever order they are given.

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

    def build_source(self, question: Question, reporter: Notes) -> Source | None:
        """Return the source of the problem's candidates, in the order of this sweep."""
        problem = question.problem
        candidates: Sequence[Candidate] = ()
        with reporter.guard(problem.tuner, "candidates()"):
            candidates = question.candidates()
            if not candidates:
                reporter.note(
                    f"{problem.tuner} does not say what its candidates are: in a sweep, too, it chose by itself"
                )
        return SweptCandidates(self.ordered(problem, candidates))

    def begin_test(self) -> None:
        self.ran_with.clear()

    def note_used(self, lookup: Lookup, entry: Entry) -> None:
        self.ran_with[lookup.identity] = entry

    def test_failed(self, test: str) -> tuple[Sequence[str], Sequence[Event]]:
        used = [(asked.problem, entry.choice) for asked, entry in self.ran_with.items()]
        lines = [to_one_line(f"{problem}: {choice}") for problem, choice in used if choice is not None]
        events = [Event(FAILED_WITH, asked, entry, test) for asked, entry in self.ran_with.items()]
        return lines or ["no candidate of a sweep was asked for"], events

    def build_section(self, result: RunResult) -> Section:
        entries = [lookup.entry for lookup in result.collected.lookups if lookup.entry and not lookup.is_searched]
        entries = [entry for entry in entries if entry.choice is not None]  # what a tuner chose by itself is left out
        sizes = {entry.problem: len(entry.candidates) for entry in entries}
        labels = {row.problem: row.label for row in result.rows}
        order = list(labels)
        # What could not be used, and what ran in tests that failed.
        met = {(entry.problem, one, "") for entry in entries for one in entry.candidates if one.failed}
        for event in result.collected.mode_events:
            if event.kind == FAILED_WITH and event.entry and event.entry.choice and event.entry.problem in labels:
                met.add((event.entry.problem, event.entry.choice, event.test))
        rows = sorted(met, key=lambda one: (not one[2], order.index(one[0]), str(one[1]), one[2]))
        what = f"{describe_count(len(sizes), 'problem')} ran with candidates of --autotune-sweep={self}"
        failed = len({problem for problem, _, test in rows if test})
        lines = [what + (f"; {failed} of them in tests that failed" if failed else "")]
        if more := sum(size > self.parts > 0 for size in sizes.values()):
            lines.append(
                f"{describe_count(more, 'problem has', 'problems have')} more than {self.parts} candidates, "
                f"{max(sizes.values())} at most: in so many sweeps all of them run"
            )
        data = [
            {**build_problem_mapping(problem), "candidate": build_candidate_mapping(candidate), "failed_test": test}
            for problem, candidate, test in rows
        ]
        return Section(
            self.name,
            str(self),
            tuple(lines) if sizes else (NO_LOOKUPS,),
            tuple(_finding(describe_problem(one, labels[one]), candidate, test) for one, candidate, test in rows),
            stands_for_counts=True,
            data={"modes": {self.name: {"seed": str(self), "rows": data}}},
        )


@dataclass(frozen=True)
class SweptCandidates:
    """The source of the candidates of a sweep: the first, and after each rejection the next."""

    ordered: Sequence[Candidate]

    def ask(self, question: Question, rejections: Sequence[Rejection]) -> Answer | None:
        """Return the next candidate; see :class:`pytest_autotune.run.sources.Source`."""
        own_rejections = select_rejections(rejections, self)
        number = len(own_rejections)
        if number == len(self.ordered):
            return None
        noted = list(self.ordered)
        for position, rejection in enumerate(own_rejections):
            noted[position] = replace(noted[position], failed=rejection.reason)
        entry = Entry(question.problem, question.fingerprint, self.ordered[number], tuple(noted))
        return Answer(result=UsedEntry(entry))


def parse(text: str) -> Sweep:
    """Parse a seed such as ``"7"``, or ``"2/5"`` for the second of five sweeps."""
    if part := part_of(text):
        return Sweep("", *part)
    if not text or "/" in text:
        raise ValueError(f"expected a seed such as 7, or a part such as 2/5, not {text!r}")
    return Sweep(text)


def make(sweep: Sweep) -> Sweep:
    """The mode, by its option."""
    return sweep


def _finding(problem: str, candidate: Candidate, test: str) -> Finding:
    if test:
        return Finding("FAILED", problem, f"ran with {candidate}", test, is_failure=True)
    return Finding("REFUSED", problem, f"{candidate}: {candidate.failed}")


def _encoded(candidate: Candidate) -> bytes:
    return repr((candidate.id, [value.encoded for value in candidate.params])).encode()
