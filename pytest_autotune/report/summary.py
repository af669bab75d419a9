"""The summary of a run: data, of which every report shows a face. Pure.

Whatever one face knows stands here, so that all of them can show it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from pytest_autotune.cache.diff import Diff
from pytest_autotune.cache.merge import Disagreement, Merged
from pytest_autotune.cache.model import NO_VERSIONS, Cache, Candidate, Device, Entry, Identity, Problem, Versions
from pytest_autotune.report.changes import changes
from pytest_autotune.run.compiled_ahead import Ahead, summed_up
from pytest_autotune.run.dumping import Dump
from pytest_autotune.run.ending import Beginning, Collected, Ending
from pytest_autotune.run.former import Former
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome
from pytest_autotune.run.moves import old_entry
from pytest_autotune.run.nearest import Near, Nearest
from pytest_autotune.run.verify import Verdict, Verification

NO_CHANGES = Diff((), 0)
#: The outcomes that count as misses: what a fresh cache would have covered.
NOT_COVERED = (Outcome.MISS, Outcome.STALE, Outcome.MISMATCH, Outcome.UNPORTABLE)

_UNTUNED = {"first": "the first candidate was used", "nearest": "the nearest entry's choice was used"}


@dataclass(frozen=True)
class RanWith:
    """A candidate that a problem ran with in a sweep.

    :param failed_tests: the node ids of the tests that ran with it and failed, for whatever reason.
    """

    candidate: Candidate
    failed_tests: tuple[str, ...] = ()


@dataclass(frozen=True)
class Row:
    """One problem of the run, from all processes that met it.

    :param tests: the node ids of the tests that asked, first in their process or with another fingerprint;
        the one with the worst outcome comes first.
    :param tuned: a search took place.
    :param untuned: what was used in place of a tuning: ``"first"`` candidate or choice of the ``"nearest"`` entry.
    :param nearest: of a miss, the parts of the key in which the nearest entry differs, as name and what that has.
    :param moved_from: the kernel's old name, where its entry still has that.
    :param tuning_seconds: what the search took; 0 where there was none.
    :param choice: what is kept: of several searches by the rule of a merge, or what the file had all the time.
    :param candidates: the measurement that counts.
    :param disturbed: something else may have run on the device in the measurement that counts.
    :param verdict: of a hit whose turn it was to be raced again.
    :param swept: in a sweep, what the problem ran with: one candidate, or one for each list that pruning left.
    :param searches: (node id of the test in which a search took place, its seconds), one for each search.
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
    versions: Versions = NO_VERSIONS
    alias: str = ""
    moved_from: str = ""
    disturbed: bool = False
    verdict: Verdict | None = None
    swept: tuple[RanWith, ...] = ()
    searches: tuple[tuple[str, float], ...] = ()
    untuned: str = ""
    nearest: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Place:
    """Where a test is defined.

    :param path: of its file, relative to the root of the repository, with forward slashes.
    :param line: the first one is 1; 0 where it is not known.
    """

    path: str
    line: int = 0


@dataclass(frozen=True)
class Gate:
    """The verdict on the number of misses and unused entries, or on the number of choices that are slower.

    :param limit: how many are allowed, as the user wrote it; empty where they are not to be judged.
    :param fail_on_unused: whether unused entries are to be judged.
    :param failure: why the run fails; empty when it passes.
    :param skipped: why nothing was judged; empty when it was.
    :param is_usage_error: the failure is one of what was asked for, not of what was found.
    """

    limit: str = ""
    failure: str = ""
    skipped: str = ""
    is_usage_error: bool = False
    fail_on_unused: bool = False


