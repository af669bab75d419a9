"""The command ``pytest-autotune show``, which prints the entries of a cache as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from operator import attrgetter
from typing import TypeAlias

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Device, Entry, Value
from pytest_autotune.cache.wording import describe_count, describe_seconds
from pytest_autotune.cli.output import (
    FOUND,
    OK,
    PATH,
    KeyComparison,
    compare_keys,
    format_table,
    matches,
    print_lines,
    safe,
    with_warning,
)
from pytest_autotune.report.naming import describe_choice, describe_time

#: (kernel with its tuner, device) -> the entries.
_Groups: TypeAlias = "Mapping[tuple[str, Device], list[Entry]]"
#: The number of names that the message shows if no entry has the wanted name.
_SUGGESTION_COUNT = 5


@click.command("show", short_help="show the choices of a cache as tables")
@click.argument("file", metavar="FILE", type=PATH)
@click.option(
    "--kernel",
    metavar="NAME",
    help="Show only kernels whose TUNER:KERNEL contains NAME, or matches a glob such as '*matmul*' (in quotes).",
)
@click.option("--device", metavar="NAME", help="Show only devices whose id or name contains NAME, or matches a glob.")
@click.option("--summary", is_flag=True, help="Show only one row for each kernel and device.")
def command(file: str, kernel: str | None, device: str | None, summary: bool) -> int:
    """Print the cache FILE as tables: a table for each kernel and device, with a row for each problem."""
    cache = with_warning(stores.read_cache(file))
    selection = _select_entries(cache.entries, kernel, device)
    if selection.absence:
        print_lines([selection.absence], err=True)
        return FOUND
    groups = _group_entries(selection.entries)
    if summary:
        lines = _build_summary(groups)
    else:
        lines = _build_tables(groups)
    print_lines([*lines, "", _describe_totals(groups, len(cache.entries))])
    return OK


@dataclass(frozen=True)
class _Selection:
    """The entries to show.

    :param absence: a line for the kernel or device that no entry has; empty if there are entries to show.
    """

    entries: list[Entry]
    absence: str = ""


def _select_entries(entries: Sequence[Entry], kernel: str | None, device: str | None) -> _Selection:
    """Return the entries of the kernels and devices that the user named, or a line for a name that no entry has.

    An empty cache has no such line: the command then shows nothing, and does not fail.

    :param kernel: the value of ``--kernel``: a glob, or a part of a name; None for all kernels.
    :param device: the value of ``--device``: the same for the id or the name of a device.
    """
    kernel_entries = [entry for entry in entries if matches(kernel, entry.problem.name)]
    if entries and not kernel_entries:
        names = [entry.problem.name for entry in entries]
        return _Selection([], absence=_describe_absence(kernel or "", names))
    selected = []
    for entry in kernel_entries:
        if matches(device, entry.problem.device.id, entry.problem.device.name):
            selected.append(entry)
    if kernel_entries and not selected:
        device_ids = [entry.problem.device.id for entry in kernel_entries]
        return _Selection([], absence=_describe_absence(device or "", device_ids))
    return _Selection(selected)


def _group_entries(entries: Sequence[Entry]) -> _Groups:
    """Return the entries of each kernel and device. Groups and entries are sorted."""
    groups: defaultdict[tuple[str, Device], list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=attrgetter("sort_key")):
        groups[entry.problem.name, entry.problem.device].append(entry)
    return groups


def _describe_absence(wanted: str, names: Sequence[str]) -> str:
    """Return a line for a name that no entry has, with the names that resemble it, else with the first names.

    :param wanted: the value of ``--kernel`` or ``--device``.
    :param names: the names of the entries.
    """
    distinct_names = list(dict.fromkeys(names))
    # The default cutoff is 0.6, which finds no "triton:lib.ops.matmul" for "matnul".
    shown_names = get_close_matches(wanted, distinct_names, _SUGGESTION_COUNT, cutoff=0.3)
    if not shown_names:
        shown_names = distinct_names[:_SUGGESTION_COUNT]
    text = f"no entry matches {wanted}; the cache has: {', '.join(shown_names)}"
    if len(distinct_names) > len(shown_names):
        text += f" and {len(distinct_names) - len(shown_names)} more (--summary)"
    return safe(text)


def _describe_totals(groups: _Groups, cache_entry_count: int) -> str:
    """Return a line about the shown entries: ``4 entries, 2 kernels, 1 device, 3.2 s of tuning, 5 not shown``.

    :param cache_entry_count: the number of all entries of the cache.
    """
    entries: list[Entry] = []
    for group_entries in groups.values():
        entries += group_entries
    kernels = {name for name, _ in groups}
    devices = {device for _, device in groups}
    counts = [
        describe_count(len(entries), "entry"),
        describe_count(len(kernels), "kernel"),
        describe_count(len(devices), "device"),
        f"{_describe_tuning_time(entries)} of tuning",
    ]
    if cache_entry_count > len(entries):
        counts.append(f"{cache_entry_count - len(entries)} not shown")
    return ", ".join(counts)


def _describe_tuning_time(entries: Sequence[Entry]) -> str:
    return describe_seconds(sum(entry.tuning_seconds for entry in entries))


def _build_summary(groups: _Groups) -> Iterator[str]:
    """Yield a table with a row for each kernel and device."""
    rows = [["kernel", "device", "entries", "tuned in"]]
    for (name, device), entries in groups.items():
        rows.append([name, device.id, str(len(entries)), _describe_tuning_time(entries)])
    yield from format_table("kernels", rows, right=[2, 3])


def _build_tables(groups: _Groups) -> Iterator[str]:
    """Yield a table for each kernel and device, with empty lines between them."""
    is_first = True
    for (name, device), entries in groups.items():
        if not is_first:
            yield ""
        is_first = False
        yield from _build_table(f"{name} on {device}", entries)


def _build_table(title: str, entries: Sequence[Entry]) -> Iterator[str]:
    """Yield the table of one kernel's entries for one device: a row for each entry.

    The columns are the parts of the key that differ, the choice and the times. The title has the parts of the key that
    are equal in all entries. If a problem has several entries, a last column shows their fingerprints.

    :param title: the kernel and the device.
    """
    problems = [entry.problem for entry in entries]
    keys = compare_keys(problems)
    has_fingerprints = len(set(problems)) < len(problems)
    header = [*keys.differing_names, "choice", "time", "tuned in"]
    if has_fingerprints:
        header.append("fingerprint")
    rows = [header]
    for value_by_name, entry in zip(keys.values_by_name, entries, strict=True):
        cells = _build_key_cells(value_by_name, keys.differing_names)
        cells += [describe_choice(entry), describe_time(entry), _describe_tuning_time([entry])]
        if has_fingerprints:
            cells.append(" ".join(map(str, entry.fingerprint)))
        rows.append(cells)
    # The columns of numbers are aligned to the right. The first columns are the parts of the key.
    right_columns = [index for index, name in enumerate(keys.differing_names) if _is_numeric(name, keys)]
    right_columns += [header.index("time"), header.index("tuned in")]
    full_title = ", ".join([title, *map(str, keys.shared_values)])
    yield from format_table(full_title, rows, right_columns)


def _build_key_cells(value_by_name: Mapping[str, Value], names: Sequence[str]) -> list[str]:
    """Return the cells with the values of a key; ``-`` for a value that this key does not have."""
    cells = []
    for name in names:
        text = "-"
        if name in value_by_name:
            text = value_by_name[name].display_text
        cells.append(text)
    return cells


def _is_numeric(name: str, keys: KeyComparison) -> bool:
    """Whether all values of a part of the key are numbers."""
    for value_by_name in keys.values_by_name:
        if name in value_by_name and not isinstance(value_by_name[name].value, (int, float)):
            return False
    return True
