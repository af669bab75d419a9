"""The end of a run: what was collected and loaded in, its result out. Pure.

:mod:`pytest_autotune.run.dumping` calls it while the dump path is locked, with what that holds then; a run that dumps
nothing ends in the same way, with an empty cache: what its reports hold is settled by the rules of a merge, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from pytest_autotune.cache.diff import ChangeKind, Diff, diff
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.merge import MOST_COMPILED, Merged, Rules, merge, without_candidates
from pytest_autotune.cache.model import Cache, Entry, Identity, Problem, before_pruning, library_of
from pytest_autotune.cache.ties import Measured
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Lookup, Outcome, is_ignored
from pytest_autotune.run.nearest import nearest
from pytest_autotune.run.result import NO_CHANGES, Request, Result
from pytest_autotune.run.rows import rows_of
from pytest_autotune.workers.events import SPECIALISATION, Event

#: Who has measured what was recovered.
INTERRUPTED_RUN = "an earlier run"
_INSIDE = "asked for by "


@dataclass(frozen=True)
class Beginning:
    """What there was when the run began.

    :param loaded: (path as the user wrote it, what it held) of each loaded cache; the last one precedes.
    :param held: what the dump path held; empty where nothing is dumped.
    :param index: the loaded caches, for lookups; None when nothing is loaded.
    """

    loaded: tuple[tuple[str, Cache], ...] = ()
    held: Cache = field(default_factory=Cache)
    index: EntryIndex | None = None

    @property
    def entries(self) -> Iterator[Entry]:
        """What was loaded but from stores at URLs: what this run does not ask for there is of others."""
        return (entry for path, cache in self.loaded if not is_url(path) for entry in cache.entries)


def settle(beginning: Beginning, collected: Collected, held: Cache, request: Request) -> Result:
    """What a run comes to, as if its dump will be written: :meth:`Result.dumped` says what is so if it is not.

    :param held: what the dump path holds now; another run may have written to it meanwhile.
    """
    is_complete = not collected.incomplete
    prunes = request.prune and is_complete
    lookups = with_outer(settled([lookup for _, lookup in collected.lookups]), is_complete=is_complete)
    lookups = with_compiled(lookups, collected.others, anew=prunes)
    # What this run does not ask a shared store for, others may: only who prunes it has to know.
    unused = _unused(beginning, lookups, collected) if is_complete and (prunes or not request.shared) else ()
    asked = {lookup.problem for lookup in lookups}
    recovered = [one for one in with_outer(collected.recovered) if one.problem not in asked] if request.dumps else []
    processes = [process for process, _ in collected.lookups]
    # An update brings what a test's own cache does not have into that one.
    elsewhere = request.updates
    of_run = [pair for pair in zip(processes, lookups, strict=True) if not (elsewhere and pair[1].cache)]
    recovered = [one for one in recovered if not (elsewhere and one.cache)]
    measured = measurements(of_run)
    measured += measurements((INTERRUPTED_RUN, lookup) for lookup in recovered)
    kept = _of_the_run([lookup for _, lookup in of_run], beginning, held) if request.dumps else lookups
    used = [lookup.entry for lookup in kept if lookup.entry is not None and _was_used(lookup)]
    if request.shared:  # a choice of a file that is loaded, too, is the file's
        in_store = {entry.identity: entry for entry in held.entries}
        in_store |= {one.entry.identity: one.entry for one in collected.recovered if one.entry is not None}
        used = [in_store[entry.identity] for entry in used if entry.identity in in_store]
    drop = {entry.identity for entry in unused} if request.prune else set()
    there: set[Problem] = set()
    if request.new_only:
        there = {entry.problem for entry in held.entries}
        measured = [one for one in measured if one.entry.problem not in there]
    else:
        used, gone = _under_new_names(used, lookups, is_complete=is_complete and not request.shared)
        drop |= gone
    if request.dumps:
        for mode in request.modes:
            replacing = mode.replacing(collected.others, kept)
            used += replacing if request.keep_candidates else map(without_candidates, replacing)
    merged = merge(
        held,
        measured,
        [entry for entry in used if entry.problem not in there],
        lambda entry: entry.identity in drop,
        Rules(request.keep_candidates, not is_complete, keep_others=request.shared, forget_compiled=prunes),
    )
    index = beginning.index
    indexes = [index] if index is not None else []
    return Result(
        rows_of(lookups, lambda problem: nearest(indexes, problem, request.aliases), merged),
        collected,
        request,
        merged if request.dumps else replace(merged, disagreements=()),
        loaded=tuple((path, len(cache.entries)) for path, cache in beginning.loaded),
        covered={tuner: index.devices(tuner) for tuner in sorted(index.tuners())} if index is not None else {},
        unused=unused,
        left_out=_left_out(beginning, merged.cache, drop, asked) if request.dumps else (),
        replaced=_replaced(held, merged, measured, lookups) if request.dumps else (),
        recovered=len(recovered),
        ignored=0 if lookups else _ignored(beginning, request.ignore),
        changes=_changes(beginning, lookups, merged.cache),
        notes=(*collected.notes, *_aliases_of_nothing(beginning, request.aliases)),
    )


def _under_new_names(
    used: Sequence[Entry], lookups: Sequence[Lookup], *, is_complete: bool
) -> tuple[list[Entry], set[Identity]]:
    """The entries that were used, those of kernels that have moved under their new names; and which old ones go."""
    found, gone = list(used), set[Identity]()
    for lookup in lookups:
        old = lookup.old_entry
        if old is None:
            continue
        entry = replace(old, problem=lookup.problem)
        if lookup.outcome is not Outcome.HIT:
            found.append(entry)
        elif is_complete:  # else another test may still ask for the old name
            found = [entry if one is old else one for one in found]
            gone.add(old.identity)
    return found, gone


def measurements(lookups: Iterable[tuple[str, Lookup]]) -> list[Measured]:
    """What was measured, by process; a choice that was shared stands for the search of a worker that may have died."""
    found: dict[Entry, Measured] = {}
    for process, lookup in lookups:
        if lookup.entry is not None and lookup.searched:
            one = Measured(lookup.entry, process, lookup.disturbed)
            if lookup.tuned or lookup.entry not in found:
                found[lookup.entry] = one
    return list(found.values())


def _was_used(lookup: Lookup) -> bool:
    return lookup.outcome is Outcome.HIT and not lookup.searched


def _of_the_run(lookups: Iterable[Lookup], beginning: Beginning, held: Cache) -> list[Lookup]:
    """The lookups but those that the cache of a single test gave another choice than the caches of the run have."""
    choices: dict[Identity, set[tuple[object, ...] | None]] = {}
    for cache in (*(cache for _, cache in beginning.loaded), held):
        for entry in cache.entries:
            choices.setdefault(entry.identity, set()).add(_choice_of(entry))

    def is_of_the_run(lookup: Lookup) -> bool:
        entry = lookup.entry
        if entry is None or not _was_used(lookup):
            return True
        return _choice_of(entry) in choices.get(entry.identity, {_choice_of(entry)})

    return [lookup for lookup in lookups if is_of_the_run(lookup)]


def _choice_of(entry: Entry) -> tuple[object, ...] | None:
    return None if entry.choice is None else (entry.choice.id, entry.choice.params)


def _left_out(beginning: Beginning, after: Cache, dropped: Set[Identity], asked: Set[Problem]) -> tuple[Entry, ...]:
    written = {entry.problem for entry in after.entries} | asked
    loaded = {entry.identity: entry for entry in beginning.entries}
    found = (entry for identity, entry in loaded.items() if identity not in dropped)
    return tuple(sorted((entry for entry in found if entry.problem not in written), key=lambda one: one.sort_key))


def _replaced(
    held: Cache, merged: Merged, measured: Iterable[Measured], lookups: Iterable[Lookup]
) -> tuple[Entry, ...]:
    retuned = {one.entry.problem for one in measured}
    retuned -= {lookup.problem for lookup in lookups if lookup.outcome is Outcome.STALE}
    after = {entry.identity for entry in merged.cache.entries}
    return tuple(entry for entry in held.entries if entry.problem in retuned and entry.identity not in after)


def _unused(beginning: Beginning, lookups: Sequence[Lookup], collected: Collected) -> tuple[Entry, ...]:
    """The entries that a complete run should have asked for and did not.

    Such an entry is of a device seen in this run, of a tuner active in it, tuned under
    the same minor version of that tuner's library, and its kernel was asked for or
    its module imported. An entry of a problem that no entry could serve is not
    unused: it is stale, and reported as that. Nor is one for candidates that pruning
    left elsewhere: which list a test asks for may depend on those before it. Nothing is said of a tuner that was
    bypassed, if only in one call; nor of what only another tuning has asked for, where that one was asked for.
    """
    kept = merge(beginning.held, used=beginning.entries).cache
    exact = {lookup.identity for lookup in lookups}
    exact |= {lookup.entry.identity for lookup in lookups if lookup.entry is not None}
    unserved = {lookup.problem for lookup in lookups if lookup.outcome is not Outcome.HIT}
    problems = {lookup.problem for lookup in lookups}
    devices = {problem.device for problem in problems}
    asked = {problem.name for problem in problems}
    kernels = set(asked)
    kernels.update(kernel for process in collected.facts for kernel in process.imported)
    versions = collected.versions
    # A call that an error of ours left to its tuner may have been the one.
    bypassed = {library_of(tuner) for process in collected.facts for tuner, _ in process.unhooked}

    def is_unused(entry: Entry) -> bool:
        problem = entry.problem
        now = versions.get(problem.library)
        return (
            problem.device in devices
            and problem.library not in bypassed
            and now is not None
            and now.minor == entry.versions.minor
            and problem.name in kernels
            and problem not in unserved
            and entry.identity not in exact
            and outer_of(entry) not in asked
            and not (before_pruning(entry.fingerprint) != entry.fingerprint and problem in problems)
        )

    return tuple(entry for entry in kept.entries if is_unused(entry))


def _ignored(beginning: Beginning, globs: tuple[str, ...]) -> int:
    problems = [entry.problem for entry in beginning.entries] if globs else []
    return sum(is_ignored(problem.tuner, problem.kernel, globs) for problem in problems)


def _aliases_of_nothing(beginning: Beginning, aliases: Mapping[str, str]) -> Iterator[str]:
    devices = {device.name for _, cache in beginning.loaded for device in cache.devices}
    for other in sorted(set(aliases.values()) - devices):
        if devices:
            yield f"autotune_device_alias: no loaded entry is for {other} (they are for {', '.join(sorted(devices))})"


def _changes(beginning: Beginning, lookups: Iterable[Lookup], after: Cache) -> Diff:
    """What is new in the entries of the problems that a run asked for, or chosen otherwise, or measured anew.

    They are compared with the loaded caches, or with what the dump path held where nothing is loaded. What nobody
    asked for is not among it: those entries are unused, of other devices, or of tests that did not run.
    """
    asked = {lookup.problem for lookup in lookups if lookup.old_entry is None}  # a moved one is not new

    def of_this_run(entries: Iterable[Entry]) -> Cache:
        return Cache(tuple(entry for entry in entries if entry.problem in asked))

    given = [cache for _, cache in beginning.loaded] or [beginning.held]
    before = {entry.identity: entry for cache in given for entry in of_this_run(cache.entries).entries}
    if not before and not beginning.loaded:
        return NO_CHANGES
    found = diff(Cache(tuple(before.values())), of_this_run(after.entries))
    return Diff(tuple(change for change in found.changes if change.kind is not ChangeKind.REMOVED), found.unchanged)


# What only a whole run knows of its lookups.


def settled(lookups: Sequence[Lookup]) -> list[Lookup]:
    """The lookups of a whole run; one that was served with the entry of a kernel that still exists is a miss.

    Which kernels exist is known only when all have been asked for. The choice was good all the
    same: source, candidates, key and device are equal.
    """
    asked = {lookup.problem for lookup in lookups}

    def judge(lookup: Lookup) -> Lookup:
        entry = lookup.old_entry
        if entry is None or entry.problem not in asked:
            return lookup
        reason = f"no entry; that of {entry.problem.kernel} was used, which has the same source"
        return replace(lookup, outcome=Outcome.MISS, reason=reason)

    return [judge(lookup) for lookup in lookups]


def with_outer(lookups: Iterable[Lookup], *, is_complete: bool = False) -> list[Lookup]:
    """The lookups; new entries that only other tunings have asked for say so in their labels.

    Where such a tuning is a hit, its candidates do not run, and nobody asks for them.

    :param is_complete: all tests ran: an entry says otherwise of one that nobody asks for any more, as after a rename.
    """
    found = list(lookups)
    outer: defaultdict[Identity, set[str]] = defaultdict(set)
    for lookup in found:
        outer[lookup.identity].add(lookup.inside)
    asked = {lookup.problem.name for lookup in found}

    def noted(lookup: Lookup) -> Lookup:
        entry, names = lookup.entry, outer[lookup.identity]
        if entry is None or "" in names:
            return lookup
        before = outer_of(entry)
        is_wrong = is_complete and bool(before) and before not in asked and lookup.outcome is Outcome.HIT
        if not (lookup.searched or is_wrong):
            return lookup
        own = entry.label.removesuffix(f"{_INSIDE}{before}").removesuffix("; ") if before else entry.label
        label = "; ".join(filter(None, [own, f"{_INSIDE}{min(names)}"]))
        return replace(lookup, entry=replace(entry, label=label))

    return [noted(lookup) for lookup in found] if any(lookup.inside for lookup in found) else found


def outer_of(entry: Entry) -> str:
    """The tuning, as ``tuner:kernel``, by which alone an entry was asked for; empty where there was none."""
    last = entry.label.rpartition("; ")[2]
    return last.removeprefix(_INSIDE) if last.startswith(_INSIDE) else ""


def with_compiled(lookups: Iterable[Lookup], events: Iterable[Event], *, anew: bool) -> list[Lookup]:
    """The lookups, whose entries say what their choices were compiled for.

    :param anew: what an entry said before goes, where this run says anything.
    """
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == SPECIALISATION:
            texts[str(event.data.get("entry"))].add(str(event.data.get("text")))

    def noted(lookup: Lookup) -> Lookup:
        entry = lookup.entry
        if entry is None or not (met := texts.get(entry.identity.digest)):
            return lookup
        compiled = sorted(met if anew else met.union(entry.compiled))[:MOST_COMPILED]
        return replace(lookup, entry=replace(entry, compiled=tuple(compiled)))

    return [noted(lookup) for lookup in lookups] if texts else list(lookups)
