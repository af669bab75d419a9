"""Folders that processes of this user share, on a machine that others use as well.

The folder is this user's own and private, or it is not used; nothing else is removed than folders of runs in it. Age is
no proof that one was left behind; a lock that nobody holds is.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import stat
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_RUN = re.compile(r"run-[0-9a-f]{32}")


@dataclass(frozen=True)
class SharedFolder:
    """Where the processes of this user meet on this machine.

    :param path: None where there is no such place.
    :param note: a line for the user; empty where all is as it should be.
    """

    path: Path | None
    note: str = ""

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
    base = memory if memory.is_dir() and os.access(memory, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())
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


def shared_folder() -> SharedFolder:
    """The standard folder, or why there is none."""
    try:
        return SharedFolder(standard_folder())
    except OSError as error:
        why = f"{error.filename or 'a folder for locks'}: {error.strerror or error}"
        return SharedFolder(None, f"{why}; workers do not wait for each other, and measurements may overlap")


class Membership:
    """A process's part in the folder of a run: while any lives, nobody removes it.

    :raises OSError: when the folder cannot be made, is no folder, or is being removed.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, _FOLDER)
        self._close = weakref.finalize(self, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def end(self) -> None:
        """Leave; the last one to leave lets the folder be removed."""
        self._close()


def remove_run_folders(shared: SharedFolder) -> None:
    """Remove the folders of runs of which no process lives."""
    names: list[str] = []
    with suppress(OSError):
        names = os.listdir(shared.locks())
    for name in filter(_RUN.fullmatch, names):
        with suppress(OSError):
            descriptor = os.open(shared.locks() / name, _FOLDER)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(shared.locks() / name, ignore_errors=True)
            finally:
                os.close(descriptor)
