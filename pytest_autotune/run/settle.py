"""The end of a run: what was collected and loaded in, its result out. Pure.

A run that dumps nothing ends in the same way, with an empty cache: its reports go by the rules of a merge, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from operator import attrgetter

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.merge import MAX_SPECIALIZATIONS, MergeRules, merge_run, without_candidates
from pytest_autotune.cache.model import Cache, Entry, Identity, Problem, before_pruning, library_of
from pytest_autotune.cache.ties import MeasuredEntry
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup, Outcome, Policy
from pytest_autotune.run.nearest import nearest
from pytest_autotune.run.result import RunRequest, RunResult
from pytest_autotune.run.rows import build_rows
from pytest_autotune.workers.events import Event

#: Who has measured what was recovered.
INTERRUPTED_RUN = "an earlier run"
_INSIDE = "asked for by "


@dataclass(frozen=True)
class InitialCaches:
    """What there was when the run began.

    :param loaded: (path as the user wrote it, what it held) of each loaded cache; the last one precedes.
    :param held: what the dump path held; empty where nothing is dumped.
    :param index: the loaded caches, for lookups; None when nothing is loaded.
    """

    loaded: tuple[tuple[str, Cache], ...] = ()
    dump_cache: Cache = field(default_factory=Cache)
    index: EntryIndex | None = None

    @property
    def file_entries(self) -> Iterator[Entry]:
        """What was loaded but from stores at URLs: what this run does not ask for there is of others."""
        return (entry for path, cache in self.loaded if not is_url(path) for entry in cache.entries)


def settle(initial: InitialCaches, collected: Collected, dump_cache: Cache, request: RunRequest) -> RunResult:
    """What a run comes to, as if its dump will be written: :meth:`Result.dumped` says what is so if it is not.

    :param dump_cache: what the dump path holds now; another run may have written to it meanwhile.
    """
    index, policy = initial.index or EntryIndex(()), request.policy
    is_complete = not collected.incomplete_reason
    prunes = request.prune and is_complete
    lookups = complete_lookups([lookup for _, lookup in collected.lookups], collected.mode_events, anew=prunes)
    # What this run does not ask a shared store for, others may: only who prunes it has to know.
    unused = (
        _unused(initial, lookups, collected, policy) if is_complete and (prunes or not request.is_shared_store) else ()
    )
    asked = {lookup.problem for lookup in lookups}
    there = {entry.problem for entry in dump_cache.entries} if request.new_only else set()
    known = {entry.identity for entry in (*initial.file_entries, *dump_cache.entries)}

    def is_of_run(lookup: Lookup) -> bool:
        """Not what a single test has another choice of in its own cache, nor what an update brings into that one."""
        is_own = lookup.test_cache and (request.is_update or (lookup.identity in known and not lookup.is_searched))
        return not (is_own or lookup.problem in there)

    asked_by = zip((process for process, _ in collected.lookups), lookups, strict=True)
    of_run = [(process, lookup) for process, lookup in asked_by if is_of_run(lookup) or not request.is_dumping]
    before = complete_lookups(collected.recovered_lookups) if request.is_dumping else []
    recovered = [lookup for lookup in before if lookup.problem not in asked and is_of_run(lookup)]
    measured = collect_measurements([*of_run, *((INTERRUPTED_RUN, lookup) for lookup in recovered)])
    kept = [lookup for _, lookup in of_run]
    base = (
        dump_cache
        if request.is_dumping
        else Cache(tuple(entry for _, cache in initial.loaded for entry in cache.entries))
    )
    used = _searched_in_vain(kept, base)
    used += [one.entry for one in kept if one.entry and one.outcome is Outcome.HIT and not one.is_searched]
    if request.is_shared_store:  # a choice of a file that is loaded, too, is the file's
        in_store = {entry.identity: entry for entry in dump_cache.entries}
        in_store |= {one.entry.identity: one.entry for one in collected.recovered_lookups if one.entry is not None}
        used = [in_store[entry.identity] for entry in used if entry.identity in in_store]
    drop = {entry.identity for entry in unused} if request.prune else set()
    if not request.new_only:
        moved = _moved(lookups, renames=is_complete and not request.is_shared_store)
        drop |= {old.identity for old, lookup in moved if lookup.outcome is Outcome.HIT}
        used += [replace(old, problem=lookup.problem) for old, lookup in moved]
        used = [entry for entry in used if entry.identity not in drop]
    if request.is_dumping:
        for mode in request.modes:
            replacing = mode.list_replacing_entries(collected.mode_events, kept)
            used += replacing if request.keep_candidates else map(without_candidates, replacing)
    merged = merge_run(
        base,
        measured,
        used,
        lambda entry: entry.identity in drop,
        MergeRules(
            request.keep_candidates,
            not is_complete,
            keep_other_fingerprints=request.is_shared_store,
            replace_specializations=prunes,
        ),
    )
    return RunResult(
        build_rows(lookups, lambda one: nearest([index], one, policy.find_alias(one.device)), merged),
        collected,
        request,
        merged,
        loaded=tuple((path, len(cache.entries)) for path, cache in initial.loaded),
        devices_by_tuner={
            one: index.list_devices(one) for one in sorted(index.list_tuners()) if not policy.ignores(one, "*")
        },
        unused_entries=unused,
        test_cache_problems=frozenset(
            one.problem
            for one in lookups
            if one.test_cache and not index.list_same_key((one.renamed_from_entry or one).problem)
        ),
        left_out_entries=_left_out(initial, merged.cache, drop, asked) if request.is_dumping else (),
        recovered_count=len(recovered),
    )


def collect_measurements(lookups: Iterable[tuple[str, Lookup]]) -> list[MeasuredEntry]:
    """What was measured, by process; a choice that was shared stands for the search of a worker that may have died."""
    found: dict[tuple[Entry, bool], MeasuredEntry] = {}
    for process, lookup in lookups:
        if lookup.entry is not None and lookup.is_searched:
            which = lookup.entry, lookup.has_rejected_entry
            if lookup.is_tuned or which not in found:
                found[which] = MeasuredEntry(lookup.entry, process, lookup.is_disturbed, lookup.has_rejected_entry)
    return list(found.values())


def _searched_in_vain(lookups: Iterable[Lookup], base: Cache) -> list[Entry]:
    """Return the entries of the cache whose problems no search of this run could record: the cause may pass.

    An entry of the same problem with another fingerprint, which was tuned, would otherwise replace them.
    """
    has_entry: dict[Identity, bool] = {}
    for lookup in lookups:
        has_entry[lookup.identity] = has_entry.get(lookup.identity, False) or lookup.entry is not None
    return [entry for entry in base.entries if has_entry.get(entry.identity) is False]


def _moved(lookups: Iterable[Lookup], *, renames: bool) -> list[tuple[Entry, Lookup]]:
    """What was served with the entry of another kernel, and is to have it under its own name: that entry, the lookup.

    :param renames: no test asks for the old name any more: a hit is under the new one alone.
    """
    served = ((lookup.renamed_from_entry, lookup) for lookup in lookups if renames or lookup.outcome is not Outcome.HIT)
    return [(old, lookup) for old, lookup in served if old is not None]


def _left_out(beginning: InitialCaches, after: Cache, dropped: Set[Identity], asked: Set[Problem]) -> tuple[Entry, ...]:
    written = {entry.problem for entry in after.entries} | asked
    loaded = {entry.identity: entry for entry in beginning.file_entries}
    found = (entry for identity, entry in loaded.items() if identity not in dropped)
    return tuple(sorted((entry for entry in found if entry.problem not in written), key=attrgetter("sort_key")))


def _unused(
    beginning: InitialCaches, lookups: Sequence[Lookup], collected: Collected, policy: Policy
) -> tuple[Entry, ...]:
    """The entries that a complete run should have asked for and did not.

    Such an entry is of a device seen in this run, of a tuner active in it, tuned under the same minor version of that
    tuner's library, and its kernel is not ignored, and was asked for or its module imported. An entry of a problem that
    no entry could serve is stale. Which list pruning leaves may depend on the tests before. Nothing is said of a tuner
    that was bypassed, if only in one call; nor of what only another tuning has asked for, where that one was asked for.
    """
    known = {entry.identity: entry for entry in (*beginning.dump_cache.entries, *beginning.file_entries)}
    exact = {lookup.identity for lookup in lookups}
    exact |= {lookup.entry.identity for lookup in lookups if lookup.entry is not None}
    unserved = {lookup.problem for lookup in lookups if lookup.outcome is not Outcome.HIT}
    problems = {lookup.problem for lookup in lookups}
    devices = {problem.device for problem in problems}
    asked = {problem.name for problem in problems}
    kernels = asked.union(collected.imported_kernels)
    # A call that an error of ours left to its tuner may have been the one.
    bypassed = {library_of(tuner) for tuner, _ in collected.unhooked}

    def is_unused(entry: Entry) -> bool:
        problem = entry.problem
        now = collected.versions.get(problem.library)
        return (
            problem.device in devices
            and problem.library not in bypassed
            and now is not None
            and now.tuner_minor_version == entry.versions.tuner_minor_version
            and problem.name in kernels
            and not policy.ignores(problem.tuner, problem.kernel)
            and problem not in unserved
            and entry.identity not in exact
            and outer_of(entry) not in asked
            and not (before_pruning(entry.fingerprint) != entry.fingerprint and problem in problems)
        )

    return tuple(sorted(filter(is_unused, known.values()), key=attrgetter("sort_key")))


def complete_lookups(lookups: Sequence[Lookup], events: Iterable[Event] = (), *, anew: bool = False) -> list[Lookup]:
    """The lookups with what only a whole run knows of them.

    One that was served with the entry of a kernel that still exists is a miss: which kernels exist is known only when
    all have been asked for. The choice was good all the same: source, candidates, key and device are equal.

    Entries that only other tunings have asked for say so in their labels: where such a tuning is a hit, its candidates
    do not run, and nobody asks for them. What a label says already stays, unless nobody asks for that tuning any more,
    as after a rename. And entries say what their choices were compiled for.

    :param anew: what an entry said of that before goes, where this run says anything.
    """
    problems = {lookup.problem for lookup in lookups}
    asked = {"", *(problem.name for problem in problems)}
    outer: defaultdict[Identity, set[str]] = defaultdict(set)
    for lookup in lookups:
        outer[lookup.identity].add(lookup.outer_tuning)
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == SPECIALIZATION:
            texts[str(event.data.get("entry"))].add(str(event.data.get("text")))

    def settle_one(lookup: Lookup) -> Lookup:
        entry, old, names = lookup.entry, lookup.renamed_from_entry, outer[lookup.identity]
        if entry is None:
            return lookup
        if old is not None and old.problem in problems:
            reason = f"no entry; that of {old.problem.kernel} was used, which has the same source"
            lookup = replace(lookup, outcome=Outcome.MISS, reason=reason)
        if "" not in names and (lookup.is_searched or outer_of(entry) not in asked):
            own = [part for part in entry.label.split("; ") if part and not part.startswith(_INSIDE)]
            entry = replace(entry, label="; ".join([*own, f"{_INSIDE}{min(names)}"]))
        if (met := texts.get(entry.identity.digest) if texts else None) is not None:
            compiled = sorted(met if anew else met.union(entry.compiled))[:MAX_SPECIALIZATIONS]
            entry = replace(entry, compiled=tuple(compiled))
        return lookup.with_entry(entry)

    return list(map(settle_one, lookups))


def outer_of(entry: Entry) -> str:
    """The tuning, as ``tuner:kernel``, by which alone an entry was asked for; empty where there was none."""
    last = entry.label.rpartition("; ")[2]
    return last.removeprefix(_INSIDE) if last.startswith(_INSIDE) else ""
