"""What choices were compiled for in a run, and what was compiled beside its tests."""

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
    """

    entry: str
    text: str


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


@dataclass(frozen=True)
class CompiledAhead:
    """What was compiled beside the tests, by one process or by all.

    :param kernels: how many compilations.
    :param seconds: that they took in all, on several cores.
    :param failed: how many could not be done, and were left to the tests.
    :param reason: why the first of them could not.
    """

    kernels: int = 0
    seconds: float = 0.0
    failed: int = 0
    reason: str = ""

    @classmethod
    def of_all(cls, processes: Iterable[CompiledAhead]) -> CompiledAhead:
        """What the processes of a run have compiled; none of them compiles what another one does."""
        every = list(processes)
        return cls(
            sum(one.kernels for one in every),
            round(sum(one.seconds for one in every), 3),
            sum(one.failed for one in every),
            next((one.reason for one in every if one.reason), ""),
        )
