"""Locks between the pytest processes of one user on one machine: their folder, and the time that a process waits.

The operating system releases a lock when its holder dies, so a killed process leaves no other process waiting. The
folder of locks is used only if it is private to the user. In this folder, the plugin removes only the folders of runs.
The age of such a folder does not tell whether a run still uses it. A folder whose lock nobody holds is abandoned.

A processor is a GPU, a MIG slice of a GPU, or the CPU. One process measures on a processor at a time.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import stat
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pytest_autotune.cache.errors import is_from_signal_handler
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.devices import current_gpu_uuid

if TYPE_CHECKING:
    from filelock import FileLock

#: How often a waiting process looks whether a lock is free, in seconds.
POLL_S = 0.02
#: Open a folder, and never a link to a folder.
_FOLDER_FLAGS = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


@dataclass(frozen=True)
class SharedFolder:
    """The folder for the locks of all pytest processes of this user on this machine.

    :param path: None if there is no such folder.
    :param note: a line for the user that says why there is no folder; empty if there is one.
    """

    path: Path | None
    note: str = ""

    def run_folder(self, run_id: str) -> Path | None:
        """Return the folder that the workers of one run on this machine share; None if there is none."""
        if self.path is None:
            return None
        return self.path / f"run-{run_id}"


def find_shared_folder() -> SharedFolder:
    """Return the folder for locks, and make it if needed.

    The folder lies in memory or on a local disk, and never in a home folder. A home folder may lie on a network file
    system, where a lock can hang, or can be given to two processes at once.
    """
    parent = _find_parent_folder()
    if parent is None:
        return _build_missing_folder(Path(tempfile.gettempdir()), "lies in the home folder")
    folder = parent / f"pytest-autotune-{os.getuid()}"
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        # Another user may have made a folder, or a link, of this name.
        fault = _explain_unsafe_folder(folder, folder.lstat())
    except OSError as error:
        fault = error.strerror or f"{error}"
    if fault:
        return _build_missing_folder(folder, fault)
    return SharedFolder(folder)


def _find_parent_folder() -> Path | None:
    """Return the first folder of this machine in which the folder for locks can be made; None if there is none."""
    for parent in (Path("/dev/shm"), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if parent.is_dir() and os.access(parent, os.W_OK | os.X_OK) and not _is_in_home(parent):
            return parent
    return None


def _is_in_home(folder: Path) -> bool:
    """Whether a folder is the user's home or lies in it."""
    home = Path.home().resolve()
    # Users of containers may have the root of the file system for a home.
    return home != Path("/") and folder.resolve().is_relative_to(home)


def _explain_unsafe_folder(folder: Path, status: os.stat_result) -> str:
    """Return why a folder is not private to this user; empty if it is."""
    if not stat.S_ISDIR(status.st_mode):
        return "is not a folder"
    if status.st_uid != os.getuid():
        return f"belongs to another user (number {status.st_uid})"
    if status.st_mode & 0o077:
        return f"other users may enter it: chmod 700 {folder}"
    return ""


def _build_missing_folder(folder: Path, fault: str) -> SharedFolder:
    """Return that there is no folder for locks, with the reason for the user.

    :param folder: the folder that cannot be used.
    :param fault: why not, in words.
    """
    note = f"{folder}: {fault}; workers do not wait for each other, so their measurements may disturb each other"
    return SharedFolder(path=None, note=note)


