"""Writing the dump path, and the caches of single tests: step 3 of the end of a run.

:mod:`pytest_autotune.run.settle` describes all steps.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.model import Identity
from pytest_autotune.cache.stores.store import Store
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.finish import finish_run
from pytest_autotune.run.lookup import TUNED
from pytest_autotune.run.request import UPDATE_ALL, UPDATE_NEW, RunRequest, plan_dump
from pytest_autotune.run.result import DumpOutcome, RunResult
from pytest_autotune.run.settle import EndedRun, InitialCaches, settle_run
from pytest_autotune.workers.events import RunFolder


def dump_run(
    store: Store, source: str, initial: InitialCaches, collected: Collected, request: RunRequest, folder: RunFolder
) -> RunResult:
    """Write the entries of a run into a store, and return the result.

    A run without any entry makes no file, unless a test loads a cache that is missing. The merge takes the content that
    the store has under its lock.

    :param source: the option or marker that named the store.
    :param folder: keeps the tunings for the next run if the store cannot be written.
    """
    path = str(store)
    settled = settle_run(EndedRun.of_one_process(initial, collected, request))
    result = finish_run(settled, initial.dump_cache)
    has_entries = bool(initial.dump_cache.entries or result.merged.cache.entries)
    if not has_entries and path not in collected.missing_caches:
        # No test loads this cache, so nobody needs an empty file.
        return result.with_dump(DumpOutcome(path))
    try:
        with store.open_for_update(removing=request.plan.prunes) as opened:
            if opened.cache != initial.dump_cache:
                # Another run has changed the store since this run began.
                result = finish_run(settled, opened.cache)
            updated = opened.write(result.merged.cache)
    except CacheError as error:
        message = f"{source}: {error}; {_keep_for_next_run(folder, collected)}"
        return result.with_dump(DumpOutcome(path, error=message))
    dump = DumpOutcome(
        path,
        updated.written_to,
        updated.changed,
        remark=updated.beside,
        lost_comment_lines=updated.lost_comment_lines,
    )
    return result.with_dump(dump)


def dump_test_caches(
    open_store: Callable[[str], Store], source: str, collected: Collected, request: RunRequest, folder: RunFolder
) -> list[RunResult]:
    """Write the caches that single tests load with the marker, and return a result for each.

    - Any run that dumps creates the missing caches.
    - An update also writes missing and stale entries into existing caches.
    - If a test loads several caches, its tunings belong to the last cache. The others may belong to other tests.

    :param open_store: opens a cache by its name in lookups.
    :param source: the marker that named the caches.
    """
    plan = request.plan
    names = set(collected.missing_caches)
    for lookup in collected.lookups:
        if lookup.test_cache:
            names.add(lookup.test_cache)
    # An entry that no test of a test's own cache asked for is never removed.
    scope = UPDATE_ALL
    if plan.only_adds:
        scope = UPDATE_NEW
    results = []
    for name in sorted(names):
        store = open_store(name)
        old_identities = _read_identities(store)
        collected_for_cache = _select_reports_of_cache(collected, name, old_identities)
        if not collected_for_cache.lookups and name not in collected.missing_caches:
            # The tests of this cache neither tuned nor used an entry for it.
            continue
        if old_identities and not plan.is_update:
            # A dump into another path leaves an existing cache as it is.
            continue
        plan_of_cache = plan_dump(is_url(str(store)), scope, keeps_candidates=plan.keeps_candidates)
        cache_request = replace(request, plan=plan_of_cache)
        results.append(dump_run(store, source, InitialCaches(), collected_for_cache, cache_request, folder))
    return results


def _read_identities(store: Store) -> set[Identity]:
    """Return the identities of the entries in a store; none if it cannot be read. The dump reports the error."""
    try:
        return {entry.identity for entry in store.read(missing_ok=True).entries}
    except CacheError:
        return set()


def _select_reports_of_cache(collected: Collected, name: str, old_identities: set[Identity]) -> Collected:
    """Return the reports of a run with only the lookups whose entries belong to a test's own cache.

    These are lookups of tests that load this cache last. If the cache has entries, a hit belongs to the cache only if
    it used an entry of this cache. An empty cache receives every entry that its tests used.

    :param name: the cache, as lookups name it.
    :param old_identities: the identities of the entries that the cache has.
    """
    lookups = []
    for lookup in collected.lookups:
        if lookup.test_cache != name:
            continue
        used_entry_of_cache = lookup.entry is not None and lookup.entry.identity in old_identities
        if not old_identities or lookup.is_searched or used_entry_of_cache:
            # For the dump of this cache, the cache is the dump path and no test's own cache.
            lookups.append(replace(lookup, test_cache=""))
    recovered_lookups = []
    for lookup in collected.recovered_lookups:
        if lookup.test_cache == name:
            recovered_lookups.append(replace(lookup, test_cache=""))
    return replace(collected, lookups=tuple(lookups), recovered_lookups=tuple(recovered_lookups))


def _keep_for_next_run(folder: RunFolder, collected: Collected) -> str:
    """Keep the tunings of a run in its log, because the dump could not be written.

    Most tunings are in the log already. This function writes the tunings whose log a test has removed.

    :returns: whether tunings are kept or lost, in words for the end of an error message.
    """
    tuned_entries = {lookup.entry for lookup in collected.lookups if lookup.is_searched}
    if not tuned_entries:
        return "nothing was tuned"
    unwritten_events, error = folder.keep()
    lost_entries = {event.entry for event in unwritten_events if event.kind == TUNED} & tuned_entries
    if not lost_entries:
        return "what was tuned is kept for the next run with this dump path"
    reason = "no log can be kept"
    if error:
        reason = f"the log cannot be written: {error}"
    counts = f"{len(lost_entries)} of {len(tuned_entries)}"
    return f"{counts} tunings are lost ({reason}); the next run with this dump path has the rest"
