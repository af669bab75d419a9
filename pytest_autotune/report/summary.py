"""One summary of a run; every report shows a face of it."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_autotune.cache.merge import Disagreement
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, before_pruning
from pytest_autotune.run.encoding import ProcessFacts
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome
from pytest_autotune.run.moves import old_entry

#: The outcomes that count as misses: what a fresh cache would have covered.
NOT_COVERED = (Outcome.MISS, Outcome.STALE, Outcome.MISMATCH, Outcome.UNPORTABLE)


@dataclass(frozen=True)
class Row:
    """One problem of the run, from all processes that met it.

    :param tests: the node ids of the tests that asked, first in their process or with another fingerprint;
        the one with the worst outcome comes first.
    :param tuned: a search took place.
    :param moved_from: the kernel's old name, where its entry still has that.
    :param tuning_seconds: what the search took; 0 where there was none.
    """

    problem: Problem
    outcome: Outcome | None
    reason: str = ""
    label: str = ""
    tests: tuple[str, ...] = ()
    tuned: bool = False
    tuning_seconds: float = 0.0
    saved_seconds: float = 0.0
    choice: Candidate | None = None
    candidates: tuple[Candidate, ...] = ()
    environment: str = ""
    alias: str = ""
    moved_from: str = ""


@dataclass(frozen=True)
class Dump:
    """What became of the dump file; the counts are of entries.

    :param path: as the user wrote it.
    :param written_to: where it was written; another path where the file was locked.
    :param error: why it could not be written; empty if it was.
    """

    path: str
    written_to: str = ""
    entries: int = 0
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    rewritten: bool = False
    error: str = ""


@dataclass(frozen=True)
class Gate:
    """The verdict on the number of misses.

    :param limit: what is allowed, as the user wrote it; empty where nothing is to be judged.
    :param failure: why the run fails; empty when it passes.
    :param skipped: why nothing was judged; empty when it was.
    """

    limit: str = ""
    failure: str = ""
    skipped: str = ""


@dataclass(frozen=True)
class Summary:
    """What a run has to tell.

    :param loaded: (path as the user wrote it, number of entries) of each loaded cache.
    :param covered: tuner -> the devices that the loaded caches have entries for.
    :param incomplete: the first reason why unused entries were not looked for.
    :param pruning: the unused entries were to be dropped.
    :param errors: what the user asked for and did not get; any fails the run.
    :param notes: lines of adapters and of the plugin itself.
    :param unseen: kernels that were tuned behind our back.
    :param workers: worker -> seconds that it waited for others' tunings.
    :param taken_over: how many tunings of killed runs with this dump path were taken over.
    """

    loaded: tuple[tuple[str, int], ...] = ()
    rows: tuple[Row, ...] = ()
    unused: tuple[Entry, ...] = ()
    covered: Mapping[str, frozenset[Device]] = field(default_factory=dict)
    incomplete: str = ""
    pruning: bool = False
    errors: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    unhooked: tuple[tuple[str, str], ...] = ()
    disagreements: tuple[Disagreement, ...] = ()
    workers: Mapping[str, float] = field(default_factory=dict)
    crashed: tuple[str, ...] = ()
    taken_over: int = 0
    dump: Dump | None = None
    gate: Gate = field(default_factory=Gate)
    environments: Mapping[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> dict[str, int]:
        """The number of problems by outcome, and of those tuned, unused and unportable."""
        by_outcome = Counter(row.outcome for row in self.rows)
        counts = {outcome.value: by_outcome[outcome] for outcome in (Outcome.HIT, Outcome.MISS, Outcome.STALE)}
        counts["mismatch"] = by_outcome[Outcome.MISMATCH]
        counts["tuned"] = sum(row.tuned for row in self.rows)
        counts["unused"] = len(self.unused)
        counts["unportable"] = by_outcome[Outcome.UNPORTABLE]
        return counts

    @property
    def moved(self) -> dict[tuple[str, str], int]:
        """(tuner:kernel as it was, kernel as it is) -> how many of its problems are found under the old name only."""
        rows = [row for row in self.rows if row.moved_from]
        return dict(
            sorted(Counter((f"{row.problem.tuner}:{row.moved_from}", row.problem.kernel) for row in rows).items())
        )

    @property
    def misses(self) -> int:
        """The number of problems that the loaded caches do not cover."""
        return sum(row.outcome in NOT_COVERED for row in self.rows) + len(self.unseen)

    @property
    def problems(self) -> int:
        """The number of problems that were looked up."""
        return len(self.rows) + len(self.unseen)

    @property
    def tuning_seconds(self) -> float:
        return round(sum((row.tuning_seconds for row in self.rows), 0.0), 3)

    @property
    def saved_seconds(self) -> float:
        return round(sum((row.saved_seconds for row in self.rows), 0.0), 3)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices that this run's problems are of."""
        return tuple(sorted({row.problem.device for row in self.rows}, key=lambda device: device.id))

    @property
    def other_environments(self) -> dict[tuple[str, str], int]:
        """(tuned with, this run's) -> how many hits; told as a hint, never judged."""
        hints: Counter[tuple[str, str]] = Counter()
        for row in self.rows:
            then, now = row.environment, self.environments.get(row.problem.library, "")
            if row.outcome is Outcome.HIT and then and now and minor_version(then) != minor_version(now):
                hints[then.split(",")[0], now.split(",")[0]] += 1
        return dict(sorted(hints.items()))

    @property
    def without_any_entry(self) -> dict[tuple[str, Device], tuple[Row, ...]]:
        """The rows of each tuner and device for which the loaded caches have no entry at all.

        A device that takes another's entries has some, and so has one that a test's own cache serves.
        """
        by_device: defaultdict[tuple[str, Device], list[Row]] = defaultdict(list)
        for row in self.rows:
            by_device[row.problem.tuner, row.problem.device].append(row)
        return {
            (tuner, device): tuple(rows)
            for (tuner, device), rows in by_device.items()
            if self.loaded
            and device not in self.covered.get(tuner, ())
            and all(row.outcome in (Outcome.MISS, Outcome.MISMATCH) for row in rows)
        }


