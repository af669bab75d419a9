"""The result of a run as data, which every renderer shows. Pure.

:mod:`pytest_autotune.run.finish` builds it, and :mod:`pytest_autotune.report` renders and judges it.

A row is one problem that tests asked for: a kernel with a key and a device. Its outcome says whether the loaded caches
have an entry for the problem. The dump path is the cache that the run writes.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any

from pytest_autotune.cache.diff import ChangeKind, Diff
from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import Cache, Device, Entry, Problem, is_tuner_named, library_of
from pytest_autotune.run.ci_run import CiRun
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.rows import NOT_COVERED, ProblemRow


@dataclass(frozen=True)
class SourceLocation:
    """The place where a test is defined.

    :param path: the file, relative to the root of the repository, with forward slashes.
    :param line: from 1; 0 if it is not known.
    """

    path: str
    line: int = 0


@dataclass(frozen=True)
class DumpOutcome:
    """The outcome of writing the dump path. :attr:`RunResult.merged` has the changes of the entries.

    :param path: as the user wrote it.
    :param written_to: the path that was written: another path if the file was locked; empty if none was written.
    :param is_changed: whether the bytes of the file changed.
    :param error: why the dump path could not be written; with the other path, if another path was written.
    :param remark: why another path was enough, or why nothing was written; only for a cache of a URL with an option.
    :param lost_comment_lines: the number of comment lines that the file had before, and does not have now.
    :param restored_count: the number of entries that the file lost during the run, and that the dump wrote again.
    """

    path: str
    written_to: str = ""
    is_changed: bool = False
    error: str = ""
    remark: str = ""
    lost_comment_lines: int = 0
    restored_count: int = 0


@dataclass(frozen=True)
class Gate:
    """The verdict on a limit of a run: on its misses and unused entries, or on the measurements of a mode.

    The limit itself, as a number, is a :class:`pytest_autotune.report.gate.Limit`. Only the code that judges needs it.

    :param limit: as the user wrote it; empty if the user set none.
    :param failure: why the run fails; empty if it passes.
    :param skip_reason: why nothing was judged; empty if something was.
    :param is_usage_error: the options of the run are wrong, and not its problems.
    :param fail_on_unused: the user wants unused entries to fail the run, too.
    """

    limit: str = ""
    failure: str = ""
    skip_reason: str = ""
    is_usage_error: bool = False
    fail_on_unused: bool = False


@dataclass(frozen=True)
class Finding:
    """A line of the summary about one problem or several. Modes have findings, and reports build them from rows.

    :param word: the first word of the row: ``"FAILED"``.
    :param problem: the problem in words. A row about several problems has the words that they share.
    :param test: the node id of the first test that the row is about; empty if there is none.
    :param is_failure: a test or the run fails because of the row.
    :param problem_count: the number of problems in the row.
    :param other_test_count: the number of tests beside ``test``.
    """

    word: str
    problem: str
    text: str
    test: str = ""
    is_failure: bool = False
    problem_count: int = 1
    other_test_count: int = 0

    def __str__(self) -> str:
        if not self.test:
            return f"{self.problem}: {self.text}"
        return f"{self.test} - {self.problem}: {self.text}"


@dataclass(frozen=True)
class ProblemRemark:
    """The words of a mode about one problem.

    :param data: for the JSON report, by key, beside the data of the lookup.
    :param word: the word under which reports count and filter such problems, for example ``"slower"``; empty if the
        problem does not stand out.
    """

    text: str
    data: Mapping[str, Any]
    word: str = ""


@dataclass(frozen=True)
class Section:
    """The words of a mode at the end of a run.

    :param typed_value: the value of the mode's option, as a user types it.
    :param stands_for_counts: the lines replace the counts; else they follow the counts.
    :param notes: lines in front of the counts.
    :param data: keys and values that stand in the JSON report next to those of the run.
    :param gate: the verdict of the mode; None if the mode judges nothing.
    """

    name: str
    typed_value: str
    lines: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
    stands_for_counts: bool = False
    notes: tuple[str, ...] = ()
    problem_remarks: Mapping[Problem, ProblemRemark] = field(default_factory=dict)
    data: Mapping[str, Any] = field(default_factory=dict)
    gate: Gate | None = None


@dataclass(frozen=True)
class RunResult:
    """The result of a run, which all reports show.

    :param merged: the content of the dump path after the run, and its changes.
    :param loaded: (path as the user wrote it, number of entries) of each loaded cache.
    :param devices_by_tuner: tuner -> the devices that the loaded caches have entries for; without ignored tuners.
    :param gpus: the GPUs that loaded entries are for, without the entries of ignored kernels.
    :param unused_entries: the entries that a complete run did not ask for, without those that were pruned.
    :param test_cache_problems: the problems that only the caches of single tests could cover.
    :param left_out_entries: loaded entries of problems that no test asked for and the dump path does not hold.
    :param recovered_count: the number of tunings of killed runs with this dump path that count in this run.
    :param errors: the requests of the user that failed. Any error fails the run.
    :param test_places: node id of a test with a lookup -> the place of its definition.
    :param initial_entries: the entries of the loaded caches, and of the dump path when the run began.
    :param loaded_digests: path of a loaded cache, as in ``loaded`` -> digest of its bytes; without caches at URLs.
    :param ci_run: the CI run that this run belongs to.
    :param has_only_optional_caches: all loaded caches are optional: the caches, their tuners and GPUs may be absent.
    :param no_part_reason: why a run with only optional caches used none of them; empty if it used some.
    :param run_facts: when, where and by which command the run took place, as (word, text); for people only.
    """

    rows: tuple[ProblemRow, ...] = ()
    collected: Collected = field(default_factory=Collected)
    request: RunRequest = field(default_factory=RunRequest)
    merged: MergeResult = field(default_factory=lambda: MergeResult(Cache()))
    loaded: tuple[tuple[str, int], ...] = ()
    devices_by_tuner: Mapping[str, frozenset[Device]] = field(default_factory=dict)
    gpus: frozenset[Device] = frozenset()
    unused_entries: tuple[Entry, ...] = ()
    test_cache_problems: frozenset[Problem] = frozenset()
    left_out_entries: tuple[Entry, ...] = ()
    recovered_count: int = 0
    errors: tuple[str, ...] = ()
    dump: DumpOutcome | None = None
    gate: Gate = field(default_factory=Gate)
    test_places: Mapping[str, SourceLocation] = field(default_factory=dict)
    initial_entries: tuple[Entry, ...] = ()
    loaded_digests: Mapping[str, str] = field(default_factory=dict)
    ci_run: CiRun = field(default_factory=CiRun)
    has_only_optional_caches: bool = False
    no_part_reason: str = ""
    run_facts: tuple[tuple[str, str], ...] = ()
    sections: tuple[Section, ...] = ()

    @property
    def changes(self) -> Diff:
        """The changed choices, compared with the dump path or, in a run without a dump, with the loaded caches.

        Empty if all entries are new. A first dump has no earlier choices that a user could compare.
        """
        changes = self.merged.changes
        are_all_added = all(change.kind is ChangeKind.ADDED for change in changes.changes)
        if are_all_added and not changes.unchanged:
            return Diff(changes=(), unchanged=0)
        return changes

    def with_dump(self, dump: DumpOutcome) -> RunResult:
        """Return the result of a run whose dump has this outcome.

        This result was computed as if the dump was written. If nothing was written, no entry changed: the result loses
        its changes, its recovered tunings and its entries that the dump left out.
        """
        result = replace(self, dump=dump)
        if dump.error:
            result = replace(result, errors=(*self.errors, dump.error))
        if not dump.written_to:
            merged = MergeResult(self.merged.cache, best_measurements=self.merged.best_measurements)
            return replace(result, merged=merged, recovered_count=0, left_out_entries=())
        if self.request.plan.prunes:
            # The dump has removed the unused entries.
            return replace(result, unused_entries=())
        return result

    @property
    def tuners_without_adapter(self) -> tuple[str, ...]:
        """The tuners of loaded entries for which no adapter is installed."""
        if self.request.adapters is None:
            return ()
        loaded = set(map(library_of, self.devices_by_tuner))
        return tuple(sorted(loaded.difference(self.request.adapters)))

    @property
    def unhooked_tuners(self) -> tuple[str, ...]:
        """The tuners that could not be hooked, and that the user names or, without names, a loaded entry needs."""
        needed_tuners = self.request.policy.tuners or self.devices_by_tuner
        needed_libraries = {library_of(tuner) for tuner in needed_tuners}
        return tuple(tuner for tuner, _ in self.collected.unhooked if library_of(tuner) in needed_libraries)

    @property
    def missing_packages(self) -> dict[str, str]:
        """Tuner of loaded entries -> the package of its library, if it is not installed and no lookup took place.

        Another process, whose report is judged together with this one, may have the package and ask for the entries.
        """
        loaded = set(map(library_of, self.devices_by_tuner))
        requested = {row.problem.library for row in self.rows}
        packages = {}
        for tuner, package in self.collected.missing_packages:
            if tuner in loaded and tuner not in requested:
                packages[tuner] = package
        return packages

    @property
    def unnamed_tuners(self) -> tuple[str, ...]:
        """The tuners of loaded entries that the user has left out by naming other tuners."""
        named = self.request.policy.tuners
        if not named:
            return ()
        return tuple(tuner for tuner in self.devices_by_tuner if not is_tuner_named(tuner, named))

    @property
    def bypasses(self) -> tuple[str, ...]:
        """The options and markers that bypass some tuners, kernels or tests, as the user wrote them."""
        bypasses = []
        if self.request.policy.tuners:
            bypasses.append(self.request.tuners_named_by)
        if self.request.policy.ignore:
            bypasses.append("autotune_ignore (ini)")
        if self.collected.disabled_tests:
            bypasses.append("autotune_cache(enabled=False)")
        return tuple(bypasses)

    @property
    def hypothesis_rows(self) -> tuple[ProblemRow, ...]:
        """The rows that an update would cover in vain, because Hypothesis draws other arguments in each run."""
        rows = []
        for row in self.rows_to_update:
            if row.tests and row.tests[0] in self.collected.hypothesis_tests:
                rows.append(row)
        return tuple(rows)

    @property
    def counts(self) -> dict[str, int]:
        """The numbers of problems by outcome and by result, and the number of unused entries."""
        outcomes = Counter(row.outcome for row in self.rows)
        return {
            "hit": outcomes[Outcome.HIT],
            "miss": outcomes[Outcome.MISS],
            "stale": outcomes[Outcome.STALE],
            "mismatch": outcomes[Outcome.MISMATCH],
            "tuned": sum(row.tuned and not row.failed for row in self.rows),
            "failed": sum(row.failed for row in self.rows),
            "unrecorded": sum(bool(row.unrecorded) for row in self.rows),
            "fallback": sum(bool(row.fallback) for row in self.rows),
            "unused": len(self.unused_entries),
            "uncacheable": outcomes[Outcome.UNCACHEABLE],
            "untracked": len(self.collected.untracked),
        }

    @property
    def is_judged(self) -> bool:
        """Whether lookups could be hits: the run, or a test for itself, loaded a cache."""
        if self.loaded:
            return True
        # A test may load a cache for itself. A lookup without any cache has no outcome, unless it is uncacheable.
        return any(row.outcome not in (None, Outcome.UNCACHEABLE) for row in self.rows)

    @property
    def rows_to_update(self) -> tuple[ProblemRow, ...]:
        """The rows that a later run with an update would cover, and that the dump of this run does not cover yet.

        Left out are hits, problems whose search recorded nothing, and problems whose entry this run has dumped.
        """
        rows = []
        for row in self.rows:
            is_uncovered = row.outcome in (Outcome.MISS, Outcome.STALE, Outcome.MISMATCH)
            # If a search recorded nothing, the search of an update would record nothing, either.
            if is_uncovered and not row.unrecorded and not self._has_dumped(row):
                rows.append(row)
        return tuple(rows)

    def _has_dumped(self, row: ProblemRow) -> bool:
        """Whether the dump of this run has written the entry of a problem that the loaded caches do not cover."""
        if self.dump is None or self.dump.error:
            return False
        if self.request.plan.only_adds and row.outcome is Outcome.STALE:
            # A dump with --autotune-update=new leaves a stale entry as it is.
            return False
        return row.is_kept

    @property
    def copy_counts(self) -> dict[tuple[str, str], int]:
        """(other kernel as tuner:kernel, kernel) -> the number of problems that used an entry of the other kernel."""
        renames = []
        for row in self.rows:
            if row.moved_from:
                renames.append((f"{row.problem.tuner}:{row.moved_from}", row.problem.kernel))
        return _count_pairs(renames)

    @property
    def alias_counts(self) -> dict[tuple[str, str], int]:
        """(device, the device whose entries it used), in words -> the number of problems."""
        return _count_pairs((str(row.problem.device), row.alias) for row in self.rows if row.alias)

    @property
    def failures(self) -> tuple[str, ...]:
        """The reasons why the run fails: of its gate, of its modes and of its errors; empty if the run passes."""
        failures = []
        for gate in self.gates:
            if gate.failure and gate.failure not in failures:
                failures.append(gate.failure)
        return (*failures, *self.errors)

    @property
    def gates(self) -> tuple[Gate, ...]:
        """All verdicts of the run: on misses and unused entries, and those of the modes."""
        return (self.gate, *self.gates_of_modes)

    @property
    def has_failed_gate(self) -> bool:
        """Whether any gate fails."""
        return any(gate.failure for gate in self.gates)

    @property
    def gates_of_modes(self) -> tuple[Gate, ...]:
        """The verdicts of the modes."""
        return tuple(section.gate for section in self.sections if section.gate is not None)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The findings of the modes."""
        findings: list[Finding] = []
        for section in self.sections:
            findings += section.findings
        return tuple(findings)

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
        """The number of loaded entries."""
        return sum(entry_count for _, entry_count in self.loaded)

    @property
    def tuning_seconds(self) -> float:
        """The seconds of all searches of the run."""
        return round(sum((row.tuning_seconds for row in self.rows), 0.0), 3)

    @property
    def saved_seconds(self) -> float:
        """The seconds of tuning that the hits saved."""
        return round(sum((row.saved_seconds for row in self.rows), 0.0), 3)

    @property
    def devices(self) -> tuple[Device, ...]:
        """The devices of the problems of this run."""
        devices = {row.problem.device for row in self.rows}
        return tuple(sorted(devices, key=attrgetter("sort_key")))

    @property
    def other_version_counts(self) -> dict[tuple[str, str], int]:
        """(version of the tuning, version of this run) -> the number of hits, if they differ in the minor version.

        The versions are those of the tuner's library, such as ``triton 3.4.0``. Reports show them as a hint. They fail
        no gate, because a choice is often still good under another version.
        """
        version_pairs = []
        for row in self.rows:
            if row.outcome is not Outcome.HIT:
                continue
            tuned_with = row.versions
            run_with = self.collected.versions.get(row.problem.library)
            # Either may be empty, if nothing is known.
            if tuned_with and run_with and tuned_with.tuner_minor_version != run_with.tuner_minor_version:
                version_pairs.append((tuned_with.tuner_version, run_with.tuner_version))
        return _count_pairs(version_pairs)

    @property
    def rows_without_entries(self) -> dict[tuple[str, Device], tuple[ProblemRow, ...]]:
        """(tuner, device) -> its rows, for the devices for which the loaded caches have no entry of the tuner.

        A device that uses the entries of another device, its alias, is left out. A row of such a device is a hit or
        stale, while all rows of a device without entries are misses or mismatches.
        """
        if not self.loaded:
            return {}
        rows_by_device: defaultdict[tuple[str, Device], list[ProblemRow]] = defaultdict(list)
        for row in self.rows:
            rows_by_device[row.problem.tuner, row.problem.device].append(row)
        rows_without_entries = {}
        for (tuner, device), rows in rows_by_device.items():
            has_entries = device in self.devices_by_tuner.get(tuner, ())
            are_all_missing = all(row.outcome in (Outcome.MISS, Outcome.MISMATCH) for row in rows)
            if not has_entries and are_all_missing:
                rows_without_entries[tuner, device] = tuple(rows)
        return rows_without_entries


def _count_pairs(pairs: Iterable[tuple[str, str]]) -> dict[tuple[str, str], int]:
    """Return pair -> how often it occurs, sorted by pair."""
    return dict(sorted(Counter(pairs).items()))
