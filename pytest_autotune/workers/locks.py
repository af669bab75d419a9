"""Locks between the pytest processes of one user on one machine: where they are, and how long a process waits for them.

The operating system releases a lock when its holder dies, so a process that is killed never leaves another one waiting.
The folder of locks is this user's own and private, or it is not used; nothing else is removed than folders of runs in
it. Age is no proof that one was left behind; a lock that nobody holds is.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pytest_autotune.devices import current_gpu_uuid

POLL_S = 0.02
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


@dataclass(eq=False)
class _Processor:
    """What this process has of one processor.

    :param path: the lock file.
    :param entering: held by the thread that waits for the lock file, or changes what follows.
    :param inside: how many measurements there are inside of each other, or in several threads.
    :param lock: None where they go on without it.
    """

    path: Path
    entering: threading.Lock = field(default_factory=threading.Lock)
    inside: int = 0
    lock: HeldLock | None = None


class Locks:
    """What one process locks: for a tuning whatever it names, and for a measurement the GPU.

    :param timeout_s: how long to wait in all for one tuning, or for a measurement outside of one, in seconds.
    :param uuid: says which GPU is current; the empty string means there is none to lock.
    :param folder: says where the locks of GPUs are; raises OSError where there can be none.
    """

    def __init__(
        self,
        timeout_s: float,
        uuid: Callable[[], str] = current_gpu_uuid,
        folder: Callable[[], Path] = standard_folder,
    ) -> None:
        #: Lines for the summary.
        self.notes: list[str] = []
        self._timeout_s = timeout_s
        self._uuid = uuid
        self._folder = folder
        self._may_wait = True
        self._forget()
        reference = weakref.WeakMethod(self._begin_child)

        def begin_child() -> None:
            if (method := reference()) is not None:
                method()

        os.register_at_fork(after_in_child=begin_child)

    def _forget(self) -> None:
        self._of_thread = threading.local()
        self._tunings: set[_Budget] = set()
        self._processors: dict[str, _Processor] = {}

    def _begin_child(self) -> None:
        """In a forked child, which has none of its parent's threads: what the parent holds it may hold for good."""
        if self._tunings or self.held:
            self._may_wait = False
        self._forget()

    @contextmanager
    def one_tuning(self) -> Iterator[None]:
        """Let all waits of this thread inside share one time-out; a tuning inside a tuning has that one's."""
        if self._budget is not None:
            yield
            return
        budget = self._of_thread.budget = _Budget(self._timeout_s)
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

    def _wait(self, ended: Callable[[float], bool]) -> bool:
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
            self._wait(ended)
        except OSError as error:
            self.note(f"{path.parent}: {error.strerror or error}; workers do not wait for each other there")
        return lock

    @property
    def held(self) -> bool:
        """Whether this process holds any GPU, or waits for one."""
        return any(one.inside or one.entering.locked() for one in list(self._processors.values()))

    @contextmanager
    def measuring(self, on: str = "") -> Iterator[bool]:
        """Hold the current GPU, among the pytest processes of this user; yields False where it was not had in time.

        Re-entrant for the process and not for the thread: autograd launches kernels from threads of its own while the
        thread that waits for it may hold the lock. The first thread that enters waits for the lock file, those that
        enter meanwhile wait for the first, and the last one that leaves lets go. Where the first has given up, those
        inside go on without it.

        :param on: names another processor to hold instead, such as the CPU.
        """
        uuid = on or self._uuid()
        if not uuid or in_distributed_run():
            yield True
            return
        try:
            path = self._folder() / f"gpu-{hashlib.sha256(uuid.encode()).hexdigest()[:16]}.lock"
        except OSError:  # reported when the run began
            yield False
            return
        processor = self._processors.setdefault(uuid, _Processor(path))
        if not self._wait(lambda left_s: processor.entering.acquire(timeout=left_s)):
            yield False
            return
        try:
            if not processor.inside:
                processor.lock = self.acquire(path)
            processor.inside += 1
        finally:
            processor.entering.release()
        try:
            yield processor.lock is not None
        finally:
            if self._processors.get(uuid) is processor:  # a forked child has nothing to let go of
                self._leave(processor)

    def _leave(self, processor: _Processor) -> None:
        with processor.entering:
            processor.inside -= 1
            if not processor.inside and processor.lock is not None:
                processor.lock.release()
                processor.lock = None

    def note(self, text: str) -> None:
        """Show the user something, once, in the summary."""
        if text not in self.notes:
            self.notes.append(text)
