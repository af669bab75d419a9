"""The user's wishes for the end of a run, with the plan of its dump.

A dump writes the entries of a run into a cache, the dump path. A lookup is one question of a tuner in one process; its
entry is an entry of a loaded cache that the tuner used, or the result of a search. An identity names an entry: it is
the entry's problem (kernel, key and device) with its fingerprint (digests of the kernel's source and the like).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from pytest_autotune.cache.merge import MergeRules, without_candidates
from pytest_autotune.cache.model import Cache, Entry, Identity, Problem
from pytest_autotune.run.lookup import Lookup, Policy
from pytest_autotune.workers.events import Event

#: The values of ``--autotune-update``: replace and add entries; only add entries; also remove unused entries.
UPDATE_ALL, UPDATE_NEW, UPDATE_PRUNE = "all", "new", "prune"


@dataclass(frozen=True)
class DumpPlan(ABC):
    """The rules of a dump: the lookups and entries that belong to the cache, and the entries that may change.

    There are three kinds: :class:`NoDump`, :class:`FileDump` and :class:`SharedDump`. The methods with a body have the
    rules of the first two kinds.

    :param scope: the value of ``--autotune-update``; ``"all"`` without that option.
    :param is_update: the cache that is written was loaded, too.
    :param keeps_candidates: keep every candidate of an entry that was measured and has a choice.
    """

    scope: str = UPDATE_ALL
    is_update: bool = False
    keeps_candidates: bool = False

    @property
    @abstractmethod
    def writes(self) -> bool:
        """Whether the run writes a cache."""

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
        """Whether the cache drops the entries of renamed kernels under their old names.

        Only a prune drops them. A kernel of the old name may still exist, although no test calls it.
        """
        return self.prunes and is_complete

    def list_lost_entries(self, cache_before: Cache, cache_now: Cache) -> list[Entry]:
        """Return the entries that the cache has lost during the run, and that the dump writes again.

        :param cache_before: the content when the run began.
        :param cache_now: the content at the end of the run.
        """
        return []

    @abstractmethod
    def build_base(self, loaded: Iterable[Cache], dump_cache: Cache) -> Cache:
        """Return the cache to merge the run's entries into.

        :param loaded: the loaded caches.
        :param dump_cache: the content of the dump path.
        """

    @abstractmethod
    def select_lookups(
        self, lookups: Iterable[Lookup], file_identities: Collection[Identity], dump_cache: Cache
    ) -> list[Lookup]:
        """Return the lookups whose entries belong to the cache.

        :param file_identities: of the entries in the loaded files and in the dump path.
        :param dump_cache: the content of the dump path.
        """

    @abstractmethod
    def select_recovered(
        self, lookups: Iterable[Lookup], file_identities: Collection[Identity], dump_cache: Cache
    ) -> list[Lookup]:
        """Return the tunings of killed runs that belong to the cache.

        :param lookups: the tunings of killed runs with this dump path.
        :param file_identities: of the entries in the loaded files and in the dump path.
        :param dump_cache: the content of the dump path.
        """

    def select_used(self, used: Sequence[Entry], base: Cache) -> list[Entry]:
        """Return the used entries that belong to the cache.

        :param used: the entries that this run used without measuring them.
        :param base: the cache that the run's entries are merged into. It has the entries of killed runs.
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


class NoDump(DumpPlan):
    """The run writes no cache. Its reports show the changes that a dump into the loaded caches would make."""

    @property
    def writes(self) -> bool:
        return False

    def build_base(self, loaded: Iterable[Cache], dump_cache: Cache) -> Cache:
        """Return the entries of all loaded caches as the cache to merge into; see :class:`DumpPlan`."""
        entries: list[Entry] = []
        for cache in loaded:
            entries += cache.entries
        return Cache(tuple(entries))

    def select_lookups(
        self, lookups: Iterable[Lookup], file_identities: Collection[Identity], dump_cache: Cache
    ) -> list[Lookup]:
        """Return all lookups: reports show every change; see :class:`DumpPlan`."""
        return list(lookups)

    def select_recovered(
        self, lookups: Iterable[Lookup], file_identities: Collection[Identity], dump_cache: Cache
    ) -> list[Lookup]:
        """Return no lookup: a later run that writes the cache takes the tunings; see :class:`DumpPlan`."""
        return []


