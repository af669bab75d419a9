"""Merging a cache with new measurements, and caches of several origins. Pure; no result depends on an order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import attrgetter

from pytest_autotune.cache.diff import ChangeKind, Diff, compare_caches
from pytest_autotune.cache.model import LAST_GENERATION, Cache, Entry, Identity, Problem
from pytest_autotune.cache.ties import MeasuredEntry, keeps_entry, rank_measurements

#: The specializations that an entry keeps at most. The first in sorted order stay, whichever process met them.
MAX_SPECIALIZATIONS = 64


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The outcome of a merge.

    :param changes: the difference from the cache before.
    :param best_measurements: of each problem that was measured, the measurement that counts. The cache may keep an
        older choice all the same.
    """

    cache: Cache
    changes: Diff = field(default_factory=lambda: Diff((), 0))
    best_measurements: Mapping[Identity, Entry] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """The number of entries that were added, changed, unchanged and removed. A moved choice counts as changed."""
        kinds = Counter(change.kind for change in self.changes.changes)
        added, removed = kinds[ChangeKind.ADDED], kinds[ChangeKind.REMOVED]
        changed = kinds.total() - added - removed
        return {"added": added, "changed": changed, "unchanged": self.changes.unchanged, "removed": removed}

    @property
    def describe_counts(self) -> str:
        """The counts that are not 0, in words: ``2 added, 1 changed``."""
        return ", ".join(f"{number} {word}" for word, number in self.counts.items() if number)


@dataclass(frozen=True, slots=True)
class MergeRules:
    """The rules of a merge beside adding the entries of a run.

    :param keep_candidates: keep every candidate of an entry that was measured and has a choice.
    :param keep_pruned: keep entries of a re-tuned problem that differ only in the candidates that pruning left. A run
        of a part of the tests may not have asked for them.
    :param keep_other_fingerprints: keep all entries of a re-tuned problem that have another fingerprint. They belong to
        other runs.
    :param replace_specializations: drop the specializations that the cache had for an entry if the run has any.
    """

    keep_candidates: bool = False
    keep_pruned: bool = False
    keep_other_fingerprints: bool = False
    replace_specializations: bool = False


def merge_run(
    base: Cache,
    measured: Iterable[MeasuredEntry] = (),
    used: Iterable[Entry] = (),
    dropped: Collection[Identity] = (),
    rules: MergeRules = MergeRules(),
) -> MergeResult:
    """Merge the entries of a run into a cache.

    - A used entry is added, or replaces the entry with the same fingerprint.
    - A re-tuned problem keeps, to the byte, its entry with the same fingerprint if that choice is still as good
      (:func:`~.ties.keeps_entry`). If the library has another minor version now, the entry gets the new versions.
      Otherwise the new entry replaces it. Entries of that problem with other fingerprints go, unless they were used.
    - "Every candidate failed" replaces no entry that was used, and no result in the cache unless that choice was tried
      and rejected: the cause may pass.
    - An entry has the specializations of all entries with the same choice.
    - All other entries stay.

    :param base: the content of the file now.
    :param measured: the new measurements. If a problem has several, :func:`~.ties.rank_measurements` decides.
    :param used: the loaded entries that tuners took.
    :param dropped: the entries of ``base`` to remove, unless they were used or tuned.
    """
    before = {entry.identity: entry for entry in base.entries}
    ranked = _rank_by_identity(measured)
    merged = _merge_used(used, before, rules)
    for identity, measurements in ranked.items():
        entry_in_use = merged.get(identity)
        if entry_in_use is not None and measurements[0].entry.is_failure:
            continue
        same_identity = [measurement.entry for measurement in measurements]
        if entry_in_use is not None:
            same_identity.insert(0, entry_in_use)
        merged[identity] = _merge_measured(measurements, same_identity, before.get(identity), rules)
    for identity, entry in merged.items():
        merged[identity] = _with_generation(entry, before.get(identity))
    retuned_problems = {identity.problem for identity in ranked}
    after = _select_remaining(before, merged, retuned_problems, dropped, rules) | merged
    cache = replace(base, entries=tuple(sorted(after.values(), key=attrgetter("sort_key"))))
    best_measurements = {identity: measurements[0].entry for identity, measurements in ranked.items()}
    return MergeResult(cache, compare_caches(base, cache), best_measurements)


