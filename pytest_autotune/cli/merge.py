"""The commands ``pytest-autotune merge``, which merges caches of several jobs or branches, and ``compact``."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location, is_url
from pytest_autotune.cache.merge import CombinedCaches, combine_caches
from pytest_autotune.cache.model import Cache, Entry, Problem
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.cache.ties import MeasuredEntry
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
    _refuse_duplicates(files)
    sides = {}
    for path in files:
        sides[path] = refuse_lossy(stores.read_cache(path))
    ancestor = None
    if base is not None:
        ancestor = stores.read_cache(base)
    merge = _Merge(sides, ancestor, _find_names_of_output(files, output))
    store = stores.open_store(output)
    store.check_writable()
    with store.open_for_update() as opened:
        updated = opened.write(merge.merge_into(opened.cache))
    print_lines([merge.describe_result(updated.written_to), *describe_combined(merge.combined, base is not None)])


def _refuse_duplicates(paths: Sequence[str]) -> None:
    for path in paths:
        if paths.count(path) > 1:
            raise CacheError(path, "is named twice")


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


class _Merge:
    """Merges caches into the output.

    :param sides: the caches by name.
    :param ancestor: the cache that all of them began with; None if the user named none.
    :param output_names: the names of those sides that are the output itself.
    """

    def __init__(self, sides: Mapping[str, Cache], ancestor: Cache | None, output_names: Sequence[str]) -> None:
        self._sides = sides
        self._ancestor = ancestor
        self._output_names = output_names
        self.combined = combine_caches(sides, ancestor)
        #: The problems that the output held, and that no side has.
        self._lost_problems: set[Problem] = set()

    def merge_into(self, output_cache: Cache) -> Cache:
        """Return the merged cache.

        :param output_cache: the cache that the output holds, as read under its lock.
        """
        if self._output_names:
            # A run may have written to the output since the sides were read.
            sides = {**self._sides, **dict.fromkeys(self._output_names, output_cache)}
            self.combined = combine_caches(sides, self._ancestor)
        self._lost_problems = {entry.problem for entry in output_cache.entries}
        for entry in (*self.combined.cache.entries, *self.combined.removed):
            self._lost_problems.discard(entry.problem)
        return self.combined.cache

    def describe_result(self, written_to: str) -> str:
        """Return a line with the counts of entries and caches, and of the problems that the output no longer has."""
        entries = describe_count(len(self.combined.cache.entries), "entry")
        text = f"{entries} of {describe_count(len(self._sides), 'cache')} written to {safe(written_to)}"
        if self._lost_problems:
            problems = describe_count(len(self._lost_problems), "problem")
            text += f"; {problems} that it held gone: in no FILE (to keep such, name it as one)"
        return text


def describe_combined(combined: CombinedCaches, has_base: bool = True) -> Iterator[str]:
    """Yield lines about entries that a user may want to look at: removed, ambiguous and conflicting entries.

    :param has_base: the caches were combined with an ancestor, so entries that a side removed are gone.
    """
    if combined.removed:
        yield from _describe_removed(combined)
    if combined.ambiguous:
        yield from _describe_ambiguous(combined.ambiguous, has_base)
    if combined.conflicts:
        yield from _describe_conflicts(combined.conflicts)


def _describe_removed(combined: CombinedCaches) -> Iterator[str]:
    yield f"{describe_count(len(combined.removed), 'entry')} left out, which one side removed or replaced:"
    combined_problems = {entry.problem for entry in combined.cache.entries}
    for entry in combined.removed:
        line = describe_on_device(entry.problem)
        if entry.problem in combined_problems:
            line += ": replaced by an entry with another fingerprint"
        yield line


def _describe_ambiguous(entries: Sequence[Entry], has_base: bool) -> Iterator[str]:
    yield f"{describe_count(len(entries), 'entry')} of one problem and several fingerprints, all of which stay:"
    for entry in entries:
        fingerprint = safe(", ".join(map(str, entry.fingerprint)))
        yield f"{describe_on_device(entry.problem)}: {describe_choice_and_time(entry)}; {fingerprint}"
    remedy = "a run with --autotune-update=prune"
    if not has_base:
        remedy += ", or --base=FILE,"
    yield f"  ({remedy} drops those of code that is gone)"


def _describe_conflicts(conflicts: Sequence[Sequence[MeasuredEntry]]) -> Iterator[str]:
    """Yield the entries of each problem for which the caches had different entries.

    :param conflicts: for each problem its entries; the first of them is kept.
    """
    problems = describe_count(len(conflicts), "problem")
    yield f"{problems} with several entries, of which the one stays that a run would keep:"
    for candidates in conflicts:
        kept_entry = candidates[0].entry
        yield describe_on_device(kept_entry.problem)
        for candidate in candidates:
            verb = "dropped"
            if candidate.entry == kept_entry:
                verb = "kept"
            yield f"    {verb} {safe(candidate.process)}: {describe_choice_and_time(candidate.entry)}"


@click.command("compact", short_help="fewer and larger segments in a store at a URL")
@click.argument("url", metavar="URL")
def compact(url: str) -> None:
    """Merge what runs have added to the store at URL into one segment for each device.

    Entries that were removed go for good. It is safe beside runs that read and write, and beside another compact.
    """
    old_count, new_count = stores.compact(url)
    print_lines([f"{safe(url)}: {describe_count(old_count, 'segment')} merged into {new_count}"])
