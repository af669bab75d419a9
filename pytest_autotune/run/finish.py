"""The result of a settled run: the entries that the dump path keeps, and the data that all reports show.

This module is step 2 of the end of a run. :mod:`pytest_autotune.run.settle` describes all steps. The functions read and
write no files.

The dump path is the cache that the run writes. A lookup is one question of a tuner in one process. Its entry is either
an entry of a loaded cache that the tuner used, or the result of a search in this run. An identity names an entry: it is
the entry's problem (kernel, key and device) with its fingerprint (digests of the kernel's source and the like).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter

from pytest_autotune.cache.diff import compare_caches
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import MergeResult, MergeRules, have_same_result, merge_run
from pytest_autotune.cache.model import Cache, Device, Entry, Identity, Problem
from pytest_autotune.cache.ties import MeasuredEntry
from pytest_autotune.run.lookup import Lookup, Outcome, Policy
from pytest_autotune.run.request import select_lacking, without_kernel_name
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.rows import build_rows
from pytest_autotune.run.settle import SettledRun


@dataclass(frozen=True)
class KeptEntries:
    """The content of the dump path after the run.

    :param merged: the content, and its changes.
    :param dropped: the entries that the run removes if the user prunes: unused entries, and the entries of renamed
        kernels under their old names.
    :param recovered_count: the number of entries of killed runs that the dump path has now, and that this run did not
        ask for.
    """

    merged: MergeResult
    dropped: frozenset[Identity] = frozenset()
    recovered_count: int = 0


@dataclass(frozen=True)
class CopyLookup:
    """A lookup that used the entry of another kernel with the same source: the kernel was renamed, or is a copy.

    :param original: the entry of the other kernel.
    """

    original: Entry
    lookup: Lookup

    @property
    def entry_under_new_name(self) -> Entry:
        """The entry under the name of the lookup's kernel."""
        return replace(self.original, problem=self.lookup.problem)


def finish_run(settled: SettledRun, dump_cache: Cache) -> RunResult:
    """Return the result of a run, as if its dump was written. :meth:`RunResult.with_dump` corrects a failed dump.

    :param dump_cache: the content of the dump path now. Another run may have written to it since this run began.
    """
    return _build_result(settled, _merge_run_entries(settled, dump_cache))


@dataclass(frozen=True)
class _SelectedLookups:
    """The lookups whose entries belong to the dump path.

    :param current: the lookups of this run.
    :param recovered: the tunings of killed runs with this dump path.
    """

    current: list[Lookup]
    recovered: list[Lookup]


def _merge_run_entries(settled: SettledRun, dump_cache: Cache) -> KeptEntries:
    """Merge the entries of a run, and those of killed runs, into the content of the dump path.

    :param dump_cache: the content of the dump path now.
    """
    plan = settled.run.request.plan
    loaded_caches = [cache for _, cache in settled.run.initial.loaded]
    base_without_recovered = plan.build_base(loaded_caches, dump_cache)
    selected = _select_lookups(settled, dump_cache)
    base = add_recovered(base_without_recovered, selected.recovered, plan.keeps_candidates)
    merged, dropped = _merge_lookups(settled, selected.current, base, dump_cache)
    if selected.recovered:
        # The entries of killed runs are changes of the dump path, too.
        merged = replace(merged, changes=compare_caches(base_without_recovered, merged.cache))
    return KeptEntries(merged, dropped, _count_recovered(settled, selected, merged.cache))


