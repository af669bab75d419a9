"""What is to be said at a test: CI systems show it at the file and line. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from pytest_autotune.report.naming import described
from pytest_autotune.report.rows import NOT_COVERED, Row
from pytest_autotune.report.summary import Place, Summary

#: Of what no test asked for.
NOWHERE = Place("")


@dataclass(frozen=True)
class Finding:
    """Something that the author of a test is to know.

    :param word: what it is, as rows of the terminal begin: ``"stale"``.
    :param text: problem and reason, or kernel and reason.
    :param fails: the run or the test fails for it.
    :param row: the problem, where it is one that is no hit: several of these may be told as one.
    :param identity: 32 hexadecimal digits; the same for the same thing in another run, whatever its reason says.
    """

    word: str
    text: str
    place: Place
    fails: bool
    identity: str
    row: Row | None = None

    def __str__(self) -> str:
        return f"{self.word.upper()} {self.text}"


def findings(summary: Summary) -> Iterator[Finding]:
    """All findings of a run, in the order of its rows."""

    def of(row: Row, word: str, why: str, fails: bool, tests: Sequence[str], *which: str) -> Finding:
        # Of a test whose worker died, only its name is known.
        known = [summary.places.get(test) or Place(test.partition("::")[0]) for test in tests]
        place = max(known, key=lambda one: one.line > 0, default=NOWHERE)
        text = f"{described(row.problem, row.label)}: {why}"
        return Finding(word, text, place, fails, _digest(word, row.problem.digest, *which))

    gate_fails, drift_fails = bool(summary.gate.failure), bool(summary.drift.failure)
    for row in summary.rows:
        if row.outcome in NOT_COVERED:
            assert row.outcome is not None
            fails = gate_fails or row.outcome in summary.refused
            yield replace(of(row, row.outcome.value, row.reason, fails, row.tests), row=row)
        for one in row.swept:
            for test in one.failed_tests:
                # Several tests may fail with one candidate, and one test with several.
                yield of(row, "failed", f"ran with {one.candidate}", True, [test], test, str(one.candidate))
    for row in summary.slower:
        yield of(row, "slower", str(row.verdict), drift_fails, row.tests)
    for kernel in summary.unseen:
        text = f"{kernel}: tuned without passing the plugin"
        yield Finding("unseen", text, NOWHERE, gate_fails, _digest("unseen", kernel))


def _digest(*parts: str) -> str:
    return hashlib.sha256(" ".join(parts).encode("utf-8", "backslashreplace")).hexdigest()[:32]
