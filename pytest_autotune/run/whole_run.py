"""What only a whole run knows of its lookups.

Which kernels were moved: their entries stand under the old name until an update renames them. What is only asked for
by another tuning, a candidate of which tunes something itself. And what each choice was compiled for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_autotune.cache.merge import MOST_COMPILED
from pytest_autotune.cache.model import Entry, Identity
from pytest_autotune.run.collected import CompiledFor
from pytest_autotune.run.lookup import Lookup, Outcome

_INSIDE = "asked for by "


def old_entry(lookup: Lookup) -> Entry | None:
    """The entry of another kernel that a lookup was served with."""
    entry = lookup.entry
    if entry is None or lookup.tuned or lookup.shared or entry.problem.kernel == lookup.problem.kernel:
        return None
    return entry


def settled(lookups: Sequence[Lookup]) -> list[Lookup]:
    """The lookups of a whole run; one that was served with the entry of a kernel that still exists is a miss.

    Which kernels exist is known only when all have been asked for. The choice was good all the
    same: source, candidates, key and device are equal.
    """
    asked = {lookup.problem for lookup in lookups}

    def judge(lookup: Lookup) -> Lookup:
        entry = old_entry(lookup)
        if entry is None or entry.problem not in asked:
            return lookup
        reason = f"no entry; that of {entry.problem.kernel} was used, which has the same source"
        return replace(lookup, outcome=Outcome.MISS, reason=reason)

    return [judge(lookup) for lookup in lookups]


def renamed(lookups: Iterable[Lookup]) -> list[tuple[Lookup, Entry]]:
    """Each lookup that was served with the entry of another kernel, with that entry under its own name."""
    return [
        (lookup, replace(entry, problem=lookup.problem))
        for lookup in lookups
        if (entry := old_entry(lookup)) is not None
    ]


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


def with_compiled(lookups: Iterable[Lookup], found: Iterable[CompiledFor], *, anew: bool) -> list[Lookup]:
    """The lookups, whose entries say what their choices were compiled for.

    :param anew: what an entry said before goes, where this run says anything.
    """
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for one in found:
        texts[one.entry].add(one.text)

    def noted(lookup: Lookup) -> Lookup:
        entry = lookup.entry
        if entry is None or not (met := texts.get(entry.identity.digest)):
            return lookup
        compiled = sorted(met if anew else met.union(entry.compiled))[:MOST_COMPILED]
        return replace(lookup, entry=replace(entry, compiled=tuple(compiled)))

    return [noted(lookup) for lookup in lookups] if texts else list(lookups)
