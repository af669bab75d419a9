"""What is different between two caches; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Hashable
from dataclasses import dataclass, replace
from enum import Enum
from operator import attrgetter

from pytest_autotune.cache.model import Cache, Candidate, Device, Entry
from pytest_autotune.cache.quantities import describe_count

_BY_SORT_KEY = attrgetter("sort_key")


class ChangeKind(Enum):
    """What became of an entry; the value is the word for it."""

    CHOICE = "choice changed"
    CODE = "updated, same choice"
    MOVED = "moved, same choice"
    ADDED = "added"
    REMOVED = "removed"
    VERSIONS = "other versions only"
    TIME = "measured again, same choice"

    def count(self, number: int) -> str:
        """``"3 choices changed"``."""
        return describe_count(number, self.value, "choices changed" if self is ChangeKind.CHOICE else self.value)


@dataclass(frozen=True, slots=True)
class Change:
    """One entry that differs; there is no old one where it was added, and no new one where it was removed."""

    kind: ChangeKind
    old: Entry | None
    new: Entry | None

    @property
    def entry(self) -> Entry:
        """The new entry, or the old one where there is no new one."""
        found = self.new or self.old
        assert found is not None
        return found


@dataclass(frozen=True, slots=True)
class Diff:
    """All that differs, in the order of :class:`ChangeKind`, then of the entries; and how many are the same in both."""

    changes: tuple[Change, ...]
    unchanged: int

    @property
    def device(self) -> Device | None:
        """The device that most of the changes are of; None where there are none."""
        devices = Counter(change.entry.problem.device for change in self.changes)
        return min(devices, key=lambda device: (-devices[device], device.sort_key), default=None)

    def __str__(self) -> str:
        main = self.device
        kinds = Counter(change.kind for change in self.changes if change.entry.problem.device == main)
        parts = [kind.count(kinds[kind]) for kind in ChangeKind if kinds[kind]]
        others = Counter(change.entry.problem.device for change in self.changes)
        parts += [f"{others[device]} on {device.name}" for device in sorted(others, key=_BY_SORT_KEY) if device != main]
        return ", ".join(parts) or "no difference"


def compare_caches(old: Cache, new: Cache) -> Diff:
    """What has to be done to the old cache to get the new one.

    One change each, and not one entry that came and one that went, are entries of one problem whose fingerprint
    changed, of one kernel whose key says that its code did, and of a kernel that was moved.
    """
    gone = {entry.identity: entry for entry in old.entries}
    changes: list[Change] = []
    come: list[Entry] = []
    unchanged = 0
    for entry in new.entries:
        was = gone.pop(entry.identity, None)
        if was is None:
            come.append(entry)
        elif was == entry:
            unchanged += 1
        else:
            changes.append(Change(_kind_of(was, entry, ChangeKind.TIME), was, entry))
    for same in (_problem, _without_digests, _elsewhere):
        kind = ChangeKind.MOVED if same is _elsewhere else ChangeKind.CODE
        before: defaultdict[Hashable, list[Entry]] = defaultdict(list)
        for entry in gone.values():
            before[same(entry)].append(entry)
        left, come = come, []
        for entry in left:
            if others := before[same(entry)] if same(entry) is not None else []:
                was = gone.pop(others.pop(0).identity)
                changes.append(Change(_kind_of(was, entry, kind), was, entry))
            else:
                come.append(entry)
    changes += [Change(ChangeKind.ADDED, None, entry) for entry in come]
    changes += [Change(ChangeKind.REMOVED, entry, None) for entry in gone.values()]
    order = {kind: index for index, kind in enumerate(ChangeKind)}
    changes.sort(key=lambda change: (order[change.kind], change.entry.sort_key))
    return Diff(tuple(changes), unchanged)


def _problem(entry: Entry) -> Hashable:
    return entry.problem


def _without_digests(entry: Entry) -> Hashable:
    """What stays of a problem whose key holds a digest of its code; None for others."""
    problem = entry.problem
    rest = tuple(value for value in problem.sorted_key if value.type != "digest")
    return None if len(rest) == len(problem.key) else (problem.tuner, problem.kernel, problem.device, rest)


def _elsewhere(entry: Entry) -> Hashable:
    """What stays of an entry whose kernel has another name now; None where nothing tells that it is the same."""
    problem = entry.problem
    is_known = any(value.name == "source" for value in entry.fingerprint)
    return (problem.tuner, problem.device, problem.sorted_key, entry.fingerprint) if is_known else None


def _kind_of(was: Entry, now: Entry, otherwise: ChangeKind) -> ChangeKind:
    if replace(was, versions=now.versions) == now:
        return ChangeKind.VERSIONS
    return otherwise if _same_result(was, now) else ChangeKind.CHOICE


def find_winner(entry: Entry | None) -> Candidate | None:
    """The candidate that an entry stands for: its choice, or the fastest where all times are the result."""
    if entry is None:
        return None
    if entry.choice is not None:
        return entry.choice
    usable = [(one.time_us, number) for number, one in enumerate(entry.candidates) if not one.failed]
    timed = [(time_us, number) for time_us, number in usable if time_us is not None]
    return entry.candidates[min(timed)[1]] if timed else None


def _same_result(old: Entry, new: Entry) -> bool:
    """Whether both make the tuner do the same."""
    one, other = find_winner(old), find_winner(new)
    if one is None or other is None:
        return one is other and old.native == new.native
    return one.is_same_configuration(other)