def minor_version(environment: str) -> str:
    """The tuner's own library with major and minor version: ``"triton 3.6"``."""
    return ".".join(environment.split(",")[0].split(".")[:2])


def rows_of(lookups: Iterable[Lookup], nearest: Callable[[Problem], str] = lambda problem: NO_ENTRY) -> tuple[Row, ...]:
    """One row per problem, numbers in their order; its outcome is the worst that any process met.

    :param nearest: says of a problem without an entry how the nearest entry of its kernel differs.
    """
    by_problem: defaultdict[Problem, list[Lookup]] = defaultdict(list)
    for lookup in lookups:
        by_problem[lookup.problem].append(lookup)
    rows = [_row(problem, met) for problem, met in by_problem.items()]
    rows = [replace(row, reason=nearest(row.problem)) if row.reason == NO_ENTRY else row for row in rows]
    return tuple(sorted(rows, key=lambda row: _reading_order(row.problem)))


def _reading_order(problem: Problem) -> tuple[object, ...]:
    numbers = tuple(value.value if isinstance(value.value, (int, float)) else 0 for value in problem.key)
    names = tuple(value.name for value in problem.key)
    return problem.tuner, problem.kernel, problem.device.id, names, numbers, problem.sort_key


def _row(problem: Problem, met: Sequence[Lookup]) -> Row:
    met = sorted(met, key=lambda one: (one.outcome.badness if one.outcome else -1, one.reason), reverse=True)
    worst = met[0]
    searches = [lookup for lookup in met if lookup.tuned or lookup.shared]
    with_entry = searches or [lookup for lookup in met if lookup.entry is not None]
    entry = with_entry[0].entry if with_entry else None
    return Row(
        problem,
        worst.outcome,
        worst.reason,
        worst.label or (entry.label if entry else ""),
        tuple(dict.fromkeys(lookup.test for lookup in met if lookup.test)),
        bool(searches),
        _searched_seconds(searches),
        max((lookup.saved_seconds for lookup in met), default=0.0),
        entry.choice if entry else None,
        entry.candidates if entry else (),
        entry.environment if entry else "",
        next((lookup.alias for lookup in met if lookup.alias), ""),
        next((old.problem.kernel for one in met if one.outcome is Outcome.HIT and (old := old_entry(one))), ""),
    )


def _searched_seconds(searches: Sequence[Lookup]) -> float:
    # What one worker took from another carries the same entry: one search, counted once.
    entries: dict[tuple[Value, ...], set[Entry]] = defaultdict(set)
    for lookup in searches:
        if lookup.entry is not None:
            entries[lookup.fingerprint].add(lookup.entry)
    return sum((entry.tuning_seconds for same in entries.values() for entry in same), 0.0)


def unused_entries(
    kept: Cache, lookups: Sequence[Lookup], facts: Sequence[ProcessFacts], environments: Mapping[str, str]
) -> tuple[Entry, ...]:
    """The entries that a complete run should have asked for and did not.

    Such an entry is of a device seen in this run, of a tuner active in it, tuned under
    the same minor version of that tuner's library, and its kernel was asked for or
    its module imported. An entry of a problem that no entry could serve is not
    unused: it is stale, and told as that. Nor is one for candidates that pruning
    left elsewhere: which list a test asks for may depend on those before it.
    """
    exact = {(lookup.problem, lookup.fingerprint) for lookup in lookups}
    exact |= {(lookup.entry.problem, lookup.entry.fingerprint) for lookup in lookups if lookup.entry is not None}
    unserved = {lookup.problem for lookup in lookups if lookup.outcome is not Outcome.HIT}
    problems = {lookup.problem for lookup in lookups}
    devices = {problem.device for problem in problems}
    kernels = {lookup.problem.name for lookup in lookups}
    kernels.update(kernel for process in facts for kernel in process.imported)

    def is_unused(entry: Entry) -> bool:
        problem = entry.problem
        now = environments.get(problem.library)
        return (
            problem.device in devices
            and now is not None
            and minor_version(now) == minor_version(entry.environment)
            and problem.name in kernels
            and problem not in unserved
            and (problem, entry.fingerprint) not in exact
            and not (before_pruning(entry.fingerprint) != entry.fingerprint and problem in problems)
        )

    return tuple(entry for entry in kept.entries if is_unused(entry))
