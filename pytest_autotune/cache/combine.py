"""Caches that were written apart, such as by two branches or by the jobs of a CI run, as one; pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from pytest_autotune.cache.model import Cache, Entry, Identity, Problem, united
from pytest_autotune.cache.ties import Measured, ranked


@dataclass(frozen=True, slots=True)
class Conflict:
    """Several caches have different entries of one problem and fingerprint.

    :param kept: the entry that stays.
    :param rivals: (which cache, its entry), in the order of the caches.
    """

    kept: Entry
    rivals: tuple[tuple[str, Entry], ...]

    @property
    def origin(self) -> str:
        """The first cache that has the entry which stays."""
        return next(origin for origin, entry in self.rivals if entry == self.kept)


@dataclass(frozen=True, slots=True)
class Combined:
    """Several caches as one.

    :param conflicts: in the order of the entries.
    :param removed: entries that the caches' ancestor had and one of them removed.
    :param replaced: those of them whose problem has an entry with another fingerprint now.
    :param several: entries of problems of which different caches have different fingerprints, so that all stay: which
        of them the code has now, only a run can say.
    """

    cache: Cache
    conflicts: tuple[Conflict, ...] = ()
    removed: tuple[Entry, ...] = ()
    replaced: tuple[Entry, ...] = ()
    several: tuple[Entry, ...] = ()


def combine(sides: Mapping[str, Cache], ancestor: Cache | None = None) -> Combined:
    """All entries of all caches; of the entries of one problem and fingerprint, the one that a run would keep.

    With an ancestor, what only one side changed or removed is changed or
    removed, and what one side removed and another changed stays. Without one,
    nothing is ever removed. The entries come in no order.

    :param sides: by a name for each.
    """
    before = {entry.identity: entry for entry in (ancestor or Cache()).entries}
    found: dict[Identity, dict[str, Entry]] = {}
    for origin, side in sides.items():
        for entry in side.entries:
            found.setdefault(entry.identity, {})[origin] = entry
    kept: list[Entry] = []
    removed = [entry for identity, entry in before.items() if identity not in found]
    conflicts: list[Conflict] = []
    for identity, rivals in found.items():
        changed = {origin: entry for origin, entry in rivals.items() if entry != before.get(identity)}
        if not changed and len(rivals) < len(sides):
            removed.append(before[identity])
            continue
        best, *others = ranked([Measured(entry, origin) for origin, entry in (changed or rivals).items()])
        if any(other.entry != best.entry for other in others):
            conflicts.append(Conflict(best.entry, tuple(changed.items())))
        kept.append(united(best.entry, rivals.values()))
    of_problem: defaultdict[Problem, list[Entry]] = defaultdict(list)
    for entry in kept:
        of_problem[entry.problem].append(entry)
    # One cache with both has them on purpose: a factory's kernels, or two lists of candidates.
    apart = [
        entry
        for entries in of_problem.values()
        if len(entries) > 1 and len({tuple(found[one.identity]) for one in entries}) > 1
        for entry in entries
    ]
    return Combined(
        Cache(tuple(kept), next((side.lossy for side in sides.values() if side.lossy), ())),
        tuple(sorted(conflicts, key=lambda conflict: conflict.kept.sort_key)),
        *(
            tuple(sorted(entries, key=lambda entry: entry.sort_key))
            for entries in (
                [entry for entry in removed if entry.problem not in of_problem],
                [entry for entry in removed if entry.problem in of_problem],
                apart,
            )
        ),
    )
