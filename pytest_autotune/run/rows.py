"""The problems of a run as rows, which all reports show. Pure.

A lookup is one question of a tuner in one process: a problem (kernel, key and device) with a fingerprint (digests of
the kernel's source and the like). It ends with an outcome, such as a miss, and perhaps with an entry: an entry of a
loaded cache that the tuner used, or a new entry from a search among the candidates. A row sums up all lookups of one
problem, from all processes and with all fingerprints.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import NO_VERSIONS, Candidate, Entry, Identity, Problem, Versions
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome, Policy
from pytest_autotune.run.nearest import explain_miss

#: The outcomes that count as misses: a fresh cache would cover these problems.
NOT_COVERED = (Outcome.MISS, Outcome.STALE, Outcome.MISMATCH, Outcome.UNCACHEABLE)

_FALLBACKS = {
    "first": "the first candidate was used",
    "nearest": "the nearest entry's choice was used",
    "stale": "the stale choice was used",
}


@dataclass(frozen=True)
class ProblemRow:
    """One problem of the run, from the lookups of all processes.

    A row is complete data about its problem, for every report. A :class:`~pytest_autotune.run.result.Finding` is a
    line of the summary, about one problem or several.

    :param changed: for a stale problem, the names of the parts of the fingerprint that changed: ``("source",)``.
    :param tests: node ids of the tests that asked first in their process, or with another fingerprint. The test with
        the worst outcome comes first.
    :param searches: (node id of the test, seconds) of each search that recorded an entry.
    :param failed: the search that counts recorded that every candidate failed.
    :param unrecorded: why a search recorded nothing; empty if it recorded an entry, or if no search took place.
    :param nearest: for a miss, the differing parts of the key, as name and the nearest entry's value.
    :param entry: the entry that the cache keeps after a merge. A merge may keep an earlier entry after a search.
    :param candidates: the candidates of the measurement that counts, with their times.
    :param is_disturbed: something else may have used the device during that measurement.
    :param fallback: the kind of the choice that was used in place of a tuning; see ``_FALLBACKS``.
    """

    problem: Problem
    outcome: Outcome | None
    reason: str = ""
    label: str = ""
    tests: tuple[str, ...] = ()
    searches: tuple[tuple[str, float], ...] = ()
    failed: bool = False
    entry: Entry | None = None
    candidates: tuple[Candidate, ...] = ()
    is_disturbed: bool = False
    fallback: str = ""
    unrecorded: str = ""
    nearest: tuple[tuple[str, str], ...] = ()
    changed: tuple[str, ...] = ()

    @property
    def tuned(self) -> bool:
        """Whether a search recorded an entry."""
        return bool(self.searches)

    @property
    def tuning_seconds(self) -> float:
        """The seconds of all searches; 0 if there was none."""
        return sum(sorted(seconds for _, seconds in self.searches), 0.0)

    @property
    def choice(self) -> Candidate | None:
        """The choice of the entry."""
        if self.entry is None:
            return None
        return self.entry.choice

    @property
    def versions(self) -> Versions:
        """The versions of libraries when the entry was tuned."""
        if self.entry is None:
            return NO_VERSIONS
        return self.entry.versions

    @property
    def hit(self) -> Entry | None:
        """The entry that was a hit; None for other outcomes."""
        if self.outcome is not Outcome.HIT or self.tuned:
            return None
        return self.entry

    @property
    def alias(self) -> str:
        """The other device whose entry was a hit, in words; empty if the entry is for the problem's device."""
        if self.hit is None or self.hit.problem.device == self.problem.device:
            return ""
        return str(self.hit.problem.device)

    @property
    def moved_from(self) -> str:
        """The other kernel with the same source whose entry was a hit, such as the kernel's old name; empty if none."""
        if self.hit is None or self.hit.problem.kernel == self.problem.kernel:
            return ""
        return self.hit.problem.kernel

    @property
    def saved_seconds(self) -> float:
        """The seconds of tuning that a hit saved."""
        if self.hit is None or self.hit.is_failure:
            return 0.0
        return self.hit.tuning_seconds

    @property
    def is_kept(self) -> bool:
        """Whether a dump holds an entry of the problem.

        A dump holds every tuned entry, also a failed search. It holds a used choice unless the choice was a fallback.
        """
        if self.tuned:
            return True
        return self.choice is not None and not self.fallback

    @property
    def consequence(self) -> str:
        """The consequence of a missing tuning, in words; empty if a search recorded an entry, or none was needed."""
        if self.unrecorded:
            return f"the tuning was not saved: {self.unrecorded}"
        return _FALLBACKS.get(self.fallback, "")


