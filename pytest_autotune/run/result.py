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
from pytest_autotune.run.dump_plan import NoDump
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
    """The user's wishes for the end of a run.

    :param plan: which cache the run writes, and how.
    :param update_arguments: the options that bring the cache up to date, as a user would type them; empty if no
        options do.
    :param modes: of the run.
    :param tuners_named_by: the option that names the tuners to act on, as the user wrote it.
    :param adapters: the tuners that have an adapter; None if that is not known.
    :param version_checks: how a user can check whether choices of other versions are still good, in words.
    """

    plan: NoDump = field(default_factory=NoDump)
    update_arguments: str = ""
    policy: Policy = field(default_factory=Policy)
    modes: tuple[EntryReplacer, ...] = ()
    tuners_named_by: str = ""
    adapters: tuple[str, ...] | None = None
    version_checks: tuple[str, ...] = ()


@dataclass(frozen=True)
class DumpOutcome:
    """The outcome of writing the dump path. :attr:`RunResult.merged` has the changes of its entries.

    :param path: as the user wrote it.
    :param written_to: the path that was written: another path if the file was locked; empty if none was written.
    :param is_changed: whether the bytes of the file changed.
    :param error: why the file could not be written.
    :param remark: why another path was written, and what to do with it.
    """

    path: str
    written_to: str = ""
    is_changed: bool = False
    error: str = ""
    remark: str = ""


@dataclass(frozen=True)
class RunResult:
    """The result of a run, which all reports show.

    :param merged: the content of the dump path after the run, and its changes.
    :param loaded: (path as the user wrote it, number of entries) of each loaded cache.
    :param devices_by_tuner: tuner -> the devices that the loaded caches have entries for; without ignored tuners.
    :param unused_entries: the entries that a complete run did not ask for, without those that were pruned.
    :param test_cache_problems: the problems that only the caches of single tests could cover.
    :param left_out_entries: loaded entries of problems that no test asked for and the dump path does not hold.
    :param recovered_count: the number of tunings of killed runs with this dump path that count in this run.
    :param errors: the requests of the user that failed. Any error fails the run.
    :param test_places: node id of a test that asked -> the place of its definition.
    :param run_facts: when, where and by which command the run took place, as (word, text); for people only.
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
        return replace(self, dump=dump, unused_entries=() if self.request.plan.prunes else self.unused_entries)

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
        return tuple(
            row for row in rows if not row.is_kept or (self.request.plan.only_adds and row.outcome is Outcome.STALE)
        )

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
