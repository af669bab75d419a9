"""The end of a run, in four steps: from the collected reports and the loaded caches to the result. Pure.

1. :func:`settle_lookups` adds the facts that only a whole run knows.
2. :func:`find_unused_entries` finds the entries that a complete run did not ask for.
3. :func:`keep_entries` merges the run's entries into the content of the dump path.
4. :func:`build_result` builds the result that all reports show.

Only the steps 3 and 4 need the content of the dump path at the end of the run. A run that writes nothing ends in the
same steps: its reports follow the rules of a merge, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import attrgetter

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.merge import MAX_SPECIALIZATIONS, MergeResult, merge_run
from pytest_autotune.cache.model import Cache, Device, Entry, Identity, Problem, library_of
from pytest_autotune.cache.ties import MeasuredEntry
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup, Outcome
from pytest_autotune.run.result import RunRequest, RunResult
from pytest_autotune.run.rows import build_rows
from pytest_autotune.workers.events import Event

#: The process of a recovered measurement.
INTERRUPTED_RUN = "an earlier run"


@dataclass(frozen=True)
class InitialCaches:
    """The caches at the beginning of a run.

    :param loaded: (path as the user wrote it, content) of each loaded cache; the last takes precedence.
    :param dump_cache: the content of the dump path; empty if the run writes nothing.
    :param index: of the loaded caches, for lookups; None if nothing is loaded.
    """

    loaded: tuple[tuple[str, Cache], ...] = ()
    dump_cache: Cache = field(default_factory=Cache)
    index: EntryIndex | None = None

    @property
    def file_entries(self) -> Iterator[Entry]:
        """The loaded entries without those of stores at URLs, which other runs may use."""
        for path, cache in self.loaded:
            if not is_url(path):
                yield from cache.entries


@dataclass(frozen=True)
class EndedRun:
    """A run when all its processes have ended."""

    initial: InitialCaches
    collected: Collected
    request: RunRequest

    @property
    def is_complete(self) -> bool:
        """Whether every test ran and passed."""
        return not self.collected.incomplete_reason


@dataclass(frozen=True)
class SettledLookups:
    """The lookups of a run, with the facts that only a whole run knows.

    :param recovered: the tunings of killed runs with this dump path, for problems that this run did not ask for.
    """

    lookups: tuple[Lookup, ...]
    recovered: tuple[Lookup, ...] = ()

    @property
    def problems(self) -> Set[Problem]:
        """The problems that this run asked for."""
        return {lookup.problem for lookup in self.lookups}


@dataclass(frozen=True)
class KeptEntries:
    """The content of the dump path after the run.

    :param dropped: the entries that the run removes.
    :param recovered_count: the number of tunings of killed runs in the cache.
    """

    merged: MergeResult
    dropped: frozenset[Identity] = frozenset()
    recovered_count: int = 0


@dataclass(frozen=True)
class Rename:
    """A kernel that was renamed: the cache still holds its entry under the old name."""

    old_entry: Entry
    lookup: Lookup


def settle(initial: InitialCaches, collected: Collected, dump_cache: Cache, request: RunRequest) -> RunResult:
    """Return the result of a run, as if its dump was written. :meth:`RunResult.with_dump` corrects a failed dump.

    :param dump_cache: the content of the dump path now. Another run may have written to it since the beginning.
    """
    run = EndedRun(initial, collected, request)
    settled = settle_lookups(run)
    unused_entries = find_unused_entries(run, settled)
    kept = keep_entries(run, settled, unused_entries, dump_cache)
    return build_result(run, settled, unused_entries, kept)


def settle_lookups(run: EndedRun) -> SettledLookups:
    """Return the lookups of a run, with the facts that only a whole run knows."""
    collected, plan = run.collected, run.request.plan
    replaces_specializations = plan.prunes and run.is_complete
    lookups = complete_lookups(collected.lookups, collected.mode_events, replaces_specializations)
    settled = SettledLookups(tuple(lookups))
    if not plan.writes:
        return settled
    problems = settled.problems
    recovered = []
    for lookup in complete_lookups(collected.recovered_lookups):
        if lookup.problem not in problems:
            recovered.append(lookup)
    return replace(settled, recovered=tuple(recovered))


def complete_lookups(
    lookups: Sequence[Lookup], events: Iterable[Event] = (), replaces_specializations: bool = False
) -> list[Lookup]:
    """Return the lookups with the facts that only a whole run knows.

    - A hit on the entry of another kernel name is a miss if a test asks for that kernel, too. The choice was good all
      the same, because source, candidates, key and device are equal.
    - An entry that only another tuning asked for says so in ``asked_by``. If that tuning is a hit, its candidates do
      not run, and no test asks for the entry. A tuning that is in ``asked_by`` already stays there unless no test asks
      for it any more, for example after a rename.
    - An entry has the specializations that its choice was compiled for.

    :param replaces_specializations: drop the specializations that an entry had before if this run has any.
    """
    problems = set()
    asked_kernels = set()
    outer_tunings: defaultdict[Identity, set[str]] = defaultdict(set)
    for lookup in lookups:
        problems.add(lookup.problem)
        asked_kernels.add(lookup.problem.name)
        outer_tunings[lookup.identity].add(lookup.outer_tuning)
    specializations = _collect_specializations(events)
    completed = []
    for lookup in lookups:
        entry = lookup.entry
        if entry is None:
            completed.append(lookup)
            continue
        lookup = _without_false_rename(lookup, problems)
        tunings = outer_tunings[lookup.identity]
        is_asked_by_test = "" in tunings
        is_asked_by_other = not entry.asked_by or entry.asked_by in asked_kernels
        if not is_asked_by_test and (lookup.is_searched or not is_asked_by_other):
            entry = replace(entry, asked_by=min(tunings))
        texts = specializations.get(entry.identity.digest)
        if texts is not None:
            if not replaces_specializations:
                texts = texts.union(entry.compiled)
            entry = replace(entry, compiled=tuple(sorted(texts)[:MAX_SPECIALIZATIONS]))
        completed.append(lookup.with_entry(entry))
    return completed


def _without_false_rename(lookup: Lookup, problems: Set[Problem]) -> Lookup:
    """Return a lookup as a miss if it used the entry of a kernel that still exists."""
    old_entry = lookup.renamed_from_entry
    if old_entry is None or old_entry.problem not in problems:
        return lookup
    reason = f"no entry; that of {old_entry.problem.kernel} was used, which has the same source"
    return replace(lookup, outcome=Outcome.MISS, reason=reason)


def _collect_specializations(events: Iterable[Event]) -> dict[str, set[str]]:
    """Return digest of an entry's identity -> the specializations that its choice was compiled for."""
    specializations: defaultdict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == SPECIALIZATION:
            specializations[str(event.data.get("entry"))].add(str(event.data.get("text")))
    return dict(specializations)


