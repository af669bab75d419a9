"""``pytest-autotune prune``: drop what several runs together did not ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, TypeAlias

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cli.output import FOUND, OK, PATH, matches, on_device, print_lines, safe
from pytest_autotune.report.json_report import problem_mapping

# A problem as a report names it: tuner, kernel, device and key.
_Reported: TypeAlias = "tuple[str, ...]"


class Report(NamedTuple):
    """What a JSON report of a run says about entries that were not asked for.

    :param incomplete: why nothing is known of them; empty where it is.
    :param devices: the ids of the devices that the run asked for problems of.
    :param asked: the problems that it asked for.
    """

    path: str
    incomplete: str
    devices: frozenset[str]
    asked: frozenset[_Reported]
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
@click.option("--device", metavar="NAME", help="Only entries of devices with this in id or name; a glob with * or ?.")
@click.option("--exit-code", is_flag=True, help="Exit status 1 where entries are dropped, or would be.")
def command(
    file: str, paths: tuple[str, ...], together: bool, dry_run: bool, device: str | None, exit_code: bool
) -> int:
    """Drop the entries of the cache FILE that are unused in all of the reports.

    A report of a run that was not complete is refused, unless --together says that all of them make one. What a
    run's device has nothing to do with stays.
    """
    reports = [_report(path) for path in paths]
    shard = next((report for report in reports if report.incomplete), None)
    if shard and not together:
        raise CacheError(
            shard.path,
            f"of a run that was not complete ({shard.incomplete}), so nothing is known to be unused",
            "with all shards' reports: --together",
        )
    kernels = {asked[:3] for report in reports for asked in report.asked}  # with their device

    def is_unused(entry: Entry) -> bool:
        problem = entry.problem
        if not matches(device, problem.device.id, problem.device.name):
            return False
        reported = _reported(problem_mapping(problem))
        saw = reports if together else [report for report in reports if problem.device.id in report.devices]
        # A report names problems: of several entries of one, it does not say which was asked for.
        if any(reported in report.asked for report in saw):
            return False
        unused_in = [reported in report.unused for report in saw]
        return reported[:3] in kernels or any(unused_in) if together else bool(saw) and all(unused_in)

    def without_unused(now: Cache) -> Cache:
        return replace(now, entries=tuple(entry for entry in now.entries if not is_unused(entry)))

    cache, elsewhere = stores.read(file), ""
    dropped = [entry for entry in cache.entries if is_unused(entry)]
    if dropped and not dry_run:
        stores.check_writable(file)
        updated = stores.update(file, without_unused, removing=True)
        elsewhere = f", written to {safe(updated.written_to)}" if updated.beside else ""
    would = "would be dropped" if dry_run else "dropped"
    kept = len(cache.entries) - len(dropped)
    counts = f"{counted(len(dropped), 'entry')} {would}, {kept} kept{elsewhere}"
    print_lines([counts, *(on_device(entry.problem) for entry in dropped)])
    return FOUND if exit_code and dropped else OK


def _reported(row: Mapping[str, Any]) -> _Reported:
    return str(row["tuner"]), str(row["kernel"]), str(row["device"]), json.dumps(row["key"], sort_keys=True)


def _report(path: str) -> Report:
    """The report that a path holds.

    :raises CacheError: where it holds none.
    """
    try:
        plain = json.loads(stores.file_bytes(path))
        asked, unused = (frozenset(map(_reported, plain[name])) for name in ("lookups", "unused"))
        devices = frozenset(str(device["id"]) for device in plain["devices"]) | {reported[2] for reported in unused}
        incomplete = "" if plain["complete"] else str(plain.get("incomplete_reason") or "it does not say why")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CacheError(path, "is no JSON report of a run", "write one with --autotune-report=REPORT.json") from None
    return Report(path, incomplete, devices, asked, unused)