@dataclass(frozen=True)
class Summary:
    """What a run has to report.

    :param loaded: (path as the user wrote it, number of entries) of each loaded cache.
    :param covered: tuner -> the devices that the loaded caches have entries for.
    :param left_out: loaded entries of problems that the dump path does not hold.
    :param incomplete: the first reason why unused entries were not looked for.
    :param pruning: the unused entries were to be dropped.
    :param errors: what the user asked for and did not get; any fails the run.
    :param notes: lines of adapters and of the plugin itself.
    :param unseen: kernels that were tuned behind our back.
    :param workers: worker -> seconds that it waited for others' tunings.
    :param crashed: workers that died.
    :param disagreements: problems that were searched more than once, with different choices.
    :param taken_over: how many tunings of killed runs with this dump path were taken over.
    :param versions: tuner -> the versions that it ran under.
    :param requested: the tuners that the user named; empty where those with loaded entries act.
    :param updates: the dump path was loaded, too.
    :param interrupted: the run was ended before its tests were.
    :param update: the options that bring the cache up to date, as a user would type them; empty where nothing does.
    :param ahead: what was compiled ahead of the tests.
    :param sweep: whose candidates the problems ran with, as a user types it again; empty where it is no sweep.
    :param verify: which loaded choices were to be raced again; None where none were.
    :param drift: the verdict on the number of those that are slower.
    :param refused: the outcomes for which the test that asks fails.
    :param places: node id of a test that asked -> where it is defined.
    :param changes: how what was chosen differs from what was loaded; where nothing was, from what the dump path held.
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
    versions: Mapping[str, Versions] = field(default_factory=dict)
    left_out: tuple[Entry, ...] = ()
    requested: tuple[str, ...] = ()
    updates: bool = False
    interrupted: bool = False
    update: str = ""
    ahead: Ahead = field(default_factory=Ahead)
    sweep: str = ""
    refused: tuple[Outcome, ...] = ()
    places: Mapping[str, Place] = field(default_factory=dict)
    changes: Diff = NO_CHANGES
    verify: Verification | None = None
    drift: Gate = field(default_factory=Gate)

    @property
    def verified(self) -> tuple[Row, ...]:
        """The rows whose loaded choice was raced again."""
        return tuple(row for row in self.rows if row.verdict is not None and not row.verdict.reason)

    @property
    def slower(self) -> tuple[Row, ...]:
        """Those of them whose choice is slower than another candidate, the slowest first."""
        rows = [row for row in self.verified if row.verdict is not None and row.verdict.is_slower]
        return tuple(sorted(rows, key=lambda row: -row.verdict.slower if row.verdict else 0.0))

    @property
    def not_verified(self) -> dict[tuple[str, str], int]:
        """(tuner, why) -> of how many hits it was the turn, and they were not raced."""
        found = [(row.problem.tuner, row.verdict.reason) for row in self.rows if row.verdict and row.verdict.reason]
        return dict(sorted(Counter(found).items()))

    @property
    def verifying_seconds(self) -> float:
        """What racing took, with compiling and waiting, in all processes together."""
        return round(sum(row.verdict.seconds for row in self.rows if row.verdict), 3)

    @property
    def verifying_device_seconds(self) -> float:
        """How long devices were held for that."""
        return round(sum(row.verdict.measured_seconds for row in self.rows if row.verdict), 3)

    @property
    def counts(self) -> dict[str, int]:
        """The number of problems by outcome, and of those tuned, used untuned, unused and unportable."""
        by_outcome = Counter(row.outcome for row in self.rows)
        counts = {outcome.value: by_outcome[outcome] for outcome in (Outcome.HIT, Outcome.MISS, Outcome.STALE)}
        counts["mismatch"] = by_outcome[Outcome.MISMATCH]
        counts["tuned"] = sum(row.tuned for row in self.rows)
        counts["untuned"] = sum(bool(row.untuned) for row in self.rows)
        counts["unused"] = len(self.unused)
        counts["unportable"] = by_outcome[Outcome.UNPORTABLE]
        return counts

    @property
    def is_judged(self) -> bool:
        """Whether lookups could be hits: something was loaded, if only by a marker."""
        return bool(self.loaded) or any(row.outcome not in (None, Outcome.UNPORTABLE) for row in self.rows)

    @property
    def moved(self) -> dict[tuple[str, str], int]:
        """(tuner:kernel as it was, kernel as it is) -> how many of its problems are found under the old name only."""
        rows = [row for row in self.rows if row.moved_from]
        return dict(
            sorted(Counter((f"{row.problem.tuner}:{row.moved_from}", row.problem.kernel) for row in rows).items())
        )

    @property
    def aliases(self) -> dict[tuple[str, str], int]:
        """(device, name of the device whose entries it took) -> how many problems."""
        pairs = Counter((row.problem.device.name, row.alias) for row in self.rows if row.alias)
        return dict(sorted(pairs.items()))

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the run fails; empty when it passes."""
        return (*filter(None, [self.gate.failure, self.drift.failure]), *self.errors)

    @property
    def misses(self) -> int:
        """The number of problems that the loaded caches do not cover."""
        return sum(row.outcome in NOT_COVERED for row in self.rows) + len(self.unseen)

    @property
    def problems(self) -> int:
        """The number of problems that were looked up."""
        return len(self.rows) + len(self.unseen)

    @property
    def unasked(self) -> int:
        """How many entries were loaded, in a run that asked for nothing at all; else 0."""
        return 0 if self.problems else sum(entries for _, entries in self.loaded)

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
    def other_versions(self) -> dict[tuple[str, str], int]:
        """(tuned with, this run's) -> how many hits; noted as a hint, never judged."""
        hints: Counter[tuple[str, str]] = Counter()
        for row in self.rows:
            then, now = row.versions, self.versions.get(row.problem.library)
            if row.outcome is Outcome.HIT and then and now and then.minor != now.minor:
                hints[then.first, now.first] += 1
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


