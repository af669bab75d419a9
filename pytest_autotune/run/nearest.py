"""How a problem without an entry differs from those that its kernel has entries for."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from operator import attrgetter, itemgetter
from typing import NamedTuple

from pytest_autotune.cache.distance import LaunchValue, distance, launch_key
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Entry, Problem, Value
from pytest_autotune.run.lookup import NO_ENTRY


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
    entry = next(list_nearest_entries(usable, problem), None)
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


def list_nearest_entries(entries: Iterable[Entry], problem: Problem, alias: str = "") -> Iterator[Entry]:
    """Yield the entries whose keys can be compared with a problem's key, the nearest first.

    A key may have parts that the other key lacks, because some tuners name only the settings that are not the default.
    Entries of the problem's device and of its alias come before all others. Entries that are equally near come in the
    order of a file, as in production.
    """
    wanted = launch_key(problem.key)
    ranked: list[tuple[tuple[bool, int, float], Entry]] = []
    for entry in entries:
        has = _cached_launch_key(entry.problem.key)
        if not (has.keys() <= wanted.keys() or wanted.keys() <= has.keys()):
            continue
        is_other_device = entry.problem.device != problem.device and entry.problem.device.name != alias
        ranked.append(((is_other_device, *distance(wanted, has)), entry))
    ranked.sort(key=itemgetter(0))
    for _, equally_near in groupby(ranked, key=itemgetter(0)):
        # Computing the sort keys of all entries would take longer than the distances.
        yield from sorted((entry for _, entry in equally_near), key=attrgetter("sort_key"))


@lru_cache(4096)
def _cached_launch_key(key: tuple[Value, ...]) -> Mapping[str, LaunchValue]:
    """Return the key of an entry as a launch shows it. Each miss of a kernel is compared with the same entries."""
    return launch_key(key)


def _part(name: str, one: Value | None, other: Value | None) -> str:
    if any(value is not None and value.type == "digest" for value in (one, other)):
        return f"other {name}"
    return f"{name} {_text(one)} instead of {_text(other)}"


def _text(value: Value | None) -> str:
    return "none" if value is None else value.display_text
