"""Combines caches of several origins, such as those of two branches, with or without their common ancestor.

The identity of an entry is its problem with its fingerprint: the digests of the kernel's code and candidates. A cache
has at most one entry for each identity.

The functions are pure, and no result depends on the order of the entries or of the caches.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from pytest_autotune.cache.merge import with_specializations_of
from pytest_autotune.cache.model import Cache, Entry, Identity, Problem
from pytest_autotune.cache.ties import MeasuredEntry, rank_measurements


@dataclass(frozen=True, slots=True)
class CombinedCaches:
    """Several caches as one cache.

    :param conflicts: for each identity of which the caches have different entries, these entries. The first of them is
        in the combined cache.
    :param removed: the entries of the common ancestor that a cache removed, or replaced by an entry with another
        fingerprint. They are not in the combined cache.
    :param ambiguous: the entries of problems for which different caches have different fingerprints. All of them are in
        the combined cache, because only a run can say which fingerprint the code has now.
    """

    cache: Cache
    conflicts: tuple[Sequence[MeasuredEntry], ...] = ()
    removed: tuple[Entry, ...] = ()
    ambiguous: tuple[Entry, ...] = ()


def combine_caches(caches_by_name: Mapping[str, Cache], ancestor: Cache | None = None) -> CombinedCaches:
    """Combine all entries of all caches. If an identity has several entries, the entry that a run would keep stays.

    Without an ancestor, nothing is removed. With an ancestor, each of its entries is treated in this way:

    - All caches removed the ancestor's entry: it is removed.
    - Some caches removed it, and the others did not change it: it is removed.
    - Some caches changed it: the changed entries compete, even if other caches removed it.
    - No cache removed or changed it: it stays.

    The entries of the result are in no order.

    :param caches_by_name: the caches by the names that messages use for them.
    """
    ancestor_entries: dict[Identity, Entry] = {}
    if ancestor is not None:
        ancestor_entries = {entry.identity: entry for entry in ancestor.entries}
    entries_by_identity = _group_by_identity(caches_by_name)
    # All caches removed these entries.
    removed = [entry for identity, entry in ancestor_entries.items() if identity not in entries_by_identity]
    kept: list[Entry] = []
    conflicts: list[Sequence[MeasuredEntry]] = []
    for identity, entries_by_name in entries_by_identity.items():
        rivals = _select_rivals(entries_by_name, ancestor_entries.get(identity), len(caches_by_name))
        if not rivals:
            # Some caches removed the entry.
            removed.append(ancestor_entries[identity])
            continue
        ranked = rank_measurements(rivals)
        best = ranked[0].entry
        if any(rival.entry != best for rival in rivals):
            conflicts.append(ranked)
        kept.append(with_specializations_of(best, entries_by_name.values()))
    combined = CombinedCaches(
        Cache(tuple(kept), _first_loss(caches_by_name.values())),
        conflicts=tuple(conflicts),
        removed=tuple(removed),
        ambiguous=tuple(_find_ambiguous(kept, entries_by_identity)),
    )
    return _sort_combined(combined)


def _sort_combined(combined: CombinedCaches) -> CombinedCaches:
    """Return combined caches whose lists for messages are sorted. A store sorts the entries of the cache itself."""
    by_sort_key = attrgetter("sort_key")
    return replace(
        combined,
        conflicts=tuple(sorted(combined.conflicts, key=lambda ranked: ranked[0].entry.sort_key)),
        removed=tuple(sorted(combined.removed, key=by_sort_key)),
        ambiguous=tuple(sorted(combined.ambiguous, key=by_sort_key)),
    )


def _group_by_identity(caches_by_name: Mapping[str, Cache]) -> dict[Identity, dict[str, Entry]]:
    """Return the entries of each identity, by the name of the cache that has the entry."""
    entries_by_identity: defaultdict[Identity, dict[str, Entry]] = defaultdict(dict)
    for name, cache in caches_by_name.items():
        for entry in cache.entries:
            entries_by_identity[entry.identity][name] = entry
    return dict(entries_by_identity)


def _select_rivals(
    entries_by_name: Mapping[str, Entry], ancestor_entry: Entry | None, cache_count: int
) -> list[MeasuredEntry]:
    """Return the entries of an identity of which the best gets into the combined cache; none if the entry is removed.

    :param entries_by_name: the entries by the name of their cache. A cache that removed the entry has none.
    :param ancestor_entry: None if the ancestor has no entry of the identity. Then all entries compete.
    :param cache_count: the number of all caches.
    """
    rivals = [MeasuredEntry(entry, name) for name, entry in entries_by_name.items()]
    # Without an entry of the ancestor, all entries are changes.
    changed = [rival for rival in rivals if rival.entry != ancestor_entry]
    if changed:
        # A change counts more than a removal by another cache.
        return changed
    if len(rivals) < cache_count:
        # A cache removed the entry, and no other cache changed it.
        return []
    # No cache removed or changed the entry.
    return rivals


def _first_loss(caches: Iterable[Cache]) -> tuple[str, ...]:
    """Return the ``lossy`` error of the first cache that has such an error; empty if no cache has an error."""
    for cache in caches:
        if cache.lossy:
            return cache.lossy
    return ()


def _find_ambiguous(kept: Iterable[Entry], entries_by_identity: Mapping[Identity, Mapping[str, Entry]]) -> list[Entry]:
    """Return the entries of problems for which different caches have different fingerprints.

    For example, the code of a kernel was changed on one branch, and the other branch still has the old code. Each
    branch's cache then has an entry that the other lacks.

    If all entries of a problem are in the same caches, they are not ambiguous. Such a cache has several fingerprints on
    purpose: for kernels that a factory makes under one name, or for two lists of candidates.

    :param kept: the entries of the combined cache.
    :param entries_by_identity: the entries of each identity, by the name of the cache that has the entry.
    """
    kept_by_problem: defaultdict[Problem, list[Entry]] = defaultdict(list)
    for entry in kept:
        kept_by_problem[entry.problem].append(entry)
    ambiguous: list[Entry] = []
    for same_problem in kept_by_problem.values():
        #: For each entry of the problem, the names of the caches that have it. A set has equal groups of names once.
        groups_of_cache_names = {frozenset(entries_by_identity[entry.identity]) for entry in same_problem}
        if len(groups_of_cache_names) > 1:
            ambiguous += same_problem
    return ambiguous
