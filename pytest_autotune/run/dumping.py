"""Writing the dump path, and the caches of single tests: step 3 of the end of a run.

:mod:`pytest_autotune.run.settle` describes all steps. The dump path is the cache that the run writes. The marker or
fixture ``autotune_cache`` loads a test's own cache for this test alone. A lookup is one question of a tuner in one
process, with the entry that the tuner used or recorded.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location, is_url
from pytest_autotune.cache.model import Cache, Entry, Identity
from pytest_autotune.cache.stores import open_store
from pytest_autotune.cache.stores.store import Store, UpdateOutcome
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.finish import finish_run
from pytest_autotune.run.lookup import TUNED, Lookup
from pytest_autotune.run.request import UPDATE_ALL, UPDATE_NEW, DumpPlan, RunRequest, plan_dump
from pytest_autotune.run.result import DumpOutcome, RunResult
from pytest_autotune.run.settle import EndedRun, InitialCaches, settle_run
from pytest_autotune.workers.events import RunFolder


def dump_run(
    store: Store,
    named_by: str,
    initial: InitialCaches,
    collected: Collected,
    request: RunRequest,
    folder: RunFolder,
    makes_empty_file: bool = False,
) -> RunResult:
    """Write the entries of a run into a store, and return the result.

    :param named_by: the option or marker that named the store.
    :param initial: the caches when the run began, with the content of the store.
    :param folder: keeps the tunings for the next run if the store cannot be written.
    :param makes_empty_file: a run without any entry makes a file, too, because a test loads it.
    """
    path = str(store)
    settled = settle_run(EndedRun.of_one_process(initial, collected, request))
    result = finish_run(settled, initial.dump_cache)
    has_entries = bool(initial.dump_cache.entries or result.merged.cache.entries)
    if not has_entries and not makes_empty_file:
        return result.with_dump(DumpOutcome(path))
    try:
        with store.open_for_update(removing=request.plan.prunes) as opened:
            lost_entries = request.plan.list_lost_entries(initial.dump_cache, opened.cache)
            if opened.cache != initial.dump_cache:
                # Another process, or a test, has changed the store since this run began. The run merges again.
                present_cache = replace(opened.cache, entries=(*opened.cache.entries, *lost_entries))
                result = finish_run(settled, present_cache)
            update = opened.write(result.merged.cache)
    except CacheError as error:
        message = f"{named_by}: {error}; {_keep_for_next_run(folder, collected)}"
        return result.with_dump(DumpOutcome(path, error=message))
    restored_count = _count_restored(lost_entries, result.merged.cache)
    return result.with_dump(_describe_dump(path, named_by, update, restored_count))


def _describe_dump(path: str, named_by: str, update: UpdateOutcome, restored_count: int) -> DumpOutcome:
    """Return the outcome of the dump for the report, after the store has written a file.

    :param named_by: the option or marker that named the store.
    :param restored_count: the number of lost entries that the dump has written again.
    """
    dump = DumpOutcome(path, update.written_to, update.changed)
    if update.is_refused:
        # The user asked for this store, so the file that was written beside it is not enough.
        return replace(dump, error=f"{named_by}: {path} {update.remark}")
    return replace(
        dump,
        remark=update.remark,
        lost_comment_lines=update.lost_comment_lines,
        restored_count=restored_count,
    )


def _count_restored(lost_entries: Sequence[Entry], written: Cache) -> int:
    """Return how many lost entries the dump has written again. The others belong to re-tuned or pruned problems."""
    written_identities = {entry.identity for entry in written.entries}
    return sum(entry.identity in written_identities for entry in lost_entries)


class _TestCacheLocations:
    """The locations of the caches that tests load for themselves. All spellings of a path are one cache.

    Attribute: ``by_name``, the name of each cache -> its location by the shortest spelling, which messages show. The
    name is the text that all spellings share.

    :param locate: returns the location of a cache by its spelling in the reports of this run.
    """

    def __init__(self, locate: Callable[[str], Location]) -> None:
        self._locate = locate
        #: Spelling, or the absolute path in a killed run -> the name.
        self._names: dict[str, str] = {}
        self.by_name: dict[str, Location] = {}

    def with_names(self, collected: Collected) -> Collected:
        """Return the reports of a run with the name of each cache in place of its spellings."""
        spellings = {*collected.missing_caches, *collected.test_cache_entries}
        spellings.update(lookup.test_cache for lookup in collected.lookups)
        # Workers report their spellings in any order, so the first spelling is not the same in each run.
        for spelling in sorted(spellings, key=lambda text: (len(text), text)):
            self._find_name(spelling)
        lookups = []
        for lookup in collected.lookups:
            lookups.append(replace(lookup, test_cache=self._find_name(lookup.test_cache)))
        missing_names = {self._find_name(spelling): None for spelling in collected.missing_caches}
        entries_by_name: defaultdict[str, dict[Identity, Entry]] = defaultdict(dict)
        for spelling, entries in collected.test_cache_entries.items():
            entries_by_name[self._find_name(spelling)].update({entry.identity: entry for entry in entries})
        recovered_lookups = []
        for lookup in collected.recovered_lookups:
            recovered_lookups.append(replace(lookup, test_cache=self._find_recovered_name(lookup)))
        return replace(
            collected,
            lookups=tuple(lookups),
            recovered_lookups=tuple(recovered_lookups),
            missing_caches=tuple(missing_names),
            test_cache_entries={name: tuple(entries.values()) for name, entries in entries_by_name.items()},
        )

    def _find_name(self, spelling: str) -> str:
        """Return the name of a cache; empty for an empty spelling."""
        if spelling and spelling not in self._names:
            self._names[spelling] = self._add(self._locate(spelling))
        return self._names.get(spelling, "")

    def _find_recovered_name(self, lookup: Lookup) -> str:
        """Return the name of the cache to which a lookup of a killed run belongs; empty if it belongs to none."""
        path = lookup.test_cache_path
        if not path or is_url(path):
            return self._find_name(lookup.test_cache)
        if path not in self._names:
            location = self._locate(lookup.test_cache)
            location_in_killed_run = Location(Path(path), path.endswith("/"))
            if location.unique_text != location_in_killed_run.unique_text:
                # The killed run began in another folder, in which the spelling names another path.
                location = location_in_killed_run
            self._names[path] = self._add(location)
        return self._names[path]

    def _add(self, location: Location) -> str:
        """Add a location, unless another spelling of the same cache was added, and return the name of the cache."""
        self.by_name.setdefault(location.unique_text, location)
        return location.unique_text


def dump_test_caches(
    locate: Callable[[str], Location], named_by: str, collected: Collected, request: RunRequest, folder: RunFolder
) -> list[RunResult]:
    """Write the tests' own caches, and return a result for each cache.

    - Any run that dumps creates the missing caches.
    - An update also writes missing and stale entries into existing caches.
    - If a test loads several caches, its tunings belong to the last cache. The others may belong to other tests.
    - A tuning of a killed run is written even if no test of this run loads its cache.

    :param locate: returns the location of a cache that a test of this run named by this path.
    :param named_by: the marker that named the caches.
    """
    locations = _TestCacheLocations(locate)
    collected = locations.with_names(collected)
    cache_names = set(collected.missing_caches)
    for lookup in (*collected.lookups, *collected.recovered_lookups):
        if lookup.test_cache:
            cache_names.add(lookup.test_cache)
    results = []
    for name in sorted(cache_names):
        location = locations.by_name[name]
        try:
            store = open_store(location)
        except CacheError as error:
            # A killed run may have used a URL whose library is not installed any more.
            message = f"{named_by}: {error}; {_keep_for_next_run(folder, collected)}"
            results.append(RunResult().with_dump(DumpOutcome(str(location), error=message)))
            continue
        result = _dump_test_cache(store, name, named_by, collected, request, folder)
        if result is not None:
            results.append(result)
    return results


def _dump_test_cache(
    store: Store, name: str, named_by: str, collected: Collected, request: RunRequest, folder: RunFolder
) -> RunResult | None:
    """Write a test's own cache, and return the result; None if the run leaves the cache as it is.

    :param name: the cache, as lookups name it.
    """
    cache_before = Cache(collected.test_cache_entries.get(name, ()))
    # A test may have deleted the file after another test loaded it: the entries still belong to the cache.
    old_identities = _list_identities(cache_before) | _read_identities(store)
    collected_for_cache = _select_reports_of_cache(collected, name, old_identities)
    has_lookups = bool(collected_for_cache.lookups or collected_for_cache.recovered_lookups)
    is_missing = name in collected.missing_caches
    if not has_lookups and not is_missing:
        # The tests of this cache neither tuned nor used an entry for it.
        return None
    if old_identities and not request.plan.is_update:
        # A dump into another path leaves an existing cache as it is.
        return None
    request_for_cache = replace(request, plan=_plan_dump_of_test_cache(store, request.plan))
    initial = InitialCaches(dump_cache=cache_before)
    return dump_run(
        store, named_by, initial, collected_for_cache, request_for_cache, folder, makes_empty_file=is_missing
    )


def _plan_dump_of_test_cache(store: Store, plan: DumpPlan) -> DumpPlan:
    """Return the plan for the dump of a test's own cache.

    :param plan: of the run. Even with ``--autotune-update=prune``, entries that no test asked for stay.
    """
    scope = UPDATE_ALL
    if plan.only_adds:
        scope = UPDATE_NEW
    return plan_dump(is_url(str(store)), scope, keeps_candidates=plan.keeps_candidates)


def _list_identities(cache: Cache) -> set[Identity]:
    """Return the identities of the entries in a cache."""
    return {entry.identity for entry in cache.entries}


def _read_identities(store: Store) -> set[Identity]:
    """Return the identities of the entries in a store; none if it cannot be read. The dump reports the error."""
    try:
        return _list_identities(store.read(missing_ok=True))
    except CacheError:
        return set()


def _select_reports_of_cache(collected: Collected, name: str, old_identities: set[Identity]) -> Collected:
    """Return the reports of a run for the dump of a test's own cache: its lookups are those of the cache.

    These are lookups of tests that load this cache last. If the cache has entries, a lookup that used an entry belongs
    to the cache only if the cache has that entry. An empty cache receives every entry that its tests used.

    :param name: the cache, as lookups name it.
    :param old_identities: the identities of the entries that the cache has; empty for an empty cache.
    """
    lookups = []
    other_lookups = []
    for lookup in collected.lookups:
        if lookup.test_cache != name:
            other_lookups.append(lookup)
            continue
        has_used_cache = lookup.entry is not None and lookup.entry.identity in old_identities
        if not old_identities or lookup.is_searched or has_used_cache:
            lookups.append(_as_lookup_of_run(lookup))
    recovered_lookups = []
    for lookup in collected.recovered_lookups:
        if lookup.test_cache == name:
            recovered_lookups.append(_as_lookup_of_run(lookup))
    return replace(
        collected,
        lookups=tuple(lookups),
        recovered_lookups=tuple(recovered_lookups),
        other_lookups=tuple(other_lookups),
    )


def _as_lookup_of_run(lookup: Lookup) -> Lookup:
    """Return a lookup for the dump of its test's own cache: for this dump, the cache is the dump path."""
    return replace(lookup, test_cache="")


def _keep_for_next_run(folder: RunFolder, collected: Collected) -> str:
    """Keep the tunings of a run in its log, because the dump could not be written.

    Most tunings are in the log already. This function writes the tunings whose log a test has removed.

    :returns: whether tunings are kept or lost, in words for the end of an error message.
    """
    tuned_entries = {lookup.entry for lookup in collected.lookups if lookup.is_searched}
    if not tuned_entries:
        return "this run tuned nothing, so nothing is lost"
    unwritten_events, error = folder.keep()
    unwritten_entries = {event.entry for event in unwritten_events if event.kind == TUNED}
    # The log has the tunings for all caches of the run.
    lost_entries = tuned_entries & unwritten_entries
    if not lost_entries:
        return "the tunings are kept, and the next run with this dump path writes them"
    reason = "the run has no log"
    if error:
        reason = f"the log cannot be written: {error}"
    message = f"{len(lost_entries)} of {len(tuned_entries)} tunings are lost ({reason})"
    if lost_entries == tuned_entries:
        return message
    return f"{message}; the next run with this dump path writes the others"
