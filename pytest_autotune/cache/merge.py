"""Computes the cache that a test run writes: the entries of its cache file, merged with the entries of the run.

- An entry holds the result of tuning a problem: usually a choice, the configuration to launch. A *failure* is an entry
  that says "every candidate failed".
- The *identity* of an entry is its problem (tuner, kernel, key and device) with its fingerprint (digests of the
  kernel's code and of its candidates). A cache has at most one entry for each identity.
- A *measured* entry comes from a tuning in this run. A *used* entry was loaded from a cache, and a tuner used it in
  place of a tuning.
- The *specializations* of an entry are the argument types for which its choice was compiled, as texts. They are its
  field ``compiled``.
- The *generation* of an entry counts how often it was replaced. If two caches have entries of the same identity, the
  entry with the higher generation wins.

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

#: An entry keeps at most so many specializations. If it has more, the first ones of the sorted texts stay, because the
#: result must not depend on the order in which processes compiled them.
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
    :param keep_pruned: if the run measured a problem, keep the cache's other entries of the problem that differ only in
        the candidates that the kernel's pruning left. A test that asks for such an entry may not be a part of this run.
    :param keep_other_fingerprints: if the run measured a problem, keep all other entries of the problem that the cache
        has. They belong to other runs.
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
    """Return a cache with the entries of a run, and the changes against the cache before.

    The result has one entry for each identity:

    - If the run used an entry of the identity, the used entry replaces the cache's entry.
    - If the run measured the identity, the best measured entry replaces the cache's entry. But if the choice of the
      cache's entry is still as good (:func:`~.ties.keeps_entry`), this entry stays to the byte. Only its versions are
      renewed, if the tuner's library has another minor version now.
    - A failure never replaces a used entry. It replaces a choice of the cache only if the run tried and rejected that
      choice. Otherwise the cause of the failure may be transient.
    - In all other cases the cache's entry stays. It is removed if it is to be dropped, or if the run measured its
      problem with another fingerprint: the entry belongs to older code then.

    The specializations of all entries with the same identity and choice are united.

    :param base: the cache before: the content of the file now.
    :param measured: the new measurements. If an identity has several, :func:`~.ties.rank_measurements` decides.
    :param used: the loaded entries that tuners used in place of a tuning.
    :param dropped: the identities of the entries to remove from ``base``, unless they were used or measured.
    :param rules: options that keep more entries and more of an entry.
    """
    base_entries = {entry.identity: entry for entry in base.entries}
    measurements_by_identity = _rank_by_identity(measured)
    # First the identities that the run used or measured.
    used_entries = _merge_all_used(used, base_entries, rules)
    measured_entries = _merge_all_measured(measurements_by_identity, used_entries, base_entries, rules)
    # An identity that was used and then measured again has the measured entry.
    run_entries = _with_generations(used_entries | measured_entries, base_entries)
    # Then all other identities of the cache.
    measured_problems = {identity.problem for identity in measurements_by_identity}
    remaining_entries = _select_remaining(base_entries, run_entries, measured_problems, dropped, rules)
    entries = sorted([*run_entries.values(), *remaining_entries], key=attrgetter("sort_key"))
    cache = replace(base, entries=tuple(entries))
    best_measurements = {identity: ranked[0].entry for identity, ranked in measurements_by_identity.items()}
    return MergeResult(cache, compare_caches(base, cache), best_measurements)


def _rank_by_identity(measured: Iterable[MeasuredEntry]) -> dict[Identity, list[MeasuredEntry]]:
    """Return the measurements of each identity, the best first. Several processes may have measured the same."""
    measurements_by_identity: defaultdict[Identity, list[MeasuredEntry]] = defaultdict(list)
    for measurement in measured:
        measurements_by_identity[measurement.entry.identity].append(measurement)
    return {identity: rank_measurements(rivals) for identity, rivals in measurements_by_identity.items()}


def _merge_all_used(
    used: Iterable[Entry], base_entries: Mapping[Identity, Entry], rules: MergeRules
) -> dict[Identity, Entry]:
    """Return the entry that the merged cache has for each used identity."""
    used_by_identity: defaultdict[Identity, list[Entry]] = defaultdict(list)
    for entry in sorted(used, key=attrgetter("sort_key")):
        used_by_identity[entry.identity].append(entry)
    merged = {}
    for identity, same_identity in used_by_identity.items():
        merged[identity] = _merge_used(same_identity, base_entries.get(identity), rules)
    return merged


def _merge_used(used: Sequence[Entry], old: Entry | None, rules: MergeRules) -> Entry:
    """Return the entry that the merged cache has for an identity that the run used.

    :param used: the used entries of the identity. There are several if the run loaded several caches that have it.
    :param old: the entry of the identity in the cache; None if the cache has none.
    """
    merged: Entry | None = None
    for entry in used:
        present = merged or old
        if entry.is_failure and present is not None and not present.is_failure:
            # The choice stays, because the cause of the failure may be transient.
            merged = present
            continue
        kept = entry
        if entry == old:
            # The old entry also has a generation and digests, which `==` ignores. They stay.
            kept = old
        run_entries = [entry]
        if merged is not None:
            run_entries.append(merged)
        merged = _with_run_specializations(kept, run_entries, old, rules)
    assert merged is not None
    return merged


def _merge_all_measured(
    ranked_by_identity: Mapping[Identity, Sequence[MeasuredEntry]],
    used_entries: Mapping[Identity, Entry],
    base_entries: Mapping[Identity, Entry],
    rules: MergeRules,
) -> dict[Identity, Entry]:
    """Return the entry that the merged cache has for each measured identity.

    An identity is left out if it was also used and its best measurement is a failure: the used entry stays.

    :param ranked_by_identity: the measurements of each identity, the best first.
    :param used_entries: the entries that the run used, as the merged cache has them.
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
    """Return the entry that the merged cache has for an identity that the run measured.

    :param ranked: the measurements of the identity, the best first.
    :param used_entry: the entry of the identity that the run used before; None if it used none.
    :param old: the entry of the identity in the cache; None if the cache has none.
    """
    best = ranked[0].entry
    is_old_rejected = any(measurement.has_rejected_entry for measurement in ranked)
    if old is not None and keeps_entry(old, best, is_old_rejected):
        kept = _with_renewed_details(old, best, rules)
    elif rules.keep_candidates:
        kept = best
    else:
        kept = without_candidates(best)
    run_entries = [measurement.entry for measurement in ranked]
    if used_entry is not None:
        run_entries.append(used_entry)
    return _with_run_specializations(kept, run_entries, old, rules)


