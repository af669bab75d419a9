"""Merging a cache with new measurements, and caches that were written apart. Pure, and the same in any order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import attrgetter

from pytest_autotune.cache.diff import ChangeKind, Diff, compare_caches
from pytest_autotune.cache.model import LAST_GENERATION, Cache, Entry, Identity, Problem, before_pruning
from pytest_autotune.cache.ties import MeasuredEntry, keeps_entry, rank_measurements

#: An entry has so many texts of what its choice was compiled for: the first in their order, whoever met them when.
MAX_SPECIALIZATIONS = 64


@dataclass(frozen=True, slots=True)
class MergeResult:
    """The outcome of a merge.

    :param changes: what is different from what was there.
    :param best: of what was measured, the measurement that counts; the cache may keep an older choice all the same.
    """

    cache: Cache
    changes: Diff = field(default_factory=lambda: Diff((), 0))
    best_measurements: Mapping[Identity, Entry] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """The counts by what became of entries, in the order in which they are reported; changed is what moved, too."""
        kinds = Counter(change.kind for change in self.changes.changes)
        added, removed = kinds[ChangeKind.ADDED], kinds[ChangeKind.REMOVED]
        changed = kinds.total() - added - removed
        return {"added": added, "changed": changed, "unchanged": self.changes.unchanged, "removed": removed}

    @property
    def describe_counts(self) -> str:
        """Those of them that are not 0: ``2 added, 1 changed``."""
        return ", ".join(f"{number} {word}" for word, number in self.counts.items() if number)


@dataclass(frozen=True, slots=True)
class MergeRules:
    """What a merge does beside adding what a run has learned.

    :param keep_candidates: keep every candidate of an entry that was measured and has a choice.
    :param keep_pruned: keep entries of a re-tuned problem that differ only in which candidates pruning left: a run
        of a part of the tests may not have asked for them.
    :param keep_others: keep all entries of a re-tuned problem that have another fingerprint: they are of others' runs.
    :param forget_compiled: of what the cache said that choices were compiled for, keep nothing for entries about which
        what was measured or used says anything.
    """

    keep_candidates: bool = False
    keep_pruned: bool = False
    keep_other_fingerprints: bool = False
    replace_specializations: bool = False


def merge_run(
    base: Cache,
    measured: Iterable[MeasuredEntry] = (),
    used: Iterable[Entry] = (),
    drop: Callable[[Entry], bool] = lambda entry: False,
    rules: MergeRules = MergeRules(),
) -> MergeResult:
    """Bring what a run has learned into the cache that is there.

    - An entry that was used is added, or replaces the one with its fingerprint.
    - A problem that was tuned again keeps, to the byte, the entry that was there with the same fingerprint, where that
      is still as good (:func:`~.ties.keeps`); under another minor version of the library its versions become those of
      now. Otherwise the new entry replaces it. Entries of that problem with other fingerprints go, unless they were
      used.
    - "Every candidate failed" replaces no entry that was used, and no result in the file unless that was tried and
      rejected: the cause may pass.
    - What an entry's choice was compiled for is all that any of these say who chose the same.
    - Everything else stays.

    :param base: what the file holds now.
    :param measured: what was tuned; which of several of one problem counts says :func:`ranked`.
    :param used: loaded entries that tuners took.
    :param drop: which of the entries that were there and nobody used or tuned to leave out.
    """
    before = {entry.identity: entry for entry in base.entries}
    rivals = _rivals(measured)
    learned = _of_used(used, before, rules)
    for identity, measurements in rivals.items():
        entry_in_use = learned.get(identity)
        if entry_in_use is not None and measurements[0].entry.is_failure:
            continue
        known = [*([entry_in_use] if entry_in_use is not None else []), *(one.entry for one in measurements)]
        learned[identity] = _of_tuned(measurements, known, before.get(identity), rules)
    learned = {identity: _replacing(entry, before.get(identity)) for identity, entry in learned.items()}
    after = _staying(before, learned, {problem for problem, _ in rivals}, drop, rules) | learned
    cache = replace(base, entries=tuple(sorted(after.values(), key=attrgetter("sort_key"))))
    return MergeResult(
        cache,
        compare_caches(base, cache),
        best_measurements={identity: measurements[0].entry for identity, measurements in rivals.items()},
    )


def _rivals(measured: Iterable[MeasuredEntry]) -> dict[Identity, list[MeasuredEntry]]:
    """The measurements of each problem and fingerprint, the one to keep first."""
    found: defaultdict[Identity, list[MeasuredEntry]] = defaultdict(list)
    for one in measured:
        found[one.entry.identity].append(one)
    return {identity: rank_measurements(measurements) for identity, measurements in found.items()}


def _of_used(used: Iterable[Entry], before: Mapping[Identity, Entry], rules: MergeRules) -> dict[Identity, Entry]:
    """What the cache holds of the entries that were used."""
    found: dict[Identity, Entry] = {}
    for entry in sorted(used, key=attrgetter("sort_key")):
        identity = entry.identity
        old = before.get(identity)
        better = found.get(identity, old)
        if entry.is_failure and better is not None and not better.is_failure:
            found[identity] = better
            continue
        known = [entry, *([found[identity]] if identity in found else [])]
        found[identity] = _with_compiled(old if old is not None and old == entry else entry, known, old, rules)
    return found


def _of_tuned(
    measurements: Sequence[MeasuredEntry], known: Sequence[Entry], old: Entry | None, rules: MergeRules
) -> Entry:
    """What the cache holds of a problem that was tuned, of which the first measurement counts."""
    best = measurements[0].entry
    is_rejected = any(one.rejected for one in measurements)
    # The file holds no candidates but where they are the result: keep what was there as it was.
    if old is not None and keeps_entry(old, best, is_rejected):
        kept = old
        # Confirmed under another version it is of that one: else every later run would hint at the old one.
        is_confirmed = best.is_failure == old.is_failure
        if is_confirmed and best.versions and old.versions.tuner_minor_version != best.versions.tuner_minor_version:
            kept = replace(kept, versions=best.versions)
        if rules.keep_candidates and is_confirmed and not old.candidates:
            kept = replace(kept, candidates=best.candidates)
        return _with_compiled(kept, known, old, rules)
    return _with_compiled(best if rules.keep_candidates else without_candidates(best), known, old, rules)


def _replacing(entry: Entry, old: Entry | None) -> Entry:
    """An entry in the place of another: of the next generation where its result is another one."""
    if old is None:
        return entry
    result, old_result = without_candidates(entry), without_candidates(old)
    is_same = (result.choice, result.candidates, result.native) == (old.choice, old_result.candidates, old.native)
    generation = max(entry.generation, old.generation if is_same else next_generation(old))
    return entry if generation == entry.generation else replace(entry, generation=generation)


def next_generation(old: Entry) -> int:
    """Of what takes the place of an entry."""
    return min(old.generation + 1, LAST_GENERATION)


def _staying(
    before: Mapping[Identity, Entry],
    learned: Mapping[Identity, Entry],
    retuned: Set[Problem],
    drop: Callable[[Entry], bool],
    rules: MergeRules,
) -> dict[Identity, Entry]:
    """The entries that were there, and stay although the run has learned nothing of them."""
    whole = {(problem, before_pruning(values)) for problem, values in learned} if rules.keep_pruned else set()

    def stays(entry: Entry) -> bool:
        is_replaced = (
            not rules.keep_other_fingerprints
            and entry.problem in retuned
            and (entry.problem, before_pruning(entry.fingerprint)) not in whole
        )
        return not (is_replaced or drop(entry))

    return {identity: entry for identity, entry in before.items() if identity not in learned and stays(entry)}


def _with_compiled(entry: Entry, now: Sequence[Entry], before: Entry | None, rules: MergeRules) -> Entry:
    """An entry with all that its choice was compiled for."""
    if rules.replace_specializations and (bare := with_specializations_of(replace(entry, compiled=()), now)).compiled:
        return bare
    return with_specializations_of(entry, [*now, *([before] if before else [])])


def without_candidates(entry: Entry) -> Entry:
    """An entry as a file keeps it: without its candidates, unless they are the result."""
    return entry if entry.choice is None else replace(entry, candidates=())


@dataclass(frozen=True, slots=True)
class CombinedCaches:
    """Several caches as one.

    :param conflicts: the entries of each identity of which caches have different ones; the first one stays.
    :param removed: entries that the caches' ancestor had and one of them removed, or replaced by one with another
        fingerprint.
    :param several: entries of problems of which different caches have different fingerprints, so that all stay: which
        of them the code has now, only a run can say.
    """

    cache: Cache
    conflicts: tuple[Sequence[MeasuredEntry], ...] = ()
    removed: tuple[Entry, ...] = ()
    ambiguous: tuple[Entry, ...] = ()


def combine_caches(caches_by_name: Mapping[str, Cache], ancestor: Cache | None = None) -> CombinedCaches:
    """All entries of all caches; of the entries of one problem and fingerprint, the one that a run would keep.

    With an ancestor, what only one side changed or removed is changed or removed, and what one side removed and another
    changed stays. Without one, nothing is ever removed. The entries come in no order.

    :param caches_by_name: by a name for each.
    """
    before = {entry.identity: entry for entry in (ancestor or Cache()).entries}
    found: dict[Identity, dict[str, Entry]] = {}
    for origin, side in caches_by_name.items():
        for entry in side.entries:
            found.setdefault(entry.identity, {})[origin] = entry
    kept: list[Entry] = []
    removed = [entry for identity, entry in before.items() if identity not in found]
    conflicts: list[Sequence[MeasuredEntry]] = []
    for identity, rivals in found.items():
        changed = {origin: entry for origin, entry in rivals.items() if entry != before.get(identity)}
        if not changed and len(rivals) < len(caches_by_name):
            removed.append(before[identity])
            continue
        several = rank_measurements([MeasuredEntry(entry, origin) for origin, entry in (changed or rivals).items()])
        best = several[0].entry
        if any(one.entry != best for one in several):
            conflicts.append(several)
        kept.append(with_specializations_of(best, rivals.values()))
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
    return CombinedCaches(
        Cache(tuple(kept), next((side.lossy for side in caches_by_name.values() if side.lossy), ())),
        tuple(sorted(conflicts, key=lambda several: several[0].entry.sort_key)),
        tuple(sorted(removed, key=attrgetter("sort_key"))),
        tuple(sorted(apart, key=attrgetter("sort_key"))),
    )


def with_specializations_of(entry: Entry, same_identity: Iterable[Entry]) -> Entry:
    """An entry, with what others of the same choice were compiled for."""
    choice = entry.choice
    more = [one for one in same_identity if one.compiled and one.compiled != entry.compiled]
    if choice is None or not more:
        return entry
    same = [one for one in more if one.choice is not None and one.choice.is_same_configuration(choice)]
    compiled = tuple(sorted({text for one in (entry, *same) for text in one.compiled})[:MAX_SPECIALIZATIONS])
    return entry if compiled == entry.compiled else replace(entry, compiled=compiled)
