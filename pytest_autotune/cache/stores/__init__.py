"""Where caches are kept. All side effects of ``cache/`` are here.

Writing is locked, atomic, and done only where the bytes change.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TypeAlias

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import OPTIONAL, READ_ONLY, Location, resolve
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


class OutputFile:
    """A file of another kind than a cache, which a command writes. Its path is resolved once.

    :param below: the folder that the file has to be in, with all links followed.
    :raises CacheError: for a path that ``open()`` would not find, but for missing folders at its end.
    """

    def __init__(self, path: str, below: str | None = None) -> None:
        self._where = path
        with os_errors(path):
            self._file = Path(resolve(os.path.expanduser(path)))
            if below is not None and Path(resolve(os.path.expanduser(below))) not in self._file.parents:
                raise CacheError(path, f"leads out of {below}", "name another folder, or remove the link in it")
            if path.endswith("/") or self._file.is_dir():
                raise CacheError(path, "is a folder")

    def read(self) -> bytes:
        """Return the bytes of the file; none of a missing one."""
        return read_bytes(self._file, self._where, missing_ok=True)

    def replace(self, data: bytes) -> None:
        """Put data in the place of the file, as a whole or, with a :class:`CacheError`, not at all."""
        with os_errors(self._where):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with locked(lock_path(self._file)):
                replace_file_bytes(self._file, data)


def read_file(path: str) -> bytes:
    """What a file of another kind holds; a :class:`CacheError` where it cannot be read."""
    try:
        return read_bytes(Path(os.path.expanduser(path)), path)
    except CacheError as error:
        raise CacheError(error.place, error.event) from None
