"""Caches on a disk: in a file, in the format of its suffix, or in a folder of one text file for each problem."""

from __future__ import annotations

import hashlib
import os
import re
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_autotune.cache.codec import Format, count_comment_lines, decode, encode, find_format
from pytest_autotune.cache.codec.mapping import without_duplicates
from pytest_autotune.cache.errors import CacheError, MissingCacheError
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.locations import MARKER, Location
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.stores.store import OpenedStore, UpdateOutcome
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
from pytest_autotune.cache.wording import describe_count

#: A larger file is not a cache.
MAX_BYTES = 64 * 2**20
_MARKER_TEXT = b"A folder of autotuning choices, one file for each problem, kept by pytest-autotune.\n"
_PROBLEM_FILE = re.compile(r"[0-9a-f]{32}\.textproto")
#: The temporary file of a problem, which a killed process may leave.
_TEMPORARY_FILE = re.compile(rf"\.{_PROBLEM_FILE.pattern}{re.escape(TEMPORARY)}")


@dataclass(frozen=True)
class _Written:
    """The outcome of writing a cache to a path.

    :param is_changed: whether any byte changed.
    :param lost_comment_lines: the number of comment lines that the replaced files had.
    """

    is_changed: bool
    lost_comment_lines: int = 0


class FileStore:
    """Keeps a cache in one file, with a lock file beside it."""

    def __init__(self, location: Location) -> None:
        self._location = location
        self._place = str(location)

    def __str__(self) -> str:
        return self._place

    @property
    def _target(self) -> Path:
        """The only path that is read and written."""
        return Path(self._location.resolved)

    @property
    def _format(self) -> Format:
        """The format by the name that the user gave: a link may lead to a file of any name."""
        return find_format(self._location.path, self._place)

    @property
    def _lock(self) -> Path:
        """The lock file. The folder of the store is the folder of its lock file."""
        return lock_path(self._target)

    def read(self, missing_ok: bool = False) -> Cache:
        return self._read(missing_ok)

    def _read(self, missing_ok: bool) -> Cache:
        """Return the content while no other process writes."""
        form = self._format
        data = read_bytes(self._target, self._place, missing_ok)
        if missing_ok and not data.strip():
            return Cache()
        return decode(data, form, self._place)

    def _write(self, target: Path, cache: Cache) -> _Written:
        """Write a cache, unless the target already has these bytes.

        :param target: the path of the store, or an unused path beside it.
        """
        form = self._format
        data = _encode_checked(cache, form, self._place)
        old_data = read_bytes(target, self._place, missing_ok=True)
        if data == old_data:
            return _Written(is_changed=False)
        replace_file_bytes(target, data)
        return _Written(is_changed=True, lost_comment_lines=count_comment_lines(old_data, form))

    def _check_ours(self) -> None:
        """Refuse to replace something that is not a cache. A file that cannot be read is never replaced."""

    def check_writable(self) -> Cache:
        self._check_ours()
        cache = self.read(missing_ok=True)
        if os.path.lexists(self._target) and not os.access(self._target, os.W_OK):
            raise CacheError(self._place, "is read-only", "make it writable, or name another path")
        if cache.lossy:
            raise CacheError(*cache.lossy)
        check_creatable(self._lock, self._place)
        return cache

    @contextmanager
    def open_for_update(self, removing: bool = False) -> Iterator[OpenedStore]:
        """Open the file or folder under its lock; see :class:`~pytest_autotune.cache.stores.store.Store`."""
        with os_errors(self._place):
            self._lock.parent.mkdir(parents=True, exist_ok=True)
            with locked(self._lock) as is_locked:
                self._check_ours()
                # Without the lock, or if the content was not read as a whole, replacing it could lose entries.
                try:
                    cache = self._read(missing_ok=True)
                    is_replaceable = is_locked and not cache.lossy
                except CacheError:
                    cache = Cache()
                    is_replaceable = False
                yield OpenedFile(self, cache, is_replaceable)

    def replace(self, cache: Cache) -> UpdateOutcome:
        """Replace the content. Only for a store whose lock is held."""
        written = self._write(self._target, cache)
        return UpdateOutcome(self._place, written.is_changed, lost_comment_lines=written.lost_comment_lines)

    def write_beside(self, cache: Cache) -> UpdateOutcome:
        """Write a cache to an unused path beside the store."""
        path = create_unused_path(self._target, as_folder=isinstance(self, FolderStore))
        self._write(path, cache)
        entries = describe_count(len(cache.entries), "entry")
        return UpdateOutcome(
            str(path),
            changed=True,
            beside="was not replaced, because it could not be locked or read",
            remedy=f"{entries} written to {path} instead: compare both, then rename it",
            is_refused=True,
        )


