"""The entries of a kernel that are nearest to a problem, and the words for a problem without an entry."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from operator import attrgetter

from pytest_autotune.cache.distance import LaunchValue, distance, launch_key
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Entry, Problem, Value
from pytest_autotune.run.lookup import NO_ENTRY, Policy


@dataclass(frozen=True)
class MissReason:
    """Why a problem has no entry.

    :param text: in words, with the nearest entry of the kernel.
    :param differences: name and value, as text, of each part of the nearest entry's key that differs; empty if the
        kernel has no entry to compare with, or if a digest differs.
    """

    text: str = NO_ENTRY
    differences: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class KeyDifference:
    """A part of the key in which the nearest entry differs from the problem.

    :param entry_value: None if the entry's key has no such part.
    :param wanted_value: None if the problem's key has no such part.
    """

    name: str
    entry_value: Value | None
    wanted_value: Value | None

    @property
    def is_digest(self) -> bool:
        """Whether the part is a digest, which tells a reader nothing."""
        for value in (self.entry_value, self.wanted_value):
            if value is not None and value.type == "digest":
                return True
        return False

    def __str__(self) -> str:
        """Return the difference in words: ``M 64 instead of 100``."""
        if self.is_digest:
            return f"other {self.name}"
        return f"{self.name} {_to_text(self.entry_value)} instead of {_to_text(self.wanted_value)}"


def explain_miss(indexes: Sequence[EntryIndex], problem: Problem, policy: Policy) -> MissReason:
    """Return why a problem has no entry: how the nearest entry of its kernel differs.

    The texts, in the order of the code:

    - ``no entry``: the kernel has no entry that the problem's device may use.
    - ``no entry; the entries of this kernel have other key names: M, N``: no entry has comparable names in its key.
    - ``no entry``: the nearest entry has the same key. The process that asked had loaded an older cache.
    - ``no entry; new or changed code``: the key of the nearest entry differs only in the digest of the code.
    - ``no entry; the nearest entry has M 64 instead of 100``: any other difference.

    The function compares all entries of the kernel, which takes time. It is called only for a row of the summary, and
    for a lookup that fails a test or whose test loads a cache for itself.

    :param indexes: the loaded caches.
    :param policy: names the other devices whose entries a device may use.
    """
    usable_entries = []
    for entry in list_kernel_entries(indexes, problem):
        if policy.may_use_entries_of(problem.device, entry.problem.device):
            usable_entries.append(entry)
    if not usable_entries:
        return MissReason()
    # Policy() has no aliases, so the entries of the device itself come before the entries of its alias.
    nearest_entry = next(list_nearest_entries(usable_entries, problem, Policy()), None)
    if nearest_entry is None:
        names = ", ".join(value.name for value in usable_entries[0].problem.key) or "none"
        return MissReason(f"no entry; the entries of this kernel have other key names: {names}")
    differences = _compare_keys(nearest_entry, problem)
    if not differences:
        # ``pytest-autotune gate`` judges a newer cache than the process loaded, and this cache has the entry.
        return MissReason()
    has_digest = any(difference.is_digest for difference in differences)
    differing_names = [difference.name for difference in differences]
    if has_digest and differing_names == ["code"]:
        return MissReason("no entry; new or changed code")
    text = f"no entry; the nearest entry has {', '.join(map(str, differences))}"
    if has_digest:
        # The value of a digest tells a reader nothing.
        return MissReason(text)
    names_and_values = []
    for difference in differences:
        names_and_values.append((difference.name, _to_text(difference.entry_value)))
    return MissReason(text, tuple(names_and_values))


def _compare_keys(entry: Entry, problem: Problem) -> list[KeyDifference]:
    """Return the parts in which the keys of an entry and of a problem differ.

    They are in the order of the problem's key. Parts that only the entry has come last.
    """
    wanted_values = {value.name: value for value in problem.key}
    entry_values = {value.name: value for value in entry.problem.key}
    # A dict, unlike a set, keeps the order of the names.
    names = dict.fromkeys([*wanted_values, *entry_values])
    differences = []
    for name in names:
        entry_value, wanted_value = entry_values.get(name), wanted_values.get(name)
        if entry_value != wanted_value:
            differences.append(KeyDifference(name, entry_value, wanted_value))
    return differences


def _to_text(value: Value | None) -> str:
    if value is None:
        return "none"
    return value.display_text


def list_kernel_entries(indexes: Sequence[EntryIndex], problem: Problem) -> list[Entry]:
    """Return all entries of a problem's kernel."""
    entries: list[Entry] = []
    for index in indexes:
        entries += index.list_kernel_entries(problem.tuner, problem.kernel)
    return entries


@dataclass(frozen=True)
class _RankedEntry:
    """An entry with its distance from a problem.

    :param rank: whether the problem's device may not use the entry, the number of other parts of the key, and the
        distance between the numbers of the keys. The nearest entry has the lowest rank.
    """

    rank: tuple[bool, int, float]
    entry: Entry


def list_nearest_entries(entries: Iterable[Entry], problem: Problem, policy: Policy) -> Iterator[Entry]:
    """Yield the entries whose keys can be compared with a problem's key, the nearest first.

    Entries that the problem's device may use come before all others. Entries that are equally near come in the order of
    a file, as in production.

    :param entries: of the problem's kernel.
    :param policy: names the other devices whose entries a device may use.
    """
    wanted_key = launch_key(problem.key)
    ranked_entries = []
    for entry in entries:
        entry_key = _cached_launch_key(entry.problem.key)
        if _have_comparable_names(wanted_key, entry_key):
            is_for_other_device = not policy.may_use_entries_of(problem.device, entry.problem.device)
            rank = (is_for_other_device, *distance(wanted_key, entry_key))
            ranked_entries.append(_RankedEntry(rank, entry))
    ranked_entries.sort(key=attrgetter("rank"))
    for _, equally_near in groupby(ranked_entries, key=attrgetter("rank")):
        # Only entries that are equally near need their sort keys, which take longer to compute than distances.
        yield from sorted((ranked_entry.entry for ranked_entry in equally_near), key=attrgetter("sort_key"))


def _have_comparable_names(wanted_key: Mapping[str, LaunchValue], entry_key: Mapping[str, LaunchValue]) -> bool:
    """Whether one key has all the names of the other key.

    It may have further names, because some tuners name only the settings that are not the default.
    """
    return entry_key.keys() <= wanted_key.keys() or wanted_key.keys() <= entry_key.keys()


@lru_cache(4096)
def _cached_launch_key(key: tuple[Value, ...]) -> Mapping[str, LaunchValue]:
    """Return the key of an entry as a launch shows it. Every miss of a kernel needs the keys of the same entries."""
    return launch_key(key)
