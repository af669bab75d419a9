"""The end of a run: what was collected, loaded and held in, the change of the cache out. Pure.

Called by :mod:`pytest_autotune.run.dumping` while the dump path is locked, with what it holds then; a run that dumps
nothing ends in the same way, with an empty cache: what its reports hold is settled by the rules of a merge, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import Merged, Rules, merge, without_candidates
from pytest_autotune.cache.model import Cache, Entry, Identity, Problem, Versions, before_pruning, library_of
from pytest_autotune.cache.ties import Measured
from pytest_autotune.run.compiled_for import with_compiled
from pytest_autotune.run.encoding import ProcessFacts
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.moves import renamed, settled
from pytest_autotune.run.nested import outer_of, with_outer
from pytest_autotune.run.verify import Verdict
from pytest_autotune.workers.events import END, Event

#: Who has measured what was taken over.
INTERRUPTED_RUN = "an interrupted run"


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


@dataclass(frozen=True)
class Collected:
    """What the processes of a run have reported.

    :param lookups: (process, what it asked for); no lookup twice.
    :param taken_over: what killed runs with this dump path had tuned.
    :param facts: of each process that could still send them.
    :param crashed: the workers that could not.
    :param incomplete: the first reason why the run was not complete; empty when it was.
    :param interrupted: the run was ended before its tests were.
    :param notes: lines of the process where all this comes together.
    :param only_skipped: that reason is a skipped test, in a run of the whole suite.
    """

    lookups: tuple[tuple[str, Lookup], ...] = ()
    taken_over: tuple[Lookup, ...] = ()
    facts: tuple[ProcessFacts, ...] = ()
    crashed: tuple[str, ...] = ()
    incomplete: str = ""
    interrupted: bool = False
    notes: tuple[str, ...] = ()
    only_skipped: bool = False

    @property
    def versions(self) -> Mapping[str, Versions]:
        """Tuner -> the versions that it ran under."""
        return {tuner: versions for process in self.facts for tuner, versions in process.versions}


#: The only process of a run without workers.
ALONE = "main"


def lookups_of(events: Iterable[tuple[str, Event]]) -> Iterator[tuple[str, Lookup]]:
    """The lookups among what processes did; what only looks like one, as in a damaged file, is left out."""
    for process, event in events:
        with suppress(ValueError):
            if (lookup := Lookup.of(event)) is not None:
                yield "" if process == ALONE else process, lookup


def facts_of(events: Iterable[tuple[str, Event]]) -> Iterator[ProcessFacts]:
    """What processes reported when they ended."""
    for _, event in events:
        with suppress(ValueError):
            if event.kind == END:
                yield ProcessFacts.of(event)


@dataclass(frozen=True)
class DumpPolicy:
    """What a dump does beside adding what was chosen.

    :param prune: drop the unused entries.
    :param keep_candidates: keep every candidate of a new entry that has a choice.
    :param new_only: leave the entries of every problem that the dump path holds as they are.
    """

    prune: bool = False
    new_only: bool = False
    keep_candidates: bool = False


@dataclass(frozen=True)
class Ending:
    """What a run comes to.

    :param lookups: of all processes, with the outcomes that only the whole run knows.
    :param merged: what the dump path is to hold, and what changes there.
    :param unused: entries that nobody asked for; with ``prune`` they are dropped.
    :param left_out: loaded entries of problems that nobody asked for and the dump path will not hold.
    :param taken_over: how many tunings of killed runs count in this one.
    :param replaced: entries that were there for other code or candidates of what was tuned, of which no row tells.
    """

    lookups: tuple[Lookup, ...] = ()
    merged: Merged = field(default_factory=lambda: Merged(Cache()))
    unused: tuple[Entry, ...] = ()
    left_out: tuple[Entry, ...] = ()
    taken_over: int = 0
    replaced: tuple[Entry, ...] = ()


def end(beginning: Beginning, collected: Collected, held: Cache, policy: DumpPolicy | None) -> Ending:
    """Settle a run.

    :param held: what the dump path holds now; another run may have written to it meanwhile.
    :param policy: None in a run that dumps nothing.
    """
    is_complete, wanted = not collected.incomplete, policy or DumpPolicy()
    prunes = wanted.prune and is_complete
    lookups = _of_all(collected, forget_compiled=prunes)
    unused = _unused(beginning, lookups, collected) if is_complete else ()
    asked = {lookup.problem for lookup in lookups}
    taken_over = [one for one in with_outer(collected.taken_over) if one.problem not in asked] if policy else []
    measured = _measured(collected, lookups, taken_over)
    kept = lookups if policy is None else _of_the_run(lookups, beginning, held)
    used = [lookup.entry for lookup in kept if lookup.entry is not None and _was_used(lookup)]
    drop = {entry.identity for entry in unused} if wanted.prune else set()
    if wanted.new_only:
        there = {entry.problem for entry in held.entries}
        measured = [one for one in measured if one.entry.problem not in there]
    else:
        there = set()
        used, gone = _under_new_names(used, lookups, is_complete=is_complete)
        drop |= gone
    if policy is not None:
        used += _faster(kept, policy.keep_candidates)
    merged = merge(
        held,
        measured,
        [entry for entry in used if entry.problem not in there],
        lambda entry: entry.identity in drop,
        Rules(wanted.keep_candidates, keep_pruned=not is_complete, forget_compiled=prunes),
    )
    left_out = _left_out(beginning, merged.cache, drop, asked) if policy is not None else ()
    replaced = _replaced(held, merged, measured, lookups) if merged.removed or merged.changed else ()
    return Ending(tuple(lookups), merged, unused, left_out, len(taken_over), replaced)


def _of_all(collected: Collected, *, forget_compiled: bool) -> list[Lookup]:
    """The lookups of all processes, in their order, with what only the whole run knows of them."""
    compiled_for = (one for process in collected.facts for one in process.compiled_for)
    found = with_outer(settled([lookup for _, lookup in collected.lookups]), is_complete=not collected.incomplete)
    return with_compiled(found, compiled_for, anew=forget_compiled)


def _measured(collected: Collected, lookups: Sequence[Lookup], taken_over: Sequence[Lookup]) -> list[Measured]:
    processes = [process for process, _ in collected.lookups]
    return [
        *measurements(zip(processes, lookups, strict=True)),
        *measurements((INTERRUPTED_RUN, lookup) for lookup in taken_over),
    ]


def _under_new_names(
    used: Sequence[Entry], lookups: Sequence[Lookup], *, is_complete: bool
) -> tuple[list[Entry], set[Identity]]:
    """The entries that were used, those of kernels that have moved under their new names; and which old ones go."""
    found, gone = list(used), set[Identity]()
    for lookup, entry in renamed(lookups):
        old = lookup.entry
        if lookup.outcome is not Outcome.HIT:
            found.append(entry)
        elif old is not None and is_complete:  # else another test may still ask for the old name
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


def _faster(lookups: Iterable[Lookup], keep_candidates: bool) -> list[Entry]:
    """What replaces the choices that a race of this run has found slower; of several for one problem, the most."""
    found: dict[Identity, Verdict] = {}
    for lookup in lookups:
        verdict = lookup.verdict
        if verdict is not None and verdict.entry is not None:
            best = found.get(verdict.entry.identity, verdict)
            found[verdict.entry.identity] = max(best, verdict, key=lambda one: (one.slower, repr(one.entry)))
    entries = [verdict.entry for verdict in found.values() if verdict.entry is not None]
    return entries if keep_candidates else list(map(without_candidates, entries))


def _left_out(beginning: Beginning, after: Cache, dropped: Set[Identity], asked: Set[Problem]) -> tuple[Entry, ...]:
    written = {entry.problem for entry in after.entries} | asked
    loaded = {entry.identity: entry for _, cache in beginning.loaded for entry in cache.entries}
    found = (entry for identity, entry in loaded.items() if identity not in dropped)
    return tuple(sorted((entry for entry in found if entry.problem not in written), key=lambda one: one.sort_key))


def _replaced(
    held: Cache, merged: Merged, measured: Iterable[Measured], lookups: Iterable[Lookup]
) -> tuple[Entry, ...]:
    retuned = {one.entry.problem for one in measured}
    retuned -= {lookup.problem for lookup in lookups if lookup.outcome is Outcome.STALE}
    kernels = {problem.kernel for problem in retuned}  # the hash of a problem takes long

    def of_these(cache: Cache) -> Iterable[Entry]:
        return (one for one in cache.entries if one.problem.kernel in kernels and one.problem in retuned)

    after = {entry.identity for entry in of_these(merged.cache)}
    return tuple(entry for entry in of_these(held) if entry.identity not in after)


def _unused(beginning: Beginning, lookups: Sequence[Lookup], collected: Collected) -> tuple[Entry, ...]:
    """The entries that a complete run should have asked for and did not.

    Such an entry is of a device seen in this run, of a tuner active in it, tuned under
    the same minor version of that tuner's library, and its kernel was asked for or
    its module imported. An entry of a problem that no entry could serve is not
    unused: it is stale, and reported as that. Nor is one for candidates that pruning
    left elsewhere: which list a test asks for may depend on those before it. Nothing is said of a tuner that was left
    alone, if only in one call; nor of what only another tuning has asked for, where that one was asked for.
    """
    kept = merge(beginning.held, used=[entry for _, cache in beginning.loaded for entry in cache.entries]).cache
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
    left_alone = {library_of(tuner) for process in collected.facts for tuner, _ in process.unhooked}

    def is_unused(entry: Entry) -> bool:
        problem = entry.problem
        now = versions.get(problem.library)
        return (
            problem.device in devices
            and problem.library not in left_alone
            and now is not None
            and now.minor == entry.versions.minor
            and problem.name in kernels
            and problem not in unserved
            and entry.identity not in exact
            and outer_of(entry) not in asked
            and not (before_pruning(entry.fingerprint) != entry.fingerprint and problem in problems)
        )

    return tuple(entry for entry in kept.entries if is_unused(entry))
