"""Caches on a disk: in a file, in the format of its suffix, or in a folder of one text file for each problem."""

from __future__ import annotations

import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_autotune.cache.codec import Format, decode, encode, find_format
from pytest_autotune.cache.codec.mapping import without_duplicates
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.locations import MARKER, Location
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.cache.stores.store import OpenedStore, Updated
from pytest_autotune.cache.stores.writing import (
    LONGEST_WAIT_S,
    POLL_S,
    TEMPORARY,
    check_creatable,
    create_unused_path,
    lock_path,
    locked,
    os_errors,
    replace_file_bytes,
)

#: A larger file is no cache.
MAX_BYTES = 64 * 2**20


class FileStore:
    """Keeps a cache in one file, with a lock beside it."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._where = str(location)

    def __str__(self) -> str:
        return self._where

    @property
    def _target(self) -> Path:
        """The one path that is read and written."""
        return Path(self._location.resolved)

    @property
    def _format(self) -> Format:
        """The format by the name that the user gave: a link may lead to a file of any name."""
        return find_format(self._location.path, self._where)

    def read(self, missing_ok: bool = False) -> Cache:
        return self._read(missing_ok)

    def _read(self, missing_ok: bool) -> Cache:
        """The same while nobody else writes."""
        form = self._format
        data = read_bytes(self._target, self._where, missing_ok)
        return Cache() if missing_ok and not data.strip() else decode(data, form, self._where)

    @property
    def _lock(self) -> Path:
        """The lock file; what is written has the folder that it is in."""
        return lock_path(self._target)

    def _write(self, target: Path, cache: Cache) -> bool:
        """Write what differs; whether anything does."""
        data = _encoded(cache, self._format, self._where)
        if data == read_bytes(target, self._where, missing_ok=True):
            return False
        replace_file_bytes(target, data)
        return True

    def _check_ours(self) -> None:
        """Refuse to put a cache in the place of something else; of a file, what cannot be read is kept in any case."""

    def check_writable(self) -> Cache:
        self._check_ours()
        cache = self.read(missing_ok=True)
        if os.path.lexists(self._target) and not os.access(self._target, os.W_OK):
            raise CacheError(self._where, "is read-only")
        if cache.lossy:
            raise CacheError(*cache.lossy)
        check_creatable(self._lock, self._where)
        return cache

    @contextmanager
    def open_for_update(self, removing: bool = False) -> Iterator[OpenedStore]:
        """Open the file or folder under its lock; see :class:`~pytest_autotune.cache.stores.store.Store`."""
        with os_errors(self._where):
            self._lock.parent.mkdir(parents=True, exist_ok=True)
            with locked(self._lock) as is_locked:
                self._check_ours()
                try:
                    cache = self._read(missing_ok=True)
                    is_replaceable = is_locked and not cache.lossy
                except CacheError:
                    cache, is_replaceable = Cache(), False
                yield OpenedFile(self, cache, is_replaceable)

    def replace(self, cache: Cache) -> Updated:
        """Replace the content. Only for a store whose lock is held."""
        return Updated(self._where, self._write(self._target, cache))

    def write_beside(self, cache: Cache) -> Updated:
        """Write a cache to an unused path beside the store."""
        beside = create_unused_path(self._target, as_folder=isinstance(self, FolderStore))
        self._write(beside, cache)
        entries = describe_count(len(cache.entries), "entry")
        reason = f"could not be locked or read; {entries} written to {beside}: compare and rename it"
        return Updated(str(beside), True, reason)


@dataclass(frozen=True)
class OpenedFile:
    """A file or folder that is opened for an update.

    :param is_replaceable: the lock is held, and the content was read without loss.
    """

    store: FileStore
    cache: Cache
    is_replaceable: bool

    def write(self, cache: Cache) -> Updated:
        """Replace the content; if that would lose something, write a file or folder beside it."""
        if self.is_replaceable:
            return self.store.replace(cache)
        return self.store.write_beside(cache)


def read_bytes(path: Path, where: str, missing_ok: bool = False) -> bytes:
    """What a file holds; a missing one, where that is ok, nothing.

    :param where: its name, for the error.
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


def _encoded(cache: Cache, form: Format, where: str) -> bytes:
    """A cache as a file is to have it; a :class:`CacheError` where that is too large to be read again."""
    data = encode(cache, form)
    if len(data) > MAX_BYTES:
        found = f"would have a file of more than {MAX_BYTES // 2**20} MiB, which is not read, and is left as it was"
        raise CacheError(where, found, "keep the problems in a folder, one file each: a path with / at its end")
    return data