def _merge_lookups(
    settled: SettledRun, lookups: Sequence[Lookup], base: Cache, dump_cache: Cache
) -> tuple[MergeResult, frozenset[Identity]]:
    """Merge the entries of a run's lookups into the base; return the result, and the identities of dropped entries.

    The plan of the run has the rules of its dump, for example of ``--autotune-update=new``. The merge receives:

    - the base. Its entries stay unless the run changes them;
    - the entries that this run measured;
    - the entries that must stay although this run did not measure them, such as the entries of hits;
    - the identities of the entries to drop.

    :param lookups: the lookups of this run whose entries belong to the dump path.
    :param base: the content of the dump path, or of the loaded caches if the run writes no dump, with the entries of
        killed runs.
    :param dump_cache: the content of the dump path now.
    """
    run, plan = settled.run, settled.run.request.plan
    measurements = collect_measurements(lookups)
    measured_entries = [measurement.entry for measurement in measurements]
    kept_entries = _list_entries_to_keep(settled, lookups, base)
    dropped = _list_dropped_identities(settled, [*base.entries, *kept_entries, *measured_entries])
    kept_entries = [entry for entry in kept_entries if entry.identity not in dropped]
    if plan.writes:
        entries_of_other_runs = _list_entries_of_other_runs(run.initial.dump_cache, dump_cache)
        kept_entries = _replace_other_results(kept_entries, entries_of_other_runs)
        kept_entries += _list_entries_of_modes(settled, lookups)
    merged = merge_run(base, measurements, kept_entries, dropped, plan.build_rules(run.is_complete))
    return merged, frozenset(dropped)


def _list_entries_to_keep(settled: SettledRun, lookups: Sequence[Lookup], base: Cache) -> list[Entry]:
    """Return the entries that a merge must keep although this run did not measure them, and the copies to add.

    :param lookups: the lookups of this run whose entries belong to the dump path.
    :param base: the cache that the run's entries are merged into.
    """
    used_entries = _list_used_entries(lookups, base)
    used_entries += _list_entries_hit_outside_cache(settled, lookups, base)
    entries = settled.run.request.plan.select_used(used_entries, base)
    for copy in _select_copies_to_add(settled, lookups, base):
        entries.append(copy.entry_under_new_name)
    return entries


def add_recovered(cache: Cache, recovered: Sequence[Lookup], keeps_candidates: bool = False) -> Cache:
    """Return a cache with the entries of killed runs that it lacks, as if these runs had added them.

    The cache's entries with other fingerprints stay, because a killed run did not ask for all entries that it needs. A
    later run that measures the problem removes them.

    :param recovered: the tunings of killed runs.
    :param keeps_candidates: keep every candidate of an entry that has a choice.
    """
    lacking_lookups = select_lacking(recovered, cache)
    if not lacking_lookups:
        return cache
    rules = MergeRules(keep_candidates=keeps_candidates, keep_other_fingerprints=True)
    return merge_run(cache, collect_measurements(lacking_lookups), rules=rules).cache


def _count_recovered(settled: SettledRun, selected: _SelectedLookups, merged_cache: Cache) -> int:
    """Return the number of entries of killed runs that the dump path has now, and that this run did not ask for."""
    recovered_identities = {lookup.identity for lookup in selected.recovered}
    asked_identities = {lookup.identity for lookup in settled.lookups}
    merged_identities = {entry.identity for entry in merged_cache.entries}
    return len((recovered_identities - asked_identities) & merged_identities)


def _list_dropped_identities(settled: SettledRun, entries: Sequence[Entry]) -> set[Identity]:
    """Return the identities of the entries that the run removes from the dump path.

    If the user prunes, these are the unused entries and, after a complete run, the entries of renamed kernels under
    their old names.

    :param entries: the entries of the base, and those that the run keeps or has measured.
    """
    plan = settled.run.request.plan
    dropped: set[Identity] = set()
    if plan.prunes:
        dropped.update(entry.identity for entry in settled.unused_entries)
    if plan.removes_old_names(settled.run.is_complete):
        dropped.update(_list_identities_under_old_names(settled, entries))
    return dropped


def _list_identities_under_old_names(settled: SettledRun, entries: Sequence[Entry]) -> list[Identity]:
    """Return the identities of the entries under old names of renamed kernels, if a successor exists.

    A successor has the same identity except for the kernel's name. A failure is no successor of an entry with a choice.
    An entry without a successor stays: the entry under the new name may be in another cache, such as a test's own
    cache.

    :param entries: the entries of the base, and those that the run keeps or has measured.
    """
    usage = settled.usage
    old_entries = []
    successors = set()
    successful_successors = set()
    for entry in entries:
        if usage.is_under_old_name(entry):
            old_entries.append(entry)
            continue
        nameless_identity = without_kernel_name(entry.identity)
        successors.add(nameless_identity)
        if not entry.is_failure:
            successful_successors.add(nameless_identity)
    identities = []
    for entry in old_entries:
        nameless_identity = without_kernel_name(entry.identity)
        has_successor = nameless_identity in successful_successors
        if entry.is_failure:
            has_successor = nameless_identity in successors
        if has_successor:
            identities.append(entry.identity)
    return identities


