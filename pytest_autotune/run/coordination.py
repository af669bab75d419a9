"""Each problem is tuned once in a run, and no two measurements overlap on a GPU.

Both rest on locks that the operating system releases when their holder dies, so
a worker that is killed never leaves another one waiting. Every wait is bounded.
"""

from __future__ import annotations

import hashlib
import os
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pytest_autotune.cache.model import Problem, Value
from pytest_autotune.device import current_gpu_uuid
from pytest_autotune.run.idle_cores import IdleCores
from pytest_autotune.run.locks import locked, shared_folder
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.shared_work import SharedWork, UndividedWork, Work
from pytest_autotune.run.wire import decode_lookup, encode_lookup


class Claim(Protocol):
    """The right to tune one problem in this run, or what another worker has made of it."""

    @property
    def result(self) -> Lookup | None:
        """What another worker has recorded for this problem in this run."""

    @property
    def timed_out(self) -> bool:
        """Another worker has claimed the problem and did not finish in time."""

    @property
    def work(self) -> Work:
        """What the workers that wait for this tuning may do towards it."""

    def publish(self, lookup: Lookup) -> None:
        """Hand what was recorded to the workers that wait for it."""


@dataclass
class SoleClaim:
    """A claim that nobody contests."""

    result: Lookup | None = None
    timed_out: bool = False
    work: Work = field(default_factory=UndividedWork)

    def publish(self, lookup: Lookup) -> None:
        pass


class Coordination(Protocol):
    """How this process goes together with others."""

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for other workers' tunings."""

    def claim(
        self,
        problem: Problem,
        fingerprint: tuple[Value, ...],
        *,
        wait: bool,
        meanwhile: Callable[[Work], None] | None = None,
    ) -> AbstractContextManager[Claim]:
        """Claim a problem; with ``wait``, first wait for a worker that tunes it now.

        :param meanwhile: called before such a wait, to do what can be done towards that tuning.
        """

    def core(self) -> AbstractContextManager[None]:
        """Wait for a core to compile on, and hold it; may be left in another thread."""

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        """Hold the current GPU, or the processor named ``on``; yields False where it could not be had in time."""


class GpuLock:
    """One measurement at a time on each physical GPU, across the pytest processes of this user.

    Re-entrant for the process and not for the thread: autograd launches kernels
    from threads of its own while the thread that waits for it may hold the lock.

    :param uuid: tells which GPU is current; the empty string means there is none to lock.
    """

    def __init__(self, timeout_s: float, uuid: Callable[[], str] = current_gpu_uuid) -> None:
        self._timeout_s = timeout_s
        self._uuid = uuid
        self._holders: dict[str, int] = {}
        self._mutex = threading.Lock()

    @property
    def held(self) -> bool:
        """Whether this process holds any GPU."""
        return bool(self._holders)

    @contextmanager
    def measuring(self, on: str = "") -> Iterator[bool]:
        """Hold the current GPU; yields False where it could not be had in time.

        :param on: names another processor to hold instead, such as the CPU.
        """
        uuid = on or self._uuid()
        if not uuid or in_distributed_run():
            yield True
            return
        with self._mutex:
            entered = uuid in self._holders
            self._holders[uuid] = self._holders.get(uuid, 0) + 1
        try:
            if entered:
                yield True
                return
            name = hashlib.sha256(uuid.encode()).hexdigest()[:16]
            with locked(shared_folder() / f"gpu-{name}.lock", self._timeout_s) as acquired:
                yield acquired
        finally:
            with self._mutex:
                self._holders[uuid] -= 1
                if not self._holders[uuid]:
                    del self._holders[uuid]


class Alone:
    """The coordination of a process that is the only one of its run."""

    waited_s = 0.0

    def __init__(self, gpu: GpuLock) -> None:
        self._gpu = gpu

    def claim(
        self,
        problem: Problem,
        fingerprint: tuple[Value, ...],
        *,
        wait: bool,
        meanwhile: Callable[[Work], None] | None = None,
    ) -> AbstractContextManager[Claim]:
        return nullcontext(SoleClaim())

    def core(self) -> AbstractContextManager[None]:
        return nullcontext()

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        return self._gpu.measuring(on)


@dataclass
class _FileClaim:
    """A claim backed by a lock file, with the result beside it."""

    path: Path
    work: Work
    result: Lookup | None = None
    timed_out: bool = False

    def publish(self, lookup: Lookup) -> None:
        temporary = self.path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        try:
            temporary.write_text(encode_lookup(lookup), encoding="utf-8")
            os.replace(temporary, self.path)
        except OSError:  # the others tune it themselves
            temporary.unlink(missing_ok=True)


class AmongWorkers:
    """The coordination of the workers of one controller that share this machine.

    :param folder: the run's own folder, the same for every worker on this machine.
    :param timeout_s: how long to wait for another worker's tuning, in seconds.
    :param workers: how many workers share the cores of this machine.
    """

    def __init__(self, folder: Path, timeout_s: float, gpu: GpuLock, workers: int = 1) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self._gpu = gpu
        self._cores = IdleCores(folder, workers)
        #: Seconds spent waiting for other workers' tunings.
        self.waited_s = 0.0

    @contextmanager
    def claim(
        self,
        problem: Problem,
        fingerprint: tuple[Value, ...],
        *,
        wait: bool,
        meanwhile: Callable[[Work], None] | None = None,
    ) -> Iterator[Claim]:
        # A kernel with a collective needs every rank: none may wait for, or skip, a tuning.
        if in_distributed_run():
            yield SoleClaim()
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        parts = [problem.digest, *(value.encoded for value in fingerprint)]
        name = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
        claim = _FileClaim(self._folder / f"{name}.json", SharedWork(self._folder, name, self._timeout_s))
        claim.result = _published(claim.path)
        if claim.result is not None:
            yield claim
            return
        lock = self._folder / f"{name}.lock"
        may_wait = wait and not self._gpu.held
        with ExitStack() as held:
            acquired = held.enter_context(locked(lock, 0))
            if may_wait and not acquired:
                if meanwhile is not None:
                    meanwhile(claim.work)
                started = time.monotonic()
                acquired = held.enter_context(locked(lock, self._timeout_s))
                self.waited_s += time.monotonic() - started
            claim.result = _published(claim.path)
            claim.timed_out = may_wait and not acquired and claim.result is None
            yield claim

    def core(self) -> AbstractContextManager[None]:
        return self._cores.core()

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        return self._gpu.measuring(on)


def _published(path: Path) -> Lookup | None:
    try:
        return decode_lookup(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def in_distributed_run() -> bool:
    """Whether this process is one rank of several, by its environment or by torch."""
    if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
        return True
    distributed: Any = sys.modules.get("torch.distributed")
    return bool(distributed and distributed.is_available() and distributed.is_initialized())
