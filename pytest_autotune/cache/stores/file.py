"""A cache in a file, in the format that its suffix stands for."""

from __future__ import annotations

import stat
from pathlib import Path

from pytest_autotune.cache.codec import decode, encode, format_of
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.stores.store import PathStore
from pytest_autotune.cache.stores.writing import lock_of, replace

#: A larger file is no cache.
MAX_BYTES = 64 * 2**20


class FileStore(PathStore):
    """Keeps a cache in one file."""

    def read(self, missing_ok: bool = False) -> Cache:
        """See :class:`Store`; an empty file is like a missing one."""
        return self._read(missing_ok)

    def _read(self, missing_ok: bool) -> Cache:
        format = format_of(self._path, self._where)
        data = bytes_of(self._path, self._where, missing_ok)
        return Cache() if missing_ok and not data.strip() else decode(data, format, self._where)

    @property
    def _lock(self) -> Path:
        return lock_of(self._target)

    def _check_ours(self) -> None:
        """What cannot be read is kept, whatever it is."""

    def _write(self, target: Path, cache: Cache) -> bool:
        data = encode(cache, format_of(self._path, self._where))
        if data == bytes_of(target, self._where, missing_ok=True):
            return False
        replace(target, data)
        return True


def bytes_of(path: Path, where: str, missing_ok: bool = False) -> bytes:
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
