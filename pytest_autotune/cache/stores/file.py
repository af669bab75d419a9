"""A cache in a file, in the format that its suffix stands for."""

from __future__ import annotations

import stat
from pathlib import Path

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import decode, encode, format_of
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import AsRead, Cache
from pytest_autotune.cache.stores.store import Change, Updated
from pytest_autotune.cache.stores.writing import (
    check_creatable,
    check_lock,
    check_name,
    check_replaceable,
    lock_of,
    locked,
    os_errors,
    real,
    replace,
    unused_name,
    write_new,
)

#: A larger file is no cache.
MAX_BYTES = 512 * 2**20


class FileStore:
    """Keeps a cache in one file."""

    def __init__(self, location: Location) -> None:
        self._path = location.path
        self._where = str(location)

    def read(self, missing_ok: bool, as_read: AsRead | None = None) -> Cache:
        """See :class:`Store`; an empty file is like a missing one."""
        return self._read(missing_ok, as_read)[0]

    def check_writable(self) -> Cache:
        """See :class:`Store`."""
        cache = self.read(missing_ok=True)
        file = real(self._path)
        check_name(file, self._where)
        check_replaceable(file, self._where)
        check_lock(lock_of(file), self._where)
        if cache.lossy:
            raise CacheError(*cache.lossy)
        check_creatable(file.parent, self._where)
        return cache

    def update(self, change: Change, lock_timeout_s: float) -> Updated:
        """See :class:`Store`."""
        format = format_of(self._path, self._where)
        file = real(self._path)
        with os_errors(self._where):
            file.parent.mkdir(parents=True, exist_ok=True)
            with locked(lock_of(file), lock_timeout_s) as held:
                try:
                    cache, data = self._read(missing_ok=True)
                    replaceable = held and not cache.lossy
                except CacheError:
                    cache, data, replaceable = Cache(), b"", False
                cache = change(cache)
                encoded = encode(cache, format)
                if replaceable:
                    if encoded != data:
                        replace(file, encoded)
                    return Updated(self._path, self._path, encoded != data, cache)
            beside = unused_name(file)
            write_new(beside, encoded)
        return Updated(self._path, beside, True, cache)

    def _read(self, missing_ok: bool, as_read: AsRead | None = None) -> tuple[Cache, bytes]:
        format = format_of(self._path, self._where)
        data = bytes_of(self._path, self._where, missing_ok)
        if missing_ok and (not data or data.isspace()):
            return Cache(), data
        return decode(data, format, self._where, as_read), data


def bytes_of(path: Path, where: str, missing_ok: bool) -> bytes:
    """What a file holds.

    :param where: its name, for the error.
    :param missing_ok: a missing file holds nothing.
    :raises CacheError: for what is no file, cannot be read, or is too large.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise CacheError(where, "is a folder, not a cache", f"{where}/ keeps one file for each problem in it")
        if not stat.S_ISREG(status.st_mode):
            raise CacheError(where, "is not a file")
        if status.st_size > MAX_BYTES:
            raise CacheError(where, f"is larger than {MAX_BYTES // 2**20} MiB: not a cache")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if missing_ok:
            return b""
        raise CacheError(where, "no such file", f"create it with --autotune-dump={where}") from None
    except (OSError, ValueError) as error:
        raise CacheError(where, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None
