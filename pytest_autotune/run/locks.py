"""Locks between the pytest processes of one user on one machine.

The operating system releases them when their holder dies, so a process that is
killed never leaves another one waiting.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.02


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
