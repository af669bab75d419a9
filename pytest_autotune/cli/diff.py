"""The command ``pytest-autotune diff``, which prints the differences of two caches for a review.

The differences are tables for a terminal, or Markdown for a comment on a pull request.
"""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.diff import Change, ChangeKind, Diff, compare_caches
from pytest_autotune.cache.errors import CacheError, MissingCacheError
from pytest_autotune.cache.model import Cache, Device
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.cli.output import FOUND, OK, PATH, compare_keys, format_table, print_lines, safe, with_warning
from pytest_autotune.report.markdown import format_cell, format_code
from pytest_autotune.report.naming import describe_change, join_with_arrow

#: The largest number of characters in a row of a Markdown table, without the backticks of its code spans.
_MAX_ROW_LENGTH = 119
#: The number of these characters that stand between the cells.
_BETWEEN_CELLS = 21
_MAX_CHOICE_LENGTH = 36
_MAX_TIME_LENGTH = 20
_MAX_HEADING_LENGTH = 113
_MAX_VERSIONS_LENGTH = 90


@click.command("diff", short_help="show how two caches differ")
@click.argument("old", metavar="OLD", type=PATH)
@click.argument("new", metavar="NEW", type=PATH)
@click.option("--exit-code", is_flag=True, help="Exit with status 1 if the caches differ.")
@click.option("--markdown", is_flag=True, help="Print Markdown tables of the changes, for a comment on a pull request.")
def command(old: str, new: str, exit_code: bool, markdown: bool) -> int:
    """Print the differences between the caches OLD and NEW: a line of counts, then a row for each entry.

    Entries that differ only in the versions of libraries share a row.

    As git's difftool: git difftool --extcmd="pytest-autotune diff" -- FILE
    """
    diff = compare_caches(_read_side(old), _read_side(new))
    if markdown:
        lines = _build_markdown(diff)
    else:
        lines = _build_tables(diff)
    print_lines(lines)
    if exit_code and diff.changes:
        return FOUND
    return OK


def _read_side(path: str) -> Cache:
    """Read a cache. Git names the null device for a side that has no such file."""
    if path == os.devnull:
        return Cache()
    try:
        return with_warning(stores.read_cache(path))
    except MissingCacheError as error:
        # The error's own remedy is for a run: a dump creates the cache.
        raise CacheError(error.place, error.event, _advise_on_missing(path)) from None


def _advise_on_missing(path: str) -> str:
    """Return the remedy for a cache that does not exist. ``HEAD:tests/cache.textproto`` is a file in a git commit."""
    revision, colon, path_in_commit = path.partition(":")
    if not colon or not revision or "://" in path:
        return "correct the path"
    command = (
        f'git difftool -y --extcmd="pytest-autotune diff" {shlex.quote(revision)} -- {shlex.quote(path_in_commit)}'
    )
    return f"name a file; for a file in git: {command}"


def _build_tables(diff: Diff) -> Iterator[str]:
    """Yield the counts, and a table for each device with the kind of each change, the problem, the choice and the time.

    A row shows an entry or, in the last rows, the number of entries that differ only in the versions of libraries.
    """
    yield str(diff)
    for device, changes in _group_by_device(diff):
        rows = []
        for change in changes:
            if change.kind is not ChangeKind.VERSIONS:
                choice, time = describe_change(change)
                rows.append((change.kind.value, str(change.entry.problem), choice, time))
        for count in _count_versions(changes):
            rows.append((ChangeKind.VERSIONS.value, count.entries, count.versions, ""))
        yield ""
        # The time is aligned to the right.
        yield from format_table(str(device), rows, right=[3])


# The groups of changes


def _group_by_device(diff: Diff) -> Iterator[tuple[Device, list[Change]]]:
    """Yield the changes of each device. The device with the most changes comes first."""
    changes_by_device: defaultdict[Device, list[Change]] = defaultdict(list)
    for change in diff.changes:
        changes_by_device[change.entry.problem.device].append(change)
    # The first part of the key is False for the device with the most changes, and False comes before True.
    for device in sorted(changes_by_device, key=lambda device: (device != diff.device, device.sort_key)):
        yield device, changes_by_device[device]


@dataclass(frozen=True)
class _VersionCount:
    """Entries that differ only in the versions of libraries.

    :param entries: their number: ``2 entries``.
    :param versions: the old and the new versions: ``triton 3.3.0 -> triton 3.4.0``.
    """

    entries: str
    versions: str


def _count_versions(changes: Sequence[Change]) -> list[_VersionCount]:
    """Return how many entries changed from which versions to which."""
    #: The old and the new versions, in words -> the number of entries.
    entry_counts: Counter[str] = Counter()
    for change in changes:
        if change.kind is ChangeKind.VERSIONS:
            old = change.old or change.entry
            new = change.new or change.entry
            entry_counts[join_with_arrow(str(old.versions), str(new.versions))] += 1
    version_counts = []
    for versions, entry_count in entry_counts.items():
        version_counts.append(_VersionCount(describe_count(entry_count, "entry"), versions))
    return version_counts


# Markdown


def _build_markdown(diff: Diff) -> Iterator[str]:
    """Yield the counts, and a table for each kernel and device. Entries with other versions only share a line."""
    yield f"**{format_code(str(diff), _MAX_HEADING_LENGTH)}**"
    for device, changes in _group_by_device(diff):
        for count in _count_versions(changes):
            yield f"\n{count.entries}: {format_code(safe(count.versions, _MAX_VERSIONS_LENGTH))}"
        changes_by_kernel: defaultdict[str, list[Change]] = defaultdict(list)
        for change in changes:
            if change.kind is not ChangeKind.VERSIONS:
                changes_by_kernel[change.entry.problem.name].append(change)
        for kernel, kernel_changes in changes_by_kernel.items():
            yield from _build_kernel_table(kernel, device, kernel_changes)


def _build_kernel_table(kernel: str, device: Device, changes: Sequence[Change]) -> Iterator[str]:
    """Yield a heading and a Markdown table, with a row for each change of a kernel's entries on a device.

    The heading has the parts of the key that all rows share, and a row has the parts that differ.
    """
    keys = compare_keys([change.entry.problem for change in changes])
    heading = ", ".join([kernel, *map(str, keys.shared_values)])
    # " on " and the code span's backticks also need room.
    heading_length = _MAX_HEADING_LENGTH - len(device.name) - 6
    yield f"\n{format_code(safe(heading, heading_length))} on {format_code(device.name)}\n"
    yield "| | problem | choice | time |\n| --- | --- | --- | --- |"
    for change, value_by_name in zip(changes, keys.values_by_name, strict=True):
        parts = []
        for name in keys.differing_names:
            if name in value_by_name:
                parts.append(f"{name}={value_by_name[name].display_text}")
        yield _build_row(change, " ".join(parts))


def _build_row(change: Change, problem: str) -> str:
    """Return a row of a Markdown table. The problem takes the characters that the other cells leave.

    :param problem: the parts of the key that differ between rows.
    """
    choice, time = describe_change(change)
    choice = safe(choice, _MAX_CHOICE_LENGTH)
    time = safe(time, _MAX_TIME_LENGTH)
    kind = change.kind.value
    problem_length = _MAX_ROW_LENGTH - _BETWEEN_CELLS - len(kind) - len(choice) - len(time)
    cells = map(format_cell, (kind, safe(problem, problem_length), choice, time))
    return f"| {' | '.join(cells)} |"
