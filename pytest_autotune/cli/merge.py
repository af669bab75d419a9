"""``pytest-autotune merge``: caches of several jobs, machines or branches as one; ``compact``: a store's segments."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location, is_url
from pytest_autotune.cache.merge import CombinedCaches, combine_caches
from pytest_autotune.cache.model import Cache, Problem
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.cli.output import (
    PATH,
    describe_choice_and_time,
    describe_on_device,
    print_lines,
    refuse_lossy,
    safe,
)


@click.command("merge", short_help="several caches as one")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=PATH,
    required=True,
    help="Where to write; a cache that is there is replaced, one at a URL is added to.",
)
@click.option(
    "--base", metavar="FILE", type=PATH, help="The cache that all of them began with: what one removed is removed."
)
def command(files: tuple[str, ...], output: str, base: str | None) -> None:
    """Write all entries of all FILEs into one cache, those of every device.

    Where they have different entries of one problem and fingerprint, the one stays that a run would keep:
    that of the highest generation (how often it was replaced), then that with the lowest time. These are listed.
    """
    if len(set(files)) < len(files):
        raise CacheError(next(path for path in files if files.count(path) > 1), "is named twice")
    sides = {path: refuse_lossy(stores.read_cache(path)) for path in files}
    ancestor = stores.read_cache(base) if base is not None else None
    combined, gone = combine_caches(sides, ancestor), set[Problem]()
    target = Location.parse(output, Path()).resolved
    added_to = [path for path in files if Location.parse(path, Path()).resolved == target]
    if is_url(output):  # others add to it
        added_to.append(output)

    def change(now: Cache) -> Cache:
        nonlocal combined, gone
        if added_to:  # a dump may have written to it meanwhile
            combined = combine_caches({**sides, **dict.fromkeys(added_to, now)}, ancestor)
        there = (*combined.cache.entries, *combined.removed)
        gone = {entry.problem for entry in now.entries} - {entry.problem for entry in there}
        return combined.cache

    store = stores.open_store(output)
    store.check_writable()
    written_to = store.update(change).written_to
    written = f"{describe_count(len(combined.cache.entries), 'entry')} of {describe_count(len(files), 'cache')}"
    replaced = f"; {describe_count(len(gone), 'problem')} that it held gone: in no FILE (to keep such, name it as one)"
    written = f"{written} written to {safe(written_to)}{replaced if gone else ''}"
    print_lines([written, *settled(combined, base is not None)])


def settled(combined: CombinedCaches, has_base: bool = True) -> Iterator[str]:
    """What a reader may want to look at again: what was removed, and which of several entries stayed."""
    if combined.removed:
        yield f"{describe_count(len(combined.removed), 'entry')} left out, which one side removed or replaced:"
        there = {entry.problem for entry in combined.cache.entries}
        for problem in (entry.problem for entry in combined.removed):
            yield describe_on_device(problem) + (
                ": replaced by an entry with another fingerprint" if problem in there else ""
            )
    if combined.ambiguous:
        count = describe_count(len(combined.ambiguous), "entry")
        yield f"{count} of one problem and several fingerprints, all of which stay:"
        for entry in combined.ambiguous:
            rests_on = ", ".join(map(str, entry.fingerprint))
            yield f"{describe_on_device(entry.problem)}: {describe_choice_and_time(entry)}; {safe(rests_on)}"
        or_base = "" if has_base else ", or --base=FILE,"
        yield f"  (a run with --autotune-update=prune{or_base} drops those of code that is gone)"
    if combined.conflicts:
        several = describe_count(len(combined.conflicts), "problem")
        yield f"{several} with several entries, of which the one stays that a run would keep:"
    for kept, *others in combined.conflicts:
        yield describe_on_device(kept.entry.problem)
        for one in (kept, *others):
            what = "kept" if one.entry == kept.entry else "dropped"
            yield f"    {what} {safe(one.process)}: {describe_choice_and_time(one.entry)}"


@click.command("compact", short_help="fewer and larger segments in a store at a URL")
@click.argument("url", metavar="URL")
def compact(url: str) -> None:
    """Merge what runs have added to the store at URL into one segment for each device.

    Entries that were removed go for good. It is safe beside runs that read and write, and beside another compact.
    """
    before, after = stores.compact(url)
    print_lines([f"{safe(url)}: {describe_count(before, 'segment')} merged into {after}"])