def _rank_by_identity(measured: Iterable[MeasuredEntry]) -> dict[Identity, list[MeasuredEntry]]:
    """Return the measurements of each identity, the measurement to keep first."""
    measurements_by_identity: defaultdict[Identity, list[MeasuredEntry]] = defaultdict(list)
    for measurement in measured:
        measurements_by_identity[measurement.entry.identity].append(measurement)
    return {identity: rank_measurements(rivals) for identity, rivals in measurements_by_identity.items()}


def _merge_used(used: Iterable[Entry], before: Mapping[Identity, Entry], rules: MergeRules) -> dict[Identity, Entry]:
    """Return the entries that the cache holds for the used entries."""
    merged: dict[Identity, Entry] = {}
    for entry in sorted(used, key=attrgetter("sort_key")):
        identity = entry.identity
        old = before.get(identity)
        earlier = merged.get(identity)
        current = earlier or old
        if entry.is_failure and current is not None and not current.is_failure:
            merged[identity] = current
            continue
        same_identity = [entry] if earlier is None else [entry, earlier]
        # An equal entry stays as it was in the file, with its generation and digests.
        kept = old if old is not None and old == entry else entry
        merged[identity] = _with_specializations(kept, same_identity, old, rules)
    return merged


def _merge_measured(
    measurements: Sequence[MeasuredEntry], same_identity: Sequence[Entry], old: Entry | None, rules: MergeRules
) -> Entry:
    """Return the entry that the cache holds for a problem that was tuned. The first measurement counts."""
    best = measurements[0].entry
    is_rejected = any(measurement.rejected for measurement in measurements)
    if old is None or not keeps_entry(old, best, is_rejected):
        new = best if rules.keep_candidates else without_candidates(best)
        return _with_specializations(new, same_identity, old, rules)
    kept = old
    is_confirmed = best.is_failure == old.is_failure
    has_other_version = old.versions.tuner_minor_version != best.versions.tuner_minor_version
    # Without the new version, every later run would hint at the old version.
    if is_confirmed and best.versions and has_other_version:
        kept = replace(kept, versions=best.versions)
    if rules.keep_candidates and is_confirmed and not old.candidates:
        kept = replace(kept, candidates=best.candidates)
    return _with_specializations(kept, same_identity, old, rules)


def _with_generation(entry: Entry, old: Entry | None) -> Entry:
    """Return an entry that replaces another; it has the next generation if its result is another result."""
    if old is None:
        return entry
    result, old_result = without_candidates(entry), without_candidates(old)
    is_same = (result.choice, result.candidates, result.native) == (old.choice, old_result.candidates, old.native)
    least_generation = old.generation if is_same else next_generation(old)
    if entry.generation >= least_generation:
        return entry
    return replace(entry, generation=least_generation)


def next_generation(old: Entry) -> int:
    """Return the generation of an entry that replaces another."""
    return min(old.generation + 1, LAST_GENERATION)


def _select_remaining(
    before: Mapping[Identity, Entry],
    merged: Mapping[Identity, Entry],
    retuned_problems: Set[Problem],
    dropped: Collection[Identity],
    rules: MergeRules,
) -> dict[Identity, Entry]:
    """Return the entries of the cache that stay although the run has no entry for them."""
    unpruned_identities = {Identity(problem, fingerprint.without_pruning()) for problem, fingerprint in merged}
    remaining = {}
    for identity, entry in before.items():
        if identity in merged or identity in dropped:
            continue
        is_retuned = entry.problem in retuned_problems and not rules.keep_other_fingerprints
        differs_in_pruning = Identity(entry.problem, entry.fingerprint.without_pruning()) in unpruned_identities
        if is_retuned and not (rules.keep_pruned and differs_in_pruning):
            continue
        remaining[identity] = entry
    return remaining


def _with_specializations(entry: Entry, now: Sequence[Entry], before: Entry | None, rules: MergeRules) -> Entry:
    """Return an entry with the specializations of the entries with the same choice.

    :param now: the entries of the run with the same identity.
    :param before: the entry of the cache.
    """
    if rules.replace_specializations:
        replaced = with_specializations_of(replace(entry, compiled=()), now)
        if replaced.compiled:
            return replaced
    return with_specializations_of(entry, now if before is None else [*now, before])


