"""The command ``pytest-autotune prune``, which drops the entries that no run needs, by the JSON reports of the runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.cli.output import FOUND, OK, PATH, describe_on_device, matches, print_lines, safe, with_warning
from pytest_autotune.report.json_report import build_entry_mapping, build_problem_mapping
from pytest_autotune.report.process_gate import list_folder_errors
from pytest_autotune.report.process_reports import list_report_files, read_process_report, without_repeated
from pytest_autotune.run.ci_run import read_ci_run
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.process_record import ProcessRecord, decode_record

#: A problem or an entry of a report: tuner, kernel, device, key, fingerprint. Of a problem the fingerprint is null.
_Reported: TypeAlias = "tuple[str, ...]"


@click.command("prune", short_help="drop entries that no run asked for")
@click.argument("file", metavar="FILE", type=PATH)
@click.option(
    "--unused-in",
    "paths",
    metavar="REPORT.json",
    type=PATH,
    multiple=True,
    help="A report that --autotune-report wrote. Repeatable: what one of them has asked for stays.",
)
@click.option(
    "--reports",
    "folder",
    metavar="FOLDER/",
    type=PATH,
    help="The folder of --autotune-report=FOLDER/: all its reports, with --together.",
)
@click.option("--expect", metavar="N", type=click.IntRange(1), help="The number of reports in FOLDER/.")
@click.option(
    "--together",
    is_flag=True,
    help="The reports are parts of one run, such as shards: drop what none of them asked for, of the kernels and "
    "devices that they did ask for. If a test was skipped or failed, it may need any entry, so all stay.",
)
@click.option("--allow-skipped", is_flag=True, help="With --together: skipped tests need no entry. Failed tests may.")
@click.option("--dry-run", is_flag=True, help="Show what would be dropped, and write nothing.")
@click.option("--device", metavar="NAME", help="Only entries of devices with this in id or name; a glob with * or ?.")
@click.option("--exit-code", is_flag=True, help="Exit status 1 where entries are dropped, or would be.")
def command(
    file: str,
    paths: tuple[str, ...],
    folder: str | None,
    expect: int | None,
    together: bool,
    allow_skipped: bool,
    dry_run: bool,
    device: str | None,
    exit_code: bool,
) -> int:
    """Drop the entries of the cache FILE that a report calls unused, and none of them asked for.

    A report of a run that was not complete is refused, unless --together or --reports says that all of them make one.
    What is of another device stays.
    """
    all_paths = list(paths)
    if folder is not None:
        together = True
        all_paths += _list_folder_paths(folder, expect)
    _refuse_contradictions(all_paths, folder, expect, together, allow_skipped)
    reports = [_read_report(path, together) for path in all_paths]
    store = stores.open_store(file)
    cache = with_warning(store.read())
    doubts = list(filter(None, [report.describe_doubt(allow_skipped) for report in reports]))
    if together and doubts:
        print_lines([f"0 entries {_describe_verb(dry_run)}, {len(cache.entries)} kept", *map(safe, doubts)])
        return OK
    selection = UnusedSelection(reports, together, device)
    dropped = selection.select_unused(cache)
    counts = f"{describe_count(len(dropped), 'entry')} {_describe_verb(dry_run)}"
    counts += f", {len(cache.entries) - len(dropped)} kept"
    if dropped and not dry_run:
        store.check_writable()
        with store.open_for_update(removing=True) as opened:
            updated = opened.write(selection.without_unused(opened.cache))
        if updated.beside:
            counts += f", written to {safe(updated.written_to)}"
    print_lines([counts, *(describe_on_device(entry.problem) for entry in dropped)])
    return FOUND if exit_code and dropped else OK


def _describe_verb(dry_run: bool) -> str:
    return "would be dropped" if dry_run else "dropped"


def _refuse_contradictions(
    paths: Sequence[str], folder: str | None, expect: int | None, together: bool, allow_skipped: bool
) -> None:
    """Refuse options that make no sense together.

    :raises click.UsageError: for the first such option.
    """
    if not paths:
        raise click.UsageError("no report is named (add --reports=FOLDER/ or --unused-in=REPORT.json)")
    if expect is not None and folder is None:
        raise click.UsageError("--expect counts the reports of a folder (add --reports=FOLDER/)")
    if allow_skipped and not together:
        raise click.UsageError("--allow-skipped: the report of one run has no unused entries if tests were skipped")


def _list_folder_paths(folder: str, expect: int | None) -> list[str]:
    """Return the reports of a folder, without those of repeated processes.

    :raises CacheError: if a report is missing, unusable or of another run.
    """
    reports = without_repeated([read_process_report(path) for path in list_report_files(folder)])
    errors = list_folder_errors(reports, expect, read_ci_run(os.environ).id)
    if errors:
        raise CacheError(folder, "; ".join(errors), "nothing was dropped")
    return [report.path for report in reports]


@dataclass(frozen=True)
class ReportedUse:
    """The use of a cache in one run, as the run's JSON report has it.

    :param path: of the report.
    :param requested: the problems that tests asked for.
    :param unused: the entries that the report calls unused.
    :param not_passed_reason: the first reason why a test did not pass; empty if all passed.
    :param has_only_skips: that reason is a skip, and no test failed.
    :param record: the facts of the process about bypassed kernels.
    """

    path: str
    requested: Set[_Reported]
    unused: Set[_Reported]
    not_passed_reason: str
    has_only_skips: bool
    record: ProcessRecord

    def describe_doubt(self, allow_skipped: bool) -> str:
        """Return why a test of this run may need any entry, although it did not ask; empty if none may."""
        if not self.not_passed_reason or (self.has_only_skips and allow_skipped):
            if not self.record.disabled_reason:
                return ""
            return f"{self.path}: {self.record.disabled_reason}, so it may need any entry"
        doubt = f"{self.path}: {self.not_passed_reason}, so its tests may need any entry"
        if self.has_only_skips:
            doubt += " (--allow-skipped drops entries all the same)"
        return doubt


class UnusedSelection:
    """Selects the entries of a cache that no report needs.

    :param together: the reports are parts of one run. Then an entry is unused if no report asked for it, and a report
        asked for its kernel on its device.
    :param device: selects only devices with this name; None for all devices.
    """

    def __init__(self, reports: Sequence[ReportedUse], together: bool, device: str | None) -> None:
        self._reports = reports
        self._device = device
        #: (tuner, kernel, device) of the requested problems, if the reports are parts of one run.
        self._requested_kernels: set[tuple[str, ...]] = set()
        if together:
            for report in reports:
                self._requested_kernels.update(problem[:3] for problem in report.requested)

    def select_unused(self, cache: Cache) -> list[Entry]:
        """Return the entries to drop."""
        return [entry for entry in cache.entries if self._is_unused(entry)]

    def without_unused(self, cache: Cache) -> Cache:
        """Return the cache without the entries to drop."""
        return replace(cache, entries=tuple(entry for entry in cache.entries if not self._is_unused(entry)))

    def _is_unused(self, entry: Entry) -> bool:
        device = entry.problem.device
        if not matches(self._device, device.id, device.name):
            return False
        if any(report.record.bypasses(entry.problem) for report in self._reports):
            # The tests of that run asked for no entry of the kernel, and may have called it.
            return False
        reported_entry = _to_reported(build_entry_mapping(entry))
        reported_problem = _to_reported(build_problem_mapping(entry.problem))
        is_called_unused = False
        for report in self._reports:
            if reported_entry in report.unused:
                is_called_unused = True
            elif reported_problem in report.requested:
                # A run that calls the entry unused may ask for its problem, too: with other code.
                return False
        return is_called_unused or reported_entry[:3] in self._requested_kernels


def _to_reported(row: Mapping[str, Any]) -> _Reported:
    """Return the identity of a problem or an entry in a report."""
    values = (json.dumps(row.get(name), sort_keys=True) for name in ("key", "fingerprint"))
    return str(row["tuner"]), str(row["kernel"]), str(row["device"]), *values


def _read_report(path: str, together: bool) -> ReportedUse:
    """Read the JSON report of a run.

    :param together: the run may be incomplete.
    :raises CacheError: if the file is no such report, or if its run was not complete.
    """
    try:
        report = json.loads(stores.read_file(path))
        requested = frozenset(map(_to_reported, report["lookups"]))
        unused = frozenset(map(_to_reported, report["unused"]))
        not_passed_reason = str(report["not_passed_reason"])
        has_only_skips = bool(report["only_skips"])
        record = ProcessRecord(Collected())
        if "process" in report:
            record = decode_record(report)
        incomplete_reason = ""
        if not report["complete"]:
            incomplete_reason = str(report.get("incomplete_reason") or "it does not say why")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CacheError(path, "is no JSON report of a run", "write one with --autotune-report=REPORT.json") from None
    if incomplete_reason and not together:
        event = f"of a run that was not complete ({incomplete_reason}), so nothing is known to be unused"
        raise CacheError(path, event, "with all shards' reports: --together")
    return ReportedUse(path, requested, unused, not_passed_reason, has_only_skips, record)
