"""The user's wishes for the end of a run, with the plan of its dump.

The plan decides which lookups belong into the cache, and which entries of the cache may change.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.merge import MergeRules, without_candidates
from pytest_autotune.cache.model import Cache, Entry, Identity, Problem
from pytest_autotune.run.lookup import Lookup, Policy
from pytest_autotune.workers.events import Event

#: The values of ``--autotune-update``: replace and add entries; only add entries; also remove unused entries.
UPDATE_ALL, UPDATE_NEW, UPDATE_PRUNE = "all", "new", "prune"


@dataclass(frozen=True)
class NoDump:
    """The run writes no cache. Its reports show what a dump into the loaded caches would do.

    :param scope: the value of ``--autotune-update``; ``"all"`` without that option.
    :param is_update: the cache that is written was loaded, too.
    :param keeps_candidates: keep every candidate of an entry that was measured and has a choice.
    """

    scope: str = UPDATE_ALL
    is_update: bool = False
    keeps_candidates: bool = False

    @property
    def writes(self) -> bool:
        """Whether the run writes a cache."""
        return False

    @property
    def only_adds(self) -> bool:
        """Whether the entries of every problem that the cache has stay as they are."""
        return self.scope == UPDATE_NEW

    @property
    def prunes(self) -> bool:
        """Whether the user wants unused entries to be removed. Only a complete run removes them."""
        return self.scope == UPDATE_PRUNE

    @property
    def judges_unused(self) -> bool:
        """Whether a complete run knows which entries of the cache are unused."""
        return True

    def removes_old_names(self, is_complete: bool) -> bool:
        """Whether the entry of a renamed kernel loses its old name."""
        return is_complete

    def build_base(self, loaded: Iterable[Cache], dump_cache: Cache) -> Cache:
        """Return the cache to merge the run's entries into.

        :param loaded: the loaded caches.
        :param dump_cache: the content of the dump path.
        """
        entries: list[Entry] = []
        for cache in loaded:
            entries += cache.entries
        return Cache(tuple(entries))

    def select_lookups(
        self, lookups: Iterable[Lookup], loaded: Collection[Identity], dump_cache: Cache
    ) -> list[Lookup]:
        """Return the lookups whose entries belong into the cache.

        :param loaded: the entries of the loaded files and of the dump path.
        :param dump_cache: the content of the dump path.
        """
        return list(lookups)

    def select_used(self, used: Sequence[Entry], dump_cache: Cache, recovered: Iterable[Lookup]) -> list[Entry]:
        """Return the used entries that belong into the cache.

        :param recovered: the lookups of killed runs with this dump path.
        """
        return list(used)

    def with_kept_candidates(self, entry: Entry) -> Entry:
        """Return an entry with the candidates that the cache keeps."""
        if self.keeps_candidates:
            return entry
        return without_candidates(entry)

    def build_rules(self, is_complete: bool) -> MergeRules:
        """Return the rules of the merge."""
        return MergeRules(
            keep_candidates=self.keeps_candidates,
            keep_pruned=not is_complete,
            replace_specializations=self.prunes and is_complete,
        )


@dataclass(frozen=True)
class FileDump(NoDump):
    """The run writes a file or a folder. See :class:`NoDump` for the parameters."""

    @property
    def writes(self) -> bool:
        return True

    def build_base(self, loaded: Iterable[Cache], dump_cache: Cache) -> Cache:
        return dump_cache

    def select_lookups(
        self, lookups: Iterable[Lookup], loaded: Collection[Identity], dump_cache: Cache
    ) -> list[Lookup]:
        """Return the lookups whose entries belong into the cache; see :class:`NoDump`.

        A lookup of a test with a cache of its own is left out if no search took place and a file of the run has such an
        entry, too. An update leaves out all lookups of such tests, because it writes them into the tests' caches.
        """
        protected: set[Problem] = set()
        if self.only_adds:
            protected = {entry.problem for entry in dump_cache.entries}
        selected = []
        for lookup in lookups:
            if lookup.problem in protected:
                continue
            has_other_choice = lookup.identity in loaded and not lookup.is_searched
            if lookup.test_cache and (self.is_update or has_other_choice):
                continue
            selected.append(lookup)
        return selected


@dataclass(frozen=True)
class SharedDump(FileDump):
    """The run adds to a store at a URL, which other runs use as well. See :class:`NoDump` for the parameters."""

    @property
    def judges_unused(self) -> bool:
        """Whether a complete run knows which entries are unused: other runs may use them, unless the user prunes."""
        return self.prunes

    def removes_old_names(self, is_complete: bool) -> bool:
        return False

    def select_used(self, used: Sequence[Entry], dump_cache: Cache, recovered: Iterable[Lookup]) -> list[Entry]:
        """Return the used entries that the store itself has. Entries of loaded files belong to these files."""
        entries_in_store = {entry.identity: entry for entry in dump_cache.entries}
        for lookup in recovered:
            if lookup.entry is not None:
                entries_in_store[lookup.entry.identity] = lookup.entry
        selected = []
        for entry in used:
            if entry.identity in entries_in_store:
                selected.append(entries_in_store[entry.identity])
        return selected

    def build_rules(self, is_complete: bool) -> MergeRules:
        return MergeRules(
            keep_candidates=self.keeps_candidates,
            keep_pruned=not is_complete,
            keep_other_fingerprints=True,
            replace_specializations=self.prunes and is_complete,
        )


def plan_dump(path: str, scope: str = UPDATE_ALL, is_update: bool = False, keeps_candidates: bool = False) -> NoDump:
    """Return the plan for a dump into this path or URL. See :class:`NoDump` for the other parameters."""
    if is_url(path):
        return SharedDump(scope, is_update, keeps_candidates)
    return FileDump(scope, is_update, keeps_candidates)


class EntryReplacer(Protocol):
    """A mode that may replace entries of a dump; see :class:`pytest_autotune.run.mode.Mode`."""

    def list_replacing_entries(self, events: Sequence[Event], lookups: Sequence[Lookup]) -> Iterable[Entry]:
        """Return the entries that a dump holds in place of the entries that were used."""


@dataclass(frozen=True)
class RunRequest:
    """The user's wishes for the end of a run.

    :param plan: which cache the run writes, and how.
    :param update_arguments: the options that bring the cache up to date, as a user would type them; empty if no
        options do.
    :param modes: of the run.
    :param tuners_named_by: the option that names the tuners to act on, as the user wrote it.
    :param adapters: the tuners that have an adapter; None if nobody has listed them.
    :param version_checks: the ways to check whether choices are still good under other versions, in words.
    """

    plan: NoDump = field(default_factory=NoDump)
    update_arguments: str = ""
    policy: Policy = field(default_factory=Policy)
    modes: tuple[EntryReplacer, ...] = ()
    tuners_named_by: str = ""
    adapters: tuple[str, ...] | None = None
    version_checks: tuple[str, ...] = ()
