"""Folders that processes of this user share, on a machine that others use as well.

A folder is this user's own and private, or it is not used. No link is followed, and
nothing is removed but what this plugin has made: plain files of this user, by name.
Age is no proof that a folder was left behind; a lock that nobody holds is.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import re
import stat
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RUN = re.compile(r"run-[0-9a-f]{32}")
#: A folder of one run alone, where the standard one cannot be used; it has another name until it is locked.
_PRIVATE = re.compile(r"pytest-autotune-run-[a-z0-9_]{8}")
_BEING_MADE = "pytest-autotune-new-"
#: Claims, results and pieces of work, cores, owners that hang; by worker, as the user may name it: what it tunes, and
#: lookups of forked children.
_OF_A_RUN = re.compile(r"([0-9a-f]{32}|core|hung)[-.0-9a-z]*|progress-.+|.+-\d+\.jsonl")
_LOCK_OF_GPU = re.compile(r"gpu-[0-9a-f]{16}\.lock")


@dataclass(frozen=True)
class SharedFolder:
    """Where the processes of this user meet on this machine.

    :param path: None where there is no such place.
    :param note: a line for the user; empty where all is as it should be.
    :param member: keeps the folder of this run alone.
    """

    path: Path | None
    note: str = ""
    member: Membership | None = field(default=None, compare=False, repr=False)

    @property
    def of_this_run(self) -> bool:
        """Whether other pytest runs do not know of it."""
        return self.member is not None

    def locks(self) -> Path:
        """The folder for locks.

        :raises OSError: where there is none.
        """
        if self.path is None:
            raise FileNotFoundError(errno.ENOENT, "no folder for locks")
        return self.path

    def run(self, run_id: str) -> Path:
        """Where the workers of one run on this machine share what they tune.

        :raises OSError: where there is no place for it.
        """
        return self.locks() / f"run-{run_id}"


def standard_folder() -> Path:
    """The folder for locks of all pytest processes of this user on this machine.

    In memory or on a local disk, never in a home folder: locks on network file systems hang or lie.

    :raises OSError: when it cannot be made, or is not this user's own.
    """
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() and os.access(memory, os.W_OK | os.X_OK) else for_temporary_files()
    folder = base / f"pytest-autotune-{os.getuid()}"
    with suppress(FileExistsError):
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, "is not a folder", str(folder))
    if found.st_uid != os.getuid():
        raise PermissionError(errno.EPERM, f"belongs to the user with number {found.st_uid}", str(folder))
    if found.st_mode & 0o077:
        raise PermissionError(errno.EPERM, f"other users may enter it: chmod 700 {folder}", str(folder))
    return folder


def for_temporary_files() -> Path:
    """The folder for temporary files.

    :raises OSError: where none can be written. Python takes the current folder then, which is the user's project.
    """
    found = tempfile.gettempdir()
    if found == os.getcwd() and found not in map(os.environ.get, ("TMPDIR", "TEMP", "TMP")):
        raise FileNotFoundError(errno.ENOENT, "no folder for temporary files can be written")
    return Path(found)


def shared_folder(*, agreed: bool = True) -> SharedFolder:
    """The standard folder; where that cannot be used, one for this run alone.

    :param agreed: the caller lets the run's other processes know of it.
    """
    try:
        return SharedFolder(standard_folder())
    except OSError as error:
        why = f"{error.filename or 'a folder for locks'}: {error.strerror or error}"
    if agreed:
        with suppress(OSError):
            made = Path(tempfile.mkdtemp(prefix=_BEING_MADE, dir=for_temporary_files()))
            member = Membership(made)
            path = made.rename(made.with_name(made.name.replace("-new-", "-run-")))
            note = f"{why}; measurements of other pytest runs on this machine may overlap with those of this run"
            return SharedFolder(path, note, member)
    return SharedFolder(None, f"{why}; its workers do not wait for each other, and measurements may overlap")


class Membership:
    """A process's part in the folder of a run: while any lives, nobody removes it.

    :raises OSError: when the folder cannot be made, or is not a folder.
    """

    def __init__(self, folder: Path) -> None:
        while True:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            descriptor = os.open(folder, _FOLDER)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
                removed = os.fstat(descriptor).st_nlink == 0
            except BlockingIOError:
                removed = True  # it is being removed
            except BaseException:
                os.close(descriptor)
                raise
            if not removed:
                break
            os.close(descriptor)
        self._close = weakref.finalize(self, os.close, descriptor)

    def end(self) -> None:
        """Leave; the last one to leave lets the folder be removed."""
        self._close()


def remove_run_folders(shared: SharedFolder) -> None:
    """Remove the folders of runs of which no process lives: those in the shared one, and those of a run alone."""
    if shared.member is not None:
        shared.member.end()
    if shared.path is not None:
        with suppress(OSError), _opened(shared.path) as folder:
            _remove_runs(folder)
    with suppress(OSError), _opened(for_temporary_files().resolve()) as temporary:
        for name in filter(_PRIVATE.fullmatch, os.listdir(temporary)):
            with suppress(OSError), _opened(name, temporary) as folder:
                _lock_out_all_others(folder)
                _remove_runs(folder)
                if not any(map(_RUN.fullmatch, os.listdir(folder))):
                    remove_files(folder, _LOCK_OF_GPU)
                    os.rmdir(name, dir_fd=temporary)


def _remove_runs(parent: int) -> None:
    for name in filter(_RUN.fullmatch, os.listdir(parent)):
        with suppress(OSError), _opened(name, parent) as folder:
            _lock_out_all_others(folder)
            remove_files(folder, _OF_A_RUN)
            os.rmdir(name, dir_fd=parent)


def _lock_out_all_others(folder: int) -> None:
    """Make sure that an open folder is this user's, and that nobody is a member of it.

    :raises OSError: otherwise.
    """
    if os.fstat(folder).st_uid != os.getuid():
        raise PermissionError(errno.EPERM, "belongs to another user")
    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)


@contextmanager
def _opened(name: str | Path, parent: int | None = None) -> Iterator[int]:
    descriptor = open_folder(name, parent)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def remove_files(folder: int, names: re.Pattern[str]) -> None:
    """Remove the plain files with these names from an open folder, as far as they are its owner's."""
    for name in os.listdir(folder):
        if names.fullmatch(name) and is_plain(os.lstat(name, dir_fd=folder), folder):
            os.unlink(name, dir_fd=folder)


