"""How a problem without an entry differs from those that its kernel has entries for."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import starmap, zip_longest
from operator import itemgetter
from typing import NamedTuple

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Entry, Problem, Value
from pytest_autotune.run.lookup import NO_ENTRY

#: What a part that differs counts, beside how far it is apart: fewer parts are nearer, whatever their values are.
_PART = 1000.0


class MissReason(NamedTuple):
    """How the nearest entry of a kernel differs.

    :param reason: in words.
    :param has: the name and the value, as text, of each part of its key that differs; empty where there is no such
        entry, or a digest differs.
    """

    text: str = NO_ENTRY
    differences: tuple[tuple[str, str], ...] = ()


def nearest(indexes: Sequence[EntryIndex], problem: Problem, alias: str = "") -> MissReason:
    """How the nearest entry of a problem's kernel differs, or which key names its entries have.

    It looks at all entries of a kernel: for a row of the summary, and for a lookup that is an error.

    :param alias: name of another device whose entries it may use.
    """
    of_kernel = [(entry.problem.device, entry) for entry in entries_of(indexes, problem)]
    usable = [entry for device, entry in of_kernel if device == problem.device or device.name == alias]
    if not usable:
        return MissReason()
    entry = next(iter(nearest_entries(usable, problem)), None)
    if entry is None:
        names = ", ".join(value.name for value in usable[0].problem.key) or "no names"
        return MissReason(f"no entry with these key names; the entries of this kernel have {names}")
    wanted = {value.name: value for value in problem.key}
    has = {value.name: value for value in entry.problem.key}
    pairs = [(name, has.get(name), wanted.get(name)) for name in dict.fromkeys([*wanted, *has])]
    differing = [(name, one, other) for name, one, other in pairs if one != other]
    difference = ", ".join(_part(*pair) for pair in differing)
    if difference == "other code":
        return MissReason("no entry; new or changed code")
    has_digest = any(value is not None and value.type == "digest" for _, *both in differing for value in both)
    shown = () if has_digest else tuple((name, _text(one)) for name, one, _ in differing)
    return MissReason(f"no entry; the nearest has {difference}", shown)


def entries_of(indexes: Sequence[EntryIndex], problem: Problem) -> list[Entry]:
    """All entries of a problem's kernel."""
    return [entry for index in indexes for entry in index.list_kernel_entries(problem.tuner, problem.kernel)]


def nearest_entries(entries: Iterable[Entry], problem: Problem, alias: str = "") -> list[Entry]:
    """The entries whose keys can be compared with a problem's part by part, the nearest first.

    One may have parts that the other lacks: some tuners give only what is not as usual. First come those of its own
    device and of its alias.
    """
    wanted = {value.name: value for value in problem.key}
    found: list[tuple[bool, float, Entry]] = []
    for entry in entries:
        has = {value.name: value for value in entry.problem.key}
        if has.keys() <= wanted.keys() or wanted.keys() <= has.keys():
            is_other = entry.problem.device != problem.device and entry.problem.device.name != alias
            apart = sum(_distance(has.get(name), wanted.get(name)) for name in has.keys() | wanted.keys())
            found.append((is_other, apart, entry))
    return [entry for *_, entry in sorted(found, key=itemgetter(0, 1))]


def _part(name: str, one: Value | None, other: Value | None) -> str:
    if any(value is not None and value.type == "digest" for value in (one, other)):
        return f"other {name}"
    return f"{name} {_text(one)} instead of {_text(other)}"


def _text(value: Value | None) -> str:
    return "none" if value is None else value.display_text


def _distance(one: Value | None, other: Value | None) -> float:
    """How far two values are apart: of two that differ by how far their numbers are, of texts those place by place."""
    if one == other:
        return 0.0
    if one is None or other is None or not one.type == other.type in ("", "tuple"):
        return _PART + 1.0
    ours, theirs = _pieces(one.value), _pieces(other.value)
    differing = [(a, b) for a, b in zip_longest(ours, theirs) if a != b]
    return _PART + sum(starmap(_share, differing)) / max(len(ours), len(theirs))


@lru_cache(4096)
def _pieces(value: object) -> list[object]:
    """A value; of a text, such as ``cpu float32[4, 64]``, the words and the numbers in it."""
    if not isinstance(value, str):
        return [value]
    return [float(piece) if piece.isdecimal() else piece for piece in re.split(r"(\d+)", value)]


def _share(a: object, b: object) -> float:
    numbers = isinstance(a, (int, float)) and isinstance(b, (int, float)) and math.isfinite(a) and math.isfinite(b)
    return abs(a - b) / max(abs(a), abs(b), 1) if numbers else 1.0  # type: ignore[operator, arg-type]