class FileDump(DumpPlan):
    """The run writes a file or a folder, which belongs to this suite alone."""

    @property
    def writes(self) -> bool:
        return True

    def list_lost_entries(self, cache_before: Cache, cache_now: Cache) -> list[Entry]:
        """Return the lost entries; see :class:`DumpPlan`. A test may have deleted, emptied or shortened the file.

        An entry is not lost if another process has replaced it by an entry of the same problem, or has renamed its
        kernel.
        """
        problems_now = {entry.problem for entry in cache_now.entries}
        missing_entries = [entry for entry in cache_before.entries if entry.problem not in problems_now]
        if not missing_entries:
            return []
        # After a rename, the cache has the entry under a name that it did not have before.
        problems_before = {entry.problem for entry in cache_before.entries}
        identities_under_new_names = set()
        for entry in cache_now.entries:
            if entry.problem not in problems_before:
                identities_under_new_names.add(without_kernel_name(entry.identity))
        lost_entries = []
        for entry in missing_entries:
            if without_kernel_name(entry.identity) not in identities_under_new_names:
                lost_entries.append(entry)
        return lost_entries

    def build_base(self, loaded: Iterable[Cache], dump_cache: Cache) -> Cache:
        return dump_cache

    def select_lookups(
        self, lookups: Iterable[Lookup], file_identities: Collection[Identity], dump_cache: Cache
    ) -> list[Lookup]:
        """Return the lookups whose entries belong to the cache; see :class:`DumpPlan`.

        With ``--autotune-update=new``, the lookups of problems that the dump path has are left out.
        """
        protected_problems: set[Problem] = set()
        if self.only_adds:
            protected_problems = {entry.problem for entry in dump_cache.entries}
        selected_lookups = []
        for lookup in lookups:
            if lookup.problem in protected_problems or self._belongs_to_test_cache(lookup, file_identities):
                continue
            selected_lookups.append(lookup)
        return selected_lookups

    def select_recovered(
        self, lookups: Iterable[Lookup], file_identities: Collection[Identity], dump_cache: Cache
    ) -> list[Lookup]:
        """Return the tunings of killed runs that belong to the cache; see :class:`DumpPlan`."""
        lacking_lookups = select_lacking(lookups, dump_cache)
        return [lookup for lookup in lacking_lookups if not self._belongs_to_test_cache(lookup, file_identities)]

    def _belongs_to_test_cache(self, lookup: Lookup, file_identities: Collection[Identity]) -> bool:
        """Whether the entry of a lookup belongs only to the cache that its test loads for itself.

        :param file_identities: of the entries in the loaded files and in the dump path.
        """
        if not lookup.test_cache:
            # The test loads no cache for itself.
            return False
        if self.is_update:
            # An update writes the entry into the test's cache.
            return True
        # The entry that the test used must not replace the entry of a file. A new entry from a search may.
        return lookup.identity in file_identities and not lookup.is_searched