@dataclass(frozen=True)
class Wanted:
    """What a user asked for, as far as a summary has to know it.

    :param prune: the unused entries were to be dropped.
    :param aliases: device name -> name of a device whose entries it may use.

    The rest as in :class:`Summary`.
    """

    prune: bool = False
    updates: bool = False
    requested: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    update: str = ""
    sweep: str = ""
    refused: tuple[Outcome, ...] = ()
    verify: Verification | None = None


def summarise(
    beginning: Beginning,
    collected: Collected,
    ending: Ending,
    dump: Dump | None,
    request: Wanted,
    places: Mapping[str, Place] | None = None,
) -> Summary:
    """Say what a run came to.

    :param dump: what became of the dump file; None in a run that dumps nothing.
    :param places: node id of a test -> where it is defined, as far as it is known.
    """
    index, facts = beginning.index, sorted(collected.facts, key=lambda process: process.worker)
    nearest = Nearest([index] if index is not None else [], request.aliases)
    former = Former(index, {(lookup.problem.tuner, lookup.problem.kernel) for lookup in ending.lookups})
    written = dump is not None and dump.written
    notes = [*collected.notes, *(note for process in facts for note in process.notes)]
    notes += _aliases_of_nothing(beginning, request.aliases)
    return Summary(
        loaded=tuple((path, len(cache.entries)) for path, cache in beginning.loaded),
        rows=rows_of(ending.lookups, nearest.find, ending.merged, former=former.reason, is_sweep=bool(request.sweep)),
        unused=() if request.prune and written else ending.unused,
        covered={tuner: index.devices(tuner) for tuner in sorted(index.tuners())} if index is not None else {},
        incomplete=collected.incomplete,
        pruning=request.prune and dump is not None,
        errors=(dump.error,) if dump is not None and dump.error else (),
        notes=tuple(dict.fromkeys(notes)),
        unseen=tuple(sorted({kernel for process in facts for kernel in process.unseen})),
        unhooked=tuple(sorted({pair for process in facts for pair in process.unhooked})),
        disagreements=ending.merged.disagreements if written else (),
        workers={process.worker: process.waited_s for process in facts if process.worker},
        crashed=tuple(sorted(collected.crashed)),
        taken_over=ending.taken_over if written else 0,
        dump=dump,
        versions=collected.versions,
        left_out=ending.left_out if written else (),
        requested=request.requested,
        updates=request.updates,
        interrupted=collected.interrupted,
        update=request.update,
        ahead=summed_up(process.ahead for process in facts),
        sweep=request.sweep,
        refused=request.refused,
        verify=request.verify,
        places={} if places is None else dict(sorted(places.items())),
        changes=changes(beginning, ending),
    )


def _aliases_of_nothing(beginning: Beginning, aliases: Mapping[str, str]) -> Iterator[str]:
    devices = {device.name for _, cache in beginning.loaded for device in cache.devices}
    for other in sorted(set(aliases.values()) - devices):
        if devices:
            yield f"autotune_device_alias: no loaded entry is for {other} (they are for {', '.join(sorted(devices))})"