@dataclass(frozen=True)
class OpenedFile:
    """A file or folder that is opened for an update.

    :param is_replaceable: the lock is held, and the content was read without loss.
    """

    store: FileStore
    cache: Cache
    is_replaceable: bool

    def write(self, cache: Cache) -> UpdateOutcome:
        """Replace the content; if that would lose something, write a file or folder beside it."""
        if self.is_replaceable:
            return self.store.replace(cache)
        return self.store.write_beside(cache)


def read_bytes(path: Path, place: str, missing_ok: bool = False) -> bytes:
    """Return the bytes of a file.

    :param place: the name of the file, for the error.
    :param missing_ok: a missing file has no bytes.
    :raises CacheError: if the path is not a file, cannot be read, or is too large.
    """
    try:
        status = path.stat()
        if stat.S_ISDIR(status.st_mode):
            raise CacheError(
                place, "is a folder, not a cache", f"{place}/ with a slash is a cache of one file for each problem"
            )
        if not stat.S_ISREG(status.st_mode):
            raise CacheError(place, "is not a regular file", "name another file")
        if status.st_size > MAX_BYTES:
            raise CacheError(place, f"is larger than {MAX_BYTES // 2**20} MiB: not a cache")
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        if missing_ok:
            return b""
        event = "no such file"
        if not os.path.isabs(place):
            # An absolute path names its folder itself.
            event += f" in {os.path.dirname(os.path.abspath(path))}"
        raise MissingCacheError(place, event) from None
    except (OSError, ValueError) as error:
        raise CacheError(place, f"cannot be read: {getattr(error, 'strerror', None) or error}") from None


def _encode_checked(cache: Cache, form: Format, place: str) -> bytes:
    """Return the bytes of a file for a cache.

    :raises CacheError: if the file would be too large to be read again.
    """
    data = encode(cache, form)
    if len(data) > MAX_BYTES:
        event = f"was not written, because a file would have more than {MAX_BYTES // 2**20} MiB, the limit for reading"
        raise CacheError(place, event, "use a folder, with one file for each problem: end the path in /")
    return data


