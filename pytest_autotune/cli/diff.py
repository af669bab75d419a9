"""The command ``pytest-autotune diff``, which prints the differences of two caches for a review."""

from __future__ import annotations

import os
from collections.abc import Iterator

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.diff import ChangeKind, Diff, compare_caches
from pytest_autotune.cache.model import Cache
from pytest_autotune.cli.diff_groups import count_versions, group_by_device
from pytest_autotune.cli.output import FOUND, OK, PATH, format_table, print_lines, with_warning
from pytest_autotune.report.naming import describe_change


@click.command("diff", short_help="how two caches differ")
@click.argument("old", metavar="OLD", type=PATH)
@click.argument("new", metavar="NEW", type=PATH)
@click.option("--exit-code", is_flag=True, help="Exit status 1 if they differ.")
@click.option("--markdown", is_flag=True, help="Tables for the comment of a pull request: only what changed.")
def command(old: str, new: str, exit_code: bool, markdown: bool) -> int:
    """Print the differences between the caches OLD and NEW: a line of counts, then a row for each entry.

    Entries that differ only in the versions of libraries share a row.

    As git's difftool: git difftool --extcmd="pytest-autotune diff" -- FILE
    """
    diff = compare_caches(_read_side(old), _read_side(new))
    lines = _build_tables(diff)
    if markdown:
        # Imported here, because it imports a renderer with all of its modules.
        from pytest_autotune.cli.diff_markdown import build_markdown

        lines = build_markdown(diff)
    print_lines(lines)
    return FOUND if exit_code and diff.changes else OK


def _read_side(path: str) -> Cache:
    """Read a cache. Git names the null device for a side that has no such file."""
    if path == os.devnull:
        return Cache()
    return with_warning(stores.read_cache(path))


def _build_tables(diff: Diff) -> Iterator[str]:
    """Yield the counts, and a table for each device."""
    yield str(diff)
    for device, changes in group_by_device(diff):
        rows = []
        for change in changes:
            if change.kind is not ChangeKind.VERSIONS:
                choice, time = describe_change(change)
                rows.append((change.kind.value, str(change.entry.problem), choice, time))
        for count in count_versions(changes):
            rows.append((ChangeKind.VERSIONS.value, count.entries, count.versions, ""))
        yield ""
        # The time is aligned to the right.
        yield from format_table(str(device), rows, right=[3])
