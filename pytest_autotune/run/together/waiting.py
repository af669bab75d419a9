"""How long a process waits for others: a bounded time for each tuning, and for one that hangs only once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from pytest_autotune.run.together.forks import in_forked_children
from pytest_autotune.run.together.locks import POLL_S, HeldLock, holder_of


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
        #: Processes that were waited for in vain.
        self._hung: dict[str, _Hung] = {}
        self._shared_in: Path | None = None
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

    def share_in(self, folder: Path) -> None:
        """Let the run's other workers know which processes hang, and learn it from them, in a folder of theirs."""
        self._shared_in = folder

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
            first_seen = None
            while True:
                try:
                    lock = HeldLock(path)
                    return True
                except BlockingIOError:
                    pass
                holder = holder_of(path)
                first_seen = holder if first_seen is None else first_seen
                if not wait or unless() or self._hangs(holder, path):
                    return False
                if time.monotonic() >= give_up_at:
                    if holder == first_seen:
                        self._remember(path, holder)
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

    def _remember(self, lock: Path, holder: str) -> None:
        process, hung = _process(holder, lock), _Hung(lock, holder, time.monotonic_ns())
        self._hung[process] = hung
        if self._shared_in is not None:
            with suppress(OSError):
                (self._shared_in / f"hung-{process}").write_text(hung.text, encoding="utf-8")

    def _hangs(self, holder: str, lock: Path) -> bool:
        """Whether the holder of a lock was waited for in vain before, and has shown no sign of life since then."""
        process = _process(holder, lock)
        known = self._hung.get(process)
        if known is None and self._shared_in is not None:
            with suppress(OSError, ValueError):
                known = _Hung.of((self._shared_in / f"hung-{process}").read_text(encoding="utf-8"))
        if known is None or holder_of(known.lock) != known.holder:
            return False
        taken_ns = holder.partition(" ")[2]
        return not (taken_ns.isdigit() and int(taken_ns) > known.since_ns)


@dataclass(frozen=True)
class _Hung:
    """A process that was waited for in vain.

    :param lock: what it held for all of that time.
    :param holder: the holder's text in that lock.
    :param since_ns: when it was given up, by the clock of the locks, in nanoseconds.
    """

    lock: Path
    holder: str
    since_ns: int

    @property
    def text(self) -> str:
        return f"{self.since_ns}\n{self.holder}\n{self.lock}"

    @staticmethod
    def of(text: str) -> _Hung:
        """The reverse of ``text``.

        :raises ValueError: for text that is none.
        """
        since_ns, holder, lock = text.split("\n", 2)
        return _Hung(Path(lock), holder, int(since_ns))


def _process(holder: str, lock: Path) -> str:
    """The process that holds a lock; where the lock does not say it, the lock stands for it."""
    return holder.partition(" ")[0] or lock.stem
