"""``pytest-autotune diff``: how two caches differ, in the words of a review."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.diff import Change, ChangeKind, Diff, compare_caches
from pytest_autotune.cache.model import Cache, Device
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.cli.output import FOUND, OK, PATH, compare_keys, print_lines, safe, table, with_warning
from pytest_autotune.report.naming import describe_change, join_with_arrow

#: A line of Markdown has at most so many characters: of these the choice, the time, and what stands between cells.
_LONGEST_ROW, _LONGEST_CHOICE, _LONGEST_TIME, _BETWEEN_CELLS = 119, 36, 20, 21
_LONGEST_HEADING = 113


@click.command("diff", short_help="how two caches differ")
@click.argument("old", metavar="OLD", type=PATH)
@click.argument("new", metavar="NEW", type=PATH)
@click.option("--exit-code", is_flag=True, help="Exit status 1 where they differ.")
@click.option("--markdown", is_flag=True, help="Tables for the comment of a pull request: only what changed.")
def command(old: str, new: str, exit_code: bool, markdown: bool) -> int:
    """What is different in the cache NEW: a line of counts, then a row for each entry.

    Where only versions of libraries are others, one row is for all of them.

    As git's difftool: git difftool --extcmd="pytest-autotune diff" -- FILE
    """
    found = compare_caches(_read_side(old), _read_side(new))
    print_lines(_markdown(found) if markdown else _lines(found))
    return FOUND if exit_code and found.changes else OK


def _read_side(path: str) -> Cache:
    """Read a cache. Git names the null device for a side that has no such file."""
    if path == os.devnull:
        return Cache()
    return with_warning(stores.read_cache(path))


def _lines(found: Diff) -> Iterator[str]:
    yield str(found)
    for device, changes in _by_device(found):
        yield ""
        others = [change for change in changes if change.kind is not ChangeKind.VERSIONS]
        rows = [(change.kind.value, str(change.entry.problem), *describe_change(change)) for change in others]
        rows += [(ChangeKind.VERSIONS.value, *words, "") for words in _versions(changes)]
        yield from table(str(device), rows, right=[3])


def _by_device(found: Diff) -> Iterator[tuple[Device, list[Change]]]:
    devices = {change.entry.problem.device for change in found.changes}
    for device in sorted(devices, key=lambda device: (device != found.device, device.sort_key)):
        yield device, [change for change in found.changes if change.entry.problem.device == device]


def _versions(changes: Sequence[Change]) -> Iterator[tuple[str, str]]:
    """How many entries went from which versions to which."""
    others = (change for change in changes if change.kind is ChangeKind.VERSIONS)
    words = Counter(join_with_arrow(str(one.versions) for one in (change.old, change.new) if one) for change in others)
    yield from ((describe_count(number, "entry"), which) for which, number in words.items())


def _markdown(found: Diff) -> Iterator[str]:
    """A table for each kernel and device: what all its rows have in common stands above it."""
    from pytest_autotune.report.markdown import code

    yield f"**{code(str(found), _LONGEST_HEADING)}**"
    for device, changes in _by_device(found):
        yield from (f"\n{number}: {code(safe(which, 90))}" for number, which in _versions(changes))
        kernels: defaultdict[str, list[Change]] = defaultdict(list)
        for change in changes:
            if change.kind is not ChangeKind.VERSIONS:
                kernels[change.entry.problem.name].append(change)
        for name, of_kernel in kernels.items():
            keys = compare_keys([change.entry.problem for change in of_kernel])
            heading = ", ".join([name, *map(str, keys.shared_values)])
            yield f"\n{code(safe(heading, _LONGEST_HEADING - len(device.name) - 6))} on {code(device.name)}\n"
            yield "| | problem | choice | time |\n| --- | --- | --- | --- |"
            for change, key in zip(of_kernel, keys.values_by_name, strict=True):
                problem = " ".join(f"{part}={key[part].display_text}" for part in keys.differing_names if part in key)
                choice, time = map(safe, describe_change(change), (_LONGEST_CHOICE, _LONGEST_TIME))
                left = _LONGEST_ROW - _BETWEEN_CELLS - len(change.kind.value + choice + time)
                cells = change.kind.value, safe(problem, left), choice, time
                yield f"| {' | '.join(code(cell) if cell else '' for cell in cells)} |"
