"""How files come to be written: under a lock, and as a whole or not at all. Knows nothing of caches."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from pytest_autotune.cache.errors import CacheError

_POLL_S = 0.02
_MOUNTS = Path("/proc/self/mountinfo")
_LONGEST_NAME = 255


@contextmanager
def os_errors(where: str) -> Iterator[None]:
    """Turn the errors of the operating system into one line.

    :raises CacheError: then.
    """
    try:
        yield
    except OSError as error:
        raise CacheError(where, f"cannot be written: {error.strerror or error}") from error


def check_name(file: Path, where: str) -> None:
    """Refuse a name under which nothing can be put, nor what stands beside it while it is written.

    :raises CacheError: then.
    """
    try:
        name = file.name.encode()
        str(file).encode()
    except UnicodeEncodeError:
        encoding = sys.getfilesystemencoding()
        if encoding.lower().replace("-", "") == "utf8":
            raise CacheError(where, "the path is not encoded in UTF-8", "name it otherwise") from None
        found = f"the path has bytes that are not {encoding}, as which Python reads paths here"
        raise CacheError(where, found, "set PYTHONUTF8=1, or name it otherwise") from None
    longest = _LONGEST_NAME - len("..lock")
    if len(name) > longest:
        raise CacheError(where, f"the name is {len(name)} bytes long", f"at most {longest}")


def check_replaceable(file: Path, where: str) -> None:
    """Refuse a file in whose place no other can be put.

    :raises CacheError: for a mount point, for one that is read-only, and for another user's where only its owner
        may remove it.
    """
    if os.path.lexists(file) and not os.access(file, os.W_OK):
        raise CacheError(where, "is read-only")
    with suppress(OSError):
        owner, folder = file.stat().st_uid, file.parent.stat()
        if folder.st_mode & stat.S_ISVTX and os.geteuid() not in (0, owner, folder.st_uid):
            raise CacheError(where, "is another user's, in a folder where only its owner may replace it")
    with suppress(OSError):
        mounts = _MOUNTS.read_text(errors="surrogateescape").splitlines()
        points = {re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), line.split()[4]) for line in mounts}
        if str(file) in points:
            raise CacheError(where, "is a mount point, which cannot be replaced", "mount the folder that it is in")


def check_lock(lock: Path, where: str) -> None:
    """Refuse what stands in the place of a lock file and is none: nothing could be written under it.

    :raises CacheError: then.
    """
    with suppress(OSError):
        if not stat.S_ISREG(lock.lstat().st_mode):
            raise CacheError(where, f"{lock.name} beside it is no plain file, so that it cannot be locked", "remove it")


def check_creatable(folder: Path, where: str) -> None:
    """Refuse a folder in which, or in the nearest one above it that is there, no file can be made; leaves none behind.

    :raises CacheError: then.
    """
    with os_errors(where):
        while not os.path.lexists(folder):
            folder = folder.parent
        if not folder.is_dir():
            raise CacheError(where, f"cannot be written: {folder} is not a folder")
        trial, descriptor = _temporary(folder / "trial")
        os.close(descriptor)
        trial.unlink()


def real(path: Path) -> Path:
    """The path that links lead to."""
    return Path(os.path.realpath(path))


def unused_name(path: Path) -> Path:
    """A name beside the path, with ``.new`` at its end, under which there is nothing."""
    name = new = path.with_name(f"{path.name}.new")
    number = 2
    while os.path.lexists(name):
        name = new.with_name(f"{new.name}{number}")
        number += 1
    return name


def replace(file: Path, data: bytes) -> None:
    """Replace the file as a whole, or leave it as it is."""
    _remove_litter(file)
    temporary, descriptor = _temporary(file)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
            try:
                old = file.stat()
            except FileNotFoundError:
                _let_owner_use(descriptor)
            else:
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


def write_new(file: Path, data: bytes) -> None:
    """Make a file that is not there yet, as a whole or not at all.

    :raises FileExistsError: where it is there.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)
    try:
        with open(descriptor, "wb") as stream:
            stream.write(data)
            _let_owner_use(descriptor)
    except BaseException:
        file.unlink(missing_ok=True)
        raise


def _let_owner_use(descriptor: int) -> None:
    """Let its owner read and write a new file whatever the umask is: the next run is to read it."""
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    if mode & 0o600 != 0o600:
        os.fchmod(descriptor, mode | 0o600)


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


def lock_of(file: Path) -> Path:
    """The lock file of a file, beside it."""
    return file.with_name(f".{file.name}.lock")


@contextmanager
def locked(lock: Path, timeout_s: float) -> Iterator[bool]:
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
