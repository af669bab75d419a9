"""How a problem without an entry differs from those that its kernel has entries for.

Nobody's choice depends on it, and it looks at all entries of a kernel: for a row of the
summary, and for a lookup that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from operator import ne

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Device, Entry, Problem, Value
from pytest_autotune.run.lookup import NO_ENTRY

_Names = tuple[str, ...]


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
        devices = self._of_kernel(problem.tuner, problem.kernel)
        usable = [keys for device, keys in devices.items() if device == problem.device]
        if not usable:
            other = self._aliases.get(problem.device.name)
            usable = [keys for device, keys in devices.items() if device.name == other]
        if not usable:
            return NO_ENTRY
        nearest = min((near for keys in usable if (near := keys.nearest(problem.key))), default=None)
        if nearest is None:
            names = ", ".join(usable[0].names) or "no names"
            return f"no entry with these key names; the entries of this kernel have {names}"
        told = nearest[-1]
        return "no entry; new or changed code" if told == "other code" else f"no entry; the nearest has {told}"

    def _of_kernel(self, tuner: str, kernel: str) -> dict[Device, _Keys]:
        if (tuner, kernel) not in self._kernels:
            by_device: dict[Device, list[Entry]] = {}
            for index in self._indexes:
                for entry in index.of_kernel(tuner, kernel):
                    by_device.setdefault(entry.problem.device, []).append(entry)
            self._kernels[tuner, kernel] = {device: _Keys(entries) for device, entries in by_device.items()}
        return self._kernels[tuner, kernel]


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

    def nearest(self, key: Sequence[Value]) -> tuple[int, float, str] | None:
        """What differs in the nearest key of the same names: how many parts, how far they are apart, and the words."""
        rows = self._rows.get(tuple(value.name for value in key), {})
        wanted = [self._numbers.get(value, -1) for value in key]
        differing = [sum(map(ne, row, wanted)) for row in rows]
        least = min(differing, default=0)
        near = [has for has, number in zip(rows.values(), differing, strict=True) if number == least]
        return min((_difference(has, key) for has in near), default=None)


def _difference(has: Iterable[Value], wanted: Iterable[Value]) -> tuple[int, float, str]:
    others = [(one, other) for one, other in zip(has, wanted, strict=True) if one != other]
    parts = [
        f"other {one.name}" if other.type == "digest" else f"{one.name} {one.value} instead of {other.value}"
        for one, other in others
    ]
    return len(parts), sum(_distance(*pair) for pair in others), ", ".join(parts)


def _distance(one: Value, other: Value) -> float:
    """How far two values are apart: of two numbers the difference, as a share of the larger one."""
    a, b = one.value, other.value
    if isinstance(a, (int, float)) and isinstance(b, (int, float)) and math.isfinite(a) and math.isfinite(b):
        return abs(a - b) / max(abs(a), abs(b), 1)
    return 1.0
