"""The end of a run: from the collected reports and the caches to the result that all reports show.

Every run ends in the same steps. A run that writes nothing does, too: its reports show the changes of a dump.

1. :func:`settle_run` adds to the lookups the facts that only a whole run knows, and finds the unused entries.
2. :func:`pytest_autotune.run.finish.finish_run` merges the run's entries into the present content of the dump path, and
   builds the :class:`~pytest_autotune.run.result.RunResult`.
3. A run that dumps writes the merged cache, and :meth:`~pytest_autotune.run.result.RunResult.with_dump` adds the
   outcome to the result.

The steps 1 and 2 are pure. :mod:`pytest_autotune.run.dumping` repeats step 2 if another run has changed the dump path.
``pytest-autotune gate`` takes the steps 1 and 2 for many pytest processes as if they were one process.

Words: the dump path is the cache that the run writes. A lookup is one question of a tuner in one process; its entry is
an entry of a loaded cache that the tuner used, or the result of a search. A problem is a kernel with a key and a
device. An identity is a problem with a fingerprint (digests of the kernel's source and the like), and names an entry.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence, Set
from dataclasses import dataclass, field, replace
from functools import cached_property
from operator import attrgetter

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.merge import MAX_SPECIALIZATIONS
from pytest_autotune.cache.model import Cache, Entry, Identity, Problem
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.unused import Bypass, CacheUsage
from pytest_autotune.workers.events import Event


@dataclass(frozen=True)
class InitialCaches:
    """The caches at the beginning of a run.

    :param loaded: (path as the user wrote it, content) of each loaded cache; the last takes precedence.
    :param dump_cache: the content of the dump path; empty if the run writes nothing.
    :param index: of the loaded caches, for lookups; None if nothing is loaded.
    """

    loaded: tuple[tuple[str, Cache], ...] = ()
    dump_cache: Cache = field(default_factory=Cache)
    index: EntryIndex | None = None

    @property
    def entries(self) -> Iterator[Entry]:
        """The loaded entries, and the entries of the dump path."""
        for _, cache in self.loaded:
            yield from cache.entries
        yield from self.dump_cache.entries

    @property
    def file_entries(self) -> Iterator[Entry]:
        """The loaded entries without those of stores at URLs, which other runs may use."""
        for path, cache in self.loaded:
            if not is_url(path):
                yield from cache.entries


@dataclass(frozen=True)
class EndedRun:
    """A run when all its processes have ended.

    :param bypasses: the kernels that the processes bypass; an item for each pytest process, not for each worker.
    """

    initial: InitialCaches
    collected: Collected
    request: RunRequest
    bypasses: tuple[Bypass, ...]

    @classmethod
    def of_one_process(cls, initial: InitialCaches, collected: Collected, request: RunRequest) -> EndedRun:
        """Return the run of one pytest process with its workers."""
        return cls(initial, collected, request, (Bypass.build(request, collected),))

    @property
    def is_complete(self) -> bool:
        """Whether every test ran, passed, and asked for all entries that it needs."""
        return not self.collected.unasked_reason


@dataclass(frozen=True)
class SettledRun:
    """A run whose lookups have the facts that only a whole run knows.

    :param lookups: of this run.
    :param recovered: the tunings of killed runs with this dump path; none in a run that writes nothing.
    """

    run: EndedRun
    lookups: tuple[Lookup, ...]
    recovered: tuple[Lookup, ...] = ()

    @property
    def problems(self) -> Set[Problem]:
        """The problems that this run asked for."""
        return {lookup.problem for lookup in self.lookups}

    @property
    def usage(self) -> CacheUsage:
        """The facts of the run that decide which entries are unused."""
        return CacheUsage.build(self.run.collected, self.run.bypasses, self.lookups)

    @cached_property
    def unused_entries(self) -> tuple[Entry, ...]:
        """The entries that a complete run should have asked for and did not; none for an incomplete run."""
        run = self.run
        if not run.is_complete:
            # A test that did not run may need any entry.
            return ()
        if not run.request.plan.judges_unused:
            # Other runs use the same store, and may need any entry.
            return ()
        # The loaded files and the dump path are often the same file, so each identity counts once.
        entries_by_identity = {}
        for entry in (*run.initial.dump_cache.entries, *run.initial.file_entries):
            entries_by_identity[entry.identity] = entry
        usage = self.usage
        unused_entries = [entry for entry in entries_by_identity.values() if usage.is_unused(entry)]
        return tuple(sorted(unused_entries, key=attrgetter("sort_key")))


def settle_run(run: EndedRun) -> SettledRun:
    """Return the run with the facts that only a whole run knows: step 1 of the end of a run."""
    collected, plan = run.collected, run.request.plan
    replaces_specializations = plan.prunes and run.is_complete
    lookups = with_facts_of_run(collected.lookups, collected.mode_events, replaces_specializations)
    settled = SettledRun(run, tuple(lookups))
    if not plan.writes:
        # Only the dump path takes the tunings of killed runs.
        return settled
    return replace(settled, recovered=tuple(with_facts_of_run(collected.recovered_lookups)))


def with_facts_of_run(
    lookups: Sequence[Lookup], events: Iterable[Event] = (), replaces_specializations: bool = False
) -> list[Lookup]:
    """Return the lookups with two facts that only a whole run knows, each about the entry of a lookup.

    - An entry that only another tuning asked for gets the name of that tuning in ``asked_by``.
    - An entry gets the specializations that its choice was compiled for, such as ``n=64``.

    :param events: the events that are no lookups. Those with specializations count.
    :param replaces_specializations: an entry loses its earlier specializations if this run has any for it.
    """
    asked_kernels = {lookup.problem.name for lookup in lookups}
    tunings_by_identity = _collect_outer_tunings(lookups)
    specializations_by_entry = _collect_specializations(events)
    changed_lookups = []
    for lookup in lookups:
        entry = lookup.entry
        if entry is None:
            changed_lookups.append(lookup)
            continue
        outer_tunings = tunings_by_identity[lookup.identity]
        entry = _with_outer_tuning(entry, outer_tunings, asked_kernels, is_new=lookup.is_searched)
        specializations = specializations_by_entry.get(entry.identity.digest)
        if specializations is not None:
            entry = _with_specializations(entry, specializations, replaces_specializations)
        changed_lookups.append(lookup.with_entry(entry))
    return changed_lookups


def _collect_outer_tunings(lookups: Iterable[Lookup]) -> dict[Identity, set[str]]:
    """Return identity -> the outermost tunings that asked for the identity, as ``tuner:kernel``.

    The tuning of a hand-written loop, for example, runs candidates, and a candidate may launch a kernel that asks for
    its own choice. The loop is then the outermost tuning of the kernel. If a test launched the kernel outside of any
    tuning, the identity has the empty name among its tunings.
    """
    tunings_by_identity: defaultdict[Identity, set[str]] = defaultdict(set)
    for lookup in lookups:
        tunings_by_identity[lookup.identity].add(lookup.outer_tuning)
    return dict(tunings_by_identity)


def _with_outer_tuning(entry: Entry, outer_tunings: Set[str], asked_kernels: Set[str], *, is_new: bool) -> Entry:
    """Return an entry with the tuning that asked for it in ``asked_by``, if no test asked for the entry.

    Example: a candidate of the tuning ``function:lib.gemm`` launches the entry's kernel. In a later run that tuning is
    a hit, so its candidates do not run, and nothing asks for the entry. ``asked_by`` then keeps the entry from being
    called unused.

    :param outer_tunings: the tunings that asked for the entry; see :func:`_collect_outer_tunings`.
    :param asked_kernels: the kernels of all lookups, as ``tuner:kernel``.
    :param is_new: a search of this run made the entry; else it was loaded.
    """
    if "" in outer_tunings:
        # A test asked for the entry outside of any tuning, and will ask again.
        return entry
    if not is_new and not entry.asked_by:
        # A test asked for the entry in an earlier run, and may ask again.
        return entry
    if not is_new and entry.asked_by in asked_kernels:
        # The outer tuning that the entry names still exists.
        return entry
    # The entry is new, or the tuning that it names is gone, for example after a rename. If several tunings asked, the
    # alphabetically first name is taken, so that each run writes the same file.
    return replace(entry, asked_by=min(outer_tunings))


def _with_specializations(entry: Entry, new_texts: Set[str], replaces_specializations: bool) -> Entry:
    """Return an entry with the specializations of this run, and with its earlier specializations.

    :param new_texts: the specializations of this run, such as ``n=64``.
    :param replaces_specializations: the entry loses its earlier specializations.
    """
    texts = set(new_texts)
    if not replaces_specializations:
        texts.update(entry.compiled)
    return replace(entry, compiled=tuple(sorted(texts)[:MAX_SPECIALIZATIONS]))


def _collect_specializations(events: Iterable[Event]) -> dict[str, set[str]]:
    """Return digest of an entry's identity -> the specializations that its choice was compiled for."""
    specializations: defaultdict[str, set[str]] = defaultdict(set)
    for event in events:
        if event.kind == SPECIALIZATION:
            specializations[str(event.data.get("entry"))].add(str(event.data.get("text")))
    return dict(specializations)