def _select_lookups(settled: SettledRun, dump_cache: Cache) -> _SelectedLookups:
    """Return the lookups whose entries belong to the dump path."""
    run, plan = settled.run, settled.run.request.plan
    file_identities = {entry.identity for entry in (*run.initial.file_entries, *dump_cache.entries)}
    return _SelectedLookups(
        plan.select_lookups(settled.lookups, file_identities, dump_cache),
        plan.select_recovered(settled.recovered, file_identities, dump_cache),
    )


def _list_used_entries(lookups: Sequence[Lookup], base: Cache) -> list[Entry]:
    """Return the entries of hits, and the entries whose new search recorded nothing.

    The entries of other kernels are left out, because :func:`_select_copies_to_add` selects them.

    :param base: the cache that the run's entries are merged into.
    """
    entries = _list_unanswered_entries(lookups, base)
    for lookup in lookups:
        if lookup.entry is None or lookup.entry_of_other_kernel is not None:
            continue
        if lookup.outcome is Outcome.HIT and not lookup.is_searched:
            entries.append(lookup.entry)
    return entries


def _list_entries_hit_outside_cache(settled: SettledRun, lookups: Sequence[Lookup], base: Cache) -> list[Entry]:
    """Return the entries of the base that the suite needs, although none of these lookups used them.

    A new measurement replaces the problem's entries with other fingerprints. The merge spares an entry only if it is in
    the list of kept entries, so this list must have the entries that the suite needs. There are two cases:

    - The run loads a file for all tests, and one test loads the same file for itself. Only the lookups of that test
      belong to the file. A test that uses the caches of the run hit an entry of the file.
    - A lookup used the entry of another kernel with the same source, from another cache. The base has an entry under
      the name of the lookup's kernel.

    :param lookups: the lookups of this run whose entries belong to the dump path.
    :param base: the cache that the run's entries are merged into.
    """
    needed_identities = set()
    for lookup in (*settled.lookups, *settled.run.collected.other_lookups):
        if lookup.entry is None or lookup.outcome is not Outcome.HIT:
            continue
        if lookup.entry_of_other_kernel is None:
            needed_identities.add(lookup.entry.identity)
        else:
            needed_identities.add(lookup.identity)  # under the name of the lookup's kernel
    for lookup in lookups:
        if lookup.entry is not None and lookup.entry_of_other_kernel is None:
            # The merge receives this entry as a used entry, or as a measurement.
            needed_identities.discard(lookup.entry.identity)
    return [entry for entry in base.entries if entry.identity in needed_identities]


def _list_unanswered_entries(lookups: Sequence[Lookup], base: Cache) -> list[Entry]:
    """Return the entries of a cache that this run asked for, and for which no lookup of this run has an entry.

    The tuner searched again, for example because the choice was no candidate any more, and the search recorded nothing.
    The search may succeed in the next run, so the old entry must stay.

    :param base: the cache.
    """
    asked_identities = {lookup.identity for lookup in lookups}
    answered_identities = {lookup.identity for lookup in lookups if lookup.entry is not None}
    entries = []
    for entry in base.entries:
        if entry.identity in asked_identities and entry.identity not in answered_identities:
            entries.append(entry)
    return entries


