"""Merging: caches and new measurements in, one cache and its disagreements out.

Pure, and the same result for the same inputs in any order.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import attrgetter

from pytest_autotune.cache.made_of import said_once
from pytest_autotune.cache.model import Cache, Candidate, Entry, Identity, Problem, before_pruning, united
from pytest_autotune.cache.ties import noise_of, settle


@dataclass(frozen=True, slots=True)
class Measured:
    """An entry that came from a search in this run.

    :param origin: who measured it; reported in disagreements.
    :param disturbed: something else may have run on the device meanwhile.
    """

    entry: Entry
    origin: str = ""
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class Disagreement:
    """Several searches for one problem that did not choose the same candidate.

    :param choices: (who, what was chosen), the one that was kept first.
    """

    problem: Problem
    choices: tuple[tuple[str, Candidate], ...]


@dataclass(frozen=True, slots=True)
class Merged:
    """The outcome of a merge; the counts are of entries.

    :param best: of what was measured, the measurement that counts; the cache may keep an older choice all the same.
    """

    cache: Cache
    disagreements: tuple[Disagreement, ...] = ()
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    best: Mapping[Identity, Entry] = field(default_factory=dict)


def merge(
    base: Cache,
    measured: Iterable[Measured] = (),
    used: Iterable[Entry] = (),
    drop: Callable[[Entry], bool] = lambda entry: False,
    keep_candidates: bool = False,
    keep_pruned: bool = False,
    forget_compiled: bool = False,
) -> Merged:
    """Bring what a run has learned into the cache that is there.

    - An entry that was used is added, or replaces the one with its fingerprint.
    - A problem that was tuned again keeps, to the byte, the entry that was there
      with the same fingerprint, while the old choice is within the noise of the
      best time in the new measurement, or where the tuner reports no times, which is
      no reason to change; otherwise the new entry replaces it. Entries
      of that problem with other fingerprints go, unless they were used.
    - What an entry's choice was compiled for is all that any of these say who chose the same.
    - Everything else stays.

    :param base: what the file holds now.
    :param measured: what was tuned; several of one problem are settled by rule:
        undisturbed before disturbed, then the lower time, then the lower position of
        the choice among the candidates, then what more of them chose, then the encoding.
    :param used: loaded entries that tuners took.
    :param drop: which of the entries that were there and nobody used or tuned to leave out.
    :param keep_pruned: keep entries of a re-tuned problem that differ only in which candidates pruning left: a run
        of a part of the tests may not have asked for them.
    :param keep_candidates: keep every candidate of a new entry that has a choice.
    :param forget_compiled: of what the cache said that choices were compiled for, keep nothing for entries about which
        what was measured or used says anything.
    """
    before = {entry.identity: entry for entry in base.entries}
    after = dict(before)
    kept: set[Identity] = set()
    for entry in sorted(used, key=attrgetter("sort_key")):
        key = entry.identity
        old = before.get(key)
        # The file's own may have fields that this version does not know.
        known = [entry, *([after[key]] if key in kept else [])]
        after[key] = _told(old if old is not None and old == entry else entry, known, old, forget_compiled)
        kept.add(key)
    tuned: defaultdict[Identity, list[Measured]] = defaultdict(list)
    for one in measured:
        tuned[one.entry.identity].append(one)
    measurements: dict[Identity, Entry] = {}
    disagreements = []
    for key in sorted(tuned, key=lambda key: tuned[key][0].entry.sort_key):
        rivals = _ranked(tuned[key])
        best = measurements[key] = rivals[0].entry
        old = before.get(key)
        # The file holds no candidates but where they are the result: keep what was there as it was.
        stays = old if old is not None and _still_good(old, best) else _as_kept(best, keep_candidates)
        known = [*([after[key]] if key in kept else []), *(rival.entry for rival in rivals)]
        after[key] = _told(stays, known, old, forget_compiled)
        kept.add(key)
        if disagreement := _disagreement(rivals):
            disagreements.append(disagreement)
    retuned = {problem for problem, _ in tuned}
    pruned = {(problem, before_pruning(fingerprint)) for problem, fingerprint in kept} if keep_pruned else set()
    for key in before.keys() - kept:
        replaced = key[0] in retuned and (key[0], before_pruning(key[1])) not in pruned
        if replaced or drop(before[key]):
            del after[key]
    known = [one.entry for rivals in tuned.values() for one in rivals]
    entries = tuple(said_once(sorted(after.values(), key=attrgetter("sort_key")), base.entries, known))
    common = before.keys() & after.keys()
    changed = sum(before[key] != after[key] for key in common)
    return Merged(
        replace(base, entries=entries),
        tuple(disagreements),
        added=len(after.keys() - before.keys()),
        changed=changed,
        unchanged=len(common) - changed,
        removed=len(before.keys() - after.keys()),
        best=measurements,
    )


def _told(entry: Entry, now: Sequence[Entry], before: Entry | None, forget: bool) -> Entry:
    """An entry with all that its choice was compiled for; with ``forget``, only what is said now, if anything is."""
    bare = united(replace(entry, compiled=()), now)
    return bare if forget and bare.compiled else united(entry, [*now, *([before] if before else [])])


def best_time_us(entry: Entry) -> float:
    """The lowest time that was measured for an entry, in microseconds; infinite if none was."""
    times = [candidate.time_us for candidate in _measurements(entry) if candidate.time_us is not None]
    return min(times, default=float("inf"))


def _measurements(entry: Entry) -> Sequence[Candidate]:
    return entry.candidates or ((entry.choice,) if entry.choice else ())


def _position(entry: Entry) -> int:
    choice = entry.choice
    if choice is None:
        return 0
    same = (i for i, candidate in enumerate(entry.candidates) if candidate.same_configuration(choice))
    return next(same, len(entry.candidates))


def best_of(rivals: Sequence[Measured]) -> Measured:
    """Of several measurements of one problem, the one that :func:`merge` keeps."""
    return _ranked(rivals)[0]


def _ranked(rivals: Sequence[Measured]) -> list[Measured]:
    """Measurements of one problem, the one to keep first."""
    ranked = sorted(rivals, key=_quality)
    best = _quality(ranked[0])[:2]
    tied = [rival for rival in ranked if _quality(rival)[:2] == best]
    if len(tied) > 1:
        ranked[: len(tied)] = sorted(
            tied, key=lambda rival: (_position(rival.entry), -_votes(rival, tied), repr(rival.entry), _quality(rival))
        )
    return ranked


def _votes(one: Measured, rivals: Sequence[Measured]) -> int:
    """How many chose the same."""
    choice = one.entry.choice
    return sum(
        choice is not None and rival.entry.choice is not None and rival.entry.choice.same_configuration(choice)
        for rival in rivals
    )


def _quality(measured: Measured) -> tuple[object, ...]:
    entry = measured.entry
    # Disturbed or not and the time decide; the rest makes the order total.
    return measured.disturbed, best_time_us(entry), measured.origin, entry.tuning_seconds, entry.native


def _still_good(old: Entry, new: Entry) -> bool:
    """Whether the old choice is as good as the new one, by the new measurement."""
    if old.choice is None or new.choice is None:
        return (old.choice, old.candidates, old.native) == (new.choice, new.candidates, new.native)
    if best_time_us(new) == float("inf"):
        return True
    times = {number: one.time_us for number, one in enumerate(new.candidates) if one.time_us is not None}
    same = (number for number in times if new.candidates[number].same_configuration(old.choice))
    kept = next(same, None)
    return kept is not None and settle(times, noise_of(new.problem.device), kept) == kept


def _as_kept(entry: Entry, keep_candidates: bool) -> Entry:
    return entry if keep_candidates or entry.choice is None else replace(entry, candidates=())


def _disagreement(rivals: Sequence[Measured]) -> Disagreement | None:
    choices = [(rival.origin, rival.entry.choice) for rival in rivals if rival.entry.choice is not None]
    distinct = [next(group) for _, group in groupby(choices, key=lambda pair: (pair[1].id, pair[1].params))]
    return Disagreement(rivals[0].entry.problem, tuple(choices)) if len(distinct) > 1 else None
