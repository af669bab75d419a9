"""Bringing the dump path up to date at the end of a run: what :mod:`pytest_autotune.run.settle` decides, written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.stores.store import Store
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import TUNED
from pytest_autotune.run.result import DumpOutcome, RunRequest, RunResult
from pytest_autotune.run.settle import InitialCaches, settle
from pytest_autotune.workers.events import RunFolder


def dump_run(
    store: Store, given: str, beginning: InitialCaches, collected: Collected, request: RunRequest, folder: RunFolder
) -> RunResult:
    """Write what the run comes to; a run that comes to nothing makes no file.

    :param given: the option that named the store.
    :param folder: keeps, for the next run, what is in no file where the dump cannot be written.
    """
    path = str(store)
    request = replace(request, is_shared_store=is_url(path))
    result = settle(beginning, collected, beginning.dump_cache, request)
    if not (beginning.dump_cache.entries or result.merged.cache.entries or path in collected.missing_caches):
        return result.with_dump(DumpOutcome(path))

    def change(now: Cache) -> Cache:
        nonlocal result
        if now != beginning.dump_cache:
            result = settle(beginning, collected, now, request)
        return result.merged.cache

    try:
        updated = store.update(change, removing=request.prune)
    except CacheError as error:
        message = f"{given}: {error}; {_keep_for_next_run(folder, collected)}"
        return result.with_dump(DumpOutcome(path, error=message))
    return result.with_dump(DumpOutcome(path, updated.written_to, updated.changed, remark=updated.beside))


def dump_test_caches(
    place: Callable[[str], Store], given: str, collected: Collected, request: RunRequest, folder: RunFolder
) -> list[RunResult]:
    """Write the caches that tests load for themselves: any run that dumps creates those that are missing.

    An update brings what was missing or stale in one of them into that one.

    :param place: the store of a cache, by its name in lookups.
    :param given: what has named them.
    """
    results = []
    # Of several that a test loads, what is tuned belongs into the last one; without the others, it could not run.
    for name in sorted(
        {*(one.test_cache for _, one in collected.lookups if one.test_cache), *collected.missing_caches}
    ):
        store = place(name)
        held = set()
        with suppress(CacheError):  # said when it is to be written
            held = {entry.identity for entry in store.read(missing_ok=True).entries}
        lookups = tuple(
            (process, replace(lookup, test_cache=""))
            for process, lookup in collected.lookups
            if lookup.test_cache == name
            and (not held or lookup.is_searched or (lookup.entry is not None and lookup.entry.identity in held))
        )
        if (lookups or name in collected.missing_caches) and (request.is_update or not held):
            recovered = tuple(
                replace(one, test_cache="") for one in collected.recovered_lookups if one.test_cache == name
            )
            part = replace(collected, lookups=lookups, recovered_lookups=recovered)
            asked = replace(request, is_dumping=True, is_update=False, prune=False)
            results.append(dump_run(store, given, InitialCaches(), part, asked, folder))
    return results


def _keep_for_next_run(folder: RunFolder, collected: Collected) -> str:
    """Write down, where the dump could not be written, what is in no file yet; and say what is kept."""
    wanted = {lookup.entry for _, lookup in collected.lookups if lookup.entry is not None and lookup.is_searched}
    if not wanted:
        return "nothing was tuned"
    unwritten, error = folder.keep()
    lost = {event.entry for event in unwritten if event.kind == TUNED} & wanted
    if not lost:
        return "what was tuned is kept for the next run with this dump path"
    why = f"the log cannot be written: {error}" if error else "no log can be kept"
    return f"{len(lost)} of {len(wanted)} tunings are lost ({why}); the next run with this dump path has the rest"
