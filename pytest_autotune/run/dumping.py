"""Bringing the dump path up to date at the end of a run: what :mod:`pytest_autotune.run.ending` decides, written."""

from __future__ import annotations

import os
from dataclasses import dataclass

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache
from pytest_autotune.run.ending import Beginning, Collected, DumpPolicy, Ending, end, lookups_of
from pytest_autotune.workers.events import Log, events_in


@dataclass(frozen=True)
class Dump:
    """What became of the dump file; the counts are of entries.

    :param path: as the user wrote it.
    :param written_to: where it was written; another path where the file was locked.
    :param new_only: what it held was left as it was, whatever this run came to.
    :param error: why it could not be written; empty if it was.
    """

    path: str
    written_to: str = ""
    entries: int = 0
    added: int = 0
    changed: int = 0
    unchanged: int = 0
    removed: int = 0
    rewritten: bool = False
    new_only: bool = False
    error: str = ""

    @property
    def written(self) -> bool:
        """Whether what the run came to is in a file now."""
        return bool(self.written_to)


@dataclass(frozen=True)
class Destination:
    """Where a run dumps to.

    :param given: the option that named it.
    """

    location: Location
    given: str


def dump(
    destination: Destination,
    beginning: Beginning,
    collected: Collected,
    policy: DumpPolicy,
    log: Log,
) -> tuple[Ending, Dump]:
    """Write what the run comes to; a run that comes to nothing makes no file.

    :param log: keeps, for the next run, what is in no file where the dump cannot be written.
    """
    location, nothing = destination.location, Cache()
    ending: Ending | None = None
    if not (beginning.held.entries or os.path.lexists(location.path)):
        ending = end(beginning, collected, nothing, policy)
        if not ending.merged.cache.entries:
            return ending, Dump(str(location))

    def change(now: Cache) -> Cache:
        nonlocal ending
        if ending is None or now != nothing:
            ending = end(beginning, collected, now, policy)
        return ending.merged.cache

    try:
        updated = stores.update(location, change)
    except CacheError as error:
        message = f"{destination.given}: {error}; {_keep_for_next_run(log, collected)}"
        ending = ending or end(beginning, collected, beginning.held, policy)
        return ending, Dump(str(location), error=message)
    assert ending is not None, "a store that is updated asks for the change"
    merged = ending.merged
    return ending, Dump(
        str(location),
        written_to=updated.written_to,
        entries=len(merged.cache.entries),
        added=merged.added,
        changed=merged.changed,
        unchanged=merged.unchanged,
        removed=merged.removed,
        rewritten=updated.changed,
        new_only=policy.new_only,
    )


def _keep_for_next_run(log: Log, collected: Collected) -> str:
    """Write down, where the dump could not be written, what is in no file yet; and say what is kept."""
    wanted = {lookup.entry for _, lookup in collected.lookups if lookup.entry is not None and lookup.searched}
    if not wanted:
        return "nothing was tuned"
    if log.folder is not None:
        log.save()
    lost = {lookup.entry for _, lookup in lookups_of(events_in(log.unwritten)) if lookup.tuned} & wanted
    why = f"the log cannot be written: {log.error}" if log.error else "no log can be kept"
    if not lost:
        return "what was tuned is kept for the next run with this dump path"
    if lost == wanted:
        return f"what was tuned is lost ({why})"
    kept = len(wanted) - len(lost)
    return f"{kept} of {len(wanted)} tunings are kept for the next run with this dump path, the rest is lost ({why})"
