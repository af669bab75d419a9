"""``pytest-autotune sweep-table``: what several sweeps together ran, what failed, and what never ran."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import click

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Candidate, Value
from pytest_autotune.cli.arguments import PATH
from pytest_autotune.cli.json_reports import report_at
from pytest_autotune.cli.output import columns, heading, print_lines, safe
from pytest_autotune.cli.status import FOUND, OK

#: What became of a candidate, the worst first.
FAILED, RAN, REFUSED, NEVER = "failed", "ran", "refused", "never ran"


@dataclass
class _Ran:
    """What the reports say of one candidate of a problem."""

    name: str
    ran: bool = False
    refused: str = ""
    failed_tests: set[str] = field(default_factory=set)

    @property
    def became(self) -> str:
        if self.failed_tests:
            return FAILED
        if self.ran:
            return RAN
        return REFUSED if self.refused else NEVER


@dataclass
class _Problem:
    name: str
    candidates: dict[tuple[str, tuple[Value, ...]], _Ran] = field(default_factory=dict)

    def candidate(self, plain: dict[str, Any]) -> _Ran:
        params = tuple(Value(name, value) for name, value in plain["params"].items())
        candidate = Candidate(str(plain.get("id", "")), params, label=str(plain.get("label", "")))
        return self.candidates.setdefault((candidate.id, candidate.params), _Ran(str(candidate)))

    def number(self, became: str) -> int:
        return sum(candidate.became == became for candidate in self.candidates.values())


@click.command("sweep-table", short_help="what several sweeps together ran, and what failed")
@click.argument("reports", metavar="REPORT.json...", type=PATH, nargs=-1, required=True)
@click.option("--exit-code", is_flag=True, help="Exit status 1 where a candidate failed or never ran, or none did.")
def command(reports: tuple[str, ...], exit_code: bool) -> int:
    """Which candidates ran in the sweeps of these reports, which failed, and which never ran.

    The reports are those of runs with --autotune-sweep and --autotune-report=REPORT.json. A candidate failed where a
    test did that ran with it, among others perhaps.
    """
    problems: dict[str, _Problem] = {}
    for path in reports:
        _add(path, problems)
    print_lines(_lines([problems[key] for key in sorted(problems)]))
    bad = not problems or any(problem.number(FAILED) or problem.number(NEVER) for problem in problems.values())
    return FOUND if exit_code and bad else OK


def _add(path: str, problems: dict[str, _Problem]) -> None:
    """Take in what a report says.

    :raises CacheError: where the path holds no report of a sweep.
    """
    with report_at(path) as plain:
        is_sweep = bool(plain["sweep"])
        for row in plain["lookups"]:
            if row["swept"]:
                _add_row(row, problems)
    if not is_sweep:
        raise CacheError(path, "is the report of a run that was no sweep", "run with --autotune-sweep")


def _add_row(row: dict[str, Any], problems: dict[str, _Problem]) -> None:
    key = ", ".join(f"{name}={value}" for name, value in row["key"].items())
    name = f"{row['tuner']}:{row['kernel']}{f' ({key})' if key else ''} on {row['device']}"
    problem = problems.setdefault(name, _Problem(name))
    for candidate in row["candidates"]:
        found = problem.candidate(candidate)
        found.refused = found.refused or str(candidate.get("failed", ""))
    for swept in row["swept"]:
        found = problem.candidate(swept["candidate"])
        found.ran = True
        found.failed_tests.update(map(str, swept["failed_tests"]))


def _lines(problems: Sequence[_Problem]) -> Iterator[str]:
    every = [FAILED, RAN, REFUSED, NEVER]
    sums = {became: sum(problem.number(became) for problem in problems) for became in every}
    total = sum(sums.values())
    parts = [f"{number} {became}" for became, number in sums.items() if number]
    number = f"{counted(len(problems), 'problem')}, {counted(total, 'candidate')}"
    yield f"{number}: {', '.join(parts)}" if parts else number
    if not problems:
        return
    yield ""
    head = ["candidates", *every, "problem"]
    rows = [
        [str(len(one.candidates)), *(str(one.number(became) or "") for became in every), safe(one.name)]
        for one in problems
    ]
    first, *rest = columns([head, *rows], frozenset(range(5)))
    yield heading(first)
    yield from rest
    for became in (FAILED, REFUSED, NEVER):
        found = [(one, candidate) for one in problems for candidate in one.candidates.values()]
        found = [(one, candidate) for one, candidate in found if candidate.became == became]
        if found:
            yield ""
            yield heading(became)
        for one, candidate in found:
            why = ", ".join(sorted(candidate.failed_tests)) or candidate.refused
            yield safe(f"  {one.name}: {candidate.name}{f' - {why}' if why and became != NEVER else ''}")