def _with_renewed_details(old: Entry, measured: Entry, rules: MergeRules) -> Entry:
    """Return the cache's entry, whose choice stays, with the versions and candidates of a new measurement.

    :param measured: the new measurement of the same identity, which found no better choice.
    """
    if measured.is_failure != old.is_failure:
        # The new measurement failed, and says nothing about the choice that stays.
        return old
    renewed = old
    has_other_version = old.versions.tuner_minor_version != measured.versions.tuner_minor_version
    if measured.versions and has_other_version:
        # With the old versions, each later run would report that the entry belongs to another version.
        renewed = replace(renewed, versions=measured.versions)
    if rules.keep_candidates and not old.candidates:
        renewed = replace(renewed, candidates=measured.candidates)
    return renewed


def _with_generations(
    run_entries: Mapping[Identity, Entry], base_entries: Mapping[Identity, Entry]
) -> dict[Identity, Entry]:
    """Return the entries of a run, each with a generation with which it replaces the cache's entry."""
    entries = {}
    for identity, entry in run_entries.items():
        entries[identity] = _with_generation(entry, base_entries.get(identity))
    return entries


def _with_generation(entry: Entry, old: Entry | None) -> Entry:
    """Return an entry whose generation is high enough to replace the old entry in every later merge of caches.

    An entry with a new result needs at least the generation after that of the old entry. An entry with the same result
    needs at least the generation of the old entry.

    :param old: the entry of the same identity in the cache; None if the cache has none.
    """
    if old is None:
        return entry
    least_generation = old.generation
    if not have_same_result(entry, old):
        least_generation = next_generation(old)
    if entry.generation >= least_generation:
        return entry
    return replace(entry, generation=least_generation)


def have_same_result(entry: Entry, old: Entry) -> bool:
    """Whether two entries have the same result in a file: the choice, or the candidates, or the tuner's own bytes."""
    if entry.choice != old.choice or entry.native != old.native:
        return False
    return without_candidates(entry).candidates == without_candidates(old).candidates


def next_generation(old: Entry) -> int:
    """Return the generation of an entry that replaces an old entry by another result."""
    return min(old.generation + 1, LAST_GENERATION)


def _select_remaining(
    base_entries: Mapping[Identity, Entry],
    run_entries: Mapping[Identity, Entry],
    measured_problems: Set[Problem],
    dropped: Collection[Identity],
    rules: MergeRules,
) -> list[Entry]:
    """Return the entries of the cache that stay as they are.

    :param run_entries: the entries that replace entries of the cache or are added to it.
    :param measured_problems: the problems that the run measured.
    :param dropped: the identities of the entries to remove.
    """
    unpruned_identities = {_without_pruning(identity) for identity in run_entries}
    remaining = []
    for identity, entry in base_entries.items():
        if identity in run_entries or identity in dropped:
            continue
        if entry.problem not in measured_problems:
            remaining.append(entry)
            continue
        # The problem was measured with another fingerprint. So the entry belongs to older code, unless a rule keeps it.
        differs_only_in_pruning = _without_pruning(identity) in unpruned_identities
        if rules.keep_other_fingerprints or (rules.keep_pruned and differs_only_in_pruning):
            remaining.append(entry)
    return remaining


def _without_pruning(identity: Identity) -> Identity:
    """Return the identity that the problem has if no candidate is pruned."""
    return Identity(identity.problem, identity.fingerprint.without_pruning())


def _with_run_specializations(
    entry: Entry, run_entries: Sequence[Entry], old: Entry | None, rules: MergeRules
) -> Entry:
    """Return an entry with the specializations of the run, and with those of the cache unless the rules replace them.

    :param run_entries: the entries of the run with the same identity.
    :param old: the entry of the cache with the same identity; None if the cache has none.
    """
    if rules.replace_specializations:
        only_from_run = with_specializations_of(replace(entry, compiled=()), run_entries)
        if only_from_run.compiled:
            return only_from_run
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
    """Return an entry with its own specializations and those of the other entries that have the same choice.

    :param same_identity: entries with the identity of ``entry``. Entries with another choice do not count.
    """
    if entry.choice is None:
        # Without a choice, nothing was compiled.
        return entry
    specializations = set(entry.compiled)
    for other_entry in same_identity:
        if other_entry.choice is not None and other_entry.choice.is_same_configuration(entry.choice):
            specializations.update(other_entry.compiled)
    compiled = tuple(sorted(specializations)[:MAX_SPECIALIZATIONS])
    if compiled == entry.compiled:
        return entry
    return replace(entry, compiled=compiled)
