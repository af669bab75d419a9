"""Writes a file under a lock, and as a whole or not at all. Knows nothing of caches."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING

from pytest_autotune.cache.errors import CacheError

if TYPE_CHECKING:
    from filelock import FileLock

POLL_S = 0.02
#: A process waits so long for other processes that write.
LONGEST_WAIT_S = 60.0
#: The end of a temporary file's name. No other program has such a file. It is as short as the end of the file with
#: which :func:`check_creatable` checks the folder.
TEMPORARY = ".autotune-tmp"


@contextmanager
def os_errors(place: str) -> Iterator[None]:
    """Turn the errors of the operating system into a :class:`CacheError`."""
    try:
        yield
    except OSError as error:
        raise CacheError(place, f"cannot be written: {error.strerror or error}") from error


def check_creatable(lock: Path, place: str) -> None:
    """Check that a lock file can be made in its folder. No file is left there.

    If the folder is missing, the nearest folder above it is checked: a writer creates the folders below that one.

    :param place: the cache, for the error.
    :raises CacheError: if it cannot be made.
    """
    folder = lock.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        # The name begins as the lock's name does, so a name that is too long fails here, too. The lock itself is not
        # taken. If another process had it, the check would have to wait for that process.
        NamedTemporaryFile(dir=folder, prefix=lock.name).close()
    except OSError as error:
        raise CacheError(place, f"cannot be written in {folder}: {error.strerror}") from None


def create_unused_path(path: Path, *, as_folder: bool) -> Path:
    """Create an empty file or folder beside the path, named ``PATH.new`` or ``PATH.new2``, ``PATH.new3`` …"""
    new_path = path.with_name(f"{path.name}.new")
    numbers = count(2)
    while True:
        with suppress(FileExistsError):
            if as_folder:
                new_path.mkdir()
            else:
                new_path.touch(exist_ok=False)
            return new_path
        new_path = path.with_name(f"{path.name}.new{next(numbers)}")


def replace_file_bytes(file: Path, data: bytes) -> None:
    """Replace the file as a whole, or leave it as it is.

    The caller holds the file's lock, so no other process has the same temporary file.
    """
    temporary = file.with_name(f".{file.name}{TEMPORARY}")
    # A killed process may have left the file, or it may be a link to another place.
    temporary.unlink(missing_ok=True)
    try:
        # open() gives the new file the mode that the user's umask asks for. The module tempfile would make a file that
        # only its owner can read. Its mode could not be corrected, because the umask can be read only by setting it.
        with temporary.open("xb") as stream:
            stream.write(data)
            _set_access(stream.fileno(), file)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def _set_access(descriptor: int, file: Path) -> None:
    """Give an open file the mode and the owner of another file, if that file exists.

    :param descriptor: the number of the open file.
    """
    # A test may have left a umask by which even the owner could not read the new file.
    mode = stat.S_IMODE(os.fstat(descriptor).st_mode)
    os.fchmod(descriptor, mode | stat.S_IRUSR | stat.S_IWUSR)
    with suppress(FileNotFoundError):
        old = file.stat()
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))
        # Only root may give a file to another owner.
        with suppress(OSError):
            os.fchown(descriptor, old.st_uid, old.st_gid)


def lock_path(file: Path) -> Path:
    """Return the lock file of a file, beside it."""
    return file.with_name(f".{file.name}.lock")


@contextmanager
def locked(lock: Path, timeout_s: float = LONGEST_WAIT_S) -> Iterator[bool]:
    """Hold a lock; yield whether it could be taken. The operating system releases the lock of a killed process.

    :param lock: the lock file. It is made, and removed at the end.
    :param timeout_s: the longest time to wait for another process that holds the lock.
    :raises OSError: if no lock file can be made.
    """
    from filelock import FileLock

    if _is_foreign(lock):
        yield False
        return
    # The mode lets all users open a file that a killed process left. It gives a user no right to write a cache.
    file_lock = FileLock(lock, timeout=timeout_s, mode=0o666, poll_interval=POLL_S)
    is_locked = _try_to_acquire(file_lock, lock)
    try:
        yield is_locked
    finally:
        if is_locked:
            # No file stays beside the user's. A process that waits for this file notices that it has no name any more.
            with suppress(OSError):
                lock.unlink()
            file_lock.release()


def _try_to_acquire(file_lock: FileLock, lock: Path) -> bool:
    """Acquire a lock, and return whether that was possible.

    :param file_lock: the lock, which knows how long to wait.
    :param lock: the path of its file.
    :raises OSError: if no lock file can be made.
    """
    from filelock import Timeout

    try:
        file_lock.acquire()
    except Timeout:
        return False
    except OSError:
        if not os.path.lexists(lock):
            raise
        # The file belongs to another user, or the file system has no locks.
        return False
    return True


def _is_foreign(lock: Path) -> bool:
    """Whether another program's file has the name of a lock. Filelock would empty it, and it would be removed."""
    try:
        if not stat.S_ISREG(lock.lstat().st_mode):
            return True
        first_line = lock.read_bytes()[:20].partition(b"\n")[0]
    except OSError:
        return False
    # Our file is empty. On a file system without locks, it begins with the number of a process.
    return bool(first_line) and not first_line.isdigit()