def rows_of(
    lookups: Iterable[Lookup],
    nearest: Callable[[Problem], Near] = lambda problem: Near(),
    merged: Merged | None = None,
    *,
    former: Callable[[Lookup], str] = lambda lookup: NO_ENTRY,
    is_sweep: bool = False,
) -> tuple[Row, ...]:
    """One row per problem, numbers in their order; its outcome is the worst that any process met.

    :param nearest: says of a problem without an entry how the nearest entry of its kernel differs.
    :param former: says of one whose kernel has no entry what that may have been called before.
    :param merged: what the lookups come to; where it has an entry for what was asked, the row has that one's choice.
    """
    by_problem: defaultdict[Problem, list[Lookup]] = defaultdict(list)
    for lookup in lookups:
        by_problem[lookup.problem].append(lookup)
    merged = merged or Merged(Cache())
    kept = {entry.identity: entry for entry in merged.cache.entries}
    rows = [_row(problem, met, kept, merged.best) for problem, met in by_problem.items()]
    if is_sweep:
        rows = [_of_sweep(row, by_problem[row.problem]) for row in rows]

    def explained(row: Row) -> Row:
        if row.reason == NO_ENTRY:
            near = nearest(row.problem)
            reason = former(by_problem[row.problem][0]) if near.reason == NO_ENTRY else near.reason
            row = replace(row, reason=reason, nearest=near.has)
        return replace(row, reason=f"{row.reason}; {_UNTUNED[row.untuned]}") if row.untuned else row

    rows = list(map(explained, rows))
    return tuple(sorted(rows, key=lambda row: _reading_order(row.problem)))


def _reading_order(problem: Problem) -> tuple[object, ...]:
    numbers = tuple(value.value if isinstance(value.value, (int, float)) else 0 for value in problem.key)
    names = tuple(value.name for value in problem.key)
    return problem.tuner, problem.kernel, problem.device.id, names, numbers, problem.sort_key


def _row(
    problem: Problem, met: Sequence[Lookup], kept: Mapping[Identity, Entry], measured: Mapping[Identity, Entry]
) -> Row:
    met = sorted(met, key=lambda one: (one.outcome.badness if one.outcome else -1, one.reason), reverse=True)
    worst = met[0]
    searches = [lookup for lookup in met if lookup.searched]
    with_entry = searches or [lookup for lookup in met if lookup.entry is not None]
    found = with_entry[0].entry if with_entry else None
    entry = kept.get(found.identity, found) if found is not None else None
    best = measured.get(found.identity, found) if found is not None else None
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
        best.candidates if best else (),
        entry.versions if entry else Versions(),
        next((lookup.alias for lookup in met if lookup.alias), ""),
        next((old.problem.kernel for one in met if one.outcome is Outcome.HIT and (old := old_entry(one))), ""),
        any(lookup.disturbed for lookup in searches if lookup.entry == best),
        searches=_each_search(searches),
        untuned=next((lookup.untuned for lookup in met if lookup.untuned), ""),
        verdict=_verdict(met),
    )


def _verdict(met: Sequence[Lookup]) -> Verdict | None:
    """Of several races of one problem, such as those of workers on two machines, the one that found most."""
    verdicts = [lookup.verdict for lookup in met if lookup.verdict is not None]
    return max(verdicts, key=lambda one: (one.slower, not one.reason, one.seconds), default=None)


def _of_sweep(row: Row, met: Sequence[Lookup]) -> Row:
    """The row of a problem in a sweep, where its candidates are known to that."""
    failed: defaultdict[Candidate, list[str]] = defaultdict(list)
    known: dict[Candidate, Candidate] = {}
    for lookup in met:
        entry = lookup.entry
        if entry is not None and entry.choice is not None and not lookup.searched:
            failed[entry.choice] += [lookup.test] if lookup.test_failed else []
            for candidate in entry.candidates:
                # Of two processes, one may have refused what the other did not come to.
                plain = replace(candidate, failed="")
                known[plain] = max(candidate, known.get(plain, plain), key=lambda one: one.failed)
    swept = [RanWith(candidate, tuple(sorted(set(failed[candidate])))) for candidate in sorted(failed, key=repr)]
    in_order = sorted(known.values(), key=lambda one: repr(replace(one, failed="")))
    return replace(row, swept=tuple(swept), candidates=tuple(in_order)) if swept else row


def _each_search(searches: Sequence[Lookup]) -> tuple[tuple[str, float], ...]:
    # Of what is shared, the worker that searched comes first; it may have died before it could report.
    first = {lookup.entry: lookup for lookup in sorted(searches, key=lambda one: (one.tuned, one.test))}
    return tuple(sorted((one.test, entry.tuning_seconds) for entry, one in first.items() if entry is not None))


def _searched_seconds(searches: Sequence[Lookup]) -> float:
    # What one worker took from another carries the same entry: one search, counted once.
    entries = {lookup.entry for lookup in searches if lookup.entry is not None}
    return sum(sorted(entry.tuning_seconds for entry in entries), 0.0)
