"""The commands ``pytest-autotune merge``, which merges caches of several jobs or branches, and ``compact``.

A cache has at most one entry for each problem and fingerprint. The fingerprint has digests of the kernel's source and
of its candidates, so a problem can have several entries: of the code now and of earlier code. An entry conflicts with
an entry of another cache if both have the same problem and fingerprint, and are different.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.combine import CombinedCaches, combine_caches
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location, is_url
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.ties import MeasuredEntry
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.cli.output import (
    PATH,
    describe_choice_and_time,
    describe_on_device,
    print_lines,
    refuse_file_beside,
    refuse_lossy,
    safe,
)


@click.command("merge", short_help="write several caches into one")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option(
    "-o",
    "--output",
    metavar="OUT",
    type=PATH,
    required=True,
    help="Write this cache. A file is replaced; a store at a URL keeps its entries.",
)
@click.option(
    "--base",
    metavar="FILE",
    type=PATH,
    help="Compare with this common ancestor of the FILEs: leave out an entry that a FILE removed.",
)
def command(files: tuple[str, ...], output: str, base: str | None) -> None:
    """Write the entries of all FILEs into one cache, with all devices.

    If the FILEs have different entries of one problem and fingerprint, the entry that a run would keep stays: the entry
    of the highest generation (how often it was replaced), else the entry with the lowest time. They are listed.
    """
    _refuse_duplicates(files)
    caches_by_name = {}
    for path in files:
        caches_by_name[path] = refuse_lossy(stores.read_cache(path))
    ancestor = None
    if base is not None:
        ancestor = stores.read_cache(base)
    store = stores.open_store(output)
    store.check_writable()
    with store.open_for_update() as opened:
        # The output may be one of the merged caches, and a run may have written to it since it was read above.
        for name in _find_names_of_output(files, output):
            caches_by_name[name] = opened.cache
        combined = combine_caches(caches_by_name, ancestor)
        lost_count = _count_lost_problems(opened.cache, combined)
        updated = opened.write(combined.cache)
    counts = f"{describe_count(len(combined.cache.entries), 'entry')} of {describe_count(len(files), 'cache')}"
    line = f"{counts} written to {safe(updated.written_to)}"
    if lost_count:
        problems = describe_count(lost_count, "problem")
        line += f"; {problems} of the old OUT removed, because no FILE has them (to keep them, name OUT as a FILE, too)"
    print_lines([line, *describe_combined(combined, base is not None)])
    refuse_file_beside(output, updated)


def _refuse_duplicates(paths: Sequence[str]) -> None:
    """Refuse to merge a cache with itself.

    :raises CacheError: if a path is named twice.
    """
    for path in paths:
        if paths.count(path) > 1:
            raise CacheError(path, "is named twice", "name each FILE once")


def _find_names_of_output(paths: Sequence[str], output: str) -> list[str]:
    """Return the names under which the output is one of the merged caches; empty if the output is replaced."""
    resolved_output = Location.parse(output, Path()).resolved
    names = []
    for path in paths:
        if Location.parse(path, Path()).resolved == resolved_output:
            names.append(path)
    if is_url(output):
        # Other runs add to a store at a URL, so its entries always stay.
        names.append(output)
    return names


def _count_lost_problems(output_cache: Cache, combined: CombinedCaches) -> int:
    """Return the number of problems that the output has and no merged cache has.

    A problem that one of the merged caches removed is not counted, because the merge removes it on purpose.

    :param output_cache: the content of the output before the merge.
    """
    lost_problems = {entry.problem for entry in output_cache.entries}
    for entry in (*combined.cache.entries, *combined.removed):
        lost_problems.discard(entry.problem)
    return len(lost_problems)


def describe_combined(combined: CombinedCaches, has_base: bool = True) -> Iterator[str]:
    """Yield lines about entries that a user may want to look at: removed, ambiguous and conflicting entries.

    Ambiguous entries have the same problem and come from caches with different fingerprints of it.

    :param has_base: the caches were combined with an ancestor, so entries that a side removed are gone.
    """
    if combined.removed:
        yield from _describe_removed(combined)
    if combined.ambiguous:
        yield from _describe_ambiguous(combined.ambiguous, has_base)
    if combined.conflicts:
        yield from _describe_conflicts(combined.conflicts)


def _describe_removed(combined: CombinedCaches) -> Iterator[str]:
    """Yield a heading, and a line for each entry of the ancestor that a merged cache no longer has."""
    yield f"{describe_count(len(combined.removed), 'entry')} left out, because one side removed or replaced them:"
    combined_problems = {entry.problem for entry in combined.cache.entries}
    for entry in combined.removed:
        line = describe_on_device(entry.problem)
        if entry.problem in combined_problems:
            line += ": replaced by an entry with another fingerprint"
        yield line


def _describe_ambiguous(entries: Sequence[Entry], has_base: bool) -> Iterator[str]:
    """Yield a heading, a line for each entry, and the way to drop the entries of code that is gone."""
    yield (
        f"{describe_count(len(entries), 'entry')} kept that differ in code or candidates (the "
        f"fingerprint) but have the same problem:"
    )
    for entry in entries:
        fingerprint = safe(", ".join(map(str, entry.fingerprint)))
        yield f"{describe_on_device(entry.problem)}: {describe_choice_and_time(entry)}; {fingerprint}"
    remedy = "pytest --autotune-update=prune"
    if not has_base:
        remedy += ", or merge --base=FILE,"
    yield f"  ({remedy} drops the entries of code that is gone)"


def _describe_conflicts(conflicts: Sequence[Sequence[MeasuredEntry]]) -> Iterator[str]:
    """Yield the entries of each problem for which the caches had different entries, with the names of the caches.

    :param conflicts: for each problem its entries; the first of them is kept.
    """
    problems = describe_count(len(conflicts), "problem was", "problems were")
    yield f"{problems} tuned more than once; of each, one entry was kept:"
    for conflict in conflicts:
        kept_entry = conflict[0].entry
        yield describe_on_device(kept_entry.problem)
        for measured in conflict:
            verb = "dropped"
            if measured.entry == kept_entry:
                verb = "kept"
            cache_name = measured.process
            yield f"    {verb} {safe(cache_name)}: {describe_choice_and_time(measured.entry)}"


@click.command("compact", short_help="merge the many files of a store at a URL into few")
@click.argument("url", metavar="URL")
def compact(url: str) -> None:
    """Merge what runs have added to the store at URL into one segment for each device.

    Removed entries are then gone for good. Runs may read and write the store meanwhile, and so may another compact.
    """
    old_count, new_count = stores.compact(url)
    print_lines([f"{safe(url)}: {describe_count(old_count, 'segment')} merged into {new_count}"])