class RunMembership:
    """The membership of a process in a run: a shared lock on the folder of the run.

    Another run removes the folder only if no process holds this lock.

    :raises OSError: if the folder cannot be made, is no folder, or is being removed.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, exist_ok=True)
        descriptor = os.open(folder, _FOLDER_FLAGS)
        self._close = weakref.finalize(self, os.close, descriptor)
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def end(self) -> None:
        """Leave the folder. When all processes have left it, it can be removed."""
        self._close()


def remove_run_folders(shared: SharedFolder) -> None:
    """Remove the folders of runs that have no living process."""
    if shared.path is None:
        return
    # The id of a run has 32 hexadecimal digits.
    for folder in shared.path.glob("run-" + 32 * "[0-9a-f]"):
        # An error means that a process of the run holds the lock, or that the folder is gone.
        with suppress(OSError):
            descriptor = os.open(folder, _FOLDER_FLAGS)
            try:
                # Each process of a run has a shared lock (RunMembership), which excludes this one.
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def in_distributed_run() -> bool:
    """Whether this process is a rank of a distributed job, by its environment or by torch."""
    if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        return True
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())


#: The outermost tuning of this context. Compile threads of a tuning run in a copy of this context.
_TUNING: ContextVar[object] = ContextVar("tuning", default=None)


class WaitBudget:
    """The time that each tuning of a process may wait for other processes and threads, in all its waits together.

    A tuning inside another tuning shares the budget of the outer tuning.

    :param timeout_s: the budget of a tuning, or of a wait outside a tuning, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        #: Tuning -> the rest of its budget, in seconds.
        self._remaining_s: dict[object, float] = {}

    @property
    def is_used(self) -> bool:
        """Whether any thread of this process is inside a tuning."""
        return bool(self._remaining_s)

    def forget(self) -> None:
        """End all tunings. A forked child calls this: it has none of the threads of its parent."""
        self._remaining_s = {}

    @contextmanager
    def limit_waits(self) -> Iterator[None]:
        """Give a tuning its budget. All waits inside the context share it.

        A tuning inside another tuning gets no budget of its own.
        """
        outermost_tuning = _TUNING.get()
        if outermost_tuning in self._remaining_s:
            yield
            return
        # Only the identity of the object matters.
        tuning = object()
        self._remaining_s[tuning] = self.timeout_s
        _TUNING.set(tuning)
        try:
            yield
        finally:
            # Another thread, or a forked child, may have forgotten the tuning.
            self._remaining_s.pop(tuning, None)
            _TUNING.set(outermost_tuning)

    @contextmanager
    def waiting(self) -> Iterator[float]:
        """Yield how long this thread may wait, in seconds. The time inside the context is taken from the budget."""
        tuning, started_s = _TUNING.get(), HostTime.monotonic()
        remaining_s = self._remaining_s.get(tuning, self.timeout_s)
        try:
            yield remaining_s
        finally:
            if tuning in self._remaining_s:
                waited_s = HostTime.monotonic() - started_s
                self._remaining_s[tuning] = max(remaining_s - waited_s, 0.0)


class _Processor:
    """The lock file of one processor, which all threads of this process share.

    Attributes: ``mutex``, held by the thread that waits for the lock file or changes the other attributes;
    ``measurement_count``, the measurements that run now, inside each other or in several threads; ``lock``, the lock
    file, None if these measurements go on without it.
    """

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        self.measurement_count = 0
        self.lock: FileLock | None = None


