"""``pytest-autotune show``: what a cache holds, as tables."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeAlias

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.diff import winner
from pytest_autotune.cache.model import Cache, Device, Entry, Scalar, Value
from pytest_autotune.cli.arguments import PATH
from pytest_autotune.cli.output import choice_text, columns, heading, print_lines, safe, time_text

Group: TypeAlias = "tuple[str, str, Device]"

_NO_VALUE = "-"


@click.command("show", short_help="tables of what a cache holds")
@click.argument("file", metavar="FILE", type=PATH)
@click.option("--kernel", metavar="NAME", help="Only kernels with this in TUNER:KERNEL; a glob where it has * or ?.")
@click.option("--device", metavar="NAME", help="Only devices with this in id or name; a glob as above.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object, with a line for each entry.")
def command(file: str, kernel: str | None, device: str | None, as_json: bool) -> None:
    """Tables of what the cache FILE holds: one for each kernel and device, with a row for each problem."""
    cache = stores.read(file)
    entries = [entry for entry in cache.entries if _asked_for(entry, kernel, device)]
    if as_json:
        click.echo("\n".join(_json_lines(entries)), color=True)
    else:
        print_lines(_lines(cache, entries))


def _asked_for(entry: Entry, kernel: str | None, device: str | None) -> bool:
    problem = entry.problem
    return (kernel is None or _matches(kernel, problem.name)) and (
        device is None or _matches(device, problem.device.id) or _matches(device, problem.device.name)
    )


def _matches(wanted: str, name: str) -> bool:
    if any(char in wanted for char in "*?["):
        return fnmatchcase(name, wanted) or fnmatchcase(name, f"*:{wanted}")
    return wanted in name


def _lines(cache: Cache, entries: Sequence[Entry]) -> Iterator[str]:
    groups: defaultdict[Group, list[Entry]] = defaultdict(list)
    for entry in entries:
        problem = entry.problem
        groups[problem.tuner, problem.kernel, problem.device].append(entry)
    for (tuner, kernel, device), members in sorted(groups.items(), key=lambda item: (*item[0][:2], item[0][2].id)):
        yield from _group(f"{tuner}:{kernel}", device, members)
        yield ""
    seconds = sum(entry.tuning_seconds for entry in entries)
    kernels = len({(tuner, kernel) for tuner, kernel, _ in groups})
    devices = len({device for _, _, device in groups})
    left_out = len(cache.entries) - len(entries)
    yield ", ".join(
        [
            counted(len(entries), "entry"),
            counted(kernels, "kernel"),
            counted(devices, "device"),
            f"{seconds:.3g} s of tuning",
            *([f"{left_out} not shown"] if left_out else []),
        ]
    )


def _group(name: str, device: Device, entries: list[Entry]) -> Iterator[str]:
    keys = [{value.name: value for value in entry.problem.key} for entry in entries]
    names = sorted({name for key in keys for name in key})
    seen = {name: {key.get(name) for key in keys} for name in names}
    shared = [name for name in names if len(seen[name]) == 1] if len(entries) > 1 else []
    same = "".join(f", {safe(str(value))}" for name in shared for value in seen[name])
    yield heading(f"{safe(name)} on {safe(str(device))}{same}")
    own = [name for name in names if name not in shared]
    is_ambiguous = _has_several_of_one_problem(entries)
    rows = sorted(zip(keys, entries, strict=True), key=lambda row: [_order(row[0].get(name)) for name in own])
    cells = [_cells([key.get(name) for name in own], entry, with_fingerprint=is_ambiguous) for key, entry in rows]
    head = [*map(safe, own), "choice", "time", "tuned in", *(["fingerprint"] if is_ambiguous else [])]
    numeric = [number for number, name in enumerate(own) if all(map(_is_number, seen[name]))]
    yield from (f"  {line}" for line in columns([head, *cells], frozenset([*numeric, len(own) + 1, len(own) + 2])))


def _cells(key: Sequence[Value | None], entry: Entry, *, with_fingerprint: bool) -> list[str]:
    """The row of an entry; ``key`` has those parts of its key that have a column."""
    best = winner(entry)
    cells = [_NO_VALUE if value is None else safe(value.words) for value in key]
    cells += [choice_text(entry, best), time_text(best), f"{entry.tuning_seconds:.3g} s"]
    return [*cells, safe(" ".join(map(str, entry.fingerprint)))] if with_fingerprint else cells


def _has_several_of_one_problem(entries: Sequence[Entry]) -> bool:
    if len({entry.fingerprint for entry in entries}) < 2:
        return False
    return any(number > 1 for number in Counter(entry.problem for entry in entries).values())


def _is_number(value: Value | None) -> bool:
    return value is not None and isinstance(value.value, (int, float)) and not isinstance(value.value, bool)


def _order(value: Value | None) -> tuple[int, float, str]:
    """Numbers by size, text by its characters."""
    if value is None:
        return 0, 0, ""
    scalar = value.value
    if isinstance(scalar, (int, float)):
        return 1, float(scalar), ""
    return 2, 0, str(scalar)


def _json_lines(entries: Sequence[Entry]) -> Iterator[str]:
    devices = sorted({entry.problem.device for entry in entries}, key=lambda device: device.sort_key)
    plain = [{"id": on.id, "name": on.name, "arch": on.arch, "multiprocessors": on.multiprocessors} for on in devices]
    yield f'{{"format_version": 1, "devices": {_json(plain)}, "entries": ['
    ids = {device: device.id for device in devices}
    last = len(entries) - 1
    for number, entry in enumerate(entries):
        yield _json(_mapping(entry, ids[entry.problem.device])) + ("," if number < last else "")
    yield "]}"


def _json(plain: object) -> str:
    # ASCII throughout, so that no text of a cache reaches the terminal as it is; DEL is all that JSON leaves.
    return json.dumps(plain).replace("\x7f", "\\u007f")


def _mapping(entry: Entry, device: str) -> dict[str, Any]:
    problem = entry.problem
    best = winner(entry)
    return {
        "tuner": problem.tuner,
        "kernel": problem.kernel,
        "key": _values(problem.key),
        "device": device,
        "fingerprint": _values(entry.fingerprint),
        "winner": choice_text(entry, best),
        "params": _values(best.params) if best else {},
        "time_us": best.time_us if best else None,
        "candidates": len(entry.candidates),
        "label": entry.label,
        "tuning_seconds": entry.tuning_seconds,
        "environment": str(entry.versions),
    }


def _values(values: tuple[Value, ...]) -> dict[str, Scalar]:
    return {value.name: value.value for value in values}