def _list_entries_of_other_runs(cache_before: Cache, cache_now: Cache) -> list[Entry]:
    """Return the entries with a choice that other runs have written into the dump path since this run began.

    Such an entry stays, unless this run has tuned the same identity: its choice is newer than the entry that this run
    used, and the merge must not take it for an entry of older code.

    :param cache_before: the content of the dump path when this run began.
    :param cache_now: the content of the dump path now.
    """
    entries_before = {entry.identity: entry for entry in cache_before.entries}
    entries_of_other_runs = []
    for entry in cache_now.entries:
        if entry.is_failure:
            # The cause of the failure may be transient, so it replaces no used entry.
            continue
        entry_before = entries_before.get(entry.identity)
        if entry_before is None or not have_same_result(entry, entry_before):
            entries_of_other_runs.append(entry)
    return entries_of_other_runs


def _replace_other_results(entries: Sequence[Entry], replacements: Sequence[Entry]) -> list[Entry]:
    """Return the replacements, and the entries of which no replacement has the identity with another result.

    An entry with the same result stays, too, because it has the specializations of this run.
    """
    replacement_by_identity = {entry.identity: entry for entry in replacements}
    kept_entries = []
    for entry in entries:
        replacement = replacement_by_identity.get(entry.identity)
        if replacement is None or have_same_result(entry, replacement):
            kept_entries.append(entry)
    return [*kept_entries, *replacements]


def _list_entries_of_modes(settled: SettledRun, lookups: Sequence[Lookup]) -> list[Entry]:
    """Return the entries with which modes replace used entries, such as faster choices of a verification.

    :param lookups: the lookups of this run whose entries belong to the dump path.
    """
    collected, request = settled.run.collected, settled.run.request
    entries = []
    for mode in request.modes:
        for entry in mode.list_replacing_entries(collected.mode_events, lookups):
            entries.append(request.plan.with_kept_candidates(entry))
    return entries


def find_copy_lookups(lookups: Iterable[Lookup]) -> list[CopyLookup]:
    """Return the lookups that used the entry of another kernel with the same source."""
    copies = []
    for lookup in lookups:
        if lookup.entry_of_other_kernel is not None:
            copies.append(CopyLookup(lookup.entry_of_other_kernel, lookup))
    return copies


def _select_copies_to_add(settled: SettledRun, lookups: Sequence[Lookup], base: Cache) -> list[CopyLookup]:
    """Return the copy lookups whose entries the run adds to the dump path under the new kernel's name.

    An entry is added if the lookup belongs to the dump path, or if the base has the original: a test with its own cache
    may use an original of the dump path. It is not added if the base already has an entry with the new identity or, if
    the run only adds, any entry of the new problem.

    :param lookups: the lookups of this run whose entries belong to the dump path.
    :param base: the cache that the run's entries are merged into.
    """
    plan = settled.run.request.plan
    base_identities = {entry.identity for entry in base.entries}
    selected_identities = {lookup.identity for lookup in lookups}
    # A run that only adds leaves a problem alone that has any entry, even one with another fingerprint.
    protected_problems: set[Problem] = set()
    if plan.only_adds:
        protected_problems = {entry.problem for entry in base.entries}
    copies = []
    for copy in find_copy_lookups(settled.lookups):
        if copy.lookup.problem in protected_problems:
            continue
        concerns_dump_path = copy.lookup.identity in selected_identities or copy.original.identity in base_identities
        has_new_identity = copy.lookup.identity in base_identities
        # A store receives only copies of entries that it has.
        may_add = bool(plan.select_used([copy.original], base))
        if concerns_dump_path and may_add and not has_new_identity:
            copies.append(copy)
    return copies


def collect_measurements(lookups: Iterable[Lookup]) -> list[MeasuredEntry]:
    """Return the measurements of a run, each once.

    Several workers report an entry that they share. The report of the worker that searched counts. If that worker died
    before it could report, the first report of another worker counts.
    """
    #: (entry, whether its search rejected a loaded entry) -> the measurement.
    measurements: dict[tuple[Entry, bool], MeasuredEntry] = {}
    for lookup in lookups:
        if lookup.entry is None or not lookup.is_searched:
            continue
        measurement = MeasuredEntry(lookup.entry, lookup.process, lookup.is_disturbed, lookup.has_rejected_entry)
        search = (lookup.entry, lookup.has_rejected_entry)
        if lookup.is_tuned:
            # This worker searched.
            measurements[search] = measurement
        else:
            # This worker got the entry of the worker that searched.
            measurements.setdefault(search, measurement)
    return list(measurements.values())