def without_candidates(entry: Entry) -> Entry:
    """Return an entry as a file keeps it: without its candidates, unless they are the result."""
    if entry.choice is None:
        return entry
    return replace(entry, candidates=())


@dataclass(frozen=True, slots=True)
class CombinedCaches:
    """Several caches as one cache.

    :param conflicts: for each identity with different entries in the caches, these entries; the first stays.
    :param removed: entries of the common ancestor that one cache removed, or replaced by an entry with another
        fingerprint.
    :param ambiguous: the entries of problems for which different caches have different fingerprints. All of them stay:
        only a run can say which fingerprint the code has now.
    """

    cache: Cache
    conflicts: tuple[Sequence[MeasuredEntry], ...] = ()
    removed: tuple[Entry, ...] = ()
    ambiguous: tuple[Entry, ...] = ()


def combine_caches(caches_by_name: Mapping[str, Cache], ancestor: Cache | None = None) -> CombinedCaches:
    """Combine all entries of all caches. Of the entries of one identity, the entry stays that a run would keep.

    With an ancestor, a change or a removal by one side is carried out, unless another side changed the entry that was
    removed. Without an ancestor, nothing is removed. The entries of the result are in no order.
    """
    ancestor_entries = {entry.identity: entry for entry in (ancestor or Cache()).entries}
    entries_by_identity: dict[Identity, dict[str, Entry]] = {}
    for name, cache in caches_by_name.items():
        for entry in cache.entries:
            entries_by_identity.setdefault(entry.identity, {})[name] = entry
    kept: list[Entry] = []
    removed = [entry for identity, entry in ancestor_entries.items() if identity not in entries_by_identity]
    conflicts: list[Sequence[MeasuredEntry]] = []
    for identity, rivals in entries_by_identity.items():
        changed = {name: entry for name, entry in rivals.items() if entry != ancestor_entries.get(identity)}
        if not changed and len(rivals) < len(caches_by_name):
            removed.append(ancestor_entries[identity])
            continue
        ranked = rank_measurements([MeasuredEntry(entry, name) for name, entry in (changed or rivals).items()])
        best = ranked[0].entry
        if any(measurement.entry != best for measurement in ranked):
            conflicts.append(ranked)
        kept.append(with_specializations_of(best, rivals.values()))
    lossy: tuple[str, ...] = ()
    for cache in caches_by_name.values():
        lossy = lossy or cache.lossy
    return CombinedCaches(
        Cache(tuple(kept), lossy),
        tuple(sorted(conflicts, key=lambda ranked: ranked[0].entry.sort_key)),
        tuple(sorted(removed, key=attrgetter("sort_key"))),
        tuple(sorted(_find_ambiguous(kept, entries_by_identity), key=attrgetter("sort_key"))),
    )


def _find_ambiguous(kept: Iterable[Entry], entries_by_identity: Mapping[Identity, Mapping[str, Entry]]) -> list[Entry]:
    """Return the entries of problems for which different caches have different fingerprints.

    A cache that has several fingerprints itself has them on purpose: kernels of a factory, or two lists of candidates.

    :param entries_by_identity: for each identity, the name of each cache that has it, and its entry there.
    """
    kept_by_problem: defaultdict[Problem, list[Entry]] = defaultdict(list)
    for entry in kept:
        kept_by_problem[entry.problem].append(entry)
    ambiguous: list[Entry] = []
    for entries in kept_by_problem.values():
        origins = {tuple(entries_by_identity[entry.identity]) for entry in entries}
        if len(entries) > 1 and len(origins) > 1:
            ambiguous += entries
    return ambiguous


def with_specializations_of(entry: Entry, same_identity: Iterable[Entry]) -> Entry:
    """Return an entry with the specializations of other entries that have the same choice."""
    if entry.choice is None:
        return entry
    texts = set(entry.compiled)
    for other in same_identity:
        if other.choice is not None and other.choice.is_same_configuration(entry.choice):
            texts.update(other.compiled)
    compiled = tuple(sorted(texts)[:MAX_SPECIALIZATIONS])
    if compiled == entry.compiled:
        return entry
    return replace(entry, compiled=compiled)
