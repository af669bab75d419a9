"""How what a run chose differs from what it was given. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from pytest_autotune.cache.diff import ChangeKind, Diff, diff
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.run.ending import Beginning, Ending
from pytest_autotune.run.moves import old_entry


def changes(beginning: Beginning, ending: Ending) -> Diff:
    """What is new in the entries of the problems that a run asked for, or chosen otherwise, or measured anew.

    They are compared with the loaded caches, or with what the dump path held where nothing is loaded. What nobody
    asked for is not among it: those entries are unused, of other devices, or of tests that did not run.
    """
    asked = {lookup.problem for lookup in ending.lookups if old_entry(lookup) is None}  # a moved one is not new
    kernels = {problem.kernel for problem in asked}

    def of_this_run(entries: Iterable[Entry]) -> Cache:
        # The hash of a problem takes long, and most entries of a large cache are of other kernels.
        return Cache(tuple(entry for entry in entries if entry.problem.kernel in kernels and entry.problem in asked))

    given = [cache for _, cache in beginning.loaded] or [beginning.held]
    before = {entry.identity: entry for cache in given for entry in of_this_run(cache.entries).entries}
    if not before and not beginning.loaded:
        return Diff((), 0)
    found = diff(Cache(tuple(before.values())), of_this_run(ending.merged.cache.entries))
    return Diff(tuple(change for change in found.changes if change.kind is not ChangeKind.REMOVED), found.unchanged)
