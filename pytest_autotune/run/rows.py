"""The problems of a run as rows, each with what all processes that met it say of it. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import NO_VERSIONS, Candidate, Entry, Identity, Problem, Versions
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome
from pytest_autotune.run.nearest import MissReason

#: The outcomes that count as misses: what a fresh cache would have covered.
NOT_COVERED = (Outcome.MISS, Outcome.STALE, Outcome.MISMATCH, Outcome.UNCACHEABLE)

_FALLBACKS = {
    "first": "the first candidate was used",
    "nearest": "the nearest entry's choice was used",
    "stale": "the stale choice was used",
}


@dataclass(frozen=True)
class ProblemRow:
    """One problem of the run, from all processes that met it.

    :param tests: the node ids of the tests that asked, first in their process or with another fingerprint;
        the one with the worst outcome comes first.
    :param searches: (node id of the test in which a search took place that came to something, its seconds).
    :param unrecorded: why all searches came to nothing that could be recorded; empty where one did, or none took place.
    :param nearest: of a miss, the parts of the key in which the nearest entry differs, as name and what that has.
    :param entry: what is kept: of several searches by the rule of a merge, or what the file had all the time.
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

    @property
    def tuned(self) -> bool:
        """Whether a search took place, and came to something that can be recorded."""
        return bool(self.searches)

    @property
    def tuning_seconds(self) -> float:
        """What the searches took; 0 where there was none."""
        return sum(sorted(seconds for _, seconds in self.searches), 0.0)

    @property
    def choice(self) -> Candidate | None:
        return self.entry.choice if self.entry is not None else None

    @property
    def versions(self) -> Versions:
        return self.entry.versions if self.entry is not None else NO_VERSIONS

    @property
    def hit(self) -> Entry | None:
        """The entry that made it a hit."""
        return self.entry if self.outcome is Outcome.HIT and not self.tuned else None

    @property
    def alias(self) -> str:
        """The device whose entry it was served with, in words; empty for its own, not for another of its name."""
        other = self.hit.problem.device if self.hit is not None else self.problem.device
        return str(other) if other != self.problem.device else ""

    @property
    def moved_from(self) -> str:
        """The kernel's old name, where its entry still has that."""
        old = self.hit.problem.kernel if self.hit is not None else ""
        return old if old != self.problem.kernel else ""

    @property
    def saved_seconds(self) -> float:
        """The tuning that a hit made unnecessary."""
        return self.hit.tuning_seconds if self.hit is not None and not self.hit.is_failure else 0.0

    @property
    def is_kept(self) -> bool:
        """Whether a dump holds what it ran with: not what was used in place of a tuning, nor where there was none."""
        return self.tuned or not (self.choice is None or self.fallback)

    @property
    def consequence(self) -> str:
        """What became of it where something was not tuned that should have been; the end of its reason."""
        return f"nothing was recorded: {self.unrecorded}" if self.unrecorded else _FALLBACKS.get(self.fallback, "")


def build_rows(
    lookups: Iterable[Lookup], nearest: Callable[[Problem], MissReason], merged: MergeResult
) -> tuple[ProblemRow, ...]:
    """One row per problem; its outcome is the worst that any process met.

    :param nearest: says of a problem without an entry how the nearest entry of its kernel differs.
    :param merged: what the lookups come to; where it has an entry for what was asked, the row has that one's choice.
    """
    by_problem: defaultdict[Problem, list[Lookup]] = defaultdict(list)
    for lookup in lookups:
        by_problem[lookup.problem].append(lookup)
    kept = {entry.identity: entry for entry in merged.cache.entries}
    rows = [_row(problem, met, kept, merged.best_measurements) for problem, met in by_problem.items()]

    def explained(row: ProblemRow) -> ProblemRow:
        if row.reason == NO_ENTRY:
            near = nearest(row.problem)
            row = replace(row, reason=near.text, nearest=near.differences)
        return replace(row, reason="; ".join(filter(None, [row.reason, row.consequence])))

    return tuple(sorted(map(explained, rows), key=lambda row: row.problem.sort_key))


def _row(
    problem: Problem, met: Sequence[Lookup], kept: Mapping[Identity, Entry], measured: Mapping[Identity, Entry]
) -> ProblemRow:
    met = sorted(met, key=lambda one: (_badness(one), one.reason), reverse=True)
    worst = met[0]
    searches = [lookup for lookup in met if lookup.is_searched]
    with_entry = searches or [lookup for lookup in met if lookup.entry is not None]
    recorded = {lookup.fingerprint for lookup in with_entry}
    found = with_entry[0].entry if with_entry else None
    entry = kept.get(found.identity, found) if found is not None else None
    best = measured.get(found.identity, found) if found is not None else None
    return ProblemRow(
        problem,
        worst.outcome,
        worst.reason,
        label=worst.label or (entry.label if entry else ""),
        tests=tuple(dict.fromkeys(lookup.test for lookup in met if lookup.test)),
        searches=_each_search(searches),
        failed=any(lookup.has_failed for lookup in searches) and best is not None and best.is_failure,
        entry=entry,
        candidates=best.candidates if best else (),
        is_disturbed=any(lookup.is_disturbed for lookup in searches if lookup.entry == best),
        fallback=next((lookup.fallback for lookup in met if lookup.fallback), "") if not searches else "",
        unrecorded=next(
            (one.unrecorded_reason for one in met if one.unrecorded_reason and one.fingerprint not in recorded), ""
        ),
    )


def _badness(lookup: Lookup) -> float:
    if lookup.outcome is None:  # a search that came to nothing has missed nothing, and is to be seen beside a hit
        return 0.5 if lookup.unrecorded_reason else -1
    return list(Outcome).index(lookup.outcome)


def _each_search(searches: Sequence[Lookup]) -> tuple[tuple[str, float], ...]:
    # Of what is shared, the worker that searched comes first; it may have died before it could report.
    first = {lookup.entry: lookup for lookup in sorted(searches, key=lambda one: (one.is_tuned, one.test))}
    return tuple(sorted((one.test, entry.tuning_seconds) for entry, one in first.items() if entry is not None))
