"""Locks between the pytest processes of one user on one machine.

The operating system releases them when their holder dies, so a process that is
killed never leaves another one waiting.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

POLL_S = 0.02


class HeldLock:
    """A lock file that this process holds."""

    def __init__(self, path: Path) -> None:
        """Take the lock.

        :raises BlockingIOError: when another one holds it.
        :raises OSError: when there can be no lock.
        """
        # filelock closes its descriptor in forked children, so that a child that lives on does not keep the lock of
        # a parent that was killed.
        from filelock import FileLock, Timeout

        path.parent.lstat()  # filelock would make the folder, and not a private one
        self._process = os.getpid()
        self._lock = FileLock(path, timeout=0, thread_local=False)
        try:
            self._lock.acquire()
        except Timeout:
            raise BlockingIOError(path) from None
        # Written down so that others know whether it is the same holder for all of the time that they wait.
        with suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC)
            try:
                os.write(descriptor, f"{self._process} {time.monotonic_ns()}".encode())
            finally:
                os.close(descriptor)

    def release(self) -> None:
        """Let go; in a forked child, which never had the lock, nothing is done."""
        if os.getpid() == self._process:
            self._lock.release()


def holder_of(path: Path) -> str:
    """Who held a lock last, ``PROCESS TIME``, each time another text; empty where it is not known."""
    try:
        return path.read_text(encoding="ascii")
    except (OSError, ValueError):
        return ""


@contextmanager
def locked_at_once(path: Path) -> Iterator[bool]:
    """Hold a lock file; yields False, without it, when it cannot be had at once."""
    try:
        lock = HeldLock(path)
    except OSError:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