def _build_result(settled: SettledRun, kept: KeptEntries) -> RunResult:
    """Return the result of a run, as if its dump was written.

    :param kept: the content of the dump path after the run.
    """
    run, policy = settled.run, settled.run.request.policy
    # Without loaded caches, rows and counts are those of an empty cache.
    index = run.initial.index or EntryIndex(())
    left_out_entries: tuple[Entry, ...] = ()
    if run.request.plan.writes:
        left_out_entries = _list_left_out_entries(settled, kept)
    return RunResult(
        rows=build_rows(settled.lookups, index, policy, kept.merged),
        collected=run.collected,
        request=run.request,
        merged=kept.merged,
        loaded=tuple((path, len(cache.entries)) for path, cache in run.initial.loaded),
        devices_by_tuner=_list_devices_by_tuner(index, policy),
        gpus=frozenset(list_gpus(index, [policy])),
        unused_entries=settled.unused_entries,
        test_cache_problems=_list_test_cache_problems(settled.lookups, index),
        left_out_entries=left_out_entries,
        recovered_count=kept.recovered_count,
        initial_entries=tuple(run.initial.entries),
    )


def _list_devices_by_tuner(index: EntryIndex, policy: Policy) -> dict[str, frozenset[Device]]:
    """Return tuner -> the devices that its loaded entries are for, without the tuners that the user ignores."""
    devices_by_tuner = {}
    for tuner in sorted(index.list_tuners()):
        if not policy.is_ignored(tuner, "*"):
            devices_by_tuner[tuner] = index.list_devices(tuner)
    return devices_by_tuner


def list_gpus(entries: Iterable[Entry], policies: Sequence[Policy]) -> list[Device]:
    """Return the GPUs that some entries are for, each once, without the entries of kernels that all policies ignore."""
    gpus: dict[Device, None] = {}
    for entry in entries:
        problem = entry.problem
        if not problem.device.is_gpu or problem.device in gpus:
            continue
        if not all(policy.is_ignored(problem.tuner, problem.kernel) for policy in policies):
            gpus[problem.device] = None
    return list(gpus)


def _list_test_cache_problems(lookups: Iterable[Lookup], index: EntryIndex) -> frozenset[Problem]:
    """Return the problems of tests with a cache of their own that no cache of the run has any entry for.

    :param index: the caches that are loaded for all tests.
    """
    problems = set()
    for lookup in lookups:
        if not lookup.test_cache:
            # The test loads no cache for itself.
            continue
        problem_in_cache = lookup.problem
        if lookup.entry_of_other_kernel is not None:
            # The entry of a renamed kernel has the kernel's old name.
            problem_in_cache = lookup.entry_of_other_kernel.problem
        if not index.list_same_key(problem_in_cache):
            problems.add(lookup.problem)
    return frozenset(problems)


def _list_left_out_entries(settled: SettledRun, kept: KeptEntries) -> tuple[Entry, ...]:
    """Return the loaded entries of problems that no test asked for and that the dump path does not hold.

    A run that loads one file and dumps into another leaves such entries out, which surprises users. The entries of
    renamed kernels do not count, because the dump path holds them under the new names.

    :param kept: the content of the dump path after the run.
    """
    covered_problems = {entry.problem for entry in kept.merged.cache.entries} | settled.problems
    for copy in find_copy_lookups(settled.lookups):
        covered_problems.add(copy.original.problem)
    # Several caches can have an entry of one identity; the last counts.
    loaded_entries = {entry.identity: entry for entry in settled.run.initial.file_entries}
    left_out_entries = []
    for entry in loaded_entries.values():
        is_removed_on_purpose = entry.identity in kept.dropped
        if not is_removed_on_purpose and entry.problem not in covered_problems:
            left_out_entries.append(entry)
    return tuple(sorted(left_out_entries, key=attrgetter("sort_key")))
