"""How files come to be written: under a lock, and as a whole or not at all. Knows nothing of caches."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import chain, count
from pathlib import Path
from tempfile import NamedTemporaryFile

from pytest_autotune.cache.errors import CacheError

POLL_S = 0.02
#: So long a process waits for those that write.
LONGEST_WAIT_S = 60.0
#: The end of a temporary file's name. No other program has such a file, and it is as short as a check of the lock is.
TEMPORARY = ".autotune-tmp"


@contextmanager
def os_errors(where: str) -> Iterator[None]:
    """Turn the errors of the operating system into a :class:`CacheError`."""
    try:
        yield
    except OSError as error:
        raise CacheError(where, f"cannot be written: {error.strerror or error}") from error


def check_creatable(lock: Path, where: str) -> None:
    """Refuse a folder in which, or in the nearest above it that is there, no lock can be made; leaves none there."""
    folder = lock.parent
    while not os.path.lexists(folder):
        folder = folder.parent
    try:
        # Not the lock itself: of one that cannot be had nobody says at once whether it ever can.
        NamedTemporaryFile(dir=folder, prefix=lock.name).close()
    except OSError as error:
        raise CacheError(where, f"cannot be written in {folder}: {error.strerror}") from None


def create_unused_path(path: Path, *, as_folder: bool) -> Path:
    """A new, empty file or folder beside the path, with ``.new`` at its end."""
    for number in chain([""], count(2)):
        beside = path.with_name(f"{path.name}.new{number}")
        with suppress(FileExistsError):
            beside.mkdir() if as_folder else beside.touch(exist_ok=False)
            break
    return beside


def replace_file_bytes(file: Path, data: bytes) -> None:
    """Replace the file as a whole, or leave it as it is. Its lock is held: nobody else has the same temporary file."""
    temporary = file.with_name(f".{file.name}{TEMPORARY}")
    temporary.unlink(missing_ok=True)  # a killed process left it, or it is a link to elsewhere
    try:
        # Not tempfile: it makes files that only their owner can read, and the umask can only be asked by setting it.
        with temporary.open("xb") as stream:
            stream.write(data)
            # A test may have left a umask by which not even the owner could read the new file.
            os.fchmod(stream.fileno(), stat.S_IMODE(os.fstat(stream.fileno()).st_mode) | stat.S_IRUSR | stat.S_IWUSR)
            with suppress(FileNotFoundError):
                old = file.stat()
                os.fchmod(stream.fileno(), stat.S_IMODE(old.st_mode))
                with suppress(OSError):  # not ours to give away
                    os.fchown(stream.fileno(), old.st_uid, old.st_gid)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, file)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def lock_path(file: Path) -> Path:
    """The lock file of a file, beside it."""
    return file.with_name(f".{file.name}.lock")


@contextmanager
def locked(lock: Path, timeout_s: float = LONGEST_WAIT_S) -> Iterator[bool]:
    """Whether the lock could be had; a killed process gives it back.

    :raises OSError: where there can be no lock file.
    """
    from filelock import FileLock, Timeout

    if _is_foreign(lock):
        yield False
        return
    # Anybody may open the file that a killed process left; whoever may not write into its folder gains nothing by it.
    held = FileLock(lock, timeout_s, 0o666, poll_interval=POLL_S)
    try:
        held.acquire()
    except Timeout:
        is_held = False
    except OSError:
        if not os.path.lexists(lock):
            raise
        is_held = False  # another user's, or on a file system without locks
    else:
        is_held = True
    try:
        yield is_held
    finally:
        if is_held:
            # No file stays beside the user's. Whoever waits for this one sees, once it has it, that it has no name.
            with suppress(OSError):
                lock.unlink()
            held.release()


def _is_foreign(lock: Path) -> bool:
    """Whether another program's file is in the place of a lock: filelock would empty it, and it would be removed."""
    try:
        if not stat.S_ISREG(lock.lstat().st_mode):
            return True
        owner = lock.read_bytes()[:20].partition(b"\n")[0]
    except OSError:
        return False
    # One of ours is empty. On a file system without locks it begins with the number of a process.
    return bool(owner) and not owner.isdigit()
