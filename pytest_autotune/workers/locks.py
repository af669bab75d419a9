"""Locks between the pytest processes of one user on one machine: where they are, and how long a process waits for them.

The operating system releases a lock when its holder dies, so a process that is killed never leaves another one waiting.
The folder of locks is this user's own and private, or it is not used; nothing else is removed than folders of runs in
it. Age is no proof that one was left behind; a lock that nobody holds is.
"""

from __future__ import annotations

import fcntl
import hashlib
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
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.devices import current_gpu_uuid

if TYPE_CHECKING:
    from filelock import FileLock

POLL_S = 0.02
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class SharedFolder(NamedTuple):
    """Where the processes of this user meet on this machine.

    :param path: None where there is no such place.
    :param note: a line for the user; empty where all is as it should be.
    """

    path: Path | None
    note: str = ""

    def run_folder(self, run_id: str) -> Path | None:
        """Where the workers of one run on this machine share what they tune; None where there is no place for it."""
        return self.path / f"run-{run_id}" if self.path is not None else None


def shared_folder() -> SharedFolder:
    """The folder for locks of all pytest processes of this user on this machine, or why there is none.

    In memory or on a local disk, never in a home folder: locks on network file systems hang or lie.
    """
    places = [place for place in _places() if not _is_in_home(place)]
    if not places:
        return _no_folder(Path(tempfile.gettempdir()), "lies in the home folder")
    folder = places[0] / f"pytest-autotune-{os.getuid()}"
    try:
        with suppress(FileExistsError):
            folder.mkdir(mode=0o700)
        found = folder.lstat()
    except OSError as error:
        why = error.strerror or f"{error}"
    else:
        if not stat.S_ISDIR(found.st_mode):
            why = "is not a folder"
        elif found.st_uid != os.getuid():
            why = f"belongs to the user with number {found.st_uid}"
        elif found.st_mode & 0o077:
            why = f"other users may enter it: chmod 700 {folder}"
        else:
            return SharedFolder(folder)
    return _no_folder(folder, why)


def _places() -> Iterator[Path]:
    """Yield the folders of this machine in which the folder for locks may be made, the best one first."""
    for place in (Path("/dev/shm"), Path(tempfile.gettempdir()), Path("/tmp"), Path("/var/tmp")):
        if place.is_dir() and os.access(place, os.W_OK | os.X_OK):
            yield place


def _is_in_home(place: Path) -> bool:
    """Whether a folder is the user's home or lies in it."""
    home = Path.home().resolve()
    # Users of containers may have the root of the file system for a home.
    return home != Path("/") and place.resolve().is_relative_to(home)


def _no_folder(place: Path, why: str) -> SharedFolder:
    return SharedFolder(None, f"{place}: {why}; workers do not wait for each other, and measurements may overlap")


class RunMembership:
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
    for folder in shared.path.glob("run-" + 32 * "[0-9a-f]") if shared.path is not None else ():
        with suppress(OSError):
            descriptor = os.open(folder, _FOLDER)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
            finally:
                os.close(descriptor)


def in_distributed_run() -> bool:
    """Whether this process is one rank of several, by its environment or by torch."""
    if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        return True
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())


#: The tuning that this context is inside of; threads that compile for it have a copy of its context.
_TUNING: ContextVar[object] = ContextVar("tuning", default=None)


class WaitBudget:
    """How long each tuning of a process may wait for others, all its waits together.

    A tuning inside a tuning has the budget of the outer one.

    :param timeout_s: of one tuning, or of a wait outside of one, in seconds.
    """

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        #: Tuning -> what is left of its time-out, in seconds.
        self._left_s: dict[object, float] = {}

    @property
    def is_used(self) -> bool:
        """Whether any thread of this process is inside a tuning."""
        return bool(self._left_s)

    def forget(self) -> None:
        """End all tunings: in a forked child, which has none of its parent's threads."""
        self._left_s = {}

    @contextmanager
    def limit_waits(self) -> Iterator[None]:
        """Let all waits inside share one time-out."""
        outer = _TUNING.get()
        if outer in self._left_s:
            yield
            return
        tuning = object()
        self._left_s[tuning] = self.timeout_s
        _TUNING.set(tuning)
        try:
            yield
        finally:  # in whatever thread, or process
            self._left_s.pop(tuning, None)
            _TUNING.set(outer)

    @contextmanager
    def waiting(self) -> Iterator[float]:
        """Yield how long to wait at most, in seconds; the tuning has that much less what is waited inside."""
        tuning, started = _TUNING.get(), HostTime.monotonic()
        left_s = self._left_s.get(tuning, self.timeout_s)
        try:
            yield left_s
        finally:
            if tuning in self._left_s:
                self._left_s[tuning] = max(left_s - (HostTime.monotonic() - started), 0.0)