def find_unused_entries(run: EndedRun, settled: SettledLookups) -> tuple[Entry, ...]:
    """Return the entries that a complete run should have asked for and did not; none for an incomplete run."""
    if not run.is_complete or not run.request.plan.judges_unused:
        return ()
    entries = {entry.identity: entry for entry in (*run.initial.dump_cache.entries, *run.initial.file_entries)}
    usage = _Usage.of(run, settled)
    unused = [entry for entry in entries.values() if usage.is_unused(entry)]
    return tuple(sorted(unused, key=attrgetter("sort_key")))


@dataclass(frozen=True)
class _Usage:
    """The facts of a run that decide whether an entry is unused.

    :param identities: the identities of the lookups, and of the entries that they used.
    :param asked_kernels: as ``tuner:kernel``.
    :param unserved_problems: the problems with another outcome than a hit. An entry of them is stale, not unused.
    :param bypassed_libraries: a call that was left to the tuner may have needed any entry of it.
    """

    run: EndedRun
    problems: Set[Problem]
    identities: set[Identity] = field(default_factory=set)
    devices: set[Device] = field(default_factory=set)
    asked_kernels: set[str] = field(default_factory=set)
    unserved_problems: set[Problem] = field(default_factory=set)
    bypassed_libraries: set[str] = field(default_factory=set)

    @classmethod
    def of(cls, run: EndedRun, settled: SettledLookups) -> _Usage:
        """Return the facts of a run."""
        usage = cls(run, settled.problems)
        for lookup in settled.lookups:
            usage.identities.add(lookup.identity)
            if lookup.entry is not None:
                usage.identities.add(lookup.entry.identity)
            usage.devices.add(lookup.problem.device)
            usage.asked_kernels.add(lookup.problem.name)
            if lookup.outcome is not Outcome.HIT:
                usage.unserved_problems.add(lookup.problem)
        for tuner, _ in run.collected.unhooked:
            usage.bypassed_libraries.add(library_of(tuner))
        return usage

    def is_unused(self, entry: Entry) -> bool:
        """Whether this run should have asked for an entry and did not."""
        problem = entry.problem
        collected, policy = self.run.collected, self.run.request.policy
        if entry.identity in self.identities or problem in self.unserved_problems:
            return False
        if problem.device not in self.devices or problem.library in self.bypassed_libraries:
            return False
        versions = collected.versions.get(problem.library)
        if versions is None or versions.tuner_minor_version != entry.versions.tuner_minor_version:
            return False
        if problem.name not in self.asked_kernels and problem.name not in collected.imported_kernels:
            return False
        if policy.ignores(problem.tuner, problem.kernel) or entry.asked_by in self.asked_kernels:
            return False
        # The candidates that pruning leaves may depend on the tests before.
        return not (entry.fingerprint.is_pruned and problem in self.problems)