def build_rows(
    lookups: Iterable[Lookup], index: EntryIndex, policy: Policy, merged: MergeResult
) -> tuple[ProblemRow, ...]:
    """Return a row for each problem that a test asked for, sorted by problem.

    :param index: the loaded caches. A row of a problem without an entry names the nearest entry of its kernel.
    :param merged: the cache after the run. If it has an entry for a problem, the row shows that entry's choice.
    """
    lookups_by_problem: defaultdict[Problem, list[Lookup]] = defaultdict(list)
    for lookup in lookups:
        lookups_by_problem[lookup.problem].append(lookup)
    entries_after_run = {entry.identity: entry for entry in merged.cache.entries}
    rows = []
    for lookups_of_problem in lookups_by_problem.values():
        worst_first = sorted(lookups_of_problem, key=_rank_outcome, reverse=True)
        row = _build_row(worst_first, _find_shown_entries(worst_first, entries_after_run, merged.best_measurements))
        if row.reason == NO_ENTRY:
            row = _with_nearest_entry(row, index, policy)
        rows.append(_with_consequence(row))
    return tuple(sorted(rows, key=lambda row: row.problem.sort_key))


@dataclass(frozen=True)
class _ShownEntries:
    """The entries of a problem that its row shows.

    :param kept: the entry that the cache has after the run, for the choice.
    :param measured: the entry of the search that counts, for the candidates and their times. Without a search, it is
        the entry that was used.
    """

    kept: Entry
    measured: Entry


def _find_shown_entries(
    worst_first: Sequence[Lookup],
    entries_after_run: Mapping[Identity, Entry],
    best_measurements: Mapping[Identity, Entry],
) -> _ShownEntries | None:
    """Return the entries that the row of a problem shows; None if no lookup has an entry.

    :param worst_first: the lookups of the problem.
    :param best_measurements: the entry of the best measurement of each identity that was measured.
    """
    entry = _find_entry(worst_first)
    if entry is None:
        return None
    # The merge may have kept an earlier entry, and the measurement of another process may be the best.
    kept = entries_after_run.get(entry.identity, entry)
    measured = best_measurements.get(entry.identity, entry)
    return _ShownEntries(kept, measured)


def _with_nearest_entry(row: ProblemRow, index: EntryIndex, policy: Policy) -> ProblemRow:
    """Return the row of a miss with the nearest entry of its kernel: ``the nearest entry has M 64 instead of 100``.

    Lookups leave this to the end of the run, because the search for the nearest entry takes time.

    :param index: the loaded caches.
    """
    miss = explain_miss([index], row.problem, policy)
    return replace(row, reason=miss.text, nearest=miss.differences)


def _with_consequence(row: ProblemRow) -> ProblemRow:
    """Return a row whose reason also says the consequence: ``no entry; the first candidate was used``."""
    texts = [text for text in (row.reason, row.consequence) if text]
    return replace(row, reason="; ".join(texts))


def _rank_outcome(lookup: Lookup) -> tuple[float, str]:
    """Return a key that sorts the lookups of one problem; the worst outcome has the highest key.

    Lookups without an outcome come from a run that loads nothing, or from a search that an error ended. The reason
    makes the order the same in each run if the outcomes are equal.
    """
    if lookup.outcome is not None:
        # Outcome lists its members from the best to the worst.
        return list(Outcome).index(lookup.outcome), lookup.reason
    if lookup.unrecorded_reason:
        # Between a hit (0) and a miss (1): the search missed no entry, but users want to see why it recorded nothing.
        return 0.5, lookup.reason
    return -1.0, lookup.reason


