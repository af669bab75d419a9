"""Merging a cache with new measurements, and caches of several origins. Pure; no result depends on an order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import attrgetter

from pytest_autotune.cache.diff import ChangeKind, Diff, compare_caches
from pytest_autotune.cache.model import LAST_GENERATION, Cache, Entry, Identity, Problem
from pytest_autotune.cache.ties import MeasuredEntry, keeps_entry, rank_measurements

#: An entry keeps at most so many specializations. The first in sorted order stay, whichever process compiled them.
MAX_SPECIALIZATIONS = 64


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The outcome of a merge.

    :param changes: the difference from the cache before.
    :param best_measurements: for each identity that was measured, the measurement that counts. The cache may keep an
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
    def counts_text(self) -> str:
        """The counts that are not 0, in words: ``2 added, 1 changed``."""
        words = [f"{number} {word}" for word, number in self.counts.items() if number]
        return ", ".join(words)


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
    base_entries = {entry.identity: entry for entry in base.entries}
    ranked = _rank_by_identity(measured)
    merged = _merge_used(used, base_entries, rules)
    best_measurements = {}
    for identity, measurements in ranked.items():
        best = measurements[0].entry
        best_measurements[identity] = best
        entry_in_use = merged.get(identity)
        if entry_in_use is not None and best.is_failure:
            continue
        same_identity = [measurement.entry for measurement in measurements]
        if entry_in_use is not None:
            same_identity.insert(0, entry_in_use)
        merged[identity] = _merge_measured(measurements, same_identity, base_entries.get(identity), rules)
    for identity, entry in merged.items():
        merged[identity] = _with_generation(entry, base_entries.get(identity))
    retuned_problems = {identity.problem for identity in ranked}
    remaining = _select_remaining(base_entries, merged, retuned_problems, dropped, rules)
    entries = [*remaining, *merged.values()]
    cache = replace(base, entries=tuple(sorted(entries, key=attrgetter("sort_key"))))
    return MergeResult(cache, compare_caches(base, cache), best_measurements)


def _rank_by_identity(measured: Iterable[MeasuredEntry]) -> dict[Identity, list[MeasuredEntry]]:
    """Return the measurements of each identity, the measurement to keep first."""
    measurements_by_identity: defaultdict[Identity, list[MeasuredEntry]] = defaultdict(list)
    for measurement in measured:
        measurements_by_identity[measurement.entry.identity].append(measurement)
    return {identity: rank_measurements(rivals) for identity, rivals in measurements_by_identity.items()}


def _merge_used(
    used: Iterable[Entry], base_entries: Mapping[Identity, Entry], rules: MergeRules
) -> dict[Identity, Entry]:
    """Return the entries that the cache keeps for the used entries."""
    merged: dict[Identity, Entry] = {}
    for entry in sorted(used, key=attrgetter("sort_key")):
        identity = entry.identity
        old = base_entries.get(identity)
        earlier = merged.get(identity)
        current = earlier or old
        if entry.is_failure and current is not None and not current.is_failure:
            merged[identity] = current
            continue
        same_identity = [entry]
        if earlier is not None:
            same_identity.append(earlier)
        kept = entry
        if old is not None and old == entry:
            # An equal entry stays as it was in the file, with its generation and digests.
            kept = old
        merged[identity] = _with_specializations(kept, same_identity, old, rules)
    return merged


def _merge_measured(
    measurements: Sequence[MeasuredEntry], same_identity: Sequence[Entry], old: Entry | None, rules: MergeRules
) -> Entry:
    """Return the entry that the cache keeps for a problem that was tuned. The first measurement counts."""
    best = measurements[0].entry
    is_rejected = any(measurement.has_rejected_entry for measurement in measurements)
    if old is None or not keeps_entry(old, best, is_rejected):
        new = best
        if not rules.keep_candidates:
            new = without_candidates(best)
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
    least_generation = old.generation
    if not is_same:
        least_generation = next_generation(old)
    if entry.generation >= least_generation:
        return entry
    return replace(entry, generation=least_generation)


def next_generation(old: Entry) -> int:
    """Return the generation of an entry that replaces another."""
    return min(old.generation + 1, LAST_GENERATION)


def _select_remaining(
    base_entries: Mapping[Identity, Entry],
    merged: Mapping[Identity, Entry],
    retuned_problems: Set[Problem],
    dropped: Collection[Identity],
    rules: MergeRules,
) -> list[Entry]:
    """Return the entries of the cache that stay although the run has no entry for them."""
    unpruned_identities = {Identity(problem, fingerprint.without_pruning()) for problem, fingerprint in merged}
    remaining = []
    for identity, entry in base_entries.items():
        if identity in merged or identity in dropped:
            continue
        is_retuned = entry.problem in retuned_problems and not rules.keep_other_fingerprints
        differs_in_pruning = Identity(entry.problem, entry.fingerprint.without_pruning()) in unpruned_identities
        if is_retuned and not (rules.keep_pruned and differs_in_pruning):
            continue
        remaining.append(entry)
    return remaining


def _with_specializations(entry: Entry, run_entries: Sequence[Entry], old: Entry | None, rules: MergeRules) -> Entry:
    """Return an entry with the specializations of the entries with the same choice.

    :param run_entries: the entries of the run with the same identity.
    :param old: the entry of the cache with the same identity.
    """
    if rules.replace_specializations:
        replaced = with_specializations_of(replace(entry, compiled=()), run_entries)
        if replaced.compiled:
            return replaced
    same_identity = list(run_entries)
    if old is not None:
        same_identity.append(old)
    return with_specializations_of(entry, same_identity)


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
    """Combine all entries of all caches. If an identity has several entries, the entry stays that a run would keep.

    With an ancestor, a change or a removal by one side is carried out, unless another side changed the entry that was
    removed. Without an ancestor, nothing is removed. The entries of the result are in no order.
    """
    ancestor_entries: dict[Identity, Entry] = {}
    if ancestor is not None:
        ancestor_entries = {entry.identity: entry for entry in ancestor.entries}
    entries_by_identity = _group_by_identity(caches_by_name)
    removed = [entry for identity, entry in ancestor_entries.items() if identity not in entries_by_identity]
    kept: list[Entry] = []
    conflicts: list[Sequence[MeasuredEntry]] = []
    for identity, entries_by_name in entries_by_identity.items():
        rivals = _select_changed(entries_by_name, ancestor_entries.get(identity))
        if not rivals:
            if len(entries_by_name) < len(caches_by_name):
                removed.append(ancestor_entries[identity])
                continue
            rivals = [MeasuredEntry(entry, name) for name, entry in entries_by_name.items()]
        ranked = rank_measurements(rivals)
        best = ranked[0].entry
        if any(measurement.entry != best for measurement in ranked):
            conflicts.append(ranked)
        kept.append(with_specializations_of(best, entries_by_name.values()))
    by_sort_key = attrgetter("sort_key")
    return CombinedCaches(
        Cache(tuple(kept), _first_loss(caches_by_name.values())),
        tuple(sorted(conflicts, key=lambda ranked: ranked[0].entry.sort_key)),
        tuple(sorted(removed, key=by_sort_key)),
        tuple(sorted(_find_ambiguous(kept, entries_by_identity), key=by_sort_key)),
    )


def _group_by_identity(caches_by_name: Mapping[str, Cache]) -> dict[Identity, dict[str, Entry]]:
    """Return, for each identity, the name of each cache that has it, and its entry there."""
    entries_by_identity: defaultdict[Identity, dict[str, Entry]] = defaultdict(dict)
    for name, cache in caches_by_name.items():
        for entry in cache.entries:
            entries_by_identity[entry.identity][name] = entry
    return dict(entries_by_identity)


def _select_changed(entries_by_name: Mapping[str, Entry], ancestor_entry: Entry | None) -> list[MeasuredEntry]:
    """Return the entries that differ from the ancestor's entry."""
    changed = []
    for name, entry in entries_by_name.items():
        if entry != ancestor_entry:
            changed.append(MeasuredEntry(entry, name))
    return changed


def _first_loss(caches: Iterable[Cache]) -> tuple[str, ...]:
    """Return why the first cache with a reason must not be rewritten; empty if each cache may be rewritten."""
    for cache in caches:
        if cache.lossy:
            return cache.lossy
    return ()


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
    for rival in same_identity:
        if rival.choice is not None and rival.choice.is_same_configuration(entry.choice):
            texts.update(rival.compiled)
    compiled = tuple(sorted(texts)[:MAX_SPECIALIZATIONS])
    if compiled == entry.compiled:
        return entry
    return replace(entry, compiled=compiled)
