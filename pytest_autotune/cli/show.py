"""``pytest-autotune show``: what a cache holds, as tables."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.diff import winner
from pytest_autotune.cache.model import Cache, Device, Entry, Value
from pytest_autotune.cli.output import PATH, choice_text, print_lines, safe, table, time_text


@click.command("show", short_help="tables of what a cache holds")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--kernel", metavar="NAME", help="Only kernels with this in TUNER:KERNEL; a glob where it has * or ?.")
@click.option("--device", metavar="NAME", help="Only devices with this in id or name; a glob as above.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with a line for each entry.")
def command(file: str, kernel: str | None, device: str | None, as_json: bool) -> None:
    """Tables of what the cache FILE holds: one for each kernel and device, with a row for each problem."""
    cache = stores.read(file)
    of_kernel = (entry for entry in cache.entries if _matches(kernel, entry.problem.name))
    entries = [one for one in of_kernel if _matches(device, one.problem.device.id, one.problem.device.name)]
    print_lines(_json_lines(entries) if as_json else _lines(cache, entries))


def _matches(wanted: str | None, *names: str) -> bool:
    if wanted is None:
        return True
    if any(char in wanted for char in "*?["):
        return any(fnmatchcase(name, wanted) or fnmatchcase(name, f"*:{wanted}") for name in names)
    return any(wanted in name for name in names)


def _lines(cache: Cache, entries: Sequence[Entry]) -> Iterator[str]:
    groups: defaultdict[tuple[str, Device], list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[entry.problem.name, entry.problem.device].append(entry)
    for (name, device), members in sorted(groups.items(), key=lambda item: (item[0][0], item[0][1].sort_key)):
        yield from _group(name, device, members)
        yield ""
    left_out = len(cache.entries) - len(entries)
    yield ", ".join(
        [
            counted(len(entries), "entry"),
            counted(len({name for name, _ in groups}), "kernel"),
            counted(len({device for _, device in groups}), "device"),
            f"{sum(entry.tuning_seconds for entry in entries):.3g} s of tuning",
            *([f"{left_out} not shown"] if left_out else []),
        ]
    )


def _group(name: str, device: Device, entries: list[Entry]) -> Iterator[str]:
    """A table of a kernel's entries for a device: what all have in common stands above it."""
    keys = [{value.name: value for value in entry.problem.key} for entry in entries]
    seen = {name: {key.get(name) for key in keys} for name in dict.fromkeys(name for key in keys for name in key)}
    shared = [name for name, values in seen.items() if len(values) == 1 and len(entries) > 1]
    own = [name for name in seen if name not in shared]
    title = ", ".join([f"{name} on {device}", *(str(value) for name in shared for value in seen[name])])
    # Several entries of one problem are told apart by what they rest on.
    is_ambiguous = max(Counter(entry.problem for entry in entries).values()) > 1
    rows = [[*own, "choice", "time", "tuned in", *(["fingerprint"] if is_ambiguous else [])]]
    ordered = sorted(zip(keys, entries, strict=True), key=lambda row: [_order(row[0].get(name)) for name in own])
    for key, entry in ordered:
        cells = [key[name].words if name in key else "-" for name in own]
        cells += [choice_text(entry), time_text(entry), f"{entry.tuning_seconds:.3g} s"]
        rows.append([*cells, *([" ".join(map(str, entry.fingerprint))] if is_ambiguous else [])])
    numeric = [number for number, name in enumerate(own) if all(map(_is_number, seen[name]))]
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
