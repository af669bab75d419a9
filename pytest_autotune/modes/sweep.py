"""A sweep: each problem runs with a candidate that depends only on the seed and the problem.

The same seed therefore repeats a failure in any order of the tests, with any number of workers, and for a single test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from pytest_autotune.cache.model import Candidate, Entry, Identity, Problem
from pytest_autotune.cache.wording import describe_count, to_one_line
from pytest_autotune.modes import Portion, parse_portion
from pytest_autotune.report.gate import describe_test_counts
from pytest_autotune.report.json_report import build_candidate_mapping, build_problem_mapping
from pytest_autotune.report.naming import describe_problem
from pytest_autotune.run.lookup import Lookup, Question, UsedEntry
from pytest_autotune.run.reporter import Reporter
from pytest_autotune.run.result import Finding, RunResult, Section
from pytest_autotune.run.session import Mode
from pytest_autotune.run.sources import Answer, Rejection, Source, select_rejections
from pytest_autotune.workers.events import Event

#: The kind of the events with the candidates of a failed test.
FAILED_WITH = "failed with"


@dataclass(frozen=True)
class Sweep(Mode):
    """A sweep, or a part of a series of sweeps.

    :param seed: as the user typed it; empty for a part of a series.
    :param portion: the number of the sweep in its series; None outside a series. A series of 5 sweeps runs every
        candidate of a problem that has up to 5 candidates.
    :param ran_with: the entries of the candidates that the current test ran with.
    """

    seed: str = ""
    portion: Portion | None = None
    ran_with: dict[Identity, Entry] = field(default_factory=dict, compare=False)

    name = "sweep"
    error_with_caches = "--autotune-sweep neither loads nor dumps a cache"
    picks_candidates = True

    @property
    def typed_value(self) -> str:
        """The value of ``--autotune-sweep`` as the user types it: a seed such as ``7``, or a part such as ``2/5``."""
        if self.portion is not None:
            return str(self.portion)
        return self.seed

    def ordered(self, problem: Problem, candidates: Iterable[Candidate]) -> list[Candidate]:
        """Return the candidates in the order in which a problem tries them in this sweep.

        A digest of seed, problem and candidate decides the order. The order in which the tuner lists the candidates
        has no influence. The sweeps of a series rotate the same order, so that each begins with another candidate.
        """
        prefix = repr((self.seed, problem.digest)).encode()
        candidate_by_digest = {}
        for candidate in candidates:
            candidate_by_digest[hashlib.sha256(prefix + _encode(candidate)).digest()] = candidate
        ordered = [candidate_by_digest[digest] for digest in sorted(candidate_by_digest)]
        if not ordered:
            return []
        first = self._find_first_position(len(ordered))
        return ordered[first:] + ordered[:first]

    def _find_first_position(self, candidate_count: int) -> int:
        """Return the position of the candidate that this sweep begins with; 0 outside a series.

        With 3 candidates, the sweeps of a series of 5 begin with the positions 0, 1, 2, 0, 1. With 10 candidates, they
        begin with the positions 0, 2, 4, 6, 8.
        """
        if self.portion is None:
            return 0
        number, sweep_count = self.portion
        if candidate_count < sweep_count:
            # Each sweep begins one candidate later than the sweep before. After the last candidate comes the first.
            return (number - 1) % candidate_count
        # The sweeps begin at equal distances.
        return (number - 1) * candidate_count // sweep_count

    def build_source(self, question: Question, reporter: Reporter) -> Source | None:
        """Return the source that answers a question with the problem's candidates, in the order of this sweep.

        If the tuner does not know its candidates before its search, or fails to list them, the source has none.
        """
        tuner = question.problem.tuner
        candidates: Sequence[Candidate] = ()
        # An error of the adapter is a line of the summary.
        with reporter.guard(tuner, "candidates()"):
            candidates = question.candidates()
            if not candidates:
                reporter.note(
                    f"{tuner} does not list its candidates, so the sweep could not pick one and {tuner} tuned as usual"
                )
        return SweptCandidates(self.ordered(question.problem, candidates))

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
        return lines or ["this test used no candidate of the sweep"], events

    def build_section(self, result: RunResult) -> Section:
        """Return the section about the candidates that ran. It replaces the counts of hits and misses."""
        entries = _list_swept_entries(result)
        sweep_rows = _list_rows(result, entries)
        label_by_problem = {row.problem: row.label for row in result.rows}
        findings = []
        row_mappings = []
        for sweep_row in sweep_rows:
            problem_text = describe_problem(sweep_row.problem, label_by_problem[sweep_row.problem])
            findings.append(sweep_row.build_finding(problem_text))
            row_mappings.append(sweep_row.build_mapping())
        # In the JSON report, "seed" is also the part of a series.
        json_data = {"seed": self.typed_value, "rows": row_mappings}
        return Section(
            self.name,
            self.typed_value,
            self._list_lines(result, entries, sweep_rows),
            tuple(findings),
            stands_for_counts=True,
            data={"modes": {self.name: json_data}},
        )

    def _list_lines(self, result: RunResult, entries: Sequence[Entry], rows: Sequence[SweepRow]) -> tuple[str, ...]:
        """Return the lines of the summary: how many problems ran, and which series would run all their candidates.

        :param entries: the entries of the candidates that problems ran with.
        :param rows: the candidates of failed tests, and the candidates that problems could not use.
        """
        candidate_count_by_problem = {entry.problem: len(entry.candidates) for entry in entries}
        if not candidate_count_by_problem:
            # On a machine that has lost its GPU, all tests of kernels are skipped, and the run passes.
            tests = describe_test_counts(result.collected.test_counts)
            return (
                f"--autotune-sweep={self.typed_value} tested no candidate: no test called an "
                f"autotuned kernel ({tests})",
            )
        problems = describe_count(len(candidate_count_by_problem), "problem")
        line = f"{problems} ran with candidates of --autotune-sweep={self.typed_value}"
        failed_problems = {row.problem for row in rows if row.failed_test}
        if failed_problems:
            line += f"; {len(failed_problems)} of them in failed tests"
        longer_series = self._suggest_longer_series(candidate_count_by_problem.values())
        if longer_series:
            return line, longer_series
        return (line,)

    def _suggest_longer_series(self, candidate_counts: Iterable[int]) -> str:
        """Return the line with the series that runs all candidates of all problems.

        The text is empty if this series runs them all, and for a seed: it picks one candidate of each problem.

        :param candidate_counts: the number of candidates of each problem.
        """
        if self.portion is None:
            return ""
        # A series runs as many candidates of each problem as it has sweeps.
        sweep_count = self.portion.total
        larger_counts = [count for count in candidate_counts if count > sweep_count]
        if not larger_counts:
            return ""
        problems = describe_count(len(larger_counts), "problem has", "problems have")
        highest_count = max(larger_counts)
        series = f"--autotune-sweep=1/{highest_count} to {highest_count}/{highest_count}"
        return f"{problems} more than {sweep_count} candidates: to run all of them, use {series}"


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
        return Finding("REFUSED", problem, f"{self.candidate} could not run: {self.candidate.failed}")


def _list_swept_entries(result: RunResult) -> list[Entry]:
    """Return the entries of the candidates that problems ran with, without the choices that tuners made themselves."""
    entries = []
    for lookup in result.collected.lookups:
        if lookup.entry is not None and lookup.entry.choice is not None and not lookup.is_searched:
            entries.append(lookup.entry)
    return entries


def _list_rows(result: RunResult, entries: Sequence[Entry]) -> list[SweepRow]:
    """Return the rows of a sweep: the candidates that problems could not use, and the candidates of failed tests.

    The rows of failed tests come first. Otherwise the rows have the order of the problems in the result.

    :param entries: the entries of the candidates that problems ran with.
    """
    position_by_problem = {row.problem: position for position, row in enumerate(result.rows)}
    # A candidate that several processes could not use is one row.
    rows = set()
    for entry in entries:
        for candidate in entry.candidates:
            if candidate.failed:
                rows.add(SweepRow(entry.problem, candidate))
    for event in result.collected.mode_events:
        if event.kind != FAILED_WITH or event.entry is None or event.entry.choice is None:
            # A failed test that ran with the tuner's own choice did not run with a candidate of the sweep.
            continue
        if event.entry.problem in position_by_problem:
            rows.add(SweepRow(event.entry.problem, event.entry.choice, event.test))
    return sorted(
        rows,
        key=lambda row: (
            not row.failed_test,
            position_by_problem[row.problem],
            str(row.candidate),
            row.failed_test,
        ),
    )


@dataclass(frozen=True)
class SweptCandidates:
    """The source of the candidates of a sweep: it offers the first candidate, and after each rejection the next.

    :param ordered: the candidates in the order of the sweep.
    """

    ordered: Sequence[Candidate]

    def ask(self, question: Question, rejections: Sequence[Rejection]) -> Answer | None:
        """Return the next candidate; see :class:`pytest_autotune.run.sources.Source`."""
        own_rejections = select_rejections(rejections, self)
        # The candidates are offered in their order. So after two rejections, the third candidate is the next.
        next_position = len(own_rejections)
        if next_position == len(self.ordered):
            return None
        candidates = list(self.ordered)
        for position, rejection in enumerate(own_rejections):
            # The report lists the rejected candidates with their reasons.
            candidates[position] = replace(candidates[position], failed=rejection.reason)
        entry = Entry(question.problem, question.fingerprint, self.ordered[next_position], tuple(candidates))
        return Answer(result=UsedEntry(entry))


def parse(text: str) -> Sweep:
    """Parse a seed such as ``"7"``, or ``"2/5"`` for the second sweep of five.

    :raises ValueError: for any other text.
    """
    portion = parse_portion(text)
    if portion is not None:
        return Sweep("", portion)
    if not text or "/" in text:
        raise ValueError(f"expected a seed such as 7, or a part such as 2/5, not {text!r}")
    return Sweep(text)


def make(sweep: Sweep) -> Sweep:
    """Make the mode from its option."""
    return sweep


def _encode(candidate: Candidate) -> bytes:
    """Return the bytes that tell a candidate from all other candidates of its problem, without its time."""
    return repr((candidate.id, [value.encoded for value in candidate.params])).encode()
