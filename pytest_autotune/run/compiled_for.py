"""What choices were compiled for in a run: the same for every order of the tests, and however they are distributed.

A compiler that keeps what it made compiles nothing for the second of two entries that it makes
the same of. So what was compiled for one entry counts for all that it must fit, its group.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_autotune.cache.model import MOST_COMPILED
from pytest_autotune.run.lookup import Lookup


@dataclass(frozen=True)
class CompiledFor:
    """One text of what an entry's choice was compiled for.

    :param entry: the digest of its identity.
    :param group: entries with the same group may be launched with whatever one of them is launched with.
    """

    entry: str
    group: str
    text: str


def with_compiled(lookups: Iterable[Lookup], found: Iterable[CompiledFor], *, anew: bool) -> list[Lookup]:
    """The lookups, whose entries say what their choices were compiled for.

    :param anew: what an entry said before goes, where this run says anything.
    """
    groups: defaultdict[str, set[str]] = defaultdict(set)
    texts: defaultdict[str, set[str]] = defaultdict(set)
    for one in found:
        groups[one.entry].add(one.group)
        texts[one.group].add(one.text)

    def noted(lookup: Lookup) -> Lookup:
        entry = lookup.entry
        if entry is None or not (of := groups.get(entry.identity.digest)):
            return lookup
        met = {text for group in of for text in texts[group]}
        compiled = sorted(met if anew else met.union(entry.compiled))[:MOST_COMPILED]
        return replace(lookup, entry=replace(entry, compiled=tuple(compiled)))

    return [noted(lookup) for lookup in lookups] if groups else list(lookups)
