"""One measurement at a time on each processor, across the pytest processes of this user."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from pytest_autotune.devices import current_gpu_uuid
from pytest_autotune.workers.folder import standard_folder
from pytest_autotune.workers.waits import HeldLock, Waits, in_distributed_run, in_forked_children


class _Processor:
    """What this process has of one processor.

    :param path: the lock file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        #: Held by the thread that waits for the lock file, or changes what follows.
        self.entering = threading.Lock()
        #: How many measurements there are inside of each other, or in several threads.
        self.inside = 0
        #: None where they go on without it.
        self.lock: HeldLock | None = None


class GpuLock:
    """One measurement at a time on each physical GPU, across the pytest processes of this user.

    Re-entrant for the process and not for the thread: autograd launches kernels
    from threads of its own while the thread that waits for it may hold the lock.
    The first thread that enters waits for the lock file, those that enter meanwhile wait for the first, and the last
    one that leaves lets go. Where the first has given up, those inside go on without it.

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
        self._processors: dict[str, _Processor] = {}
        in_forked_children(self._begin_child)

    def _begin_child(self) -> None:
        if self.held:
            self.waits.never()
        self._processors = {}

    @property
    def held(self) -> bool:
        """Whether this process holds any GPU, or waits for one."""
        return any(one.inside or one.entering.locked() for one in list(self._processors.values()))

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
            path = self._folder() / f"gpu-{hashlib.sha256(uuid.encode()).hexdigest()[:16]}.lock"
        except OSError:  # reported when the run began
            yield False
            return
        processor = self._processors.setdefault(uuid, _Processor(path))
        if not self.waits.wait(lambda left_s: processor.entering.acquire(timeout=left_s)):
            yield False
            return
        try:
            if not processor.inside:
                processor.lock = self.waits.acquire(path)
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
