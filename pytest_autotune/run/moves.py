"""Kernels that were moved or renamed: their entries stand under the old name until an update renames them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from pytest_autotune.cache.model import Entry
from pytest_autotune.run.lookup import Lookup, Outcome


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
