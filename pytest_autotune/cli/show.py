"""``pytest-autotune show``: what a cache holds, as tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from difflib import get_close_matches
from typing import TypeAlias

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Device, Entry
from pytest_autotune.cache.quantities import describe_count, describe_seconds
from pytest_autotune.cli.output import FOUND, OK, PATH, keys_of, matches, print_lines, safe, table, warned
from pytest_autotune.report.naming import describe_choice, describe_time

_Groups: TypeAlias = "Mapping[tuple[str, Device], list[Entry]]"
#: So many kernels are named where the one that was asked for is not there.
_NEAREST = 5


@click.command("show", short_help="tables of what a cache holds")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--kernel", metavar="NAME", help="Only kernels with this in TUNER:KERNEL; a glob where it has * or ?.")
@click.option("--device", metavar="NAME", help="Only devices with this in id or name; a glob as above.")
@click.option("--summary", is_flag=True, help="A row for each kernel and device instead of their tables.")
def command(file: str, kernel: str | None, device: str | None, summary: bool) -> int:
    """Tables of what the cache FILE holds: one for each kernel and device, with a row for each problem."""
    cache = warned(stores.read_cache(file))
    of_kernel = [entry for entry in cache.entries if matches(kernel, entry.problem.name)]
    entries = [one for one in of_kernel if matches(device, one.problem.device.id, one.problem.device.name)]
    if cache.entries and not entries:
        names = [one.problem.device.id for one in of_kernel] or [one.problem.name for one in cache.entries]
        print_lines([_none_of((device if of_kernel else kernel) or "", dict.fromkeys(names))], err=True)
        return FOUND
    groups: defaultdict[tuple[str, Device], list[Entry]] = defaultdict(list)
    for entry in sorted(entries, key=lambda entry: entry.sort_key):
        groups[entry.problem.name, entry.problem.device].append(entry)
    print_lines([*(_summary if summary else _tables)(groups), "", _totals(groups, len(cache.entries))])
    return OK


def _none_of(wanted: str, names: Mapping[str, object]) -> str:
    """What there is, where what was asked for is not."""
    near = get_close_matches(wanted, names, _NEAREST, 0.3) or list(names)[:_NEAREST]
    more = f" and {len(names) - len(near)} more (--summary)" if len(names) > len(near) else ""
    return safe(f"no entry of {wanted}; there are: {', '.join(near)}{more}")


def _totals(groups: _Groups, number: int) -> str:
    """What is shown of the entries of the cache, in one line."""
    entries = [entry for members in groups.values() for entry in members]
    counts = [
        describe_count(len(entries), "entry"),
        describe_count(len({name for name, _ in groups}), "kernel"),
        describe_count(len({device for _, device in groups}), "device"),
        f"{_tuned_in(entries)} of tuning",
    ]
    left_out = number - len(entries)
    return ", ".join([*counts, *([f"{left_out} not shown"] if left_out else [])])


def _tuned_in(entries: Sequence[Entry]) -> str:
    return describe_seconds(sum(entry.tuning_seconds for entry in entries))


def _summary(groups: _Groups) -> Iterator[str]:
    rows = [["kernel", "device", "entries", "tuned in"]]
    for (name, device), members in groups.items():
        rows.append([name, device.id, str(len(members)), _tuned_in(members)])
    yield from table("kernels", rows, right=[2, 3])


def _tables(groups: _Groups) -> Iterator[str]:
    """A table of each kernel's entries for a device: what all have in common stands above it."""
    for number, ((name, device), entries) in enumerate(groups.items()):
        keys, own, shared = keys_of([entry.problem for entry in entries])
        # Several entries of one problem are told apart by what they rest on.
        is_ambiguous = len({entry.problem for entry in entries}) < len(entries)
        rows = [[*own, "choice", "time", "tuned in", *(["fingerprint"] if is_ambiguous else [])]]
        for key, entry in zip(keys, entries, strict=True):
            cells = [key[name].display_text if name in key else "-" for name in own]
            cells += [describe_choice(entry), describe_time(entry), _tuned_in([entry])]
            rows.append([*cells, *([" ".join(map(str, entry.fingerprint))] if is_ambiguous else [])])
        values = [[key[name].value for key in keys if name in key] for name in own]
        numeric = [at for at, column in enumerate(values) if all(isinstance(one, (int, float)) for one in column)]
        yield from [""] if number else []
        title = ", ".join([f"{name} on {device}", *map(str, shared)])
        yield from table(title, rows, [*numeric, len(own) + 1, len(own) + 2])
