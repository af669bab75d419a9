"""What a run came to, as data: the one thing that every renderer shows. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_autotune.cache.diff import ChangeKind, Diff
from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import Cache, Device, Entry, Problem, is_tuner_named, library_of
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Lookup, Outcome, Policy
from pytest_autotune.run.rows import NOT_COVERED, ProblemRow
from pytest_autotune.run.section import Finding, Gate, Section
from pytest_autotune.workers.events import Event


@dataclass(frozen=True)
class SourceLocation:
    """Where a test is defined.

    :param path: of its file, relative to the root of the repository, with forward slashes.
    :param line: the first one is 1; 0 where it is not known.
    """

    path: str
    line: int = 0


class EntryReplacer(Protocol):
    """A mode that may replace entries of a dump; see :class:`pytest_autotune.run.mode.Mode`."""

    def list_replacing_entries(self, events: Sequence[Event], lookups: Sequence[Lookup]) -> Iterable[Entry]:
        """Return the entries that a dump holds in place of the entries that were used."""


@dataclass(frozen=True)
class RunRequest:
    """What the user asked for, as far as the end of a run goes by it.

    :param shared: it dumps into a store at a URL, that others add to as well: only what this run has tuned.
    :param new_only: leave the entries of every problem that the dump path holds as they are.
    :param keep_candidates: keep every candidate of an entry that was measured and has a choice.
    :param updates: the dump path was loaded, too.
    :param update: the options that bring the cache up to date, as a user would type them; empty where nothing does.
    :param tuners_named_by: how the user named them, as spelt.
    :param adapters: the tuners that there are adapters for; None where that is not known.
    :param tells: what would tell whether choices of other versions are still good.
    """

    is_dumping: bool = False
    is_shared_store: bool = False
    prune: bool = False
    new_only: bool = False
    keep_candidates: bool = False
    is_update: bool = False
    update_arguments: str = ""
    policy: Policy = field(default_factory=Policy)
    modes: tuple[EntryReplacer, ...] = ()
    tuners_named_by: str = ""
    adapters: tuple[str, ...] | None = None
    version_checks: tuple[str, ...] = ()


@dataclass(frozen=True)
class DumpOutcome:
    """What became of the dump file; what changed there is in :attr:`Result.merged`.

    :param path: as the user wrote it.
    :param written_to: where it was written; another path where the file was locked, empty where it was not.
    :param beside: why that is another path, and what to do with it.
    :param rewritten: its bytes have changed.
    :param error: why it could not be written.
    """

    path: str
    written_to: str = ""
    is_changed: bool = False
    error: str = ""
    remark: str = ""


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    :param merged: what the dump path is to hold, and what changes there.
    :param loaded: (path as the user wrote it, number of entries) of each loaded cache.
    :param covered: tuner -> the devices that the loaded caches have entries for; of tuners that are not ignored.
    :param unused: entries that nobody asked for; those that were pruned are not among them.
    :param of_tests: problems that only the caches which tests load for themselves could have had.
    :param left_out: loaded entries of problems that nobody asked for and the dump path does not hold.
    :param recovered: how many tunings of killed runs with this dump path count in this one.
    :param errors: what the user asked for and did not get; any fails the run.
    :param places: node id of a test that asked -> where it is defined.
    :param about: when, where and by which command it ran, as (word, text); for people, and in no cache.
    """

    rows: tuple[ProblemRow, ...] = ()
    collected: Collected = field(default_factory=Collected)
    request: RunRequest = field(default_factory=RunRequest)
    merged: MergeResult = field(default_factory=lambda: MergeResult(Cache()))
    loaded: tuple[tuple[str, int], ...] = ()
    devices_by_tuner: Mapping[str, frozenset[Device]] = field(default_factory=dict)
    unused_entries: tuple[Entry, ...] = ()
    test_cache_problems: frozenset[Problem] = frozenset()
    left_out_entries: tuple[Entry, ...] = ()
    recovered_count: int = 0
    errors: tuple[str, ...] = ()
    dump: DumpOutcome | None = None
    gate: Gate = field(default_factory=Gate)
    test_places: Mapping[str, SourceLocation] = field(default_factory=dict)
    run_facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()

    @property
    def changes(self) -> Diff:
        """How what was chosen differs from what was in the dump path, else from what was loaded, if anything was."""
        found = self.merged.changes
        is_new = not found.unchanged and all(change.kind is ChangeKind.ADDED for change in found.changes)
        return Diff((), 0) if is_new else found

    def with_dump(self, dump: DumpOutcome) -> RunResult:
        """The result, when what became of the dump is known."""
        if not dump.written_to:
            errors = (*self.errors, *([dump.error] if dump.error else []))
            merged = MergeResult(self.merged.cache, best_measurements=self.merged.best_measurements)
            return replace(self, dump=dump, merged=merged, recovered_count=0, left_out_entries=(), errors=errors)
        return replace(self, dump=dump, unused_entries=() if self.request.prune else self.unused_entries)

    @property
    def tuners_without_adapter(self) -> tuple[str, ...]:
        """The tuners of loaded entries for which there is no adapter here."""
        adapters, loaded = self.request.adapters, {library_of(name) for name in self.devices_by_tuner}
        return () if adapters is None else tuple(sorted(loaded - set(adapters)))

    @property
    def unhooked_tuners(self) -> tuple[str, ...]:
        """The tuners that could not be hooked, and were asked for by name or by entries."""
        wanted = {library_of(name) for name in self.request.policy.tuners or self.devices_by_tuner}
        return tuple(tuner for tuner, _ in self.collected.unhooked if library_of(tuner) in wanted)

    @property
    def unnamed_tuners(self) -> tuple[str, ...]:
        """The tuners of loaded entries that the user has left out by naming others."""
        wanted = self.request.policy.tuners
        return tuple(name for name in self.devices_by_tuner if wanted and not is_tuner_named(name, wanted))

    @property
    def bypasses(self) -> tuple[str, ...]:
        """What bypasses some tuners, kernels or tests, as spelt."""
        named_by = [self.request.tuners_named_by] if self.request.policy.tuners else []
        ignores = ["autotune_ignore (ini)"] if self.request.policy.ignore else []
        return (*named_by, *ignores, *(["autotune_cache(enabled=False)"] if self.collected.disabled_tests else []))

    @property
    def hypothesis_rows(self) -> tuple[ProblemRow, ...]:
        """The rows that an update would cover and a test draws anew in each run."""
        return tuple(
            row for row in self.rows_to_update if row.tests and row.tests[0] in self.collected.hypothesis_tests
        )

    @property
    def counts(self) -> dict[str, int]:
        """The number of problems by outcome, and by what became of them; of entries, how many are unused."""
        by_outcome = Counter(row.outcome for row in self.rows)
        counts = {outcome.value: by_outcome[outcome] for outcome in (Outcome.HIT, Outcome.MISS, Outcome.STALE)}
        counts["mismatch"] = by_outcome[Outcome.MISMATCH]
        counts["tuned"] = sum(row.tuned and not row.failed for row in self.rows)
        counts["failed"] = sum(row.failed for row in self.rows)
        counts["unrecorded"] = sum(bool(row.unrecorded) for row in self.rows)
        counts["fallback"] = sum(bool(row.fallback) for row in self.rows)
        counts["unused"] = len(self.unused_entries)
        counts["uncacheable"] = by_outcome[Outcome.UNCACHEABLE]
        counts["untracked"] = len(self.collected.untracked)
        return counts

    @property
    def is_judged(self) -> bool:
        """Whether lookups could be hits: something was loaded, if only by a marker."""
        return bool(self.loaded) or any(row.outcome not in (None, Outcome.UNCACHEABLE) for row in self.rows)

    @property
    def rows_to_update(self) -> tuple[ProblemRow, ...]:
        """The rows that an update would cover: not those that the dump has now, nor those that nothing can record."""
        outcomes = (Outcome.MISS, Outcome.STALE, Outcome.MISMATCH)
        rows = (row for row in self.rows if row.outcome in outcomes and not row.unrecorded)
        dump = self.dump
        if dump is None or dump.error:
            return tuple(rows)
        return tuple(row for row in rows if not row.is_kept or (self.request.new_only and row.outcome is Outcome.STALE))

    @property
    def rename_counts(self) -> dict[tuple[str, str], int]:
        """(tuner:kernel as it was, kernel as it is) -> how many of its problems are found under the old name only."""
        rows = [row for row in self.rows if row.moved_from]
        return _numbers((f"{row.problem.tuner}:{row.moved_from}", row.problem.kernel) for row in rows)

    @property
    def alias_counts(self) -> dict[tuple[str, str], int]:
        """(device, the device whose entries it took), in words -> how many problems."""
        return _numbers((str(row.problem.device), row.alias) for row in self.rows if row.alias)

    @property
    def failures(self) -> tuple[str, ...]:
        """Why the run fails; empty when it passes."""
        gates = dict.fromkeys(gate.failure for gate in (self.gate, *self.gates_of_modes))  # two may say the same
        return (*filter(None, gates), *self.errors)

    @property
    def gates_of_modes(self) -> tuple[Gate, ...]:
        """What modes have judged."""
        return tuple(section.gate for section in self.sections if section.gate is not None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What modes have found."""
        return tuple(finding for section in self.sections for finding in section.findings)

    @property
    def miss_count(self) -> int:
        """The number of problems that the loaded caches do not cover."""
        return sum(row.outcome in NOT_COVERED for row in self.rows) + len(self.collected.untracked)

    @property
    def problem_count(self) -> int:
        """The number of problems that were looked up."""
        return len(self.rows) + len(self.collected.untracked)

    @property
    def loaded_entry_count(self) -> int:
        """How many entries were loaded."""
        return sum(entries for _, entries in self.loaded)

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
    def other_version_counts(self) -> dict[tuple[str, str], int]:
        """(tuned with, this run's) -> how many hits; noted as a hint, never judged."""
        hints = []
        for row in self.rows:
            then, now = row.versions, self.collected.versions.get(row.problem.library)
            if row.outcome is Outcome.HIT and then and now and then.tuner_minor_version != now.tuner_minor_version:
                hints.append((then.tuner_version, now.tuner_version))
        return _numbers(hints)

    @property
    def rows_without_entries(self) -> dict[tuple[str, Device], tuple[ProblemRow, ...]]:
        """The rows of each tuner and device for which the loaded caches have no entry at all, nor those of an alias."""
        by_device: defaultdict[tuple[str, Device], list[ProblemRow]] = defaultdict(list)
        for row in self.rows:
            by_device[row.problem.tuner, row.problem.device].append(row)
        return {
            (tuner, device): tuple(rows)
            for (tuner, device), rows in by_device.items()
            if self.loaded
            and device not in self.devices_by_tuner.get(tuner, ())
            and all(row.outcome in (Outcome.MISS, Outcome.MISMATCH) for row in rows)
        }


def _numbers(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    return dict(sorted(Counter(pairs).items()))
