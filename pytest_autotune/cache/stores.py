"""Where caches are kept: a file, or a folder of one file for each problem. All side effects of ``cache/`` are here.

Writing is locked, atomic, and done only where the bytes change.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, decode, encode, format_of
from pytest_autotune.cache.formats.schema import one_of_each
from pytest_autotune.cache.model import Cache, Entry

MAX_BYTES = 512 * 2**20
MARKER = ".pytest-autotune"

_MARKER_TEXT = b"A folder of autotuning choices, one file for each problem, kept by pytest-autotune.\n"
_PROBLEM_FILE = re.compile(r"[0-9a-f]{32}\.textproto")
_POLL_S = 0.02


@dataclass(frozen=True)
class CachePath:
    """Where a cache is kept.

    :param folder: it was written with a slash at its end: a folder store.
    :param shown: the path as the user wrote it, for messages.
    """

    path: Path
    folder: bool = False
    shown: str = field(default="", compare=False)

    def __str__(self) -> str:
        return self.shown or f"{self.path}{'/' if self.folder else ''}"


AnyPath: TypeAlias = "CachePath | str | os.PathLike[str]"


@dataclass(frozen=True)
class Updated:
    """What an update came to.

    :param path: what was to be updated.
    :param written_to: the same, or a path beside it with ``.new`` at its end:
        the lock could not be had, or what is there must not be overwritten.
    :param changed: whether any byte was written.
    :param cache: what is there now.
    """

    path: Path
    written_to: Path
    changed: bool
    cache: Cache


def cache_path(text: str | os.PathLike[str], base: Path) -> CachePath:
    """The path that a user wrote.

    :param base: the folder that it is relative to.
    """
    written = os.fspath(text)
    return CachePath(base / os.path.expanduser(written), written.endswith("/"), written)


def read(path: AnyPath, missing_ok: bool = False) -> Cache:
    """The cache that is kept there.

    :param missing_ok: a missing or empty file is an empty cache.
    :raises CacheError: where there is none, or none that can be read.
    """
    target = _parsed(path)
    if _is_folder(target):
        return _read_folder(target.path, str(target), missing_ok)
    return _read_file(target, missing_ok)[0]


def check_writable(path: AnyPath) -> Cache:
    """Tell before a run what would keep its end from writing there; leaves nothing behind.

    :returns: what is there now; an empty cache where there is nothing.
    :raises CacheError: where it could not be written, or what is there must not
        be overwritten.
    """
    target = _parsed(path)
    if _is_folder(target):
        _check_folder(target.path, str(target))
        cache = _read_folder(target.path, str(target), missing_ok=True)
        inside = target.path
    else:
        cache, _ = _read_file(target, missing_ok=True)
        inside = _real(target.path).parent
        _check_name(_real(target.path), str(target))
        if os.path.lexists(_real(target.path)) and not os.access(target.path, os.W_OK):
            raise CacheError(str(target), "is read-only")
    if cache.lossy:
        raise CacheError(*cache.lossy)
    with _os_errors(target):
        while not os.path.lexists(inside):
            inside = inside.parent
        if not inside.is_dir():
            raise CacheError(str(target), f"cannot be written: {inside} is not a folder")
        trial, descriptor = _temporary(inside / "trial")
        os.close(descriptor)
        trial.unlink()
    return cache


_MOUNTS = Path("/proc/self/mountinfo")
_LONGEST_NAME = 255


def _check_name(file: Path, where: str) -> None:
    """Refuse a name under which a file, or what stands beside it while it is written, cannot be put.

    :raises CacheError: then.
    """
    try:
        name = file.name.encode()
        str(file).encode()
    except UnicodeEncodeError:
        raise CacheError(where, "the path is not encoded in UTF-8", "name it otherwise") from None
    longest = _LONGEST_NAME - len("..lock")
    if len(name) > longest:
        raise CacheError(where, f"the name is {len(name)} bytes long", f"at most {longest}")
    with suppress(OSError):
        mounts = _MOUNTS.read_text(errors="surrogateescape").splitlines()
        points = {re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in mounts}
        if str(file) in points:
            raise CacheError(where, "is a mount point, which cannot be replaced", "mount the folder that it is in")


def update(path: AnyPath, change: Callable[[Cache], Cache], lock_timeout_s: float = 60) -> Updated:
    """Put ``change(what is there now)`` in the place of what is there now.

    Other processes that update the same path wait meanwhile. What is there is
    replaced as a whole or, on any error, left as it is. A missing or empty file
    is an empty cache; missing folders are made.

    :param lock_timeout_s: after so many seconds of waiting for them, the cache
        is written beside the path, like one that became unreadable.
    :raises CacheError: where nothing could be written.
    """
    target = _parsed(path)
    with _os_errors(target):
        if _is_folder(target):
            return _update_folder(target, change, lock_timeout_s)
        return _update_file(target, change, lock_timeout_s)


def file_bytes(path: str) -> bytes:
    """What a file of another kind holds.

    :raises CacheError: where it cannot be read.
    """
    try:
        return _bytes_of(Path(path), path, missing_ok=False)
    except CacheError as error:
        raise CacheError(error.where, error.found) from None


def replace_file(path: str, data: bytes) -> None:
    """Put data in the place of a file of another kind, as a whole or not at all; missing folders are made.

    :raises CacheError: where it cannot be written.
    """
    target = _parsed(path)
    with _os_errors(target):
        file = _real(target.path)
        if file.is_dir():
            raise CacheError(path, "is a folder")
        file.parent.mkdir(parents=True, exist_ok=True)
        _replace(file, data)


def _parsed(path: AnyPath) -> CachePath:
    return path if isinstance(path, CachePath) else cache_path(path, Path())


def _is_folder(target: CachePath) -> bool:
    return target.folder or os.path.isfile(target.path / MARKER)  # Path.is_file raises for some paths


def _real(path: Path) -> Path:
    return Path(os.path.realpath(path))


@contextmanager
def _os_errors(target: CachePath) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise CacheError(str(target), f"cannot be written: {error.strerror or error}") from error


# Files


def _read_file(target: CachePath, missing_ok: bool) -> tuple[Cache, bytes]:
    format = format_of(target.path, str(target))
    data = _bytes_of(target.path, str(target), missing_ok)
    if missing_ok and (not data or data.isspace()):
        return Cache(), data
    return decode(data, format, str(target)), data


def _bytes_of(path: Path, where: str, missing_ok: bool) -> bytes:
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


def _update_file(target: CachePath, change: Callable[[Cache], Cache], lock_timeout_s: float) -> Updated:
    format = format_of(target.path, str(target))
    file = _real(target.path)
    file.parent.mkdir(parents=True, exist_ok=True)
    with _locked(file.with_name(f".{file.name}.lock"), lock_timeout_s) as held:
        try:
            cache, data = _read_file(target, missing_ok=True)
            replaceable = held and not cache.lossy
        except CacheError:
            cache, data, replaceable = Cache(), b"", False
        cache = change(cache)
        encoded = encode(cache, format)
        if replaceable:
            if encoded != data:
                _replace(file, encoded)
            return Updated(target.path, target.path, encoded != data, cache)
    with open(_unused_name(file), "xb") as beside:
        beside.write(encoded)
    return Updated(target.path, Path(beside.name), True, cache)


def _unused_name(path: Path) -> Path:
    name = new = path.with_name(f"{path.name}.new")
    number = 2
    while os.path.lexists(name):
        name = new.with_name(f"{new.name}{number}")
        number += 1
    return name


def _replace(file: Path, data: bytes) -> None:
    """Replace the file as a whole, or leave it as it is."""
    _remove_litter(file)
    temporary, descriptor = _temporary(file)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
            with suppress(FileNotFoundError):
                old = file.stat()
                os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
                with suppress(OSError):  # not ours to give away
                    os.fchown(descriptor, old.st_uid, old.st_gid)
            stream.flush()
            os.fsync(descriptor)
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(file.parent)


def _temporary(file: Path) -> tuple[Path, int]:
    # Not tempfile: it makes files that only their owner can read, and the umask can only be asked by setting it.
    path = file.with_name(f"{_temporary_prefix(file)}{secrets.token_hex(4)}.tmp")
    return path, os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)


def _temporary_prefix(file: Path) -> str:
    return f".{file.name[:50]}."  # of up to four bytes each


def _remove_litter(file: Path) -> None:
    """What a killed process left; nobody else writes, since the lock is ours."""
    ours = re.compile(re.escape(_temporary_prefix(file)) + r"[0-9a-f]{8}\.tmp")
    for name in os.listdir(file.parent):
        if ours.fullmatch(name):
            with suppress(OSError):
                (file.parent / name).unlink()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _locked(lock: Path, timeout_s: float) -> Iterator[bool]:
    """Whether the lock could be had; a killed process gives it back.

    Not filelock: it leaves the lock file beside the user's cache. Removing that
    file is safe here because it is done while the lock is held, and because
    whoever gets a lock makes sure that its file is still the one at the path.
    """
    import fcntl

    deadline = time.monotonic() + timeout_s
    descriptor = None
    while descriptor is None:
        try:
            opened = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
            try:
                fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if os.path.samestat(os.fstat(opened), os.stat(lock)):
                    descriptor = opened
            except OSError as error:
                if error.errno not in (errno.EAGAIN, errno.EACCES, errno.ENOENT):
                    break  # a file system without locks
            finally:
                if descriptor is None:
                    os.close(opened)
        except PermissionError:
            if not os.path.lexists(lock):
                raise
        if descriptor is None:
            if time.monotonic() >= deadline:
                break
            time.sleep(_POLL_S)
    if descriptor is None:
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            lock.unlink()
        os.close(descriptor)


# Folders: one file for each problem


def _check_folder(folder: Path, where: str) -> None:
    """Refuse what is there and is no folder store: someone wrote ``--autotune-dump tests/``."""
    try:
        names = os.listdir(folder)
    except (FileNotFoundError, NotADirectoryError):
        return
    except OSError as error:
        raise CacheError(where, f"cannot be used: {error.strerror}") from None
    if MARKER not in names and any(MARKER not in name for name in names):
        raise CacheError(where, "is a folder with other things in it", "name a new or an empty folder")


def _problem_files(folder: Path) -> list[str]:
    return sorted(name for name in os.listdir(folder) if _PROBLEM_FILE.fullmatch(name))


def _read_folder(folder: Path, where: str, missing_ok: bool) -> Cache:
    try:
        if not os.path.isfile(folder / MARKER):
            if missing_ok:
                return Cache()
            with suppress(FileNotFoundError):
                os.listdir(folder)
                raise CacheError(where, "is no folder of pytest-autotune", f"create one with --autotune-dump={where}")
            raise CacheError(where, "no such folder", f"create one with --autotune-dump={where}")
        names = _problem_files(folder)
    except OSError as error:
        raise CacheError(where, f"cannot be read: {error.strerror}") from None
    caches = [_read_file(CachePath(folder / name, shown=os.path.join(where, name)), False)[0] for name in names]
    return Cache(
        one_of_each(entry for cache in caches for entry in cache.entries),
        lossy=next((cache.lossy for cache in caches if cache.lossy), ()),
    )


def _update_folder(target: CachePath, change: Callable[[Cache], Cache], lock_timeout_s: float) -> Updated:
    folder = _real(target.path)
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / f"{MARKER}.lock", lock_timeout_s) as held:
        _check_folder(folder, str(target))
        try:
            cache = _read_folder(folder, str(target), missing_ok=True)
            replaceable = held and not cache.lossy
        except CacheError:
            cache, replaceable = Cache(), False
        cache = change(cache)
        if replaceable:
            return Updated(target.path, target.path, _write_folder(folder, cache), cache)
    beside = _unused_name(folder)
    beside.mkdir()
    return Updated(target.path, beside, _write_folder(beside, cache), cache)


def _write_folder(folder: Path, cache: Cache) -> bool:
    if not (folder / MARKER).exists():
        _replace(folder / MARKER, _MARKER_TEXT)
    problems: dict[str, list[Entry]] = {}
    for entry in cache.entries:
        problems.setdefault(f"{entry.problem.digest}.textproto", []).append(entry)
    new = {name: encode(Cache(tuple(entries)), Format.TEXT) for name, entries in problems.items()}
    gone = set(_problem_files(folder)) - new.keys()
    different = [name for name, data in new.items() if _bytes_of(folder / name, name, missing_ok=True) != data]
    for name in sorted(different):
        _replace(folder / name, new[name])
    for name in gone:
        (folder / name).unlink()
    return bool(different or gone)
