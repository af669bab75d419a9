"""Compares two caches, and finds the winner of an entry: its choice, or its fastest candidate.

An entry belongs to a problem (tuner, kernel, key and device), and to a fingerprint: the digests of the kernel's code
and candidates. Both together are the entry's identity. A cache has at most one entry for each identity.

No function of this module reads or writes a file.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter

from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Identity
from pytest_autotune.cache.wording import describe_count


class ChangeKind(Enum):
    """The kind of a change; the value is the words for it. Changes are sorted in this order."""

    CHOICE = "choice changed"
    CODE = "updated, same choice"
    MOVED = "moved, same choice"
    ADDED = "added"
    REMOVED = "removed"
    VERSIONS = "other versions only"
    TIME = "measured again, same choice"

    def count(self, number: int) -> str:
        """Return the number of such changes in words: ``"3 choices changed"``."""
        if self is ChangeKind.CHOICE:
            return describe_count(number, self.value, "choices changed")
        return describe_count(number, self.value, self.value)


@dataclass(frozen=True, slots=True)
class Change:
    """An entry that differs between two caches.

    :param old: the entry of the old cache; None if the entry was added.
    :param new: the entry of the new cache; None if the entry was removed.
    """

    kind: ChangeKind
    old: Entry | None
    new: Entry | None

    @property
    def entry(self) -> Entry:
        """The new entry; the old entry if there is no new entry."""
        entry = self.new or self.old
        assert entry is not None
        return entry


@dataclass(frozen=True, slots=True)
class Diff:
    """The differences between two caches.

    :param changes: sorted by kind, then by entry.
    :param unchanged: the number of entries that both caches have.
    """

    changes: tuple[Change, ...]
    unchanged: int

    @property
    def device(self) -> Device | None:
        """The device with most of the changes; None if there are no changes."""
        counts = self._count_by_device()
        return min(counts, key=lambda device: (-counts[device], device.sort_key), default=None)

    def _count_by_device(self) -> Counter[Device]:
        return Counter(change.entry.problem.device for change in self.changes)

    def __str__(self) -> str:
        """Return the changes of :attr:`device` by their kind, then the number of changes on each other device."""
        main_device = self.device
        kinds = Counter(change.kind for change in self.changes if change.entry.problem.device == main_device)
        parts = [kind.count(kinds[kind]) for kind in ChangeKind if kinds[kind]]
        counts = self._count_by_device()
        for device in sorted(counts, key=attrgetter("sort_key")):
            if device != main_device:
                parts.append(f"{counts[device]} on {device.name}")
        # Some parts have a comma: "12 measured again, same choice".
        return "; ".join(parts) or "no difference"


def compare_caches(old: Cache, new: Cache) -> Diff:
    """Return the changes that turn the old cache into the new cache.

    If the code or the name of a kernel changed, an entry of another identity replaces its entry. An entry that was
    removed and an entry that was added are a single change in three cases: their problem is the same, or their key
    differs only in digests of code, or only the kernel's name differs.
    """
    return _Comparison(old, new).finish()


class _Comparison:
    """The comparison of two caches."""

    def __init__(self, old: Cache, new: Cache) -> None:
        self._changes: list[Change] = []
        self._unchanged_count = 0
        #: The entries of the old cache for which no entry of the new cache was found yet.
        self._removed: dict[Identity, Entry] = {entry.identity: entry for entry in old.entries}
        #: The entries of the new cache for which no entry of the old cache was found yet.
        self._added: list[Entry] = []
        for entry in new.entries:
            self._compare_same_identity(entry)

    def _compare_same_identity(self, entry: Entry) -> None:
        """Compare an entry of the new cache with the entry of the old cache that has the same identity."""
        old_entry = self._removed.pop(entry.identity, None)
        if old_entry is None:
            self._added.append(entry)
        elif old_entry == entry:
            self._unchanged_count += 1
        else:
            self._add_pair(old_entry, entry, ChangeKind.TIME)

    def finish(self) -> Diff:
        """Return all changes."""
        self._pair(_SameProblem(), ChangeKind.CODE)
        self._pair(_SameProblemWithoutDigests(), ChangeKind.CODE)
        self._pair(_SameKernelElsewhere(), ChangeKind.MOVED)
        for entry in self._added:
            self._changes.append(Change(ChangeKind.ADDED, old=None, new=entry))
        for entry in self._removed.values():
            self._changes.append(Change(ChangeKind.REMOVED, old=entry, new=None))
        kinds = list(ChangeKind)
        self._changes.sort(key=lambda change: (kinds.index(change.kind), change.entry.sort_key))
        return Diff(tuple(self._changes), self._unchanged_count)

    def _pair(self, likeness: _Likeness, kind: ChangeKind) -> None:
        """Pair added entries with removed entries that are like them.

        Each pair becomes a single change. Its entries are no longer among the added and removed entries.

        :param kind: the kind of the change if both entries have the same choice.
        """
        removed_by_part = _group_by_common_part(self._removed.values(), likeness)
        unpaired = []
        for entry in self._added:
            common_part = likeness.common_part(entry)
            if common_part is None or not removed_by_part[common_part]:
                # No removed entry is like this entry, or all of these are paired already.
                unpaired.append(entry)
                continue
            old_entry = removed_by_part[common_part].pop(0)
            del self._removed[old_entry.identity]
            self._add_pair(old_entry, entry, kind)
        self._added = unpaired

    def _add_pair(self, old: Entry, new: Entry, same_choice_kind: ChangeKind) -> None:
        """Add the change of an old entry into a new entry.

        :param same_choice_kind: the kind of the change if both have the same choice, and not only other versions.
        """
        if replace(old, versions=new.versions) == new:
            kind = ChangeKind.VERSIONS
        elif _has_same_result(old, new):
            kind = same_choice_kind
        else:
            kind = ChangeKind.CHOICE
        self._changes.append(Change(kind, old, new))


class _Likeness:
    """A likeness of entries: two entries are alike if they have the same common part."""

    def common_part(self, entry: Entry) -> Hashable:
        """Return the part that alike entries have in common; None if the entry is like no other entry."""
        raise NotImplementedError


class _SameProblem(_Likeness):
    """Entries of the same problem. Their fingerprints differ, because the code or the candidates changed."""

    def common_part(self, entry: Entry) -> Hashable:
        return entry.problem


class _SameProblemWithoutDigests(_Likeness):
    """Entries whose keys are equal but for digests of the code."""

    def common_part(self, entry: Entry) -> Hashable:
        problem = entry.problem
        plain_values = tuple(value for value in problem.sorted_key if value.type != "digest")
        if len(plain_values) == len(problem.key):
            return None
        return problem.tuner, problem.kernel, problem.device, plain_values


class _SameKernelElsewhere(_Likeness):
    """Entries of a kernel that has another name now. Only the digest of its source tells that it is the same kernel."""

    def common_part(self, entry: Entry) -> Hashable:
        problem = entry.problem
        if not any(value.name == "source" for value in entry.fingerprint):
            return None
        return problem.tuner, problem.device, problem.sorted_key, entry.fingerprint


def _group_by_common_part(entries: Iterable[Entry], likeness: _Likeness) -> defaultdict[Hashable, list[Entry]]:
    """Return the entries by the part that they have in common."""
    groups: defaultdict[Hashable, list[Entry]] = defaultdict(list)
    for entry in entries:
        groups[likeness.common_part(entry)].append(entry)
    return groups


def find_winner(entry: Entry | None) -> Candidate | None:
    """Return the candidate that an entry stands for: its choice, or the fastest candidate if all times are the result.

    :returns: None for no entry, and for an entry without a choice and without times.
    """
    if entry is None:
        return None
    if entry.choice is not None:
        return entry.choice
    measured = []
    for candidate in entry.candidates:
        if candidate.time_us is not None and not candidate.failed:
            measured.append(candidate)
    # Of candidates with equal times, min() returns the first.
    return min(measured, key=attrgetter("time_us"), default=None)


def _has_same_result(old: Entry, new: Entry) -> bool:
    """Whether a tuner does the same with both entries."""
    old_winner, new_winner = find_winner(old), find_winner(new)
    if old_winner is None or new_winner is None:
        return old_winner is new_winner and old.native == new.native
    return old_winner.is_same_configuration(new_winner)
