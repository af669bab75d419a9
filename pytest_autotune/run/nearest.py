"""How a problem without an entry differs from those that its kernel has entries for.

Nobody's choice depends on it, and it looks at all entries of a kernel: for a row of the
summary, and for a lookup that is an error.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Entry, Problem, Value
from pytest_autotune.run.lookup import NO_ENTRY

#: Parts of a key that Inductor's tuners give only where they are not as usual.
OPTIONAL = frozenset({"code", "hint", "output", "settings", "sizes", "unaligned"})

NO_ALIASES: Mapping[str, str] = MappingProxyType({})

#: How many parts of a key differ, how far they are apart, in words, and what the entry has there.
_Difference = tuple[int, float, str, tuple[tuple[str, str], ...]]


class Near(NamedTuple):
    """How the nearest entry of a kernel differs.

    :param reason: in words.
    :param has: the name and the value, as text, of each part of its key that differs; empty where there is no such
        entry, or a digest differs.
    """

    reason: str = NO_ENTRY
    has: tuple[tuple[str, str], ...] = ()


def nearest(indexes: Sequence[EntryIndex], problem: Problem, aliases: Mapping[str, str] = NO_ALIASES) -> Near:
    """How the nearest entry of a problem's kernel differs, or which key names its entries have.

    :param aliases: device name -> name of a device whose entries it may use.
    """
    found = _entries_of(indexes, problem)
    usable = [entry for entry in found if entry.problem.device == problem.device]
    if not usable:
        other = aliases.get(problem.device.name)
        usable = [entry for entry in found if entry.problem.device.name == other]
    if not usable:
        return Near()
    wanted = _by_name(problem.key)
    keys = [_by_name(entry.problem.key) for entry in usable]
    least = min((_difference(has, wanted) for has in keys if _comparable(has, wanted)), default=None)
    if least is None:
        names = ", ".join(keys[0]) or "no names"
        return Near(f"no entry with these key names; the entries of this kernel have {names}")
    _, _, difference, has = least
    if difference == "other code":
        return Near("no entry; new or changed code")
    return Near(f"no entry; the nearest has {difference}", has)


def nearest_entries(indexes: Sequence[EntryIndex], problem: Problem, aliases: Mapping[str, str]) -> list[Entry]:
    """The entries of a problem's kernel, the nearest first: of its own device, then by how their keys differ."""
    own = {problem.device.name, aliases.get(problem.device.name)}
    wanted = _by_name(problem.key)

    def distance(entry: Entry) -> tuple[object, ...]:
        return entry.problem.device.name not in own, _difference(_by_name(entry.problem.key), wanted), entry.sort_key

    found = _entries_of(indexes, problem)
    return sorted((entry for entry in found if _comparable(_by_name(entry.problem.key), wanted)), key=distance)


def _entries_of(indexes: Iterable[EntryIndex], problem: Problem) -> list[Entry]:
    return [entry for index in indexes for entry in index.of_kernel(problem.tuner, problem.kernel)]


def _by_name(key: Iterable[Value]) -> dict[str, Value]:
    return {value.name: value for value in key}


def _comparable(names: Iterable[str], others: Iterable[str]) -> bool:
    """Whether keys with these names can be compared part by part: they differ by :data:`OPTIONAL` ones only."""
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
