"""The command ``pytest-autotune prune``, which drops the entries that no run needs, by the JSON reports of the runs.

A report lists the entries that its run calls unused: the run should have asked for them and did not. It also has the
lookups of the run, so the command knows which problems the tests asked for.

There are two kinds of reports. With ``--unused-in``, each report is of a complete run. With ``--together`` or
``--reports``, the reports are parts of one run, such as shards. The command then joins them as if one process had run
all tests. A test that was skipped or failed may need entries for which it did not ask. This is a doubt, and if there is
any doubt, nothing is dropped. Otherwise the command drops the entries that ``pytest-autotune gate`` calls unused, if
the processes loaded them: an entry that is newer than the reports stays.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.stores.store import Store, UpdateOutcome
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.cli.output import (
    FOUND,
    OK,
    PATH,
    describe_on_device,
    matches,
    print_lines,
    refuse_file_beside,
    safe,
    with_warning,
)
from pytest_autotune.report.process_gate import list_folder_errors
from pytest_autotune.report.process_reports import (
    join_processes,
    list_report_files,
    may_be_same_file,
    read_process_report,
    without_repeated,
)
from pytest_autotune.run.ci_run import read_ci_run
from pytest_autotune.run.process_record import ProcessRecord
from pytest_autotune.run.settle import InitialCaches, settle_run
from pytest_autotune.run.unused import CacheUsage


@click.command("prune", short_help="drop entries that no run used")
@click.argument("file", metavar="FILE", type=PATH)
@click.option(
    "--unused-in",
    "paths",
    metavar="REPORT.json",
    type=PATH,
    multiple=True,
    help="Read this report of --autotune-report. Repeatable: an entry that any of the reports used is kept.",
)
@click.option(
    "--reports",
    "folder",
    metavar="FOLDER/",
    type=PATH,
    help="Read all reports in the folder of --autotune-report=FOLDER/, as with --together. Needs --expect.",
)
@click.option("--expect", metavar="N", type=click.IntRange(1), help="Refuse a folder that does not have N reports.")
@click.option(
    "--together",
    is_flag=True,
    help="Take the reports as parts of one run, such as shards, and drop the entries that no part used. If a "
    "test was skipped or failed, no entry is dropped, because the test may need any entry.",
)
@click.option(
    "--allow-skipped",
    is_flag=True,
    help="With --together: drop entries even if tests were skipped (but not if tests failed).",
)
@click.option("--dry-run", is_flag=True, help="Show what would be dropped, and write nothing.")
@click.option(
    "--device",
    metavar="NAME",
    help="Drop only entries of devices whose id or name contains NAME, or matches a glob such as '*H200*'.",
)
@click.option("--exit-code", is_flag=True, help="Exit with status 1 if entries are dropped, or would be.")
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
    # The reports in a folder are parts of one run.
    are_parts = together or folder is not None
    _refuse_contradictions(paths, folder, expect, are_parts, allow_skipped)
    reports = _read_reports(paths, folder, expect, are_parts)
    store = stores.open_store(file)
    cache = with_warning(store.read())
    doubts = _list_doubts(reports, allow_skipped)
    if doubts:
        # A test may need any entry, so nothing is dropped.
        print_lines([_describe_counts([], cache, dry_run), *doubts])
        return OK
    selection = UnusedSelection(reports, file, are_parts=are_parts, device=device)
    unused_entries = selection.select_unused(cache)
    _drop_and_print(store, cache, unused_entries, selection, dry_run)
    _print_newer(selection, cache, file)
    if exit_code and unused_entries:
        return FOUND
    return OK


def _drop_and_print(
    store: Store, cache: Cache, unused_entries: Sequence[Entry], selection: UnusedSelection, dry_run: bool
) -> None:
    """Drop the unused entries of a store, and print them with their number.

    :param cache: the content of the store, as it was when the unused entries were selected.
    :param selection: selects the unused entries again when the store is written, because another process may have
        changed the store since.
    :param dry_run: only print the entries, and write nothing.
    :raises CacheError: if the store could not be replaced. Then the new content is in another file beside it.
    """
    counts = _describe_counts(unused_entries, cache, dry_run)
    updated = None
    if unused_entries and not dry_run:
        updated = _write_without_unused(store, selection)
        if updated.beside:
            counts += f", written to {safe(updated.written_to)}"
    lines = [counts]
    for entry in unused_entries:
        lines.append(describe_on_device(entry.problem))
    print_lines(lines)
    # After the lines: the error ends the command, and the user needs to see which entries the other file lacks.
    if updated is not None:
        refuse_file_beside(str(store), updated)


def _print_newer(selection: UnusedSelection, cache: Cache, file: str) -> None:
    """Print how many unused entries stay because a process did not load them, and its report; nothing if there is none.

    Such an entry may be newer than the report, or the process loaded another cache with entries of the same kernels.
    """
    newer_entries = selection.select_newer(cache)
    if not newer_entries:
        return
    entries = describe_count(len(newer_entries), "unused entry stays", "unused entries stay")
    paths = selection.list_reports_without(newer_entries, cache)
    reports = paths[0]
    if len(paths) > 1:
        reports += f" and {describe_count(len(paths) - 1, 'other report')}"
    these_entries = "this entry" if len(newer_entries) == 1 else "these entries"
    reason = f"the tests of {reports} may use this cache, but did not all load {these_entries}"
    remedy = (
        f"run them again with --autotune-load={shlex.quote(file)}, or leave out a report whose tests need no entry of "
        f"this cache"
    )
    print_lines([safe(f"{entries}: {reason} ({remedy})")])


def _list_doubts(reports: Sequence[ReportedUse], allow_skipped: bool) -> list[str]:
    """Return a line for each report with a test that may need any entry: it did not pass, or it bypassed the tuners."""
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


def _write_without_unused(store: Store, selection: UnusedSelection) -> UpdateOutcome:
    """Remove the unused entries from a store."""
    store.check_writable()
    with store.open_for_update(removing=True) as opened:
        # The store is read again under its lock, so that entries which another process has just added stay.
        return opened.write(selection.without_unused(opened.cache))


def _refuse_contradictions(
    paths: Sequence[str], folder: str | None, expect: int | None, are_parts: bool, allow_skipped: bool
) -> None:
    """Refuse options that make no sense together.

    :param paths: the reports of ``--unused-in``.
    :param folder: the value of ``--reports``.
    :param are_parts: whether the reports are parts of one run.
    :raises click.UsageError: for the first such option.
    """
    if not paths and folder is None:
        raise click.UsageError("no report is named (add --reports=FOLDER/ or --unused-in=REPORT.json)")
    if expect is not None and folder is None:
        raise click.UsageError("--expect counts the reports of a folder (add --reports=FOLDER/)")
    if folder is not None and expect is None:
        raise click.UsageError("--reports: a process may be missing (add --expect=N, the number of processes)")
    if allow_skipped and not are_parts:
        raise click.UsageError("--allow-skipped works only for the parts of one run (add --together or --reports)")


def _read_reports(paths: Sequence[str], folder: str | None, expect: int | None, are_parts: bool) -> list[ReportedUse]:
    """Read the reports that the user named one by one, and the reports in the folder.

    :param paths: the reports of ``--unused-in``.
    :param folder: the value of ``--reports``; None if the option was not typed.
    :param expect: the number of reports that the folder must have.
    :param are_parts: the reports are parts of one run, so each may be of an incomplete run.
    :raises CacheError: if a report is missing, unusable or of an incomplete run.
    """
    all_paths = list(paths)
    if folder is not None:
        all_paths += _list_folder_paths(folder, expect)
    return [_read_report(path, may_be_incomplete=are_parts) for path in all_paths]


def _list_folder_paths(folder: str, expect: int | None) -> list[str]:
    """Return the paths of the reports in a folder, without those of processes that a later attempt of CI repeated.

    :raises CacheError: if a report is missing, unusable or of another run.
    """
    reports = without_repeated([read_process_report(path) for path in list_report_files(folder)])
    errors = list_folder_errors(reports, expect, read_ci_run(os.environ).id)
    if errors:
        raise CacheError(folder, "; ".join(errors), "no entry was dropped")
    return [report.path for report in reports]


@dataclass(frozen=True)
class ReportedUse:
    """The use of a cache in one run, by the run's JSON report.

    :param path: the path of the report.
    :param record: the lookups of the run, the entries that it calls unused, and its options.
    :param usage: the problems that tests asked for, and the kernels that the run bypassed.
    :param no_part_reason: why the process took no part, such as a missing GPU; empty if it took part.
    :param loaded_paths: of the caches that the run or one of its tests loaded, as the user typed them. If a test loads
        several caches for itself, only the last is known.
    """

    path: str
    record: ProcessRecord
    usage: CacheUsage
    no_part_reason: str = ""
    loaded_paths: tuple[str, ...] = ()

    def may_use(self, cache: Cache, file: str) -> bool:
        """Whether tests of the run may need entries of a cache: the run loaded it, or asked for one of its kernels.

        A run that only asked for a kernel may have loaded the cache for a single test, beside another cache.

        :param file: the path or URL of the cache. On the machine of the run, the file may be in another folder.
        """
        if any(may_be_same_file(path, file) for path in self.loaded_paths):
            return True
        for entry in cache.entries:
            was_loaded = entry.identity.digest in self.record.initial_entries
            if was_loaded or entry.problem.name in self.usage.asked_kernels:
                return True
        return False

    def describe_doubt(self, allow_skipped: bool) -> str:
        """Return why a test of this run may need an entry for which it did not ask; empty if no test may.

        A test that was skipped, or failed early, could have asked for any entry.

        :param allow_skipped: the user says that skipped tests need no entry.
        """
        collected = self.record.collected
        if self.no_part_reason and not allow_skipped:
            doubt = f"{self.path}: the process did not use the cache ({self.no_part_reason}), so no entry was dropped"
            return f"{doubt} (to drop entries all the same, add --allow-skipped)"
        if collected.not_passed_reason:
            doubt = (
                f"{self.path}: {collected.not_passed_reason}, so its tests may need any entry, and no entry was dropped"
            )
            if not collected.has_only_skips:
                return doubt
            if not allow_skipped:
                return f"{doubt} (to drop entries all the same, add --allow-skipped)"
        if collected.bypass_reason:
            # A test without tuners asked for no entry, and the same test may ask for entries in another run.
            return f"{self.path}: {collected.bypass_reason}, so it may need any entry, and no entry was dropped"
        return ""


class UnusedSelection:
    """Selects the entries of a cache that no report needs.

    An entry is unused if a report calls it unused, and no other report needs its problem. If the reports are parts of
    one run, an entry is unused if the joint run calls it unused, as in ``pytest-autotune gate``, and if the parts
    loaded it. Runs call no entry of a shared cache unused, so there the entries of the kernels count that a test of any
    part asked for.

    :param file: the path or URL of the cache.
    :param are_parts: whether the reports are parts of one run, such as shards.
    :param device: selects only entries of devices with this id or name; None for all devices.
    """

    def __init__(self, reports: Sequence[ReportedUse], file: str, *, are_parts: bool, device: str | None) -> None:
        self._reports = reports
        self._file = file
        self._device = device
        #: The use in the joint run; None if each report is of a run of its own.
        self._joint_usage: CacheUsage | None = None
        if are_parts:
            records = {report.path: report.record for report in reports}
            # Other suites may use the same store, and their reports are not here.
            self._joint_usage = _compute_usage(records, only_asked_kernels=is_url(file))

    def select_unused(self, cache: Cache) -> list[Entry]:
        """Return the entries to drop."""
        return [entry for entry in self._list_candidates(cache) if self._is_unused(entry)]

    def select_newer(self, cache: Cache) -> list[Entry]:
        """Return the entries that stay only because a part of the run did not load them."""
        candidates = {entry.identity for entry in self._list_candidates(cache)}
        unused_entries = [entry for entry in cache.entries if self._is_unused(entry)]
        return [entry for entry in unused_entries if entry.identity not in candidates]

    def list_reports_without(self, entries: Sequence[Entry], cache: Cache) -> list[str]:
        """Return the paths of the reports whose processes may use the cache, but did not load all of these entries."""
        digests = {entry.identity.digest for entry in entries}
        paths = []
        for report in self._reports:
            if report.may_use(cache, self._file) and not digests <= set(report.record.initial_entries):
                paths.append(report.path)
        return paths

    def without_unused(self, cache: Cache) -> Cache:
        """Return the cache without the entries to drop."""
        dropped = {entry.identity for entry in self.select_unused(cache)}
        kept_entries = [entry for entry in cache.entries if entry.identity not in dropped]
        return replace(cache, entries=tuple(kept_entries))

    def _list_candidates(self, cache: Cache) -> list[Entry]:
        """Return the entries of a cache that the reports can call unused.

        The report of a run of its own lists its unused entries itself, so all entries of the cache are returned. If the
        reports are parts of one run, an entry is returned if every part that may use the cache loaded the entry for all
        its tests. Otherwise the entry may be newer than the report of a part, and a test of this part may need it now.
        """
        if self._joint_usage is None:
            return list(cache.entries)
        parts_with_cache = [report for report in self._reports if report.may_use(cache, self._file)]
        if not parts_with_cache:
            # The reports say nothing about this cache.
            return []
        candidates = []
        for entry in cache.entries:
            digest = entry.identity.digest
            if all(digest in report.record.initial_entries for report in parts_with_cache):
                candidates.append(entry)
        return candidates

    def _is_unused(self, entry: Entry) -> bool:
        """Whether to drop an entry: ``--device`` selects it, and it is unused by the rules of the class."""
        device = entry.problem.device
        if not matches(self._device, device.id, device.name):
            return False
        if self._joint_usage is not None:
            return self._joint_usage.is_unused(entry)
        is_called_unused = False
        for report in self._reports:
            if entry.identity in report.record.unused:
                # This run does not need the entry, also if a test asked for its problem with other code.
                is_called_unused = True
            elif report.usage.may_need(entry.problem):
                return False
        return is_called_unused


def _compute_usage(records: Mapping[str, ProcessRecord], *, only_asked_kernels: bool = False) -> CacheUsage:
    """Return the joint use of a cache by some processes.

    :param records: path of a report -> the record of its process.
    :param only_asked_kernels: an entry of a kernel that no test asked for is not unused, also if a test imported the
        kernel's module.
    """
    run = join_processes(records, InitialCaches())
    if only_asked_kernels:
        run = replace(run, collected=replace(run.collected, imported_kernels=()))
    return settle_run(run).usage


def _read_report(path: str, *, may_be_incomplete: bool) -> ReportedUse:
    """Read the JSON report of a run.

    :param may_be_incomplete: the run is a part of a larger one, so a selection of tests does no harm.
    :raises CacheError: if the file is no such report, if its process has not ended, or if its run was not complete.
    """
    report = read_process_report(Path(path).expanduser())
    record = report.record
    if record is None:
        raise CacheError(path, report.error, "write one with --autotune-report=REPORT.json")
    incomplete_reason = record.collected.incomplete_reason
    if incomplete_reason and not may_be_incomplete:
        event = f"the run was not complete ({incomplete_reason}), so no entry is known to be unused"
        raise CacheError(path, event, "if you name the reports of all parts of the run, add --together")
    usage = _compute_usage({path: record})
    loaded_paths = [loaded.path for loaded in report.loaded]
    for lookup in record.collected.lookups:
        if lookup.test_cache:
            loaded_paths.append(lookup.test_cache)
    return ReportedUse(path, record, usage, report.no_part_reason, tuple(dict.fromkeys(loaded_paths)))
