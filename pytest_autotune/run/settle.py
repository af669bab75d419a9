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
from pytest_autotune.cache.merge import MOST_COMPILED, Rules, merge, without_candidates
from pytest_autotune.cache.model import Cache, Entry, Identity, Problem, before_pruning, library_of
from pytest_autotune.cache.ties import Measured
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import SPECIALISATION, Lookup, Outcome, Policy
from pytest_autotune.run.nearest import nearest
from pytest_autotune.run.result import Request, Result
from pytest_autotune.run.rows import rows_of
from pytest_autotune.workers.events import Event

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
    index, policy = beginning.index or EntryIndex(()), request.policy
    is_complete = not collected.incomplete
    prunes = request.prune and is_complete
    lookups = settled([lookup for _, lookup in collected.lookups], collected.others, anew=prunes)
    # What this run does not ask a shared store for, others may: only who prunes it has to know.
    unused = _unused(beginning, lookups, collected, policy) if is_complete and (prunes or not request.shared) else ()
    asked = {lookup.problem for lookup in lookups}
    there = {entry.problem for entry in held.entries} if request.new_only else set()
    known = {entry.identity for entry in (*beginning.entries, *held.entries)}

    def is_of_run(lookup: Lookup) -> bool:
        """Not what a single test has another choice of in its own cache, nor what an update brings into that one."""
        is_own = lookup.cache and (request.updates or (lookup.identity in known and not lookup.searched))
        return not (is_own or lookup.problem in there)

    asked_by = zip((process for process, _ in collected.lookups), lookups, strict=True)
    of_run = [(process, lookup) for process, lookup in asked_by if is_of_run(lookup) or not request.dumps]
    before = settled(collected.recovered) if request.dumps else []
    recovered = [lookup for lookup in before if lookup.problem not in asked and is_of_run(lookup)]
    measured = measurements([*of_run, *((INTERRUPTED_RUN, lookup) for lookup in recovered)])
    kept = [lookup for _, lookup in of_run]
    base = held if request.dumps else Cache(tuple(entry for _, cache in beginning.loaded for entry in cache.entries))
    used = _searched_in_vain(kept, base)
    used += [one.entry for one in kept if one.entry and one.outcome is Outcome.HIT and not one.searched]
    if request.shared:  # a choice of a file that is loaded, too, is the file's
        in_store = {entry.identity: entry for entry in held.entries}
        in_store |= {one.entry.identity: one.entry for one in collected.recovered if one.entry is not None}
        used = [in_store[entry.identity] for entry in used if entry.identity in in_store]
    drop = {entry.identity for entry in unused} if request.prune else set()
    if not request.new_only:
        moved = _moved(lookups, renames=is_complete and not request.shared)
        drop |= {old.identity for old, lookup in moved if lookup.outcome is Outcome.HIT}
        used += [replace(old, problem=lookup.problem) for old, lookup in moved]
        used = [entry for entry in used if entry.identity not in drop]
    if request.dumps:
        for mode in policy.modes:
            replacing = mode.replacing(collected.others, kept)
            used += replacing if request.keep_candidates else map(without_candidates, replacing)
    merged = merge(
        base,
        measured,
        used,
        lambda entry: entry.identity in drop,
        Rules(request.keep_candidates, not is_complete, keep_others=request.shared, forget_compiled=prunes),
    )
    return Result(
        rows_of(lookups, lambda one: nearest([index], one, policy.aliases.get(one.device.name, "")), merged),
        collected,
        request,
        merged,
        loaded=tuple((path, len(cache.entries)) for path, cache in beginning.loaded),
        covered={one: index.devices(one) for one in sorted(index.tuners()) if not policy.ignores(one, "*")},
        unused=unused,
        of_tests=frozenset(
            one.problem for one in lookups if one.cache and not index.same_key((one.old_entry or one).problem)
        ),
        left_out=_left_out(beginning, merged.cache, drop, asked) if request.dumps else (),
        recovered=len(recovered),
    )