def is_plain(found: os.stat_result, folder: int) -> bool:
    """Whether a file in an open folder is a plain one of the folder's owner."""
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.fstat(folder).st_uid


def read_plain(name: str, folder: int) -> bytes:
    """A file in an open folder.

    :raises OSError: when it is a link, or not a plain file of the folder's owner.
    """
    descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    with open(descriptor, "rb") as file:
        if not is_plain(os.fstat(descriptor), folder):
            raise PermissionError(errno.EPERM, "not a plain file of this user", name)
        return file.read()


def open_folder(name: str | Path, parent: int | None = None) -> int:
    """Open a folder, by its name in another one that is open or by its path; it must be no link.

    :raises OSError: for a link, or what is no folder.
    """
    return os.open(name, _FOLDER, dir_fd=parent)


def identity(folder: Path) -> str:
    """What a folder differs in from another one that is made later in the same place, as far as the file system says.

    A number is given again to the next folder that is made; the time when it was made (statx(2), Linux 4.11) is not.
    """
    found = folder.stat()
    return f"{os.path.realpath(folder)} {found.st_dev} {found.st_ino} {_made_at(folder)}"


def _made_at(path: Path) -> str:
    buffer = ctypes.create_string_buffer(256)
    at_current_folder, made_at = -100, 0x800
    try:
        failed = ctypes.CDLL(None).statx(at_current_folder, os.fsencode(path), 0, made_at, buffer)
    except (OSError, AttributeError):
        return ""
    known = int.from_bytes(buffer.raw[:4], "little") & made_at
    return "" if failed or not known else buffer.raw[80:92].hex()
