"""Writing the dump path, and the caches of single tests, at the end of a run."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Identity
from pytest_autotune.cache.stores.store import Store
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.dump_plan import UPDATE_ALL, UPDATE_NEW, plan_dump
from pytest_autotune.run.lookup import TUNED, Lookup
from pytest_autotune.run.result import DumpOutcome, RunRequest, RunResult
from pytest_autotune.run.settle import (
    EndedRun,
    InitialCaches,
    build_result,
    find_unused_entries,
    keep_entries,
    settle_lookups,
)
from pytest_autotune.workers.events import RunFolder


def dump_run(
    store: Store, source: str, initial: InitialCaches, collected: Collected, request: RunRequest, folder: RunFolder
) -> RunResult:
    """Write the entries of a run into a store, and return the result. A run without any entry makes no file.

    :param source: the option or marker that named the store.
    :param folder: keeps the tunings for the next run if the store cannot be written.
    """
    path = str(store)
    run = EndedRun(initial, collected, request)
    settled = settle_lookups(run)
    unused_entries = find_unused_entries(run, settled)
    kept = keep_entries(run, settled, unused_entries, initial.dump_cache)
    result = build_result(run, settled, unused_entries, kept)
    if not (initial.dump_cache.entries or kept.merged.cache.entries or path in collected.missing_caches):
        return result.with_dump(DumpOutcome(path))
    try:
        with store.open_for_update(removing=request.plan.prunes) as opened:
            if opened.cache != initial.dump_cache:  # another run has written meanwhile
                kept = keep_entries(run, settled, unused_entries, opened.cache)
                result = build_result(run, settled, unused_entries, kept)
            updated = opened.write(kept.merged.cache)
    except CacheError as error:
        message = f"{source}: {error}; {_keep_for_next_run(folder, collected)}"
        return result.with_dump(DumpOutcome(path, error=message))
    return result.with_dump(DumpOutcome(path, updated.written_to, updated.changed, remark=updated.beside))


def dump_test_caches(
    open_store: Callable[[str], Store], source: str, collected: Collected, request: RunRequest, folder: RunFolder
) -> list[RunResult]:
    """Write the caches that single tests load for themselves, and return a result for each.

    Any run that dumps creates the missing caches. An update also writes into them what was missing or stale. If a test
    loads several caches, its tunings belong into the last: the other caches may belong to other tests.

    :param open_store: opens a cache by its name in lookups.
    :param source: the marker that named the caches.
    """
    names = set(collected.missing_caches)
    for lookup in collected.lookups:
        if lookup.test_cache:
            names.add(lookup.test_cache)
    results = []
    for name in sorted(names):
        store = open_store(name)
        held: set[Identity] = set()
        with suppress(CacheError):  # the dump reports the error
            held = {entry.identity for entry in store.read(missing_ok=True).entries}
        lookups = _select_lookups_of_cache(collected, name, held)
        if not lookups and name not in collected.missing_caches:
            continue
        if held and not request.plan.is_update:
            continue
        recovered = [replace(one, test_cache="") for one in collected.recovered_lookups if one.test_cache == name]
        part = replace(collected, lookups=tuple(lookups), recovered_lookups=tuple(recovered))
        scope = UPDATE_NEW if request.plan.only_adds else UPDATE_ALL
        plan = plan_dump(str(store), scope, keeps_candidates=request.plan.keeps_candidates)
        results.append(dump_run(store, source, InitialCaches(), part, replace(request, plan=plan), folder))
    return results


def _select_lookups_of_cache(collected: Collected, name: str, held: set[Identity]) -> list[Lookup]:
    """Return the lookups of tests that load this cache last, if their entry is new or in the cache.

    :param held: the entries of the cache.
    """
    lookups = []
    for lookup in collected.lookups:
        if lookup.test_cache != name:
            continue
        has_entry_of_cache = lookup.entry is not None and lookup.entry.identity in held
        if not held or lookup.is_searched or has_entry_of_cache:
            lookups.append(replace(lookup, test_cache=""))
    return lookups


def _keep_for_next_run(folder: RunFolder, collected: Collected) -> str:
    """Keep the tunings that are in no file, because the dump could not be written; say in words which are kept."""
    tuned = {lookup.entry for lookup in collected.lookups if lookup.entry is not None and lookup.is_searched}
    if not tuned:
        return "nothing was tuned"
    unwritten, error = folder.keep()
    lost = {event.entry for event in unwritten if event.kind == TUNED} & tuned
    if not lost:
        return "what was tuned is kept for the next run with this dump path"
    why = f"the log cannot be written: {error}" if error else "no log can be kept"
    return f"{len(lost)} of {len(tuned)} tunings are lost ({why}); the next run with this dump path has the rest"
