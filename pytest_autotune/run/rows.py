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

    A row is complete data about its problem, for every report. A :class:`~pytest_autotune.run.section.Finding` is a
    line of the summary, about one problem or several.

    :param changed: for a stale problem, the names of the parts of the fingerprint that changed: ``("source",)``.
    :param tests: node ids of the tests that asked first in their process, or with another fingerprint. The test with
        the worst outcome comes first.
    :param searches: (node id of the test, seconds) of each search that recorded an entry.
    :param unrecorded: why no search recorded anything; empty if a search did, or if there was no search.
    :param nearest: for a miss, the differing parts of the key, as name and the nearest entry's value.
    :param entry: the entry that the cache keeps: by the rule of a merge, or the entry that the file had before.
    :param candidates: the measurement that counts.
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
        """Whether a dump holds the choice: not a choice in place of a tuning, and not if there was no choice."""
        if self.tuned:
            return True
        return self.choice is not None and not self.fallback

    @property
    def consequence(self) -> str:
        """The consequence of a tuning that did not take place or recorded nothing, in words; else empty."""
        if self.unrecorded:
            return f"nothing was recorded: {self.unrecorded}"
        return _FALLBACKS.get(self.fallback, "")


def build_rows(
    lookups: Iterable[Lookup], index: EntryIndex, policy: Policy, merged: MergeResult
) -> tuple[ProblemRow, ...]:
    """Return a row for each problem; its outcome is the worst outcome in any process.

    :param index: the loaded caches. A row of a problem without an entry names the nearest entry of its kernel.
    :param merged: the cache after the run. If it has an entry for a problem, the row shows that entry's choice.
    """
    lookups_by_problem: defaultdict[Problem, list[Lookup]] = defaultdict(list)
    for lookup in lookups:
        lookups_by_problem[lookup.problem].append(lookup)
    entries = {entry.identity: entry for entry in merged.cache.entries}
    rows = []
    for problem, problem_lookups in lookups_by_problem.items():
        ranked = sorted(problem_lookups, key=_rank_outcome, reverse=True)
        entry = _find_entry(ranked)
        kept, best = entry, entry
        if entry is not None:
            kept = entries.get(entry.identity, entry)
            best = merged.best_measurements.get(entry.identity, entry)
        row = _build_row(ranked, kept, best)
        if row.reason == NO_ENTRY:
            miss = explain_miss([index], problem, policy)
            row = replace(row, reason=miss.text, nearest=miss.differences)
        rows.append(replace(row, reason="; ".join(filter(None, (row.reason, row.consequence)))))
    return tuple(sorted(rows, key=lambda row: row.problem.sort_key))


def _rank_outcome(lookup: Lookup) -> tuple[float, str]:
    """Sort lookups of one problem: the worst outcome is the highest."""
    if lookup.outcome is not None:
        return list(Outcome).index(lookup.outcome), lookup.reason
    if lookup.unrecorded_reason:
        # A search without a result missed nothing, but users want to see it in place of a hit.
        return 0.5, lookup.reason
    return -1.0, lookup.reason


def _find_entry(ranked: Sequence[Lookup]) -> Entry | None:
    """Return the entry of the first search; without any search, the first entry."""
    for lookup in ranked:
        if lookup.is_searched:
            return lookup.entry
    for lookup in ranked:
        if lookup.entry is not None:
            return lookup.entry
    return None


def _build_row(ranked: Sequence[Lookup], kept: Entry | None, best: Entry | None) -> ProblemRow:
    """Return the row of a problem.

    :param ranked: its lookups, the lookup with the worst outcome first.
    :param kept: the entry that the cache keeps.
    :param best: the measurement that counts.
    """
    worst = ranked[0]
    searches = [lookup for lookup in ranked if lookup.is_searched]
    label = worst.label
    if not label and kept is not None:
        label = kept.label
    fallback = ""
    if not searches:
        fallback = _find_first(lookup.fallback for lookup in ranked)
    candidates: tuple[Candidate, ...] = ()
    has_failed = False
    if best is not None:
        candidates = best.candidates
        has_failed = best.is_failure and any(lookup.has_failed for lookup in searches)
    changed: tuple[str, ...] = ()
    if worst.outcome is Outcome.STALE:
        changed = worst.changed
    return ProblemRow(
        worst.problem,
        worst.outcome,
        worst.reason,
        label=label,
        tests=tuple(dict.fromkeys(lookup.test for lookup in ranked if lookup.test)),
        searches=_list_searches(searches),
        failed=has_failed,
        entry=kept,
        candidates=candidates,
        is_disturbed=any(lookup.is_disturbed for lookup in searches if lookup.entry == best),
        fallback=fallback,
        unrecorded=_find_unrecorded_reason(ranked),
        changed=changed,
    )


def _find_first(texts: Iterable[str]) -> str:
    """Return the first text that is not empty; empty if there is none."""
    for text in texts:
        if text:
            return text
    return ""


def _find_unrecorded_reason(ranked: Sequence[Lookup]) -> str:
    """Return why a fingerprint of the problem has no entry although it was searched; empty if all have entries."""
    has_search = any(lookup.is_searched for lookup in ranked)
    recorded = set()
    for lookup in ranked:
        if lookup.is_searched or (not has_search and lookup.entry is not None):
            recorded.add(lookup.fingerprint)
    return _find_first(lookup.unrecorded_reason for lookup in ranked if lookup.fingerprint not in recorded)


def _list_searches(searches: Sequence[Lookup]) -> tuple[tuple[str, float], ...]:
    """Return (test, seconds) of each search, sorted.

    If several workers report an entry, the worker that searched counts. It may have died before it could report.
    """
    lookup_by_entry: dict[Entry, Lookup] = {}
    for lookup in sorted(searches, key=lambda search: (search.is_tuned, search.test)):
        if lookup.entry is not None:
            lookup_by_entry[lookup.entry] = lookup
    return tuple(sorted((lookup.test, entry.tuning_seconds) for entry, lookup in lookup_by_entry.items()))
