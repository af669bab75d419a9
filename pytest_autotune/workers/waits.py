"""Locks between the pytest processes of one user on one machine, and how long a process waits for them.

The operating system releases a lock when its holder dies, so a process that is killed never leaves another one waiting.
"""

from __future__ import annotations

import os
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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


def in_distributed_run() -> bool:
    """Whether this process is one rank of several, by its environment or by torch."""
    if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        return True
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())


@dataclass(eq=False)
class _Budget:
    """What is left of the time-out of one tuning, in seconds."""

    left_s: float
    is_over: bool = False


class Waits:
    """The waits of one process.

    :param timeout_s: how long to wait in all for one tuning, or for a measurement outside of one, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._may_wait = True
        self._of_thread = threading.local()
        self._tunings: set[_Budget] = set()
        #: Lines for the summary.
        self.notes: list[str] = []
        in_forked_children(self._begin_child)

    def _begin_child(self) -> None:
        if self._tunings:
            self.never()
        self._tunings = set()
        self._of_thread = threading.local()

    def never(self) -> None:
        """Wait for nobody: what a child's parent holds may be held until the child is done."""
        self._may_wait = False

    @contextmanager
    def one_tuning(self, timeout_s: float | None = None) -> Iterator[None]:
        """Let all waits of this thread inside share one time-out; a tuning inside a tuning has that one's.

        :param timeout_s: another time-out than the usual one, in seconds.
        """
        if self._budget is not None:
            yield
            return
        budget = self._of_thread.budget = _Budget(self._timeout_s if timeout_s is None else timeout_s)
        self._tunings.add(budget)
        try:
            yield
        finally:  # in whatever thread, or process
            budget.is_over = True
            self._tunings.discard(budget)

    @property
    def _budget(self) -> _Budget | None:
        """The time-out of this thread's tuning; None outside of one."""
        budget: _Budget | None = getattr(self._of_thread, "budget", None)
        return None if budget is None or budget.is_over else budget

    def wait(self, ended: Callable[[float], bool]) -> bool:
        """Wait for something, as long as this thread still may; returns whether it came.

        :param ended: called with the seconds that are left; waits, at most that long.
        """
        budget = self._budget or _Budget(self._timeout_s)
        started = time.monotonic()
        try:
            return ended(budget.left_s if self._may_wait else 0.0)
        finally:
            budget.left_s = max(budget.left_s - (time.monotonic() - started), 0.0)

    def acquire(self, path: Path, unless: Callable[[], bool] = lambda: False, *, wait: bool = True) -> HeldLock | None:
        """Take a lock; None when it could not be had in time, or need not be had any more.

        :param unless: whether what the lock was wanted for is there.
        """
        lock: HeldLock | None = None

        def ended(left_s: float) -> bool:
            nonlocal lock
            give_up_at = time.monotonic() + left_s
            while True:
                try:
                    lock = HeldLock(path)
                    return True
                except BlockingIOError:
                    if not wait or unless() or time.monotonic() >= give_up_at:
                        return False
                time.sleep(min(POLL_S, max(give_up_at - time.monotonic(), 0)))

        try:
            self.wait(ended)
        except OSError as error:
            self.note(f"{path.parent}: {error.strerror or error}; workers do not wait for each other there")
        return lock

    def note(self, text: str) -> None:
        """Show the user something, once, in the summary."""
        if text not in self.notes:
            self.notes.append(text)
