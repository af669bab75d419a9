"""``pytest-autotune show``: what a cache holds, as tables."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence
from difflib import get_close_matches
from typing import Any, TypeAlias

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.counted import counted, seconds
from pytest_autotune.cache.diff import winner
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Device, Entry, Value
from pytest_autotune.cli.output import (
    FOUND,
    OK,
    PATH,
    choice_text,
    keys_of,
    matches,
    print_lines,
    safe,
    table,
    time_text,
)

#: So many kernels are named where the one that was asked for is not there.
_NEAREST = 5


@click.command("show", short_help="tables of what a cache holds")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--kernel", metavar="NAME", help="Only kernels with this in TUNER:KERNEL; a glob where it has * or ?.")
@click.option("--device", metavar="NAME", help="Only devices with this in id or name; a glob as above.")
@click.option("--summary", is_flag=True, help="A row for each kernel and device instead of their tables.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with a line for each entry.")
def command(file: str, kernel: str | None, device: str | None, summary: bool, as_json: bool) -> int:
    """Tables of what the cache FILE holds: one for each kernel and device, with a row for each problem."""
    cache = stores.read(file)
    of_kernel = [entry for entry in cache.entries if matches(kernel, entry.problem.name)]
    entries = [one for one in of_kernel if matches(device, one.problem.device.id, one.problem.device.name)]
    if cache.entries and not entries:
        print_lines([_none_of(of_kernel or cache.entries, kernel, device if of_kernel else None)], err=True)
        return FOUND
    if as_json:
        print_lines(_json_lines(entries))
    else:
        print_lines(_lines(cache, entries, _summary if summary else _tables))
    if cache.lossy:
        print_lines([safe(str(CacheError(*cache.lossy)))], err=True)
    return OK


def _none_of(entries: Sequence[Entry], kernel: str | None, device: str | None) -> str:
    """What there is, where what was asked for is not."""
    if device is not None:
        there = ", ".join(sorted({entry.problem.device.id for entry in entries}))
        return f"no entry for a device {safe(device)}; there are: {safe(there)}"
    kernels = dict.fromkeys(entry.problem.name for entry in entries)
    wanted = kernel or ""
    near = get_close_matches(wanted, list(kernels), _NEAREST, 0.3) or list(kernels)[:_NEAREST]
    more = f" and {len(kernels) - len(near)} more (--summary)" if len(kernels) > len(near) else ""
    return f"no entry of a kernel {safe(wanted)}; there are: {safe(', '.join(near))}{more}"


_Groups: TypeAlias = "list[tuple[tuple[str, Device], list[Entry]]]"


def _lines(cache: Cache, entries: Sequence[Entry], render: Callable[[_Groups], Iterator[str]]) -> Iterator[str]:
    groups: defaultdict[tuple[str, Device], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.problem.name, entry.problem.device].append(entry)
    yield from render(sorted(groups.items(), key=lambda item: (item[0][0], item[0][1].sort_key)))
    left_out = len(cache.entries) - len(entries)
    yield ", ".join(
        [
            counted(len(entries), "entry"),
            counted(len({name for name, _ in groups}), "kernel"),
            counted(len({device for _, device in groups}), "device"),
            f"{seconds(sum(entry.tuning_seconds for entry in entries))} of tuning",
            *([f"{left_out} not shown"] if left_out else []),
        ]
    )


def _tables(groups: _Groups) -> Iterator[str]:
    for (name, device), members in groups:
        yield from _group(name, device, members)
        yield ""


def _summary(groups: _Groups) -> Iterator[str]:
    rows = [["kernel", "device", "entries", "tuned in"]]
    for (name, device), members in groups:
        took = seconds(sum(entry.tuning_seconds for entry in members))
        rows.append([safe(name), safe(device.id), str(len(members)), took])
    yield from table("kernels", rows, right=[2, 3])
    yield ""


def _group(name: str, device: Device, entries: list[Entry]) -> Iterator[str]:
    """A table of a kernel's entries for a device: what all have in common stands above it."""
    keys, own, shared = keys_of([entry.problem for entry in entries])
    title = ", ".join([f"{name} on {device}", *map(str, shared)])
    # Several entries of one problem are told apart by what they rest on.
    is_ambiguous = max(Counter(entry.problem for entry in entries).values()) > 1
    rows = [[*own, "choice", "time", "tuned in", *(["fingerprint"] if is_ambiguous else [])]]
    ordered = sorted(zip(keys, entries, strict=True), key=lambda row: [_order(row[0].get(name)) for name in own])
    for key, entry in ordered:
        cells = [key[name].words if name in key else "-" for name in own]
        cells += [choice_text(entry), time_text(entry), seconds(entry.tuning_seconds)]
        rows.append([*cells, *([" ".join(map(str, entry.fingerprint))] if is_ambiguous else [])])
    numeric = [number for number, name in enumerate(own) if all(_is_number(key.get(name)) for key in keys)]
    right = [*numeric, len(own) + 1, len(own) + 2]
    yield from table(title, [[safe(cell) for cell in row] for row in rows], right)


def _is_number(value: Value | None) -> bool:
    return value is not None and isinstance(value.value, (int, float)) and not isinstance(value.value, bool)


def _order(value: Value | None) -> tuple[int, float, str]:
    """Numbers by size, text by its characters."""
    if value is None:
        return 0, 0, ""
    scalar = value.value
    return (1, float(scalar), "") if isinstance(scalar, (int, float)) else (2, 0, str(scalar))


def _json_lines(entries: Sequence[Entry]) -> Iterator[str]:
    devices = sorted({entry.problem.device for entry in entries}, key=lambda device: device.sort_key)
    plain = [{"id": on.id, "name": on.name, "arch": on.arch, "multiprocessors": on.multiprocessors} for on in devices]
    yield f'{{"format_version": 1, "devices": {_json(plain)}, "entries": ['
    last = len(entries) - 1
    for number, entry in enumerate(entries):
        yield _json(_mapping(entry)) + ("," if number < last else "")
    yield "]}"


def _json(plain: object) -> str:
    # ASCII throughout, so that no text of a cache reaches the terminal as it is; DEL is all that JSON leaves.
    return json.dumps(plain).replace("\x7f", "\\u007f")


def _mapping(entry: Entry) -> dict[str, Any]:
    problem, best = entry.problem, winner(entry)
    return {
        "tuner": problem.tuner,
        "kernel": problem.kernel,
        "key": {value.name: value.value for value in problem.key},
        "device": problem.device.id,
        "fingerprint": {value.name: value.value for value in entry.fingerprint},
        "winner": choice_text(entry),
        "params": {value.name: value.value for value in best.params} if best else {},
        "time_us": best.time_us if best else None,
        "candidates": len(entry.candidates),
        "label": entry.label,
        "tuning_seconds": entry.tuning_seconds,
        "environment": str(entry.versions),
    }
