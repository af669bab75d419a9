"""The problems of a run as rows: each row has the reports of all processes that asked for the problem. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import NO_VERSIONS, Candidate, Entry, Problem, Versions
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
        """The kernel's old name, if its entry still has that name; else empty."""
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
            return f"nothing was recorded: {self.unrecorded}"
        return _FALLBACKS.get(self.fallback, "")


def build_rows(
    lookups: Iterable[Lookup], index: EntryIndex, policy: Policy, merged: MergeResult
) -> tuple[ProblemRow, ...]:
    """Return a row for each problem, sorted by problem. The row has the worst outcome of the problem's lookups.

    :param index: the loaded caches. A row of a problem without an entry names the nearest entry of its kernel.
    :param merged: the cache after the run. If it has an entry for a problem, the row shows that entry's choice.
    """
    lookups_by_problem: defaultdict[Problem, list[Lookup]] = defaultdict(list)
    for lookup in lookups:
        lookups_by_problem[lookup.problem].append(lookup)
    entries_after_run = {entry.identity: entry for entry in merged.cache.entries}
    rows = []
    for problem, problem_lookups in lookups_by_problem.items():
        worst_first = sorted(problem_lookups, key=_rank_outcome, reverse=True)
        entry = _find_entry(worst_first)
        kept_entry, best_measurement = entry, entry
        if entry is not None:
            # The merge may keep an earlier entry, or the entry of another process.
            kept_entry = entries_after_run.get(entry.identity, entry)
            best_measurement = merged.best_measurements.get(entry.identity, entry)
        row = _build_row(worst_first, kept_entry, best_measurement)
        if row.reason == NO_ENTRY:
            # The search for the nearest entry takes time, so lookups leave it to this function.
            miss = explain_miss([index], problem, policy)
            row = replace(row, reason=miss.text, nearest=miss.differences)
        rows.append(_with_consequence(row))
    return tuple(sorted(rows, key=lambda row: row.problem.sort_key))


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


def _build_row(worst_first: Sequence[Lookup], kept_entry: Entry | None, best_measurement: Entry | None) -> ProblemRow:
    """Return the row of a problem.

    :param worst_first: the lookups of the problem, the lookup with the worst outcome first.
    :param kept_entry: the entry that the cache keeps.
    :param best_measurement: the entry of the measurement that counts. A merge may keep an earlier entry all the same.
    """
    worst = worst_first[0]
    # Several lookups can be of the same test; dict.fromkeys keeps the order.
    tests = tuple(dict.fromkeys(lookup.test for lookup in worst_first if lookup.test))
    row = ProblemRow(
        worst.problem,
        worst.outcome,
        worst.reason,
        label=worst.label,
        tests=tests,
        entry=kept_entry,
        unrecorded=_find_unrecorded_reason(worst_first),
    )
    if not row.label and kept_entry is not None:
        row = replace(row, label=kept_entry.label)
    if worst.outcome is Outcome.STALE:
        row = replace(row, changed=worst.changed)
    searches = [lookup for lookup in worst_first if lookup.is_searched]
    if not searches:
        # With a search, the problem is tuned, even if another process used a fallback.
        row = replace(row, fallback=_find_first(lookup.fallback for lookup in worst_first))
    return _with_measurements(row, searches, best_measurement)


def _with_measurements(row: ProblemRow, searches: Sequence[Lookup], best_measurement: Entry | None) -> ProblemRow:
    """Return a row with the fields that searches decide.

    :param searches: the lookups that were searched in this run.
    :param best_measurement: the entry of the measurement that counts.
    """
    if best_measurement is None:
        return row
    return replace(
        row,
        searches=_list_searches(searches),
        failed=best_measurement.is_failure and any(lookup.has_failed for lookup in searches),
        candidates=best_measurement.candidates,
        is_disturbed=any(lookup.is_disturbed for lookup in searches if lookup.entry == best_measurement),
    )


def _find_first(texts: Iterable[str]) -> str:
    """Return the first text that is not empty; empty if there is none."""
    for text in texts:
        if text:
            return text
    return ""


def _find_unrecorded_reason(worst_first: Sequence[Lookup]) -> str:
    """Return why a search of the problem recorded nothing; empty if no such search matters.

    A problem can have several fingerprints, for example if two kernels of a factory share a name. The search of a
    fingerprint does not matter if another lookup has an entry for the same fingerprint: the entry of a search or, if no
    search of the problem recorded an entry, an entry that was used.
    """
    has_search = any(lookup.is_searched for lookup in worst_first)
    recorded_fingerprints = set()
    for lookup in worst_first:
        if lookup.is_searched or (not has_search and lookup.entry is not None):
            recorded_fingerprints.add(lookup.fingerprint)
    for lookup in worst_first:
        if lookup.unrecorded_reason and lookup.fingerprint not in recorded_fingerprints:
            return lookup.unrecorded_reason
    return ""


def _list_searches(searches: Sequence[Lookup]) -> tuple[tuple[str, float], ...]:
    """Return (node id of the test, seconds) of each search, sorted.

    Several workers report an entry that they share. The report of the worker that searched counts. If that worker died
    before it could report, the report of another worker counts.

    :param searches: the lookups with an entry from a search in this run.
    """
    lookup_by_entry: dict[Entry, Lookup] = {}
    # The lookup of the worker that searched comes last, and replaces the lookups of other workers.
    for lookup in sorted(searches, key=lambda search: (search.is_tuned, search.test)):
        if lookup.entry is not None:
            lookup_by_entry[lookup.entry] = lookup
    return tuple(sorted((lookup.test, entry.tuning_seconds) for entry, lookup in lookup_by_entry.items()))
