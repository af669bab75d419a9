"""Merges a cache with the measurements of a run.

The functions are pure, and no result depends on the order of the entries. :mod:`pytest_autotune.cache.combine` merges
caches of several origins with each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import attrgetter

from pytest_autotune.cache.diff import ChangeKind, Diff, compare_caches
from pytest_autotune.cache.model import LAST_GENERATION, Cache, Entry, Identity, Problem
from pytest_autotune.cache.ties import MeasuredEntry, keeps_entry, rank_measurements

#: An entry keeps at most so many specializations. If it has more, the first of the sorted texts stay: the result must
#: not depend on the order in which processes compiled them.
MAX_SPECIALIZATIONS = 64


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The outcome of a merge.

    :param changes: the differences between the old cache and the merged cache.
    :param best_measurements: for each identity that was measured, the entry of the best measurement. The merged cache
        may nevertheless keep its older entry.
    """

    cache: Cache
    changes: Diff = field(default_factory=lambda: Diff(changes=(), unchanged=0))
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
    """Options of a merge. Without them, a merge keeps as little as a complete run needs.

    :param keep_candidates: keep all candidates of a measured entry; else only its choice is kept.
    :param keep_pruned: keep the entries of a re-tuned problem that differ only in the candidates that pruning left.
        A test that asks for such an entry may not be a part of this run.
    :param keep_other_fingerprints: keep all entries of a re-tuned problem that have another fingerprint. They belong to
        other runs.
    :param replace_specializations: if the run has specializations for an entry, drop those that the cache had.
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
    """Merge the entries of a run into a cache. An identity is a problem with a fingerprint.

    - A used entry is added. If the cache has an entry of the same identity, the used entry replaces it.
    - A measured entry is added. If the cache has an entry of the same identity whose choice is still as good
      (:func:`~.ties.keeps_entry`), the cache's entry stays to the byte. Only its versions are renewed, if the tuner's
      library has another minor version now.
    - The other entries of a re-tuned problem are removed, unless they were used: they belong to older code.
    - "Every candidate failed" never replaces a used entry. It replaces a choice of the cache only if the run tried and
      rejected that choice. Otherwise the cause of the failure may be transient.
    - The specializations of all entries with the same identity and choice are united.
    - All entries of other problems stay, unless they are to be dropped.

    :param base: the content of the file now.
    :param measured: the new measurements. If an identity has several, :func:`~.ties.rank_measurements` decides.
    :param used: the loaded entries that tuners used in place of a tuning.
    :param dropped: the identities of the entries to remove from ``base``, unless they were used or measured.
    """
    base_entries = {entry.identity: entry for entry in base.entries}
    ranked_by_identity = _rank_by_identity(measured)
    run_entries = _merge_used(used, base_entries, rules)
    run_entries.update(_merge_all_measured(ranked_by_identity, run_entries, base_entries, rules))
    run_entries = _with_generations(run_entries, base_entries)
    retuned_problems = {identity.problem for identity in ranked_by_identity}
    remaining = _select_remaining(base_entries, run_entries, retuned_problems, dropped, rules)
    entries = sorted([*remaining, *run_entries.values()], key=attrgetter("sort_key"))
    cache = replace(base, entries=tuple(entries))
    best_measurements = {identity: ranked[0].entry for identity, ranked in ranked_by_identity.items()}
    return MergeResult(cache, compare_caches(base, cache), best_measurements)


def _rank_by_identity(measured: Iterable[MeasuredEntry]) -> dict[Identity, list[MeasuredEntry]]:
    """Return the measurements of each identity. The best measurement is the first of its list."""
    measurements_by_identity: defaultdict[Identity, list[MeasuredEntry]] = defaultdict(list)
    for measurement in measured:
        measurements_by_identity[measurement.entry.identity].append(measurement)
    return {identity: rank_measurements(rivals) for identity, rivals in measurements_by_identity.items()}


def _merge_used(
    used: Iterable[Entry], base_entries: Mapping[Identity, Entry], rules: MergeRules
) -> dict[Identity, Entry]:
    """Return the entry that the cache keeps for each used entry, by identity.

    Several loaded caches may each have an entry of the same identity, and the run may have used all of them.
    """
    merged: dict[Identity, Entry] = {}
    for entry in sorted(used, key=attrgetter("sort_key")):
        identity = entry.identity
        old = base_entries.get(identity)
        merged_before = merged.get(identity)
        replaced = merged_before or old
        if entry.is_failure and replaced is not None and not replaced.is_failure:
            # A choice stays, because the cause of "every candidate failed" may be transient.
            merged[identity] = replaced
            continue
        kept = entry
        if entry == old:
            # The old entry also has a generation and digests, which the comparison ignores. They stay.
            kept = old
        same_identity = [entry]
        if merged_before is not None:
            same_identity.append(merged_before)
        merged[identity] = _with_specializations(kept, same_identity, old, rules)
    return merged


def _merge_all_measured(
    ranked_by_identity: Mapping[Identity, Sequence[MeasuredEntry]],
    used_entries: Mapping[Identity, Entry],
    base_entries: Mapping[Identity, Entry],
    rules: MergeRules,
) -> dict[Identity, Entry]:
    """Return the entry that the cache keeps for each measured identity, unless a used entry stays in its place.

    :param ranked_by_identity: the measurements of each identity, the best first.
    :param used_entries: the entries that the run used, as the cache keeps them.
    """
    merged: dict[Identity, Entry] = {}
    for identity, ranked in ranked_by_identity.items():
        used_entry = used_entries.get(identity)
        if used_entry is not None and ranked[0].entry.is_failure:
            # The used entry stays, because the cause of the failure may be transient.
            continue
        merged[identity] = _merge_measured(ranked, used_entry, base_entries.get(identity), rules)
    return merged


def _merge_measured(
    ranked: Sequence[MeasuredEntry], used_entry: Entry | None, old: Entry | None, rules: MergeRules
) -> Entry:
    """Return the entry that the cache keeps for an identity that the run measured.

    :param ranked: the measurements of the identity, the best first.
    :param used_entry: the entry of the identity that the run used before; None if it used none.
    :param old: the entry of the identity in the cache; None if the cache has none.
    """
    best = ranked[0].entry
    run_entries = [measurement.entry for measurement in ranked]
    if used_entry is not None:
        run_entries.append(used_entry)
    is_rejected = any(measurement.has_rejected_entry for measurement in ranked)
    if old is not None and keeps_entry(old, best, is_rejected):
        kept = _with_news(old, best, rules)
    elif rules.keep_candidates:
        kept = best
    else:
        kept = without_candidates(best)
    return _with_specializations(kept, run_entries, old, rules)


def _with_news(old: Entry, best: Entry, rules: MergeRules) -> Entry:
    """Return an entry that the cache keeps, with the parts that a new measurement may renew.

    :param best: the new measurement, which found no better choice.
    """
    if best.is_failure != old.is_failure:
        # The new measurement failed, and says nothing about the choice that stays.
        return old
    kept = old
    has_other_version = old.versions.tuner_minor_version != best.versions.tuner_minor_version
    if best.versions and has_other_version:
        # With the old versions, each later run would report that the entry belongs to another version.
        kept = replace(kept, versions=best.versions)
    if rules.keep_candidates and not old.candidates:
        kept = replace(kept, candidates=best.candidates)
    return kept


def _with_generations(
    run_entries: Mapping[Identity, Entry], base_entries: Mapping[Identity, Entry]
) -> dict[Identity, Entry]:
    """Return the entries of a run, each with a generation that lets it replace the cache's entry."""
    entries = {}
    for identity, entry in run_entries.items():
        entries[identity] = _with_generation(entry, base_entries.get(identity))
    return entries


