"""The command ``pytest-autotune prune``, which drops the entries that no run needs, by the JSON reports of the runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.stores.store import Store
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.cli.output import FOUND, OK, PATH, describe_on_device, matches, print_lines, safe, with_warning
from pytest_autotune.report.process_gate import list_folder_errors
from pytest_autotune.report.process_reports import (
    join_processes,
    list_report_files,
    read_process_report,
    without_repeated,
)
from pytest_autotune.run.ci_run import read_ci_run
from pytest_autotune.run.process_record import ProcessRecord, decode_record
from pytest_autotune.run.settle import InitialCaches, settle_run
from pytest_autotune.run.unused import CacheUsage


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
    """Drop the entries of the cache FILE that a report calls unused, unless another report asked for them.

    A report of an incomplete run is refused, unless --together or --reports says that all reports make one run.
    Entries of devices that no report names stay.
    """
    all_paths = list(paths)
    if folder is not None:
        # The reports in a folder are those of one run.
        together = True
        all_paths += _list_folder_paths(folder, expect)
    _refuse_contradictions(all_paths, folder, expect, together, allow_skipped)
    reports = [_read_report(path, together) for path in all_paths]
    store = stores.open_store(file)
    cache = with_warning(store.read())
    doubts = _list_doubts(reports, allow_skipped)
    if doubts:
        # A test that did not pass may need any entry, so nothing is dropped.
        print_lines([_describe_counts([], cache, dry_run), *doubts])
        return OK
    dropped = _drop_unused(store, cache, UnusedSelection(reports, together, device), dry_run)
    if exit_code and dropped:
        return FOUND
    return OK


def _drop_unused(store: Store, cache: Cache, selection: UnusedSelection, dry_run: bool) -> list[Entry]:
    """Drop the unused entries of a cache, print them, and return them.

    :param cache: the content of the store.
    :param dry_run: print the entries that would be dropped, and write nothing.
    """
    dropped = selection.select_unused(cache)
    counts = _describe_counts(dropped, cache, dry_run)
    if dropped and not dry_run:
        counts += _write_without_unused(store, selection)
    lines = [counts]
    for entry in dropped:
        lines.append(describe_on_device(entry.problem))
    print_lines(lines)
    return dropped


def _list_doubts(reports: Sequence[ReportedUse], allow_skipped: bool) -> list[str]:
    """Return a line for each report with a test that may need any entry, because it was skipped or failed."""
    doubts = []
    for report in reports:
        doubt = report.describe_doubt(allow_skipped)
        if doubt:
            doubts.append(safe(doubt))
    return doubts


def _describe_counts(dropped: Sequence[Entry], cache: Cache, dry_run: bool) -> str:
    """Return the numbers of dropped and kept entries: ``1 entry dropped, 4 kept``."""
    verb = "dropped"
    if dry_run:
        verb = "would be dropped"
    return f"{describe_count(len(dropped), 'entry')} {verb}, {len(cache.entries) - len(dropped)} kept"


def _write_without_unused(store: Store, selection: UnusedSelection) -> str:
    """Remove the unused entries from a store.

    A store that cannot be replaced, for example because another process holds its lock, is written to a file beside it.
    The result then names this file: ``, written to cache.textproto.new``. Else the result is empty.
    """
    store.check_writable()
    with store.open_for_update(removing=True) as opened:
        # The store is read again under its lock, so that entries which another process has just added stay.
        updated = opened.write(selection.without_unused(opened.cache))
    if not updated.beside:
        return ""
    return f", written to {safe(updated.written_to)}"


def _refuse_contradictions(
    paths: Sequence[str], folder: str | None, expect: int | None, together: bool, allow_skipped: bool
) -> None:
    """Refuse options that make no sense together.

    :param paths: the reports of ``--unused-in`` and of the folder.
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
    """The use of a cache in one run, by the run's JSON report.

    :param path: the path of the report.
    :param usage: the problems that tests asked for, and the kernels that the run bypassed.
    """

    path: str
    record: ProcessRecord
    usage: CacheUsage

    def describe_doubt(self, allow_skipped: bool) -> str:
        """Return why a test of this run may need an entry for which it did not ask; empty if no test may.

        A test that was skipped, or failed early, could have asked for any entry.
        """
        collected = self.record.collected
        # With --allow-skipped, the user says that skipped tests need no entry.
        is_allowed = collected.has_only_skips and allow_skipped
        if collected.not_passed_reason and not is_allowed:
            doubt = f"{self.path}: {collected.not_passed_reason}, so its tests may need any entry"
            if collected.has_only_skips:
                doubt += " (--allow-skipped drops entries all the same)"
            return doubt
        if collected.bypass_reason:
            # A test without tuners asked for no entry, and the same test may ask for entries in another run.
            return f"{self.path}: {collected.bypass_reason}, so it may need any entry"
        return ""


class UnusedSelection:
    """Selects the entries of a cache that no report needs.

    An entry is unused if a report calls it unused, and no other report needs its problem.

    :param together: whether the reports are parts of one run, such as shards. Then an entry is unused, too, if the
        joint run would call it unused. Kernels that no test asked for stay: a report may be missing.
    :param device: selects only entries of devices with this name; None for all devices.
    """

    def __init__(self, reports: Sequence[ReportedUse], together: bool, device: str | None) -> None:
        self._reports = reports
        self._device = device
        #: The use in the joint run; None if each report is of a run of its own.
        self._joint_usage: CacheUsage | None = None
        if together:
            self._joint_usage = _compute_usage({report.path: report.record for report in reports})

    def select_unused(self, cache: Cache) -> list[Entry]:
        """Return the entries to drop."""
        return [entry for entry in cache.entries if self._is_unused(entry)]

    def without_unused(self, cache: Cache) -> Cache:
        """Return the cache without the entries to drop."""
        return replace(cache, entries=tuple(entry for entry in cache.entries if not self._is_unused(entry)))

    def _is_unused(self, entry: Entry) -> bool:
        """Whether no report needs an entry; see the class for the rules."""
        device = entry.problem.device
        if not matches(self._device, device.id, device.name):
            return False
        if self._joint_usage is not None and self._joint_usage.is_unused(entry):
            return True
        is_called_unused = False
        for report in self._reports:
            if entry.identity in report.record.unused:
                # In this run, a test may have asked for the problem, but with other code. So may_need() does not count.
                is_called_unused = True
            elif report.usage.may_need(entry.problem):
                return False
        return is_called_unused


def _compute_usage(records: Mapping[str, ProcessRecord]) -> CacheUsage:
    """Return the use of a cache by processes, without the kernels that no test asked for.

    :param records: the records by the path of their report.
    """
    run = join_processes(records, InitialCaches())
    run = replace(run, collected=replace(run.collected, imported_kernels=()))
    return settle_run(run).usage


def _read_report(path: str, together: bool) -> ReportedUse:
    """Read the JSON report of a run.

    :param together: the run may be incomplete.
    :raises CacheError: if the file is no such report, or if its run was not complete.
    """
    try:
        record = decode_record(json.loads(stores.read_file(path)))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise CacheError(path, "is no JSON report of a run", "write one with --autotune-report=REPORT.json") from None
    incomplete_reason = record.collected.incomplete_reason
    if incomplete_reason and not together:
        event = f"of a run that was not complete ({incomplete_reason}), so nothing is known to be unused"
        raise CacheError(path, event, "with all shards' reports: --together")
    return ReportedUse(path, record, _compute_usage({path: record}))
