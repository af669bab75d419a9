"""What is different between two caches; pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import Enum

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem


class ChangeKind(Enum):
    """What became of an entry; the value is the word for it."""

    CHOICE = "choice changed"
    CODE = "code changed, same choice"
    ADDED = "added"
    REMOVED = "removed"
    TIME = "time only"

    def count(self, number: int) -> str:
        """``"3 choices changed"``."""
        return counted(number, self.value, "choices changed" if self is ChangeKind.CHOICE else self.value)


@dataclass(frozen=True, slots=True)
class Change:
    """One entry that differs.

    :param old: None for one that was added.
    :param new: None for one that was removed.
    """

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
    """All that differs, in the order of :class:`ChangeKind`, then of the entries.

    :param unchanged: how many entries are the same in both.
    """

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
        parts = [kind.count(kinds[kind]) for kind in reversed(ChangeKind) if kinds[kind]]
        others = len(self.changes) - sum(kinds.values())
        if others:
            parts.append(f"{others} of another GPU")
        return ", ".join(parts) or "no difference"


def diff(old: Cache, new: Cache) -> Diff:
    """What has to be done to the old cache to get the new one.

    Entries of one problem whose fingerprint changed are one change each, and
    not one that came and one that went.
    """
    before = {entry.identity: entry for entry in old.entries}
    changes, come = [], []
    unchanged = 0
    for entry in new.entries:
        was = before.pop(entry.identity, None)
        if was is None:
            come.append(entry)
        elif was == entry:
            unchanged += 1
        else:
            kind = ChangeKind.TIME if _same_result(was, entry) else ChangeKind.CHOICE
            changes.append(Change(kind, was, entry))
    gone: defaultdict[Problem, list[Entry]] = defaultdict(list)
    for entry in before.values():
        gone[entry.problem].append(entry)
    for entry in come:
        if others := gone[entry.problem]:
            was = others.pop(0)
            changes.append(Change(ChangeKind.CODE if _same_result(was, entry) else ChangeKind.CHOICE, was, entry))
        else:
            changes.append(Change(ChangeKind.ADDED, None, entry))
    changes += [Change(ChangeKind.REMOVED, entry, None) for entries in gone.values() for entry in entries]
    order = {kind: index for index, kind in enumerate(ChangeKind)}
    changes.sort(key=lambda change: (order[change.kind], change.entry.sort_key))
    return Diff(tuple(changes), unchanged)


def winner(entry: Entry) -> Candidate | None:
    """The candidate that an entry stands for: its choice, or the fastest where all times are the result."""
    if entry.choice is not None:
        return entry.choice
    usable = [(one.time_us, number) for number, one in enumerate(entry.candidates) if not one.failed]
    timed = [(time_us, number) for time_us, number in usable if time_us is not None]
    return entry.candidates[min(timed)[1]] if timed else None


def _same_result(old: Entry, new: Entry) -> bool:
    """Whether both make the tuner do the same."""
    one, other = winner(old), winner(new)
    if one is None or other is None:
        return one is other and old.native == new.native
    return one.same_configuration(other)