def measurements(lookups: Iterable[tuple[str, Lookup]]) -> list[Measured]:
    """What was measured, by process; a choice that was shared stands for the search of a worker that may have died."""
    found: dict[tuple[Entry, bool], Measured] = {}
    for process, lookup in lookups:
        if lookup.entry is not None and lookup.searched:
            which = lookup.entry, lookup.rejected
            if lookup.tuned or which not in found:
                found[which] = Measured(lookup.entry, process, lookup.disturbed, lookup.rejected)
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
    served = ((lookup.old_entry, lookup) for lookup in lookups if renames or lookup.outcome is not Outcome.HIT)
    return [(old, lookup) for old, lookup in served if old is not None]


def _left_out(beginning: Beginning, after: Cache, dropped: Set[Identity], asked: Set[Problem]) -> tuple[Entry, ...]:
    written = {entry.problem for entry in after.entries} | asked
    loaded = {entry.identity: entry for entry in beginning.entries}
    found = (entry for identity, entry in loaded.items() if identity not in dropped)
    return tuple(sorted((entry for entry in found if entry.problem not in written), key=attrgetter("sort_key")))


def _unused(beginning: Beginning, lookups: Sequence[Lookup], collected: Collected, policy: Policy) -> tuple[Entry, ...]:
    """The entries that a complete run should have asked for and did not.

    Such an entry is of a device seen in this run, of a tuner active in it, tuned under the same minor version of that
    tuner's library, and its kernel is not ignored, and was asked for or its module imported. An entry of a problem that
    no entry could serve is stale. Which list pruning leaves may depend on the tests before. Nothing is said of a tuner
    that was bypassed, if only in one call; nor of what only another tuning has asked for, where that one was asked for.
    """
    known = {entry.identity: entry for entry in (*beginning.held.entries, *beginning.entries)}
    exact = {lookup.identity for lookup in lookups}
    exact |= {lookup.entry.identity for lookup in lookups if lookup.entry is not None}
    unserved = {lookup.problem for lookup in lookups if lookup.outcome is not Outcome.HIT}
    problems = {lookup.problem for lookup in lookups}
    devices = {problem.device for problem in problems}
    asked = {problem.name for problem in problems}
    kernels = asked.union(collected.imported)
    # A call that an error of ours left to its tuner may have been the one.
    bypassed = {library_of(tuner) for tuner, _ in collected.unhooked}

    def is_unused(entry: Entry) -> bool:
        problem = entry.problem
        now = collected.versions.get(problem.library)
        return (
            problem.device in devices
            and problem.library not in bypassed
            and now is not None
            and now.minor == entry.versions.minor
            and problem.name in kernels
            and not policy.ignores(problem.tuner, problem.kernel)
            and problem not in unserved
            and entry.identity not in exact
            and outer_of(entry) not in asked
            and not (before_pruning(entry.fingerprint) != entry.fingerprint and problem in problems)
        )

    return tuple(sorted(filter(is_unused, known.values()), key=attrgetter("sort_key")))


def settled(lookups: Sequence[Lookup], events: Iterable[Event] = (), *, anew: bool = False) -> list[Lookup]:
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
        outer[lookup.identity].add(lookup.inside)
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == SPECIALISATION:
            texts[str(event.data.get("entry"))].add(str(event.data.get("text")))

    def settle_one(lookup: Lookup) -> Lookup:
        entry, old, names = lookup.entry, lookup.old_entry, outer[lookup.identity]
        if entry is None:
            return lookup
        if old is not None and old.problem in problems:
            reason = f"no entry; that of {old.problem.kernel} was used, which has the same source"
            lookup = replace(lookup, outcome=Outcome.MISS, reason=reason)
        if "" not in names and (lookup.searched or outer_of(entry) not in asked):
            own = [part for part in entry.label.split("; ") if part and not part.startswith(_INSIDE)]
            entry = replace(entry, label="; ".join([*own, f"{_INSIDE}{min(names)}"]))
        if (met := texts.get(entry.identity.digest) if texts else None) is not None:
            compiled = sorted(met if anew else met.union(entry.compiled))[:MOST_COMPILED]
            entry = replace(entry, compiled=tuple(compiled))
        return replace(lookup, entry=entry)

    return list(map(settle_one, lookups))


def outer_of(entry: Entry) -> str:
    """The tuning, as ``tuner:kernel``, by which alone an entry was asked for; empty where there was none."""
    last = entry.label.rpartition("; ")[2]
    return last.removeprefix(_INSIDE) if last.startswith(_INSIDE) else ""