def keep_entries(
    run: EndedRun, settled: SettledLookups, unused_entries: Sequence[Entry], dump_cache: Cache
) -> KeptEntries:
    """Merge the entries of a run into the content of the dump path.

    :param dump_cache: that content, now.
    """
    initial, plan = run.initial, run.request.plan
    file_identities = {entry.identity for entry in (*initial.file_entries, *dump_cache.entries)}
    lookups = plan.select_lookups(settled.lookups, file_identities, dump_cache)
    recovered = plan.select_lookups(settled.recovered, file_identities, dump_cache)
    base = plan.build_base([cache for _, cache in initial.loaded], dump_cache)
    measured_lookups = list(lookups)
    for lookup in recovered:
        measured_lookups.append(replace(lookup, process=INTERRUPTED_RUN))
    used = _select_unreplaced(lookups, base)
    for lookup in lookups:
        if lookup.entry is not None and lookup.outcome is Outcome.HIT and not lookup.is_searched:
            used.append(lookup.entry)
    used = plan.select_used(used, dump_cache, run.collected.recovered_lookups)
    dropped: set[Identity] = set()
    if plan.prunes:
        dropped.update(entry.identity for entry in unused_entries)
    if not plan.only_adds:
        used = _rename_entries(used, find_renames(settled.lookups, plan.removes_old_names(run.is_complete)), dropped)
    if plan.writes:
        for mode in run.request.modes:
            for entry in mode.list_replacing_entries(run.collected.mode_events, lookups):
                used.append(plan.with_kept_candidates(entry))
    measurements = collect_measurements(measured_lookups)
    merged = merge_run(base, measurements, used, dropped, plan.build_rules(run.is_complete))
    return KeptEntries(merged, frozenset(dropped), len(recovered))


def _rename_entries(used: Sequence[Entry], renames: Iterable[Rename], dropped: set[Identity]) -> list[Entry]:
    """Return the used entries with the renamed entries, and without the dropped entries.

    :param dropped: receives the entries that lose their old name.
    """
    entries = list(used)
    for rename in renames:
        entries.append(replace(rename.old_entry, problem=rename.lookup.problem))
        if rename.lookup.outcome is Outcome.HIT:
            dropped.add(rename.old_entry.identity)
    return [entry for entry in entries if entry.identity not in dropped]


