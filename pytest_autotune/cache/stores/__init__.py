"""The stores of caches: files, folders and URLs. All side effects of ``cache/`` are here.

A store is written under a lock, as a whole, and only if its bytes change.
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
    """Return the store at a location.

    :raises CacheError: for a URL that cannot be parsed, or whose library is not installed.
    """
    if not isinstance(location, Location):
        location = Location.parse(location, Path())
    if location.url:
        return _open_url_store(location)
    if location.is_folder:
        return FolderStore(location)
    return FileStore(location)


def _open_url_store(location: Location) -> Store:
    """Return the store at a URL, with a wrapper for each option of the URL."""
    from pytest_autotune.cache.stores.segments import SegmentStore

    segments = SegmentStore(location)
    store: Store = segments
    if OPTIONAL in location.options:
        store = OptionalStore(segments)
    elif not segments.has_credentials:
        # The pull request of a fork has no credentials. There, a local file that keeps the new entries is enough.
        store = LocalCopyStore(segments)
    if READ_ONLY in location.options:
        return ReadOnlyStore(store)
    return store


def read_cache(location: AnyLocation, missing_ok: bool = False) -> Cache:
    """Return the cache at a location: see :meth:`Store.read`."""
    return open_store(location).read(missing_ok)


def compact(url: str) -> tuple[int, int]:
    """Merge the segments of a store at a URL.

    :returns: the number of segments before, and after.
    :raises CacheError: if they cannot be merged; nothing is lost then.
    """
    from pytest_autotune.cache.stores.segments import SegmentStore

    location = Location.parse(url, Path())
    if not location.url or READ_ONLY in location.options:
        raise CacheError(
            url, "cannot be compacted, because it is a path or read-only (?readonly)", "name the URL of a store"
        )
    return SegmentStore(location).compact()


class OutputFile:
    """A file that a command writes, and that is not a cache. Its path is resolved once.

    :param below: the folder that must contain the file, with all links followed.
    :raises CacheError: for a path that ``open()`` would not find. Folders at the end of the path may be missing.
    """

    def __init__(self, path: str, below: str | None = None) -> None:
        self._place = path
        with os_errors(path):
            self._file = Path(resolve(os.path.expanduser(path)))
            if below is not None and Path(resolve(os.path.expanduser(below))) not in self._file.parents:
                raise CacheError(path, f"leads out of {below}", "name another folder, or remove the link in it")
            if path.endswith("/") or self._file.is_dir():
                raise CacheError(path, "is a folder, not a file", "name a file")

    def read(self) -> bytes:
        """Return the bytes of the file; none if it is missing."""
        return read_bytes(self._file, self._place, missing_ok=True)

    def replace(self, data: bytes) -> None:
        """Replace the file as a whole.

        :raises CacheError: if the file cannot be written; it stays as it was.
        """
        with os_errors(self._place):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with locked(lock_path(self._file)):
                replace_file_bytes(self._file, data)


def read_file(path: str, typed_path: str = "") -> bytes:
    """Return the bytes of a file that is not a cache.

    :param typed_path: the path as the user typed it, for the error; empty if it is the same.
    :raises CacheError: if the file cannot be read.
    """
    try:
        return read_bytes(Path(os.path.expanduser(path)), typed_path or path)
    except CacheError as error:
        # The remedy is for caches.
        raise CacheError(error.place, error.event) from None
