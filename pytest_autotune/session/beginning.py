"""What a run finds when it begins: what its dump path holds, what it loads, and where it keeps its journals."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import merge
from pytest_autotune.cache.model import Cache
from pytest_autotune.run.ending import Beginning, measurements
from pytest_autotune.run.journal import RunFolder
from pytest_autotune.run.together.folders import SharedFolder, identity
from pytest_autotune.session.parsed_options import CacheArgument, Options


def begin(config: pytest.Config, options: Options, shared: SharedFolder) -> tuple[Beginning, RunFolder | None]:
    """Read the caches of a run.

    :param shared: where the processes of this user meet.
    :returns: what there was, and the folder of this run's journals: None when nothing is dumped, or where there is no
        place that the next run would find.
    :raises pytest.UsageError: when a cache cannot be read, or the dump not be written.
    """
    held = _read_dump(options.dump)
    folder = _open_folder(config, options.dump, shared)
    loaded = tuple(_read_loaded(options, held, folder))
    # Without any cache, too, the first candidate may stand in for a tuning: then every lookup is a miss.
    is_judged = bool(loaded) or (options.on_miss == "first" and options.dump is None)
    return Beginning(loaded, held, EntryIndex.of([cache for _, cache in loaded]) if is_judged else None), folder


def _read_dump(dump: CacheArgument | None) -> Cache:
    if dump is None:
        return Cache()
    try:
        return stores.check_writable(dump.location)
    except CacheError as error:
        raise pytest.UsageError(f"{dump.given}: {error}") from None


def _open_folder(config: pytest.Config, dump: CacheArgument | None, shared: SharedFolder) -> RunFolder | None:
    if dump is None:
        return None
    cache, root = getattr(config, "cache", None), config.rootpath
    try:
        if cache is not None:
            base = cache.mkdir("autotune")
        elif shared.of_this_run:
            return None  # the next run would not find it
        else:
            base = shared.locks() / "journals"
        # A folder inside of a project is its own; in another place, projects that follow each other may meet.
        is_inside = Path(os.path.realpath(base)).is_relative_to(os.path.realpath(root))
        project = "" if is_inside else identity(root)
        return RunFolder(base, dump.location.real, project)
    except OSError:  # a read-only tree: then a killed run loses what it has tuned
        return None


def _read_loaded(options: Options, held: Cache, folder: RunFolder | None) -> list[tuple[str, Cache]]:
    caches = []
    for argument in options.load:
        is_dump = options.dump is not None and argument.is_same_as(options.dump)
        try:
            cache = held if is_dump else stores.read(argument.location)
        except CacheError as error:
            raise pytest.UsageError(f"{argument.given}: {error}") from None
        if is_dump and folder is not None:
            cache = merge(cache, measurements(("", lookup) for lookup in folder.taken_over())).cache
        caches.append((argument.typed, cache))
    return caches
