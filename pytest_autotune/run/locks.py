"""Locks between the pytest processes of one user on one machine.

The operating system releases them when their holder dies, so a process that is
killed never leaves another one waiting.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_S = 0.02
#: No run is waited for that long; what is older was left by one that was killed.
ABANDONED_S = 24 * 3600.0


def shared_folder() -> Path:
    """The folder for locks of all pytest processes of this user on this machine.

    On a local disk, never a home folder: locks on network file systems hang or lie.
    """
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = base / f"pytest-autotune-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def run_folder(run_id: str) -> Path:
    """Where the workers of one run on this machine share what they tune."""
    return shared_folder() / f"run-{run_id}"


def remove_run_folder(run_id: str) -> None:
    """Remove the folder of a run that ends, and those that killed runs have left."""
    shutil.rmtree(run_folder(run_id), ignore_errors=True)
    for folder in shared_folder().glob("run-*"):
        with suppress(OSError):
            if time.time() - folder.stat().st_mtime > ABANDONED_S:
                shutil.rmtree(folder)


@contextmanager
def locked(path: Path, timeout_s: float) -> Iterator[bool]:
    """Hold a lock file; yields False, without it, when it could not be had in time.

    filelock closes its descriptor in forked children, so that a child that lives
    on does not keep the lock of a parent that was killed.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=timeout_s, poll_interval=POLL_S, thread_local=False)
    try:
        lock.acquire()
    except (Timeout, OSError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
