"""Locks between the pytest processes of one user on one machine.

The operating system releases them when their holder dies, so a process that is
killed never leaves another one waiting.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

POLL_S = 0.02


def in_forked_children(renew: Callable[[], None]) -> None:
    """Call a method in every child that is forked from now on, before anything else, while its object lives.

    A child must not keep the locks of threads that it does not have.

    :param renew: a bound method.
    """
    reference = weakref.WeakMethod(renew)

    def call() -> None:
        method = reference()
        if method is not None:
            method()

    os.register_at_fork(after_in_child=call)


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

    def release(self) -> None:
        """Let go; in a forked child, which never had the lock, nothing is done."""
        if os.getpid() == self._process:
            self._lock.release()


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
