"""A sweep: each problem runs with a candidate that only the seed and the problem decide.

A failure therefore comes back with the same seed: in any order of the tests, with any workers, and for a single test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.model import Candidate, Entry, Identity, Problem
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.modes import parse_part
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

#: The kind of the events with the candidates of a failed test.
FAILED_WITH = "failed with"


@dataclass(frozen=True)
class Sweep(Mode):
    """A sweep, or a part of a series of sweeps.

    :param seed: empty for a part of a series.
    :param part: the number of the sweep in its series, from 1.
    :param parts: the length of the series. It runs every candidate of the problems that have no more candidates.
    :param ran_with: the candidates that the current test ran with, as entries.
    """

    seed: str = ""
    part: int = 0
    parts: int = 0
    ran_with: dict[Identity, Entry] = field(default_factory=dict, compare=False)

    name = "sweep"
    without_caches = "a sweep loads and dumps nothing"
    picks_candidates = True

    def __str__(self) -> str:
        if self.parts:
            return f"{self.part}/{self.parts}"
        return self.seed

    def ordered(self, problem: Problem, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which a problem tries them. Their given order does not matter.

        The sweeps of a series begin with different candidates.
        """
        distinct = {_encoded(candidate): candidate for candidate in candidates}
        prefix = repr((self.seed, problem.digest)).encode()
        ranked = sorted(distinct, key=lambda encoded: hashlib.sha256(prefix + encoded).digest())
        if not ranked:
            return []
        number = len(ranked)
        first = 0
        if self.parts:
            # If there are more candidates than sweeps, the first candidates are spread over all of them.
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
        lines = []
        events = []
        for identity, entry in self.ran_with.items():
            if entry.choice is not None:
                lines.append(to_one_line(f"{identity.problem}: {entry.choice}"))
            events.append(Event(FAILED_WITH, identity, entry, test))
        return lines or ["no candidate of a sweep was asked for"], events

    def build_section(self, result: RunResult) -> Section:
        entries = _list_swept_entries(result)
        candidate_counts = {entry.problem: len(entry.candidates) for entry in entries}
        labels = {row.problem: row.label for row in result.rows}
        rows = _list_rows(result, entries)
        line = f"{describe_count(len(candidate_counts), 'problem')} ran with candidates of --autotune-sweep={self}"
        failed_problems = {row.problem for row in rows if row.failed_test}
        if failed_problems:
            line += f"; {len(failed_problems)} of them in tests that failed"
        lines = [line]
        if self.parts:
            large_counts = [count for count in candidate_counts.values() if count > self.parts]
            if large_counts:
                lines.append(
                    f"{describe_count(len(large_counts), 'problem has', 'problems have')} more than {self.parts} "
                    f"candidates, {max(large_counts)} at most: in so many sweeps all of them run"
                )
        data = []
        findings = []
        for row in rows:
            data.append(row.build_mapping())
            findings.append(row.build_finding(describe_problem(row.problem, labels[row.problem])))
        return Section(
            self.name,
            str(self),
            tuple(lines) if candidate_counts else (NO_LOOKUPS,),
            tuple(findings),
            stands_for_counts=True,
            data={"modes": {self.name: {"seed": str(self), "rows": data}}},
        )


@dataclass(frozen=True)
class SweepRow:
    """A candidate that a problem could not use, or that a failed test ran with.

    :param failed_test: the node id of the test; empty if the problem could not use the candidate.
    """

    problem: Problem
    candidate: Candidate
    failed_test: str = ""

    def build_mapping(self) -> dict[str, object]:
        """Return the row for the JSON report."""
        mapping: dict[str, object] = {**build_problem_mapping(self.problem)}
        mapping["candidate"] = build_candidate_mapping(self.candidate)
        mapping["failed_test"] = self.failed_test
        return mapping

    def build_finding(self, problem: str) -> Finding:
        """Return the row for the summary.

        :param problem: the problem in words.
        """
        if self.failed_test:
            return Finding("FAILED", problem, f"ran with {self.candidate}", self.failed_test, is_failure=True)
        return Finding("REFUSED", problem, f"{self.candidate}: {self.candidate.failed}")


def _list_swept_entries(result: RunResult) -> list[Entry]:
    """Return the entries of the candidates that problems ran with, without the choices that tuners made themselves."""
    entries = []
    for lookup in result.collected.lookups:
        if lookup.entry is not None and lookup.entry.choice is not None and not lookup.is_searched:
            entries.append(lookup.entry)
    return entries


def _list_rows(result: RunResult, entries: Sequence[Entry]) -> list[SweepRow]:
    """Return the rows of a sweep: those of failed tests first, then in the order of the problems.

    :param entries: the entries of the candidates that problems ran with.
    """
    order = {row.problem: position for position, row in enumerate(result.rows)}
    rows = set()
    for entry in entries:
        for candidate in entry.candidates:
            if candidate.failed:
                rows.add(SweepRow(entry.problem, candidate))
    for event in result.collected.mode_events:
        if event.kind != FAILED_WITH or event.entry is None or event.entry.choice is None:
            continue
        if event.entry.problem in order:
            rows.add(SweepRow(event.entry.problem, event.entry.choice, event.test))
    return sorted(rows, key=lambda row: (not row.failed_test, order[row.problem], str(row.candidate), row.failed_test))


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
    """Parse a seed such as ``"7"``, or ``"2/5"`` for the second sweep of five.

    :raises ValueError: for any other text.
    """
    part = parse_part(text)
    if part is not None:
        return Sweep("", part.number, part.total)
    if not text or "/" in text:
        raise ValueError(f"expected a seed such as 7, or a part such as 2/5, not {text!r}")
    return Sweep(text)


def make(sweep: Sweep) -> Sweep:
    """Make the mode from its option."""
    return sweep


def _encoded(candidate: Candidate) -> bytes:
    return repr((candidate.id, [value.encoded for value in candidate.params])).encode()