def find_renames(lookups: Iterable[Lookup], removes_old_names: bool) -> list[Rename]:
    """Return the lookups that were answered with an entry under the kernel's old name.

    :param removes_old_names: no test uses an old name any more. Else a hit is left out: a test that did not run may
        still use the old name.
    """
    renames = []
    for lookup in lookups:
        old_entry = lookup.renamed_from_entry
        if old_entry is None:
            continue
        if lookup.outcome is Outcome.HIT and not removes_old_names:
            continue
        renames.append(Rename(old_entry, lookup))
    return renames


def collect_measurements(lookups: Iterable[Lookup]) -> list[MeasuredEntry]:
    """Return the measurements of a run.

    An entry that was shared stands for the search of another worker, which may have died before it could report.
    """
    measurements: dict[tuple[Entry, bool], MeasuredEntry] = {}
    for lookup in lookups:
        if lookup.entry is None or not lookup.is_searched:
            continue
        search = lookup.entry, lookup.has_rejected_entry
        if lookup.is_tuned or search not in measurements:
            measurements[search] = MeasuredEntry(
                lookup.entry, lookup.process, lookup.is_disturbed, lookup.has_rejected_entry
            )
    return list(measurements.values())


def _select_unreplaced(lookups: Iterable[Lookup], base: Cache) -> list[Entry]:
    """Return the entries of a cache whose problem this run searched without recording an entry.

    The cause may pass. An entry of the same problem with another fingerprint would otherwise replace them.
    """
    has_entry: dict[Identity, bool] = {}
    for lookup in lookups:
        has_entry[lookup.identity] = has_entry.get(lookup.identity, False) or lookup.entry is not None
    return [entry for entry in base.entries if has_entry.get(entry.identity) is False]


def build_result(
    run: EndedRun, settled: SettledLookups, unused_entries: tuple[Entry, ...], kept: KeptEntries
) -> RunResult:
    """Return the result of a run, as if its dump was written."""
    initial, policy = run.initial, run.request.policy
    index = initial.index or EntryIndex(())
    devices_by_tuner = {}
    for tuner in sorted(index.list_tuners()):
        if not policy.ignores(tuner, "*"):
            devices_by_tuner[tuner] = index.list_devices(tuner)
    test_cache_problems = set()
    for lookup in settled.lookups:
        loaded_problem = (lookup.renamed_from_entry or lookup).problem
        if lookup.test_cache and not index.list_same_key(loaded_problem):
            test_cache_problems.add(lookup.problem)
    left_out_entries: tuple[Entry, ...] = ()
    if run.request.plan.writes:
        left_out_entries = _find_left_out_entries(initial, kept, settled.problems)
    loaded_counts = []
    for path, cache in initial.loaded:
        loaded_counts.append((path, len(cache.entries)))
    return RunResult(
        build_rows(settled.lookups, index, policy, kept.merged),
        run.collected,
        run.request,
        kept.merged,
        loaded=tuple(loaded_counts),
        devices_by_tuner=devices_by_tuner,
        unused_entries=unused_entries,
        test_cache_problems=frozenset(test_cache_problems),
        left_out_entries=left_out_entries,
        recovered_count=kept.recovered_count,
    )


def _find_left_out_entries(
    initial: InitialCaches, kept: KeptEntries, asked_problems: Set[Problem]
) -> tuple[Entry, ...]:
    """Return the loaded entries of problems that no test asked for and that the dump path does not hold."""
    written = {entry.problem for entry in kept.merged.cache.entries}
    loaded: Mapping[Identity, Entry] = {entry.identity: entry for entry in initial.file_entries}
    left_out = []
    for identity, entry in loaded.items():
        if identity not in kept.dropped and entry.problem not in written and entry.problem not in asked_problems:
            left_out.append(entry)
    return tuple(sorted(left_out, key=attrgetter("sort_key")))