_MARKER_TEXT = b"A folder of autotuning choices, one file for each problem, kept by pytest-autotune.\n"
_PROBLEM_FILE = re.compile(r"[0-9a-f]{32}\.textproto")
_LITTER = re.compile(rf"\.{_PROBLEM_FILE.pattern}{re.escape(TEMPORARY)}")


class FolderStore(FileStore):
    """Keeps a cache in a folder that holds a marker file, which tells it from a folder of other things."""

    def read(self, missing_ok: bool = False) -> Cache:
        """See :class:`FileStore`; a folder without the marker file is like a missing one.

        A writer replaces the files one by one under the lock. A part of its entries is never taken for all of them.
        """
        if MARKER not in self._names():
            return self._read(missing_ok)
        try:
            with locked(self._lock) as is_locked:
                if is_locked:
                    return self._read(missing_ok)
        except OSError:  # this user may not write there, and makes no lock
            return self._read_unlocked(missing_ok)
        raise self._busy

    @property
    def _busy(self) -> CacheError:
        found = f"another process writes there, or holds the lock for {LONGEST_WAIT_S:g} s"
        return CacheError(self._where, found, f"if none runs, remove {self._lock}")

    def _read_unlocked(self, missing_ok: bool) -> Cache:
        """Read until no other user has written meanwhile."""
        deadline = HostTime.monotonic() + LONGEST_WAIT_S
        while HostTime.monotonic() < deadline:
            before = self._versions()
            try:
                cache = self._read(missing_ok)
            except CacheError:
                if self._is_unchanged(before):
                    raise
            else:
                if self._is_unchanged(before):
                    return cache
            time.sleep(POLL_S)
        raise self._busy

    def _is_unchanged(self, before: Mapping[str, object]) -> bool:
        """Whether nobody has written since the folder had these versions, nor writes now."""
        return self._lock.name not in before and before == self._versions()

    def _versions(self) -> dict[str, object]:
        """The version of each file in the folder, by its name."""
        versions: dict[str, object] = {}
        for name in self._names():
            with suppress(OSError):  # removed meanwhile
                status = os.lstat(self._target / name)
                versions[name] = (status.st_ino, status.st_mtime_ns)
        return versions

    def _read(self, missing_ok: bool) -> Cache:
        names = self._names()
        if MARKER not in names:
            if missing_ok:
                return Cache()
            self._check_ours()
            raise CacheError(self._where, "no such folder", f"create one with --autotune-dump={self._where}")
        files = [name for name in sorted(names) if _PROBLEM_FILE.fullmatch(name)]
        shown = [Location(self._target / name, display_text=os.path.join(self._where, name)) for name in files]
        caches = [FileStore(file).read() for file in shown]
        return Cache(
            without_duplicates(entry for cache in caches for entry in cache.entries),
            lossy=next((cache.lossy for cache in caches if cache.lossy), ()),
        )

    @property
    def _lock(self) -> Path:
        return self._target / f"{MARKER}.lock"

    def _names(self) -> Sequence[str]:
        """The names of the files in the folder; none where it is missing."""
        try:
            return os.listdir(self._target)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise CacheError(self._where, f"cannot be read: {error.strerror}") from None

    def _check_ours(self) -> None:
        """Refuse what is there and is no folder store: someone wrote ``--autotune-dump tests/``."""
        names = self._names()
        if MARKER in names:
            return
        if any(map(_PROBLEM_FILE.fullmatch, names)):
            found = f"has no file {MARKER}, which marks a cache"
            raise CacheError(self._where, found, "copies often leave hidden files out: copy it, too")
        if any(MARKER not in name for name in names):
            found = "is a folder with other things in it, not a cache"
            raise CacheError(self._where, found, "name the cache in it, or a new folder")

    def _write(self, target: Path, cache: Cache) -> bool:
        if not (target / MARKER).exists():
            replace_file_bytes(target / MARKER, _MARKER_TEXT)
        problems: dict[str, list[Entry]] = {}
        for entry in cache.entries:
            problems.setdefault(f"{entry.problem.digest}.textproto", []).append(entry)
        new = {name: _encoded(Cache(tuple(some)), Format.TEXT, self._where) for name, some in problems.items()}
        names = os.listdir(target)
        gone = [name for name in names if _PROBLEM_FILE.fullmatch(name) and name not in new]
        different = [name for name, data in new.items() if read_bytes(target / name, name, missing_ok=True) != data]
        for name in sorted(different):
            replace_file_bytes(target / name, new[name])
        for name in [*gone, *filter(_LITTER.fullmatch, names)]:
            (target / name).unlink(missing_ok=True)
        return bool(different or gone)
