"""``pytest-autotune prune``: drop what several runs together did not ask for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Set
from dataclasses import replace
from typing import Any, TypeAlias

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.cli.output import FOUND, OK, PATH, matches, on_device, print_lines, safe, warned
from pytest_autotune.report.json_report import entry_mapping, problem_mapping

#: A problem, or an entry, as a report names it: tuner, kernel, device, key, fingerprint; a problem has none of that.
_Reported: TypeAlias = "tuple[str, ...]"


@click.command("prune", short_help="drop entries that no run asked for")
@click.argument("file", metavar="FILE", type=PATH)
@click.option(
    "--unused-in",
    "paths",
    metavar="REPORT.json",
    type=PATH,
    multiple=True,
    required=True,
    help="A report that --autotune-report wrote. Repeatable: what one of them has asked for stays.",
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
    """Drop the entries of the cache FILE that a report calls unused, and none of them asked for.

    A report of a run that was not complete is refused, unless --together says that all of them make one. What is of
    another device stays.
    """
    reports = [_report(path, together) for path in paths]
    kernels = {problem[:3] for asked, _ in reports for problem in asked} if together else set()  # with their device

    def is_unused(entry: Entry) -> bool:
        device_of = entry.problem.device
        if not matches(device, device_of.id, device_of.name):
            return False
        reported, problem = _reported(entry_mapping(entry)), _reported(problem_mapping(entry.problem))
        # Who calls it unused has asked for its problem with other code.
        is_asked = any(problem in asked and reported not in unused for asked, unused in reports)
        return not is_asked and (reported[:3] in kernels or any(reported in unused for _, unused in reports))

    def without_unused(now: Cache) -> Cache:
        return replace(now, entries=tuple(entry for entry in now.entries if not is_unused(entry)))

    store = stores.open_store(file)
    cache, elsewhere = warned(store.read()), ""
    dropped = [entry for entry in cache.entries if is_unused(entry)]
    if dropped and not dry_run:
        store.check_writable()
        updated = store.update(without_unused, removing=True)
        elsewhere = f", written to {safe(updated.written_to)}" if updated.beside else ""
    would = "would be dropped" if dry_run else "dropped"
    counts = f"{describe_count(len(dropped), 'entry')} {would}, {len(cache.entries) - len(dropped)} kept{elsewhere}"
    print_lines([counts, *(on_device(entry.problem) for entry in dropped)])
    return FOUND if exit_code and dropped else OK


def _reported(row: Mapping[str, Any]) -> _Reported:
    values = (json.dumps(row.get(name), sort_keys=True) for name in ("key", "fingerprint"))
    return str(row["tuner"]), str(row["kernel"]), str(row["device"]), *values


def _report(path: str, together: bool) -> tuple[Set[_Reported], Set[_Reported]]:
    """The problems that the run of a report asked for, and those of entries that it calls unused.

    :param together: the run need not be complete.
    :raises CacheError: where the path holds no such report.
    """
    try:
        plain = json.loads(stores.read_file(path))
        asked, unused = (frozenset(map(_reported, plain[name])) for name in ("lookups", "unused"))
        incomplete = "" if plain["complete"] else str(plain.get("incomplete_reason") or "it does not say why")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CacheError(path, "is no JSON report of a run", "write one with --autotune-report=REPORT.json") from None
    if incomplete and not together:
        found = f"of a run that was not complete ({incomplete}), so nothing is known to be unused"
        raise CacheError(path, found, "with all shards' reports: --together")
    return asked, unused