class _OwnLocks(logging.Filter):
    """Drops what filelock logs about the plugin's locks: with it, a test's ``caplog`` would have other records."""

    def __init__(self) -> None:
        super().__init__()
        self.paths: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the record is about no lock of the plugin."""
        arguments = record.args
        return not isinstance(arguments, tuple) or self.paths.isdisjoint(map(str, arguments))


_OWN_LOCKS = _OwnLocks()


def make_lock(path: Path, **options: Any) -> FileLock:
    """Return the lock with this file. It can be released in another thread than the one that acquired it.

    filelock closes its descriptor in forked children. A child that outlives a killed parent therefore does not keep the
    lock, and a child that releases it does not take it from its parent.

    :param options: further arguments of ``FileLock``.
    """
    from filelock import FileLock

    _OWN_LOCKS.paths.add(str(path))
    # A filter that the logger has already is not added again.
    logging.getLogger("filelock").addFilter(_OWN_LOCKS)
    return FileLock(path, thread_local=False, **options)


class Locks:
    """The locks of one process: for each name of a tuning, and for each processor that it measures on.

    Attributes: ``notes``, lines for the summary; ``budget``, the time-outs of tunings.

    :param timeout_s: the time that all waits of a tuning may take together, or a measurement outside a tuning.
    :param uuid: returns the name of the current GPU; an empty name means that there is none to lock.
    :param shared: the folder for the locks of GPUs; None for the standard folder.
    """

    def __init__(
        self, timeout_s: float, uuid: Callable[[], str] = current_gpu_uuid, shared: SharedFolder | None = None
    ) -> None:
        self.notes: list[str] = []
        self.budget = WaitBudget(timeout_s)
        self._uuid = uuid
        self._folder = (shared or find_shared_folder()).path
        #: False in a child that was forked inside a tuning; see :meth:`_begin_child`.
        self._may_wait = True
        self._forget()
        # The hook cannot be removed, so it must not keep this object alive.
        begin_child_reference = weakref.WeakMethod(self._begin_child)

        def begin_child() -> None:
            method = begin_child_reference()
            if method is not None:
                method()

        os.register_at_fork(after_in_child=begin_child)

    def _forget(self) -> None:
        """Begin with no open tuning and no processor, as a new process does."""
        self.budget.forget()
        #: Name of a processor -> its lock file in this process.
        self._processors: dict[str, _Processor] = {}

    def _begin_child(self) -> None:
        """Begin a forked child, which has none of its parent's threads.

        A child that was forked inside a tuning waits for no lock: its parent may hold the lock and wait for the child.
        """
        if self.budget.is_used or self.is_holding_gpu:
            # The parent was inside a tuning or a measurement.
            self._may_wait = False
        self._forget()

    @contextmanager
    def _waiting(self) -> Iterator[float]:
        """Yield how long this thread may wait, in seconds; 0 in a process that may wait for no lock."""
        with self.budget.waiting() as remaining_s:
            if not self._may_wait:
                remaining_s = 0.0
            yield remaining_s

    def acquire(self, path: Path, unless: Callable[[], bool] | None = None, *, wait: bool = True) -> FileLock | None:
        """Take a lock, and return it; None if the wait took too long, or if the lock is no longer needed.

        An error of the file system also gives None, and a line in the summary.

        :param unless: returns whether the lock is no longer needed; called while the thread waits.
        :param wait: False gives None at once if another process or thread holds the lock.
        :raises OSError: if a signal handler of the test raised it, such as ``TimeoutError``.
        """
        from filelock import Timeout

        lock = make_lock(path, poll_interval=POLL_S)
        try:
            # filelock would create a missing folder, which other users could enter. lstat raises an error instead.
            path.parent.lstat()
            with self._waiting() as remaining_s:
                timeout_s = remaining_s
                if not wait:
                    timeout_s = 0.0
                lock.acquire(timeout_s, cancel_check=unless)
        except Timeout:
            return None
        except OSError as error:
            if is_from_signal_handler(error):
                raise
            self.note(
                f"{path.parent}: {error.strerror or error}; workers do not wait for each other (free space, "
                f"or set TMPDIR to a local disk)"
            )
            return None
        return lock

    @property
    def is_holding_gpu(self) -> bool:
        """Whether this process holds any processor, or waits for one."""
        for processor in list(self._processors.values()):
            if processor.measurement_count or processor.mutex.locked():
                return True
        return False

    @contextmanager
    def measuring(self, name: str = "") -> Iterator[bool]:
        """Take a processor among the pytest processes of this user; yields False if that took too long.

        The lock belongs to the process and not to a thread. Autograd launches kernels from its own threads, and the
        thread that waits for autograd may hold the lock.

        - The first thread that enters waits for the lock file. Threads that enter meanwhile wait for the first thread.
        - The last thread that leaves releases the file.
        - If the first thread waited too long, all measurements that overlap with its own go on without the lock.

        :param name: the name of the processor, such as ``"cpu"``; empty for the current GPU.
        """
        name = name or self._uuid()
        if not name or in_distributed_run():
            # There is no GPU to lock, or all ranks must measure at the same time.
            yield True
            return
        if self._folder is None:
            # The run has reported the missing folder when it began.
            yield False
            return
        processor = self._processors.setdefault(name, _Processor())
        if not self._enter(processor, self._folder, name):
            yield False
            return
        try:
            has_lock = processor.lock is not None
            yield has_lock
        finally:
            # In a forked child the processor is forgotten, and its lock is the parent's.
            if self._processors.get(name) is processor:
                self._leave(processor)

    def _enter(self, processor: _Processor, folder: Path, name: str) -> bool:
        """Begin a measurement on a processor; return False if this thread waited too long for another thread.

        The thread that holds ``mutex`` waits for the lock file. All other threads wait for ``mutex``, and for no longer
        than their tuning may wait.

        :param folder: the folder for locks.
        :param name: the name of the processor.
        """
        with self._waiting() as remaining_s:
            has_mutex = processor.mutex.acquire(timeout=remaining_s)
        if not has_mutex:
            return False
        try:
            is_first_measurement = not processor.measurement_count
            if is_first_measurement:
                digest = hashlib.sha256(name.encode()).hexdigest()[:16]
                processor.lock = self.acquire(folder / f"gpu-{digest}.lock")
            processor.measurement_count += 1
        finally:
            processor.mutex.release()
        return True

    def _leave(self, processor: _Processor) -> None:
        """End a measurement on a processor."""
        with processor.mutex:
            processor.measurement_count -= 1
            if not processor.measurement_count and processor.lock is not None:
                # This thread is the last.
                processor.lock.release()
                processor.lock = None

    def note(self, text: str) -> None:
        """Show the user a line in the summary, once."""
        if text not in self.notes:
            self.notes.append(text)