def _find_entry(worst_first: Sequence[Lookup]) -> Entry | None:
    """Return the entry of the first search or, without any search, the first entry that was used; else None."""
    for lookup in worst_first:
        if lookup.is_searched:
            return lookup.entry
    for lookup in worst_first:
        if lookup.entry is not None:
            return lookup.entry
    return None


def _build_row(worst_first: Sequence[Lookup], entries: _ShownEntries | None) -> ProblemRow:
    """Return the row of a problem, with the outcome and the reason of its worst lookup.

    :param worst_first: the lookups of the problem, the lookup with the worst outcome first.
    :param entries: None if no lookup has an entry.
    """
    worst = worst_first[0]
    changed: tuple[str, ...] = ()
    if worst.outcome is Outcome.STALE:
        changed = worst.changed
    tests = [lookup.test for lookup in worst_first if lookup.test]
    searches = [lookup for lookup in worst_first if lookup.is_searched]
    fallback = ""
    if not searches:
        # With a search, the problem is tuned, even if another process used a fallback.
        fallback = _find_first(lookup.fallback for lookup in worst_first)
    row = ProblemRow(
        worst.problem,
        worst.outcome,
        worst.reason,
        worst.label,
        # Several lookups can be of the same test; dict.fromkeys keeps the order.
        tests=tuple(dict.fromkeys(tests)),
        fallback=fallback,
        unrecorded=_find_unrecorded_reason(worst_first),
        changed=changed,
    )
    if entries is None:
        return row
    return _with_entries(row, searches, entries)


def _with_entries(row: ProblemRow, searches: Sequence[Lookup], entries: _ShownEntries) -> ProblemRow:
    """Return a row with its entry, and with the searches and candidates of the run.

    :param searches: the lookups of the problem whose entry comes from a search in this run; perhaps none.
    """
    has_failed_search = any(lookup.has_failed for lookup in searches)
    is_disturbed = False
    for lookup in searches:
        if lookup.entry == entries.measured and lookup.is_disturbed:
            is_disturbed = True
    return replace(
        row,
        label=row.label or entries.kept.label,
        entry=entries.kept,
        searches=_list_searches(searches),
        failed=has_failed_search and entries.measured.is_failure,
        candidates=entries.measured.candidates,
        is_disturbed=is_disturbed,
    )


def _find_first(texts: Iterable[str]) -> str:
    """Return the first text that is not empty; empty if there is none."""
    for text in texts:
        if text:
            return text
    return ""


def _find_unrecorded_reason(worst_first: Sequence[Lookup]) -> str:
    """Return why a search of the problem recorded nothing; empty if every fingerprint has an entry all the same.

    A problem can have several fingerprints, for example if two kernels of a factory share a name. A search that
    recorded nothing matters only if no other lookup has an entry for its fingerprint.
    """
    fingerprints_with_entry = {lookup.fingerprint for lookup in worst_first if lookup.entry is not None}
    for lookup in worst_first:
        if lookup.unrecorded_reason and lookup.fingerprint not in fingerprints_with_entry:
            return lookup.unrecorded_reason
    return ""


def _list_searches(searches: Sequence[Lookup]) -> tuple[tuple[str, float], ...]:
    """Return (node id of the test, seconds) of each search, sorted.

    Several workers report an entry that they share. The report of the worker that searched counts. If that worker died
    before it could report, the report of another worker counts.

    :param searches: the lookups with an entry from a search in this run.
    """
    # The lookups of the workers that searched come last, and replace the other reports of the same entry.
    reports = sorted(searches, key=lambda lookup: (lookup.is_tuned, lookup.test))
    lookup_by_entry = {lookup.entry: lookup for lookup in reports if lookup.entry is not None}
    tests_and_seconds = []
    for entry, lookup in lookup_by_entry.items():
        tests_and_seconds.append((lookup.test, entry.tuning_seconds))
    return tuple(sorted(tests_and_seconds))