class FolderStore(FileStore):
    """Keeps a cache in a folder. A marker file in it shows that the folder is a cache."""

    @property
    def _lock(self) -> Path:
        return self._target / f"{MARKER}.lock"

    def read(self, missing_ok: bool = False) -> Cache:
        """Return the content; a folder without the marker file is like a missing folder.

        A writer replaces the files one by one while it holds the lock. So a reader takes the lock, too: otherwise it
        could get some entries from before the update and others from after it.
        """
        if MARKER not in self._list_names():
            # There is nothing to lock. This returns an empty cache, or raises the error for a missing cache.
            return self._read(missing_ok)
        try:
            with locked(self._lock) as is_locked:
                if is_locked:
                    return self._read(missing_ok)
        except OSError:
            # This user may not write into the folder, and so cannot make a lock file.
            return self._read_unlocked(missing_ok)
        # The lock was not free in time.
        raise self._build_busy_error()

    def _build_busy_error(self) -> CacheError:
        event = f"another process has held the lock for {LONGEST_WAIT_S:g} s"
        return CacheError(self._place, event, f"if no pytest runs, remove {self._lock}")

    def _read_unlocked(self, missing_ok: bool) -> Cache:
        """Return the content without taking the lock.

        If a process wrote into the folder during a reading, that reading does not count, and the folder is read again.
        """
        deadline = HostTime.monotonic() + LONGEST_WAIT_S
        while HostTime.monotonic() < deadline:
            versions = self._list_versions()
            try:
                cache = self._read(missing_ok)
            except CacheError:
                # If the folder changed meanwhile, the error may come from a cache that was only partly replaced.
                if self._is_unchanged(versions):
                    raise
            else:
                if self._is_unchanged(versions):
                    return cache
            time.sleep(POLL_S)
        raise self._build_busy_error()

    def _is_unchanged(self, versions: Mapping[str, object]) -> bool:
        """Whether no process has written since the folder had these versions, and no process writes now."""
        return self._lock.name not in versions and versions == self._list_versions()

    def _list_versions(self) -> dict[str, object]:
        """Return a value for each file in the folder, by its name. The value changes if the file is replaced."""
        versions: dict[str, object] = {}
        for name in self._list_names():
            # A file may be removed meanwhile.
            with suppress(OSError):
                status = os.lstat(self._target / name)
                versions[name] = (status.st_ino, status.st_mtime_ns)
        return versions

    def _read(self, missing_ok: bool) -> Cache:
        names = self._list_names()
        if MARKER not in names:
            if missing_ok:
                return Cache()
            self._check_ours()
            raise MissingCacheError(self._place, "no such folder", created="one")
        entries: list[Entry] = []
        first_loss: tuple[str, ...] = ()
        for name in sorted(filter(_PROBLEM_FILE.fullmatch, names)):
            location = Location(self._target / name, display_text=os.path.join(self._place, name))
            problem_cache = FileStore(location).read()
            entries += problem_cache.entries
            first_loss = first_loss or problem_cache.lossy
        return Cache(without_duplicates(entries), first_loss)

    def _list_names(self) -> Sequence[str]:
        """Return the names of the files in the folder; none if it is missing."""
        try:
            return os.listdir(self._target)
        except (FileNotFoundError, NotADirectoryError):
            return ()
        except OSError as error:
            raise CacheError(self._place, f"cannot be read: {error.strerror}") from None

    def _check_ours(self) -> None:
        """Refuse a folder that is not a cache: the user may have typed ``--autotune-dump tests/``."""
        names = self._list_names()
        if MARKER in names:
            return
        # An empty folder, and a folder with only the lock file, become a cache.
        if any(_PROBLEM_FILE.fullmatch(name) for name in names):
            event = f"has no file {MARKER}, which marks a folder as a cache"
            raise CacheError(self._place, event, "copy this hidden file, too")
        if any(MARKER not in name for name in names):
            event = "is a folder with other files in it, not a cache"
            raise CacheError(self._place, event, "name a cache file in it, or a new folder")

    def _write(self, target: Path, cache: Cache) -> _Written:
        """Write a file for each problem, and remove the files of problems that the cache lacks.

        :param target: the folder.
        """
        if not (target / MARKER).exists():
            replace_file_bytes(target / MARKER, _MARKER_TEXT)
        data_by_name = self._encode_problems(cache)
        # All files are read before the first is written. So a file that cannot be read leaves the folder as it was.
        changed_names = []
        lost_comment_lines = 0
        for name in sorted(data_by_name):
            old_data = read_bytes(target / name, name, missing_ok=True)
            if old_data != data_by_name[name]:
                changed_names.append(name)
                lost_comment_lines += count_comment_lines(old_data, Format.TEXT)
        existing_names = os.listdir(target)
        existing_problem_files = filter(_PROBLEM_FILE.fullmatch, existing_names)
        obsolete_names = [name for name in existing_problem_files if name not in data_by_name]
        # A process that was killed may have left its temporary file.
        temporary_names = list(filter(_TEMPORARY_FILE.fullmatch, existing_names))
        for name in changed_names:
            replace_file_bytes(target / name, data_by_name[name])
        for name in [*obsolete_names, *temporary_names]:
            (target / name).unlink(missing_ok=True)
        return _Written(bool(changed_names or obsolete_names), lost_comment_lines)

    def _encode_problems(self, cache: Cache) -> dict[str, bytes]:
        """Return the bytes of each problem's file by its name."""
        entries_by_name: dict[str, list[Entry]] = {}
        for entry in cache.entries:
            entries_by_name.setdefault(f"{entry.problem.digest}.textproto", []).append(entry)
        data_by_name = {}
        for name, entries in entries_by_name.items():
            data_by_name[name] = _encode_checked(Cache(tuple(entries)), Format.TEXT, self._place)
        return data_by_name


def compute_content_digest(location: Location) -> str:
    """Return 32 hexadecimal digits for the bytes of a cache file, or for all files of a cache folder.

    A report has this digest, so that ``pytest-autotune gate`` can tell whether the process loaded the present cache.
    The digest is empty for a cache that is missing. It is also empty for a URL, to which other runs add at any time.
    """
    if location.url:
        return ""
    path = Path(location.resolved)
    digest = hashlib.sha256()
    try:
        if location.is_folder:
            for name in sorted(os.listdir(path)):
                # The marker file and the lock file are no part of the content.
                if name.endswith(".textproto"):
                    digest.update(f"{name}\n".encode())
                    digest.update((path / name).read_bytes())
        else:
            digest.update(path.read_bytes())
    except OSError:
        # The cache is missing, or cannot be read.
        return ""
    return digest.hexdigest()[:32]