class _Processor:
    """What this process has of one processor: its lock file, for all threads together.

    ``entering`` is held by the thread that waits for the lock file, or changes what follows; ``inside`` is how many
    measurements there are inside of each other, or in several threads, and ``lock`` None where they go on without it.
    """

    def __init__(self) -> None:
        self.entering = threading.Lock()
        self.inside = 0
        self.lock: FileLock | None = None


class Locks:
    """What one process locks: for a tuning whatever it names, and for a measurement the GPU.

    :param timeout_s: how long to wait in all for one tuning, or for a measurement outside of one, in seconds.
    :param uuid: says which GPU is current; the empty string means there is none to lock.
    :param shared: where the locks of GPUs are; left out, the standard folder.
    """

    def __init__(
        self, timeout_s: float, uuid: Callable[[], str] = current_gpu_uuid, shared: SharedFolder | None = None
    ) -> None:
        #: Lines for the summary.
        self.notes: list[str] = []
        self.budget = WaitBudget(timeout_s)
        self._uuid = uuid
        self._folder = (shared or shared_folder()).path
        self._may_wait = True
        self._forget()
        reference = weakref.WeakMethod(self._begin_child)

        def begin_child() -> None:
            if (method := reference()) is not None:
                method()

        os.register_at_fork(after_in_child=begin_child)

    def _forget(self) -> None:
        self.budget.forget()
        self._processors: dict[str, _Processor] = {}

    def _begin_child(self) -> None:
        """In a forked child, which has none of its parent's threads: what the parent holds it may hold for good."""
        if self.budget.is_used or self.is_holding_gpu:
            self._may_wait = False
        self._forget()

    @contextmanager
    def _waiting(self) -> Iterator[float]:
        """Yield how long this thread may wait, in seconds."""
        with self.budget.waiting() as left_s:
            yield left_s if self._may_wait else 0.0

    def acquire(self, path: Path, unless: Callable[[], bool] | None = None, *, wait: bool = True) -> FileLock | None:
        """Take a lock; None when it could not be had in time, or need not be had any more.

        :param unless: whether what the lock was wanted for is there.
        """
        # filelock closes its descriptor in forked children, so that a child that lives on does not keep the lock of a
        # parent that was killed; released in one, it stays the parent's.
        from filelock import FileLock, Timeout

        lock = FileLock(path, thread_local=False, poll_interval=POLL_S)
        try:
            path.parent.lstat()  # filelock would make the folder, and not a private one
            with self._waiting() as left_s:
                lock.acquire(left_s if wait else 0, cancel_check=unless)
        except Timeout:
            return None
        except OSError as error:
            self.note(f"{path.parent}: {error.strerror or error}; workers do not wait for each other there")
            return None
        return lock

    @property
    def is_holding_gpu(self) -> bool:
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
        if self._folder is None:  # reported when the run began
            yield False
            return
        processor = self._processors.setdefault(uuid, _Processor())
        with self._waiting() as left_s:
            has_entered = processor.entering.acquire(timeout=left_s)
        if not has_entered:
            yield False
            return
        try:
            if not processor.inside:
                digest = hashlib.sha256(uuid.encode()).hexdigest()[:16]
                processor.lock = self.acquire(self._folder / f"gpu-{digest}.lock")
            processor.inside += 1
        finally:
            processor.entering.release()
        try:
            yield processor.lock is not None
        finally:
            if self._processors.get(uuid) is processor:  # a forked child has nothing to let go of
                with processor.entering:
                    processor.inside -= 1
                    if not processor.inside and processor.lock is not None:
                        processor.lock.release()
                        processor.lock = None

    def note(self, text: str) -> None:
        """Show the user something, once, in the summary."""
        if text not in self.notes:
            self.notes.append(text)
