"""Reads the caches of a run and makes the folder of its logs, before the tests.

The controller calls :func:`prepare_run` when pytest is configured. The *dump path* is the path of the cache that the
run writes. A distributed job, which torchrun starts, has several processes, its *ranks*. All of them must load equal
caches: if ranks launch different kernels, a kernel with a collective operation can wait for ever.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.stores.store import Store
from pytest_autotune.plugin.values import CacheArgument, Options, find_cache_folder
from pytest_autotune.run.collected import collect
from pytest_autotune.run.finish import add_recovered
from pytest_autotune.run.settle import InitialCaches
from pytest_autotune.workers.events import RunFolder
from pytest_autotune.workers.locks import SharedFolder

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pytest_autotune.workers.ranks import Ranks


@dataclass(frozen=True)
class Preparation:
    """The caches and files of a run, which the controller reads and makes when pytest is configured.

    :param initial: the loaded caches, and the content of the dump path.
    :param folder: the folder of the logs. The next run finds there the tunings of a run that was killed.
    :param store: the store of the dump path; None in a run that dumps nothing.
    """

    initial: InitialCaches
    folder: RunFolder
    store: Store | None


def prepare_run(config: pytest.Config, options: Options, shared: SharedFolder) -> Preparation:
    """Read the caches of a run, and make the folder of its logs.

    :raises pytest.UsageError: if a cache cannot be read, or the dump path cannot be written.
    """
    dump = options.dump
    store: Store | None = None
    if dump is not None:
        with _usage_errors(f"{dump.named_by}: "):
            store = stores.open_store(dump.location)
    reader = CacheReader(options, store)
    # The dump path is read even if the run does not load it, because the run keeps the entries that the path holds.
    dump_cache = Cache()
    if dump is not None and store is not None:
        with _usage_errors(f"{dump.named_by}: "):
            dump_cache = reader.read_dump(dump.location, store)
    folder = _make_log_folder(config, options, shared)
    loaded = _load_caches(options, reader, dump_cache, folder)
    # With an index, a lookup without an entry is a miss. Without an index, the tuners tune as usual. A run that loads
    # nothing gets an empty index if each miss takes the first candidate. A run that dumps has to tune.
    takes_first_candidates = options.on_miss == "first" and dump is None
    index = None
    if loaded or takes_first_candidates:
        index = EntryIndex.from_caches([cache for _, cache in loaded])
    return Preparation(InitialCaches(tuple(loaded), dump_cache, index), folder, store)


def _make_log_folder(config: pytest.Config, options: Options, shared: SharedFolder) -> RunFolder:
    """Make the folder of this run's logs in pytest's cache, else in the folder that all runs of the user share.

    A run also finds there the logs of killed runs that had the same rootdir and wrote to the same cache.
    """
    if options.dump is not None:
        written_cache = options.dump.location.resolved
    else:
        # An update without a dump path writes the caches of tests: its value, such as "all", stands for them. The value
        # is empty in a run that writes no cache.
        written_cache = options.update
    parents: list[Path] = []
    cache_folder = find_cache_folder(config)
    if cache_folder is not None:
        parents.append(cache_folder)
    if shared.path is not None:
        parents.append(shared.path / "runs")
    # Equal for the runs that recover each other's tunings.
    purpose = "\0".join([str(config.rootpath), written_cache])
    return RunFolder(parents, purpose)


def _load_caches(
    options: Options, reader: CacheReader, dump_cache: Cache, folder: RunFolder
) -> list[tuple[str, Cache]]:
    """Return the loaded caches, each with its path as a user types it. The last one takes precedence.

    :param dump_cache: the content of the dump path before the run.
    :param folder: the folder of the logs, also of killed runs with the same dump path.
    :raises pytest.UsageError: if a cache cannot be read.
    """
    ranks = None
    if options.load:
        ranks = _find_ranks()
    # A file takes precedence over a URL, so URLs are loaded first: a file was reviewed, and a shared store only adds
    # the entries that the file lacks.
    arguments = sorted(options.load, key=lambda argument: not argument.location.url)
    loaded: list[tuple[str, Cache]] = []
    for argument in arguments:
        if is_absent(argument, options):
            continue
        # The dump path was read before.
        known_cache = dump_cache if _is_dump_path(argument, options) else None
        with _usage_errors(f"{argument.named_by}: "):
            if ranks is None:
                cache = _load_alone(argument, reader, known_cache, folder)
            else:
                cache = _load_in_rank(ranks, argument, reader, known_cache)
        loaded.append((argument.typed, cache))
    if ranks is not None:
        with _usage_errors():
            ranks.check_same(loaded)
    return loaded


def _load_alone(argument: CacheArgument, reader: CacheReader, dump_cache: Cache | None, folder: RunFolder) -> Cache:
    """Return a loaded cache of a run that is no rank of a distributed job.

    :param dump_cache: the content, if the argument names the dump path; else None.
    """
    if dump_cache is None:
        return reader.read(argument.location)
    return _add_recovered_tunings(dump_cache, folder)


def _load_in_rank(ranks: Ranks, argument: CacheArgument, reader: CacheReader, dump_cache: Cache | None) -> Cache:
    """Return a loaded cache of a rank. All ranks get equal caches.

    Only rank 0 reads a URL, and sends the content to the others. Other jobs may write to the store at any time: if each
    rank read it, the ranks could load different caches. For the same reason ranks recover no tunings of killed runs:
    each could find other logs.

    :param dump_cache: the content, if the argument names the dump path; else None.
    """
    is_url = bool(argument.location.url)
    if is_url and not ranks.is_rank_0:
        return ranks.receive_cache(argument.typed)
    cache = dump_cache
    if cache is None:
        cache = reader.read(argument.location)
    if is_url:
        return ranks.send_cache(argument.typed, cache)
    return cache


def _find_ranks() -> Ranks | None:
    """Return the ranks of the distributed job that torchrun started; None if this process is in no such job."""
    # torchrun sets this variable.
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from pytest_autotune.workers.ranks import Ranks

    return Ranks.of_this_job()


def is_absent(argument: CacheArgument, options: Options) -> bool:
    """Whether an optional cache is not there. A dump of the run creates its own."""
    if not argument.is_optional or argument.location.url:
        return False
    if _is_dump_path(argument, options):
        return False
    try:
        return not os.path.exists(argument.location.resolved)
    except CacheError:
        return True


def _is_dump_path(argument: CacheArgument, options: Options) -> bool:
    """Whether the run also writes the cache that an argument names."""
    return options.dump is not None and argument.is_same_as(options.dump)


def _add_recovered_tunings(cache: Cache, folder: RunFolder) -> Cache:
    """Return a cache with the tunings of killed runs that had the same dump path."""
    events, _ = folder.recovered
    return add_recovered(cache, collect((), events).recovered_lookups)


class CacheReader:
    """Reads the caches of a run. It reads several URLs at the same time: a store that is down takes seconds to fail.

    :param dump_store: the store of the dump path; None in a run that dumps nothing.
    """

    def __init__(self, options: Options, dump_store: Store | None) -> None:
        urls = {argument.location for argument in options.load if argument.location.url}
        dump_url: Location | None = None
        if options.dump is not None and options.dump.location.url:
            dump_url = options.dump.location
            urls.add(dump_url)
        #: URL -> its content, which a thread reads. Empty if there is at most one URL: no thread is needed then.
        self._futures: dict[Location, Future[Cache]] = {}
        if len(urls) < 2:
            return
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(len(urls))
        for url in urls:
            if dump_store is not None and url == dump_url:
                self._futures[url] = pool.submit(dump_store.check_writable)
            else:
                self._futures[url] = pool.submit(stores.read_cache, url)

    def read(self, location: Location) -> Cache:
        """Return the content of a cache.

        :raises CacheError: if it cannot be read.
        """
        future = self._futures.get(location)
        if future is None:
            return stores.read_cache(location)
        return future.result()

    def read_dump(self, location: Location, store: Store) -> Cache:
        """Return the content of the dump path.

        :raises CacheError: if it cannot be read or written.
        """
        future = self._futures.get(location)
        if future is None:
            return store.check_writable()
        return future.result()


@contextmanager
def _usage_errors(prefix: str = "") -> Iterator[None]:
    """Raise a cache error as an error of usage, which ends the run with one line."""
    try:
        yield
    except CacheError as error:
        raise pytest.UsageError(f"{prefix}{error}") from None
