"""Where caches are kept. All side effects of ``cache/`` are here.

Writing is locked, atomic, and done only where the bytes change.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import OPTIONAL, READ_ONLY, Location
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.stores.disk import FileStore, FolderStore, read_bytes
from pytest_autotune.cache.stores.store import LocalCopyStore, OptionalStore, ReadOnlyStore, Store
from pytest_autotune.cache.stores.writing import lock_path, locked, os_errors, replace_file_bytes

#: A text is relative to the current folder.
AnyLocation: TypeAlias = "Location | str | os.PathLike[str]"


def open_store(location: AnyLocation) -> Store:
    """The store at a location.

    :raises CacheError: for a URL that makes no sense, or whose library is not installed.
    """
    if not isinstance(location, Location):
        location = Location.parse(location, Path())
    if not location.url:
        return FolderStore(location) if location.is_folder else FileStore(location)
    from pytest_autotune.cache.stores.segments import SegmentStore

    shared = SegmentStore(location)
    store: Store = shared
    if OPTIONAL in location.options:
        store = OptionalStore(shared)
    elif not shared.has_credentials:  # as in the pull request of a fork
        store = LocalCopyStore(shared)
    return ReadOnlyStore(store) if READ_ONLY in location.options else store


def read_cache(location: AnyLocation, missing_ok: bool = False) -> Cache:
    """The cache that is kept there: see :meth:`Store.read`."""
    return open_store(location).read(missing_ok)


def compact(url: str) -> tuple[int, int]:
    """Merge the segments of a store at a URL.

    :returns: how many there were, and how many there are.
    :raises CacheError: where that cannot be done; nothing is lost then.
    """
    from pytest_autotune.cache.stores.segments import SegmentStore

    location = Location.parse(url, Path())
    if not location.url or READ_ONLY in location.options:
        raise CacheError(url, "is no store that could be compacted: a path, or only read (?readonly)")
    return SegmentStore(location).compact()


def read_file(path: str) -> bytes:
    """What a file of another kind holds; a :class:`CacheError` where it cannot be read."""
    try:
        return read_bytes(Path(path), path)
    except CacheError as error:
        raise CacheError(error.place, error.event) from None


def replace_file(path: str, data: bytes) -> None:
    """Put data in the place of a file of another kind, as a whole or, with a :class:`CacheError`, not at all."""
    with os_errors(path):
        file = Path(os.path.realpath(os.path.expanduser(path)))
        if file.is_dir() or path.endswith("/"):
            raise CacheError(path, "is a folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        with locked(lock_path(file)):
            replace_file_bytes(file, data)
