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
from pytest_autotune.cache.model import Cache, Device, Entry, Identity, Problem
from pytest_autotune.cache.ties import MeasuredEntry
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup, Outcome, Policy
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.rows import build_rows
from pytest_autotune.run.unused import Bypass, CacheUsage
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
    """A run when all its processes have ended.

    :param bypasses: the kernels that the processes bypass; an item for each process.

    """

    initial: InitialCaches
    collected: Collected
    request: RunRequest
    bypasses: tuple[Bypass, ...]

    @classmethod
    def of_one_process(cls, initial: InitialCaches, collected: Collected, request: RunRequest) -> EndedRun:
        """Return the run of one pytest process with its workers."""
        return cls(initial, collected, request, (Bypass.build(request, collected),))

    @property
    def is_complete(self) -> bool:
        """Whether every test ran, passed, and asked for all entries that it needs."""
        return not self.collected.unasked_reason


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
    run = EndedRun.of_one_process(initial, collected, request)
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

    - A hit on the entry of another kernel name becomes a miss if a test asks for that kernel, too.
    - An entry that only another tuning asked for gets the name of that tuning in ``asked_by``.
    - An entry gets the specializations that its choice was compiled for.

    :param events: of all modes; the events with specializations count.
    :param replaces_specializations: an entry loses its earlier specializations if this run has any for it.
    """
    problems = {lookup.problem for lookup in lookups}
    asked_kernels = {lookup.problem.name for lookup in lookups}
    outer_tunings = _collect_outer_tunings(lookups)
    specializations = _collect_specializations(events)
    completed = []
    for lookup in lookups:
        entry = lookup.entry
        if entry is None:
            completed.append(lookup)
            continue
        lookup = _without_false_rename(lookup, problems)
        entry = _with_outer_tuning(entry, lookup, outer_tunings[lookup.identity], asked_kernels)
        new_texts = specializations.get(entry.identity.digest)
        if new_texts is not None:
            entry = _with_specializations(entry, new_texts, replaces_specializations)
        completed.append(lookup.with_entry(entry))
    return completed


def _collect_outer_tunings(lookups: Iterable[Lookup]) -> dict[Identity, set[str]]:
    """Return identity -> the tunings that asked for it, as ``tuner:kernel``; the name is empty if a test asked."""
    outer_tunings: defaultdict[Identity, set[str]] = defaultdict(set)
    for lookup in lookups:
        outer_tunings[lookup.identity].add(lookup.outer_tuning)
    return dict(outer_tunings)


def _with_outer_tuning(entry: Entry, lookup: Lookup, tunings: Set[str], asked_kernels: Set[str]) -> Entry:
    """Return an entry with the tuning that asked for it in ``asked_by``, if no test asked for the entry.

    A candidate of the outer tuning launches the entry's kernel. In a later run the outer tuning is a hit, so its
    candidates do not run and nobody asks for the entry. ``asked_by`` then keeps the entry from being called unused.

    :param lookup: the lookup that used or recorded the entry.
    :param tunings: the tunings that asked for the lookup's identity; see :func:`_collect_outer_tunings`.
    :param asked_kernels: the kernels of all lookups, as ``tuner:kernel``.
    """
    if "" in tunings:
        # A test asked for the entry, and will ask again.
        return entry
    is_loaded = not lookup.is_searched
    if is_loaded and not entry.asked_by:
        # A test asked for the entry in an earlier run, and may ask again.
        return entry
    if is_loaded and entry.asked_by in asked_kernels:
        # The outer tuning that the entry names still exists.
        return entry
    # The entry is new, or the tuning that it names is gone, for example after a rename. If several tunings asked, the
    # first name makes the file the same in each run.
    return replace(entry, asked_by=min(tunings))


def _with_specializations(entry: Entry, new_texts: Set[str], replaces_specializations: bool) -> Entry:
    """Return an entry with the specializations of this run.

    :param replaces_specializations: the entry loses its earlier specializations.
    """
    texts = set(new_texts)
    if not replaces_specializations:
        texts.update(entry.compiled)
    return replace(entry, compiled=tuple(sorted(texts)[:MAX_SPECIALIZATIONS]))


def _without_false_rename(lookup: Lookup, problems: Set[Problem]) -> Lookup:
    """Return a lookup as a miss if it used the entry of a kernel that still exists.

    The lookup took the kernel for renamed. A test asks for the other kernel as well, so both exist and each needs an
    entry. The choice was still a good choice: source, candidates, key and device of both are equal.

    :param problems: the problems that this run asked for.
    """
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
    usage = build_usage(run, settled)
    unused = [entry for entry in entries.values() if usage.is_unused(entry)]
    return tuple(sorted(unused, key=attrgetter("sort_key")))


def build_usage(run: EndedRun, settled: SettledLookups) -> CacheUsage:
    """Return the facts of a run that decide which entries are unused."""
    return CacheUsage.build(run.collected, run.bypasses, settled.lookups)


@dataclass(frozen=True)
class SelectedLookups:
    """The lookups whose entries belong into the dump path.

    :param current: the lookups of this run.
    :param recovered: the tunings of killed runs with this dump path.
    """

    current: list[Lookup]
    recovered: list[Lookup]

    def collect_measurements(self) -> list[MeasuredEntry]:
        """Return the measurements of all these lookups. Those of killed runs are marked as such."""
        lookups = list(self.current)
        for lookup in self.recovered:
            lookups.append(replace(lookup, process=INTERRUPTED_RUN))
        return collect_measurements(lookups)


def keep_entries(
    run: EndedRun, settled: SettledLookups, unused_entries: Sequence[Entry], dump_cache: Cache
) -> KeptEntries:
    """Merge the entries of a run into the content of the dump path.

    :param dump_cache: the content of the dump path now.
    """
    plan = run.request.plan
    base = plan.build_base([cache for _, cache in run.initial.loaded], dump_cache)
    selected = _select_lookups(run, settled, dump_cache)
    used = _list_used_entries(selected.current, base)
    used = plan.select_used(used, dump_cache, run.collected.recovered_lookups)
    dropped: set[Identity] = set()
    if plan.prunes:
        dropped.update(entry.identity for entry in unused_entries)
    if not plan.only_adds:
        renames = find_renames(settled.lookups, plan.removes_old_names(run.is_complete))
        dropped.update(_list_old_names(renames))
        used = _rename_entries(used, renames, dropped)
    if plan.writes:
        used += _list_entries_of_modes(run, selected.current)
    merged = merge_run(base, selected.collect_measurements(), used, dropped, plan.build_rules(run.is_complete))
    return KeptEntries(merged, frozenset(dropped), len(selected.recovered))


def _select_lookups(run: EndedRun, settled: SettledLookups, dump_cache: Cache) -> SelectedLookups:
    """Return the lookups whose entries belong into the dump path."""
    plan = run.request.plan
    file_identities = {entry.identity for entry in (*run.initial.file_entries, *dump_cache.entries)}
    return SelectedLookups(
        plan.select_lookups(settled.lookups, file_identities, dump_cache),
        plan.select_lookups(settled.recovered, file_identities, dump_cache),
    )


def _list_used_entries(lookups: Sequence[Lookup], base: Cache) -> list[Entry]:
    """Return the entries that a merge must keep although this run did not measure them.

    :param base: the cache that the run's entries are merged into.
    """
    entries = _select_unreplaced(lookups, base)
    for lookup in lookups:
        if lookup.entry is not None and lookup.outcome is Outcome.HIT and not lookup.is_searched:
            entries.append(lookup.entry)
    return entries


def _list_entries_of_modes(run: EndedRun, lookups: Sequence[Lookup]) -> list[Entry]:
    """Return the entries with which modes replace used entries, such as faster choices of a verification.

    :param lookups: the lookups of this run whose entries belong into the dump path.
    """
    entries = []
    for mode in run.request.modes:
        for entry in mode.list_replacing_entries(run.collected.mode_events, lookups):
            entries.append(run.request.plan.with_kept_candidates(entry))
    return entries


def _list_old_names(renames: Iterable[Rename]) -> list[Identity]:
    """Return the entries that lose their old name.

    A lookup that is no hit took another kernel's entry (see :func:`_without_false_rename`), which keeps its name.
    """
    return [rename.old_entry.identity for rename in renames if rename.lookup.outcome is Outcome.HIT]


def _rename_entries(used: Sequence[Entry], renames: Iterable[Rename], dropped: Set[Identity]) -> list[Entry]:
    """Return the used entries, with renamed entries under their new names and without the dropped entries."""
    entries = list(used)
    for rename in renames:
        entries.append(replace(rename.old_entry, problem=rename.lookup.problem))
    return [entry for entry in entries if entry.identity not in dropped]


def find_renames(lookups: Iterable[Lookup], removes_old_names: bool) -> list[Rename]:
    """Return the lookups that were answered with an entry under the kernel's old name.

    :param removes_old_names: no test uses an old name any more.
    """
    renames = []
    for lookup in lookups:
        old_entry = lookup.renamed_from_entry
        if old_entry is None:
            continue
        if lookup.outcome is Outcome.HIT and not removes_old_names:
            # A test that did not run may still use the old name.
            continue
        renames.append(Rename(old_entry, lookup))
    return renames


def collect_measurements(lookups: Iterable[Lookup]) -> list[MeasuredEntry]:
    """Return the measurements of a run, each once.

    Several workers report an entry that they share. The report of the worker that searched counts. If that worker died
    before it could report, the first report of another worker counts.
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
    """Return the entries of a cache that this run asked for and searched again without recording an entry.

    The search may succeed in the next run, so the merge must keep these entries. It would otherwise remove them if the
    run recorded an entry of the same problem with another fingerprint.
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
    left_out_entries: tuple[Entry, ...] = ()
    if run.request.plan.writes:
        left_out_entries = _find_left_out_entries(initial, kept, settled.problems)
    return RunResult(
        build_rows(settled.lookups, index, policy, kept.merged),
        run.collected,
        run.request,
        kept.merged,
        loaded=tuple((path, len(cache.entries)) for path, cache in initial.loaded),
        devices_by_tuner=_list_devices_by_tuner(index, policy),
        unused_entries=unused_entries,
        test_cache_problems=_list_test_cache_problems(settled.lookups, index),
        left_out_entries=left_out_entries,
        recovered_count=kept.recovered_count,
    )


def _list_devices_by_tuner(index: EntryIndex, policy: Policy) -> dict[str, frozenset[Device]]:
    """Return tuner -> the devices that its loaded entries are for, without the tuners that the user ignores."""
    devices_by_tuner = {}
    for tuner in sorted(index.list_tuners()):
        if not policy.ignores(tuner, "*"):
            devices_by_tuner[tuner] = index.list_devices(tuner)
    return devices_by_tuner


def _list_test_cache_problems(lookups: Iterable[Lookup], index: EntryIndex) -> frozenset[Problem]:
    """Return the problems that only the caches of single tests could cover.

    :param index: the caches that are loaded for all tests.
    """
    problems = set()
    for lookup in lookups:
        loaded_problem = (lookup.renamed_from_entry or lookup).problem
        if lookup.test_cache and not index.list_same_key(loaded_problem):
            problems.add(lookup.problem)
    return frozenset(problems)


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