def _with_generation(entry: Entry, old: Entry | None) -> Entry:
    """Return an entry with a generation that lets it replace an old entry in every later merge.

    A new result needs the next generation. The same result needs at least the old generation.
    """
    if old is None:
        return entry
    least_generation = old.generation
    if not _have_same_result(entry, old):
        least_generation = next_generation(old)
    if entry.generation >= least_generation:
        return entry
    return replace(entry, generation=least_generation)


def _have_same_result(entry: Entry, old: Entry) -> bool:
    """Whether two entries have the same result in a file: the choice, or the candidates, or the tuner's own bytes."""
    if entry.choice != old.choice or entry.native != old.native:
        return False
    return without_candidates(entry).candidates == without_candidates(old).candidates


def next_generation(old: Entry) -> int:
    """Return the generation of an entry that replaces an old entry by another result."""
    return min(old.generation + 1, LAST_GENERATION)


def _select_remaining(
    base_entries: Mapping[Identity, Entry],
    merged: Mapping[Identity, Entry],
    retuned_problems: Set[Problem],
    dropped: Collection[Identity],
    rules: MergeRules,
) -> list[Entry]:
    """Return the entries of the cache that stay as they are.

    :param merged: the entries that replace entries of the cache or are added to it.
    :param retuned_problems: the problems that the run tuned.
    """
    unpruned_identities = {_without_pruning(identity) for identity in merged}
    remaining = []
    for identity, entry in base_entries.items():
        if identity in merged:
            # The merged entry replaces this entry.
            continue
        if identity in dropped:
            continue
        if entry.problem not in retuned_problems or rules.keep_other_fingerprints:
            remaining.append(entry)
        elif rules.keep_pruned and _without_pruning(identity) in unpruned_identities:
            # The entry belongs to the same code and list of candidates. Only the pruning differs.
            remaining.append(entry)
    return remaining


def _without_pruning(identity: Identity) -> Identity:
    """Return the identity that the problem has if no candidate is pruned."""
    return Identity(identity.problem, identity.fingerprint.without_pruning())


def _with_specializations(entry: Entry, run_entries: Sequence[Entry], old: Entry | None, rules: MergeRules) -> Entry:
    """Return an entry with the specializations of all entries with the same choice.

    :param run_entries: the entries of the run with the same identity.
    :param old: the entry of the cache with the same identity; None if the cache has none.
    """
    if rules.replace_specializations:
        replaced = with_specializations_of(replace(entry, compiled=()), run_entries)
        if replaced.compiled:
            return replaced
        # The run compiled nothing for this choice, so the specializations of the cache stay.
    same_identity = list(run_entries)
    if old is not None:
        same_identity.append(old)
    return with_specializations_of(entry, same_identity)


def without_candidates(entry: Entry) -> Entry:
    """Return an entry as a file keeps it: without its candidates, unless they are the result."""
    if entry.choice is None:
        # The times of the candidates are the result, or the reasons why each candidate failed.
        return entry
    return replace(entry, candidates=())


def with_specializations_of(entry: Entry, same_identity: Iterable[Entry]) -> Entry:
    """Return an entry with its specializations and those of other entries that have the same choice."""
    if entry.choice is None:
        # Without a choice, nothing was compiled.
        return entry
    texts = set(entry.compiled)
    for rival in same_identity:
        if rival.choice is not None and rival.choice.is_same_configuration(entry.choice):
            texts.update(rival.compiled)
    compiled = tuple(sorted(texts)[:MAX_SPECIALIZATIONS])
    if compiled == entry.compiled:
        return entry
    return replace(entry, compiled=compiled)
