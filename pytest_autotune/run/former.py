"""What a kernel without any entry may have been called before: a guess for people, that no choice depends on.

A kernel that was only renamed or moved keeps its choices (:mod:`pytest_autotune.run.lookup`). This is for one that was
changed as well, or whose old name may still be in use.
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import replace
from difflib import SequenceMatcher

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Value
from pytest_autotune.run.lookup import NO_ENTRY, Lookup

#: Names are alike from this share of common letters on, as difflib counts them.
ALIKE = 0.6


class Former:
    """Finds former names among the kernels that loaded caches have entries for.

    :param index: the loaded caches; None when nothing is loaded.
    :param asked: (tuner, kernel) of all that this run asked for: an old name is not among them.
    """

    def __init__(self, index: EntryIndex | None, asked: Set[tuple[str, str]]) -> None:
        self._index = index
        self._asked = asked
        self._reasons: dict[tuple[str, str], str] = {}

    def reason(self, lookup: Lookup) -> str:
        """Why a kernel has no entry: with what it may have been called, where one name stands out."""
        name = lookup.problem.tuner, lookup.problem.kernel
        if name not in self._reasons:  # one problem of a kernel tells as much as all
            self._reasons[name] = self._find(lookup)
        return self._reasons[name]

    def _find(self, lookup: Lookup) -> str:
        index, problem = self._index, lookup.problem
        if index is None:
            return NO_ENTRY
        sources: dict[str, set[Value]] = {}
        for one in index.outline(problem.tuner):
            kernel = one.problem.kernel
            if one.problem.device == problem.device and (problem.tuner, kernel) not in self._asked:
                sources.setdefault(kernel, set()).update(part for part in one.fingerprint if part.name == "source")
        source = {part for part in lookup.fingerprint if part.name == "source"}
        same_source = [kernel for kernel, parts in sources.items() if parts & source]
        if len(same_source) == 1:
            return _was(same_source[0], "has the same source", "renamed or moved")
        last = problem.kernel.rpartition(".")[2]
        same_name = [kernel for kernel in sources if kernel.rpartition(".")[2] == last]
        if len(same_name) == 1:
            return _was(same_name[0], "has this name", "moved and changed")
        alike = [(_likeness(kernel, problem.kernel), kernel) for kernel in sources]
        for likeness, kernel in sorted(alike, reverse=True):
            if likeness < ALIKE:
                break
            if any(found.problem.device == problem.device for found in index.same_key(replace(problem, kernel=kernel))):
                return _was(kernel, "has an entry with this key", "renamed and changed")
        return NO_ENTRY


def _was(kernel: str, has: str, what: str) -> str:
    return f"{NO_ENTRY}; {kernel}, which no test asked for, {has}: {what}?"


def _likeness(one: str, other: str) -> float:
    return SequenceMatcher(None, one.rpartition(".")[2], other.rpartition(".")[2], autojunk=False).ratio()
