"""``pytest-autotune prune``: drop what several runs together did not ask for."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Entry, Problem
from pytest_autotune.cli.arguments import PATH
from pytest_autotune.cli.json_reports import report_at
from pytest_autotune.cli.output import on_device, print_lines

# A problem as a report names it.
_Reported: TypeAlias = "tuple[str, str, str, str]"


@dataclass(frozen=True)
class Report:
    """What a JSON report of a run says about entries that were not asked for.

    :param incomplete: why nothing is known of them; empty where it is.
    :param devices: the ids of the devices that the run asked for problems of.
    :param asked: the problems that it asked for.
    :param kernels: (tuner, kernel, device id) of all that it asked for.
    """

    path: str
    incomplete: str
    devices: frozenset[str]
    asked: frozenset[_Reported]
    kernels: frozenset[tuple[str, str, str]]
    unused: frozenset[_Reported]


@click.command("prune", short_help="drop entries that no run asked for")
@click.argument("file", metavar="FILE", type=PATH)
@click.option(
    "--unused-in",
    "paths",
    metavar="REPORT.json",
    type=PATH,
    multiple=True,
    required=True,
    help="A report that --autotune-report wrote. Repeatable: only what is unused in all of them is dropped.",
)
@click.option(
    "--together",
    is_flag=True,
    help="The reports are parts of one run, such as shards, or skip tests: drop what none of them asked for, of the "
    "kernels and devices that they did ask for.",
)
@click.option("--dry-run", is_flag=True, help="Show what would be dropped, and write nothing.")
def command(file: str, paths: tuple[str, ...], together: bool, dry_run: bool) -> None:
    """Drop the entries of the cache FILE that are unused in all of the reports.

    A report of a run that was not complete is refused, unless --together says that all of them make one. What a
    run's device has nothing to do with stays.
    """
    reports = [_report(path) for path in paths]
    partial = next((report for report in reports if report.incomplete), None)
    if partial and not together:
        raise CacheError(
            partial.path,
            f"of a run that was not complete ({partial.incomplete}), so nothing is known to be unused",
            "with all shards' reports: --together",
        )
    unused = _unused_together(reports) if together else _unused_in_all(reports)
    cache = stores.read(file)
    dropped = [entry for entry in cache.entries if unused(entry)]
    if dropped and not dry_run:
        stores.check_writable(file)
        stores.update(file, lambda now: replace(now, entries=tuple(one for one in now.entries if not unused(one))))
    would = "would be dropped" if dry_run else "dropped"
    kept = len(cache.entries) - len(dropped)
    rows = [f"  {on_device(entry.problem)}" for entry in dropped]
    print_lines([f"{counted(len(dropped), 'entry')} {would}, {kept} kept", *rows])


def _unused_in_all(reports: Sequence[Report]) -> Callable[[Entry], bool]:
    def unused(entry: Entry) -> bool:
        device = entry.problem.device.id
        saw = [report for report in reports if device in report.devices]
        reported = _as_reported(entry.problem)
        # A report names problems: of several entries of one, it does not say which was asked for.
        return bool(saw) and all(reported in report.unused and reported not in report.asked for report in saw)

    return unused


def _unused_together(reports: Sequence[Report]) -> Callable[[Entry], bool]:
    asked = frozenset[_Reported]().union(*(report.asked for report in reports))
    kernels = frozenset[tuple[str, str, str]]().union(*(report.kernels for report in reports))
    reported_unused = frozenset[_Reported]().union(*(report.unused for report in reports))

    def unused(entry: Entry) -> bool:
        problem = entry.problem
        reported = _as_reported(problem)
        known = (problem.tuner, problem.kernel, problem.device.id) in kernels or reported in reported_unused
        return known and reported not in asked

    return unused


def _as_reported(problem: Problem) -> _Reported:
    return problem.tuner, problem.kernel, problem.device.id, _key({value.name: value.value for value in problem.key})


def _key(key: Any) -> str:
    return json.dumps(key, sort_keys=True)


def _report(path: str) -> Report:
    """The report that a path holds.

    :raises CacheError: where it holds none.
    """
    with report_at(path) as plain:
        asked = frozenset(_row(row) for row in plain["lookups"])
        unused = frozenset(_row(row) for row in plain["unused"])
        return Report(
            path,
            "" if plain["complete"] else str(plain.get("incomplete_reason") or "it does not say why"),
            frozenset(str(device["id"]) for device in plain["devices"]) | {reported[2] for reported in unused},
            asked,
            frozenset(reported[:3] for reported in asked),
            unused,
        )


def _row(row: dict[str, Any]) -> _Reported:
    return str(row["tuner"]), str(row["kernel"]), str(row["device"]), _key(row["key"])
