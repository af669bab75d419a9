"""How a problem without an entry differs from those that its kernel has entries for.

Nobody's choice depends on it, and it looks at all entries of a kernel: for a row of the
summary, and for a lookup that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import ne
from typing import NamedTuple

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Device, Entry, Problem, Value
from pytest_autotune.run.lookup import NO_ENTRY

#: Parts of a key that Inductor's tuners give only where they are not as usual.
OPTIONAL = frozenset({"code", "hint", "output", "settings", "sizes", "unaligned"})

#: How many parts of a key differ, how far they are apart, in words, and what the entry has there.
_Difference = tuple[int, float, str, tuple[tuple[str, str], ...]]
_Names = tuple[str, ...]


class Near(NamedTuple):
    """How the nearest entry of a kernel differs.

    :param reason: in words.
    :param has: the name and the value, as text, of each part of its key that differs; empty where there is no such
        entry, or a digest differs.
    """

    reason: str = NO_ENTRY
    has: tuple[tuple[str, str], ...] = ()


class Nearest:
    """Finds the nearest entries of some caches.

    :param indexes: the caches.
    :param aliases: device name -> name of a device whose entries it may use.
    """

    def __init__(self, indexes: Sequence[EntryIndex], aliases: Mapping[str, str]) -> None:
        self._indexes = indexes
        self._aliases = aliases
        self._kernels: dict[tuple[str, str], dict[Device, _Keys]] = {}

    def reason(self, problem: Problem) -> str:
        """Say how the nearest entry of this kernel differs, or which key names its entries have."""
        return self.find(problem).reason

    def find(self, problem: Problem) -> Near:
        """How the nearest entry of this kernel differs."""
        devices = self._of_kernel(problem.tuner, problem.kernel)
        usable = [keys for device, keys in devices.items() if device == problem.device]
        if not usable:
            other = self._aliases.get(problem.device.name)
            usable = [keys for device, keys in devices.items() if device.name == other]
        if not usable:
            return Near()
        nearest = min((near for keys in usable if (near := keys.nearest(problem.key))), default=None)
        if nearest is None:
            names = ", ".join(usable[0].names) or "no names"
            return Near(f"no entry with these key names; the entries of this kernel have {names}")
        _, _, difference, has = nearest
        if difference == "other code":
            return Near("no entry; new or changed code")
        return Near(f"no entry; the nearest has {difference}", has)

    def _of_kernel(self, tuner: str, kernel: str) -> dict[Device, _Keys]:
        if (tuner, kernel) not in self._kernels:
            by_device: dict[Device, list[Entry]] = {}
            for index in self._indexes:
                for entry in index.of_kernel(tuner, kernel):
                    by_device.setdefault(entry.problem.device, []).append(entry)
            self._kernels[tuner, kernel] = {device: _Keys(entries) for device, entries in by_device.items()}
        return self._kernels[tuner, kernel]


def nearest_entries(indexes: Sequence[EntryIndex], problem: Problem, aliases: Mapping[str, str]) -> list[Entry]:
    """The entries of a problem's kernel, the nearest first: of its own device, then by how their keys differ."""
    own = {problem.device.name, aliases.get(problem.device.name)}
    wanted = {value.name: value for value in problem.key}

    def distance(entry: Entry) -> tuple[object, ...]:
        has = {value.name: value for value in entry.problem.key}
        return entry.problem.device.name not in own, _difference(has, wanted), entry.sort_key

    entries = [entry for index in indexes for entry in index.of_kernel(problem.tuner, problem.kernel)]
    comparable = [entry for entry in entries if _comparable([value.name for value in entry.problem.key], wanted)]
    return sorted(comparable, key=distance)


class _Keys:
    """Keys as rows of numbers, of which many are compared in little time; equal values have the same number."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self._numbers: dict[Value, int] = {}
        self._rows: dict[_Names, dict[tuple[int, ...], tuple[Value, ...]]] = {}
        #: The key names of one of the entries.
        self.names = tuple(value.name for value in entries[0].problem.key)
        for entry in entries:
            key = entry.problem.key
            row = tuple([self._numbers.setdefault(value, len(self._numbers)) for value in key])
            self._rows.setdefault(tuple([value.name for value in key]), {})[row] = key

    def nearest(self, key: Sequence[Value]) -> _Difference | None:
        """What differs in the nearest key of the same names.

        Names are the same where they differ by :data:`OPTIONAL` ones only.
        """
        wanted = {value.name: value for value in key}
        found = [self._nearest_of(names, wanted) for names in self._rows if _comparable(names, wanted)]
        return min(found, default=None)

    def _nearest_of(self, names: _Names, wanted: Mapping[str, Value]) -> _Difference:
        rows = self._rows[names]
        numbers = [self._numbers.get(wanted[name], -1) if name in wanted else -1 for name in names]
        differing = [sum(map(ne, row, numbers)) for row in rows]
        least = min(differing)
        near = [has for has, number in zip(rows.values(), differing, strict=True) if number == least]
        return min(_difference({value.name: value for value in has}, wanted) for has in near)


def _comparable(names: Iterable[str], others: Iterable[str]) -> bool:
    """Whether keys with these names can be compared part by part."""
    return set(names) ^ set(others) <= OPTIONAL


def _difference(has: Mapping[str, Value], wanted: Mapping[str, Value]) -> _Difference:
    names = dict.fromkeys([*wanted, *has])
    pairs = [(name, has.get(name), wanted.get(name)) for name in names if has.get(name) != wanted.get(name)]
    parts = [_part(name, one, other) for name, one, other in pairs]
    has_digest = any(value is not None and value.type == "digest" for _, *both in pairs for value in both)
    shown = () if has_digest else tuple((name, _text(one)) for name, one, _ in pairs)
    return len(parts), sum(_distance(one, other) for _, one, other in pairs), ", ".join(parts), shown


def _part(name: str, one: Value | None, other: Value | None) -> str:
    if any(value is not None and value.type == "digest" for value in (one, other)):
        return f"other {name}"
    return f"{name} {_text(one)} instead of {_text(other)}"


def _text(value: Value | None) -> str:
    return "none" if value is None else value.words


def _distance(one: Value | None, other: Value | None) -> float:
    """How far two values are apart: of two numbers the difference, as a share of the larger one."""
    if one is None or other is None:
        return 1.0
    a, b = one.value, other.value
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / max(abs(a), abs(b), 1)
    return 1.0
