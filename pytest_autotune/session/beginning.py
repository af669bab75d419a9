"""What there is when a run begins: the caches that it loads, what its dump path holds, and the folder of its log."""

from __future__ import annotations

from contextlib import suppress

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import merge
from pytest_autotune.cache.model import Cache
from pytest_autotune.run.collected import collect
from pytest_autotune.run.settle import Beginning, measurements
from pytest_autotune.session.options import Options
from pytest_autotune.session.values import CacheArgument
from pytest_autotune.workers.events import RunFolder
from pytest_autotune.workers.folder import SharedFolder


def begin(config: pytest.Config, options: Options, shared: SharedFolder) -> tuple[Beginning, RunFolder | None]:
    """Read the caches of a run.

    :param shared: where the processes of this user meet.
    :returns: what there was, and the folder where the processes of this run write down what they do; None where there
        is no place.
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
    """The folder of this run, where the next run with this dump path finds what a killed one has tuned."""
    cache = getattr(config, "cache", None)
    purpose = "\0".join([str(config.rootpath), dump.location.real if dump is not None else ""])
    for base in (lambda: cache.mkdir("autotune") if cache is not None else None, lambda: shared.locks() / "runs"):
        with suppress(OSError):  # a read-only tree
            if (found := base()) is not None:
                return RunFolder(found, purpose)
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
            cache = merge(cache, measurements(("", one) for one in collect((), folder.recovered[0]).recovered)).cache
        caches.append((argument.typed, cache))
    return caches