class SharedDump(FileDump):
    """The run adds to a store at a URL. It writes the same lookups as into a file, but other runs use the store, too.

    An entry that this run does not use may be used by other runs. It stays, unless the user prunes.
    """

    def list_lost_entries(self, cache_before: Cache, cache_now: Cache) -> list[Entry]:
        """Return no entry: other runs may prune the store at any time."""
        return []

    @property
    def judges_unused(self) -> bool:
        """Whether the run lists unused entries: only if the user prunes, because other runs may use these entries."""
        return self.prunes

    def removes_old_names(self, is_complete: bool) -> bool:
        """Never remove an old name: a run of older code may still use it."""
        return False

    def select_used(self, used: Sequence[Entry], base: Cache) -> list[Entry]:
        """Return the used entries that the store has, as it has them; see :class:`DumpPlan`.

        The other used entries belong to loaded files. The entries of killed runs count as entries of the store, because
        this dump adds them to the store.
        """
        store_entries = {entry.identity: entry for entry in base.entries}
        used_identities = [entry.identity for entry in used]
        return [store_entries[identity] for identity in used_identities if identity in store_entries]

    def build_rules(self, is_complete: bool) -> MergeRules:
        """Return the rules of the merge. Entries with other fingerprints stay: runs of other code use them."""
        return replace(super().build_rules(is_complete), keep_other_fingerprints=True)


def select_lacking(recovered: Iterable[Lookup], cache: Cache) -> list[Lookup]:
    """Return the tunings of killed runs that a cache lacks: it has no choice of the same identity.

    If the cache has a choice, the choice may be newer than the killed run, for example from a pull. It stays, unless
    the killed run rejected the choice that it found.
    """
    chosen_identities = {entry.identity for entry in cache.entries if not entry.is_failure}
    lacking_lookups = []
    for lookup in recovered:
        if lookup.has_rejected_entry or lookup.identity not in chosen_identities:
            lacking_lookups.append(lookup)
    return lacking_lookups


def without_kernel_name(identity: Identity) -> Identity:
    """Return an identity with the same placeholder for every kernel's name.

    It is equal for the entries of a kernel before and after its rename.
    """
    return Identity(replace(identity.problem, kernel="any"), identity.fingerprint)


def plan_dump(
    to_url: bool, scope: str = UPDATE_ALL, is_update: bool = False, keeps_candidates: bool = False
) -> DumpPlan:
    """Return the plan for a dump. See :class:`DumpPlan` for the other parameters.

    :param to_url: whether the dump goes to a URL, and not to a file or folder.
    """
    if to_url:
        return SharedDump(scope, is_update, keeps_candidates)
    return FileDump(scope, is_update, keeps_candidates)


class EntryReplacer(Protocol):
    """A mode that may replace entries of a dump; see :class:`pytest_autotune.run.session.Mode`."""

    def list_replacing_entries(self, events: Sequence[Event], lookups: Sequence[Lookup]) -> Iterable[Entry]:
        """Return the entries that a dump holds in place of the entries that were used."""


@dataclass(frozen=True)
class RunRequest:
    """The user's wishes for the end of a run.

    :param plan: which cache the run writes, and how.
    :param update_arguments: the options that bring the cache up to date, as a user would type them; empty if no
        options do.
    :param prune_command: the command that drops the unused entries of the run, if no single pytest process can drop
        them; else empty.
    :param rerun_words: the beginning of a hint to run pytest again. A hint of a command must name pytest.
    :param modes: the modes of the run, which may replace entries of the dump.
    :param tuners_named_by: the option that names the tuners to act on, as the user wrote it.
    :param adapters: the tuners that have an adapter; None if nobody has listed them.
    :param mode_hints: the modes that check choices of other versions, in words: ``"--autotune-verify tells whether the
        choices are still the fastest"``.
    """

    plan: DumpPlan = field(default_factory=NoDump)
    update_arguments: str = ""
    policy: Policy = field(default_factory=Policy)
    modes: tuple[EntryReplacer, ...] = ()
    tuners_named_by: str = ""
    adapters: tuple[str, ...] | None = None
    mode_hints: tuple[str, ...] = ()
    prune_command: str = ""
    rerun_words: str = "Re-run"

    @property
    def shown_update_arguments(self) -> str:
        """The update arguments as a hint shows them: with ``--autotune-update=all``.

        A user may type paths of tests behind them. Pytest would take a path behind the bare option for its value.
        """
        if self.update_arguments.endswith("--autotune-update"):
            return f"{self.update_arguments}={UPDATE_ALL}"
        return self.update_arguments
