"""One measurement at a time on each processor, across the pytest processes of this user."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from pathlib import Path

from pytest_autotune.devices import current_gpu_uuid
from pytest_autotune.run.distributed import in_distributed_run
from pytest_autotune.run.together.folders import standard_folder
from pytest_autotune.run.together.forks import in_forked_children
from pytest_autotune.run.together.locks import HeldLock
from pytest_autotune.run.together.waiting import Waits


class State(Enum):
    """What a process has of a lock."""

    FREE = "free"
    WAITING = "waiting"
    HELD = "held"
    GIVEN_UP = "given up"


class ProcessLock:
    """A lock file that a process holds, and not one of its threads.

    The first thread that enters waits for it, those that enter meanwhile wait for the first, and the last one that
    leaves lets go. Where the first has given up, those inside go on without it.

    :param path: the lock file.
    """

    def __init__(self, path: Path, waits: Waits) -> None:
        self.state = State.FREE
        self._path = path
        self._waits = waits
        self._process = os.getpid()
        self._changed = threading.Condition()
        self._inside = 0
        self._lock: HeldLock | None = None

    def enter(self) -> bool:
        """Come in; whether the lock is held. To be followed by :meth:`leave`."""
        with self._changed:
            self._waits.wait(self._has_settled)
            if self.state is not State.FREE:
                self._inside += 1
                return self.state is State.HELD
            self.state = State.WAITING
        settled = State.FREE
        try:
            self._lock = self._waits.acquire(self._path)
            settled = State.GIVEN_UP if self._lock is None else State.HELD
        finally:
            with self._changed:
                self.state = settled
                self._inside += settled is not State.FREE
                self._changed.notify_all()
        return settled is State.HELD

    def _has_settled(self, left_s: float) -> bool:
        return self._changed.wait_for(lambda: self.state is not State.WAITING, left_s)

    def leave(self) -> None:
        """Go out; a forked child has nothing to let go of."""
        if os.getpid() != self._process:
            return
        with self._changed:
            self._inside -= 1
            if self._inside or self.state is State.WAITING:
                return
            lock, self._lock, self.state = self._lock, None, State.FREE
            if lock is not None:
                lock.release()


class GpuLock:
    """One measurement at a time on each physical GPU, across the pytest processes of this user.

    Re-entrant for the process and not for the thread: autograd launches kernels
    from threads of its own while the thread that waits for it may hold the lock.

    :param timeout_s: how long to wait in all for one tuning, in seconds.
    :param uuid: says which GPU is current; the empty string means there is none to lock.
    :param folder: says where the locks are; raises OSError where there can be none.
    """

    def __init__(
        self,
        timeout_s: float,
        uuid: Callable[[], str] = current_gpu_uuid,
        folder: Callable[[], Path] = standard_folder,
    ) -> None:
        #: The waits of this process, for whatever.
        self.waits = Waits(timeout_s)
        self._uuid = uuid
        self._folder = folder
        self._locks: dict[str, ProcessLock] = {}
        self._mutex = threading.Lock()
        in_forked_children(self._begin_child)

    def _begin_child(self) -> None:
        if self.held:
            self.waits.never()
        self._locks = {}
        self._mutex = threading.Lock()

    @property
    def held(self) -> bool:
        """Whether this process holds any GPU, or waits for one."""
        return any(lock.state is not State.FREE for lock in list(self._locks.values()))

    @contextmanager
    def measuring(self, on: str = "") -> Iterator[bool]:
        """Hold the current GPU; yields False where it could not be had in time.

        :param on: names another processor to hold instead, such as the CPU.
        """
        uuid = on or self._uuid()
        if not uuid or in_distributed_run():
            yield True
            return
        try:
            lock = self._lock_of(uuid)
        except OSError:  # reported when the run began
            yield False
            return
        held = lock.enter()
        try:
            yield held
        finally:
            lock.leave()

    def _lock_of(self, uuid: str) -> ProcessLock:
        with self._mutex:
            if uuid not in self._locks:
                name = hashlib.sha256(uuid.encode()).hexdigest()[:16]
                self._locks[uuid] = ProcessLock(self._folder() / f"gpu-{name}.lock", self.waits)
            return self._locks[uuid]
