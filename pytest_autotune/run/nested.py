"""What is only asked for by another tuning: a candidate of that one tunes something itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from pytest_autotune.cache.model import Entry, Identity
from pytest_autotune.run.lookup import Lookup, Outcome

_INSIDE = "asked for by "


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
