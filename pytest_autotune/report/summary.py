"""The summary of a run: data, of which every report shows a face. Pure.

Whatever one face knows stands here, so that all of them can show it.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from pytest_autotune.cache.diff import ChangeKind, Diff, diff
from pytest_autotune.cache.merge import Disagreement
from pytest_autotune.cache.model import Cache, Device, Entry, Versions
from pytest_autotune.report.rows import NOT_COVERED, Row, rows_of
from pytest_autotune.run.compiled_for import CompiledAhead
from pytest_autotune.run.dumping import Dump
from pytest_autotune.run.ending import Beginning, Collected, Ending
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.moves import old_entry
from pytest_autotune.run.nearest import Nearest
from pytest_autotune.run.policy import is_ignored
from pytest_autotune.run.verify import Verification

NO_CHANGES = Diff((), 0)


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
    """Whether a run is within a limit: on its misses and unused entries, or on its choices that are slower.

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
    :param replaced: entries that the dump path had for other code or candidates, of which no row tells.
    :param incomplete: the first reason why unused entries were not looked for.
    :param only_skipped: that reason is a skipped test, in a run of the whole suite.
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
    :param requested_by: how the user named them, as spelt.
    :param ignored: how many loaded entries ``autotune_ignore`` leaves out, in a run that asked for nothing.
    :param left_to_tuners: the options that leave some tuners or kernels alone, as spelt.
    :param updates: the dump path was loaded, too.
    :param interrupted: the run was ended before its tests were.
    :param update: the options that bring the cache up to date, as a user would type them; empty where nothing does.
    :param ahead: what was compiled ahead of the tests.
    :param sweep: whose candidates the problems ran with, as a user types it again; empty where it is no sweep.
    :param verify: which loaded choices were to be raced again; None where none were.
    :param drift: whether no more of those are slower than may be.
    :param refused: the outcomes for which the test that asks fails.
    :param places: node id of a test that asked -> where it is defined.
    :param changes: how what was chosen differs from what was loaded; where nothing was, from what the dump path held.
    """

    loaded: tuple[tuple[str, int], ...] = ()
    rows: tuple[Row, ...] = ()
    unused: tuple[Entry, ...] = ()
    covered: Mapping[str, frozenset[Device]] = field(default_factory=dict)
    incomplete: str = ""
    only_skipped: bool = False
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
    replaced: tuple[Entry, ...] = ()
    requested: tuple[str, ...] = ()
    requested_by: str = ""
    ignored: int = 0
    left_to_tuners: tuple[str, ...] = ()
    updates: bool = False
    interrupted: bool = False
    update: str = ""
    ahead: CompiledAhead = field(default_factory=CompiledAhead)
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
        """The number of problems by outcome, and by what became of them; of entries, how many are unused.

        Tuned are those of which something was chosen, failed those of which no candidate can be used.
        """
        by_outcome = Counter(row.outcome for row in self.rows)
        counts = {outcome.value: by_outcome[outcome] for outcome in (Outcome.HIT, Outcome.MISS, Outcome.STALE)}
        counts["mismatch"] = by_outcome[Outcome.MISMATCH]
        counts["tuned"] = sum(row.tuned and not row.failed for row in self.rows)
        counts["failed"] = sum(row.failed for row in self.rows)
        counts["unrecorded"] = sum(bool(row.unrecorded) for row in self.rows)
        counts["untuned"] = sum(bool(row.untuned) for row in self.rows)
        counts["unused"] = len(self.unused)
        counts["unportable"] = by_outcome[Outcome.UNPORTABLE]
        return counts

    @property
    def is_judged(self) -> bool:
        """Whether lookups could be hits: something was loaded, if only by a marker."""
        return bool(self.loaded) or any(row.outcome not in (None, Outcome.UNPORTABLE) for row in self.rows)

    @property
    def to_update(self) -> tuple[Row, ...]:
        """The rows that an update would cover: not those that the dump has now, nor those that nothing can record."""
        outcomes = (Outcome.MISS, Outcome.STALE, Outcome.MISMATCH)
        rows = (row for row in self.rows if row.outcome in outcomes and not row.unrecorded)
        dump = self.dump
        if dump is None or dump.error:
            return tuple(rows)
        return tuple(row for row in rows if not row.is_kept or (dump.new_only and row.outcome is Outcome.STALE))

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
    def is_empty(self) -> bool:
        """Whether what was loaded has no entry at all, nor had the cache of a test one for what that looked up."""
        found_nothing = all(row.outcome in (None, Outcome.MISS, Outcome.UNPORTABLE) for row in self.rows)
        return bool(self.loaded) and not any(entries for _, entries in self.loaded) and found_nothing

    @property
    def unasked(self) -> int:
        """How many entries were loaded for lookups, in a run that made none at all; else 0."""
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
        return tuple(sorted({row.problem.device for row in self.rows}, key=lambda device: device.sort_key))

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


def summarise(
    beginning: Beginning,
    collected: Collected,
    ending: Ending,
    dump: Dump | None,
    *,
    prune: bool = False,
    ignore: tuple[str, ...] = (),
    aliases: Mapping[str, str] | None = None,
    is_sweep: bool = False,
) -> Summary:
    """Say what a run came to; what its user asked for, as far as it is only told, is for the caller to add.

    :param dump: what became of the dump file; None in a run that dumps nothing.
    :param prune: the unused entries were to be dropped.
    :param ignore: globs of kernels that are left alone.
    :param aliases: device name -> name of a device whose entries it may use.
    """
    index, facts = beginning.index, sorted(collected.facts, key=lambda process: process.worker)
    nearest = Nearest([index] if index is not None else [], aliases or {})
    written = dump is not None and dump.written
    notes = [*collected.notes, *(note for process in facts for note in process.notes)]
    notes += _aliases_of_nothing(beginning, aliases or {})
    return Summary(
        loaded=tuple((path, len(cache.entries)) for path, cache in beginning.loaded),
        rows=rows_of(ending.lookups, nearest.find, ending.merged, is_sweep=is_sweep),
        unused=() if prune and written else ending.unused,
        covered={tuner: index.devices(tuner) for tuner in sorted(index.tuners())} if index is not None else {},
        incomplete=collected.incomplete,
        only_skipped=collected.only_skipped,
        pruning=prune and dump is not None,
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
        replaced=ending.replaced if written else (),
        ignored=_ignored(beginning, ignore) if ignore and not ending.lookups else 0,
        interrupted=collected.interrupted,
        ahead=CompiledAhead.of_all(process.ahead for process in facts),
        changes=_changes(beginning, ending),
    )


def _ignored(beginning: Beginning, globs: tuple[str, ...]) -> int:
    problems = [entry.problem for _, cache in beginning.loaded for entry in cache.entries]
    return sum(is_ignored(problem.tuner, problem.kernel, globs) for problem in problems)


def _aliases_of_nothing(beginning: Beginning, aliases: Mapping[str, str]) -> Iterator[str]:
    devices = {device.name for _, cache in beginning.loaded for device in cache.devices}
    for other in sorted(set(aliases.values()) - devices):
        if devices:
            yield f"autotune_device_alias: no loaded entry is for {other} (they are for {', '.join(sorted(devices))})"


def _changes(beginning: Beginning, ending: Ending) -> Diff:
    """What is new in the entries of the problems that a run asked for, or chosen otherwise, or measured anew.

    They are compared with the loaded caches, or with what the dump path held where nothing is loaded. What nobody
    asked for is not among it: those entries are unused, of other devices, or of tests that did not run.
    """
    asked = {lookup.problem for lookup in ending.lookups if old_entry(lookup) is None}  # a moved one is not new
    kernels = {problem.kernel for problem in asked}

    def of_this_run(entries: Iterable[Entry]) -> Cache:
        # The hash of a problem takes long, and most entries of a large cache are of other kernels.
        return Cache(tuple(entry for entry in entries if entry.problem.kernel in kernels and entry.problem in asked))

    given = [cache for _, cache in beginning.loaded] or [beginning.held]
    before = {entry.identity: entry for cache in given for entry in of_this_run(cache.entries).entries}
    if not before and not beginning.loaded:
        return Diff((), 0)
    found = diff(Cache(tuple(before.values())), of_this_run(ending.merged.cache.entries))
    return Diff(tuple(change for change in found.changes if change.kind is not ChangeKind.REMOVED), found.unchanged)
