"""Each problem is tuned once in a run, and no two measurements overlap on a GPU.

Both rest on locks that the operating system releases when their holder dies, so
a worker that is killed never leaves another one waiting. Every wait is bounded.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from pytest_autotune.cache.model import Problem, Value
from pytest_autotune.device import current_gpu_uuid
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.wire import decode_lookup, encode_lookup

POLL_S = 0.02


class Claim(Protocol):
    """The right to tune one problem in this run, or what another worker has made of it."""

    @property
    def result(self) -> Lookup | None:
        """What another worker has recorded for this problem in this run."""

    @property
    def timed_out(self) -> bool:
        """Another worker has claimed the problem and did not finish in time."""

    def publish(self, lookup: Lookup) -> None:
        """Hand what was recorded to the workers that wait for it."""


@dataclass
class SoleClaim:
    """A claim that nobody contests."""

    result: Lookup | None = None
    timed_out: bool = False

    def publish(self, lookup: Lookup) -> None:
        pass


class Coordination(Protocol):
    """How this process goes together with others."""

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for other workers' tunings."""

    def claim(self, problem: Problem, fingerprint: tuple[Value, ...], *, wait: bool) -> AbstractContextManager[Claim]:
        """Claim a problem; with ``wait``, first wait for a worker that tunes it now."""

    def measuring(self, gpu_uuid: str = "") -> AbstractContextManager[bool]:
        """Hold a GPU, by default the current one; yields False where it could not be had in time."""


def shared_folder() -> Path:
    """The folder for locks of all pytest processes of this user on this machine.

    On a local disk, never a home folder: locks on network file systems hang or lie.
    """
    memory = Path("/dev/shm")
    base = memory if memory.is_dir() and os.access(memory, os.W_OK) else Path(tempfile.gettempdir())
    user = os.getuid() if hasattr(os, "getuid") else os.environ.get("USERNAME", "user")
    folder = base / f"pytest-autotune-{user}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


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
    def measuring(self, gpu_uuid: str = "") -> Iterator[bool]:
        uuid = gpu_uuid or self._uuid()
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
            with _locked(shared_folder() / f"gpu-{name}.lock", self._timeout_s) as acquired:
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

    def claim(self, problem: Problem, fingerprint: tuple[Value, ...], *, wait: bool) -> AbstractContextManager[Claim]:
        return nullcontext(SoleClaim())

    def measuring(self, gpu_uuid: str = "") -> AbstractContextManager[bool]:
        return self._gpu.measuring(gpu_uuid)


@dataclass
class _FileClaim:
    """A claim backed by a lock file, with the result beside it."""

    path: Path
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
    """

    def __init__(self, folder: Path, timeout_s: float, gpu: GpuLock) -> None:
        self._folder = folder
        self._timeout_s = timeout_s
        self._gpu = gpu
        #: Seconds spent waiting for other workers' tunings.
        self.waited_s = 0.0

    @contextmanager
    def claim(self, problem: Problem, fingerprint: tuple[Value, ...], *, wait: bool) -> Iterator[Claim]:
        # A kernel with a collective needs every rank: none may wait for, or skip, a tuning.
        if in_distributed_run():
            yield SoleClaim()
            return
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        parts = [problem.digest, *(value.encoded for value in fingerprint)]
        name = hashlib.sha256(repr(parts).encode()).hexdigest()[:32]
        claim = _FileClaim(self._folder / f"{name}.json")
        claim.result = _published(claim.path)
        if claim.result is not None:
            yield claim
            return
        may_wait = wait and not self._gpu.held
        started = time.monotonic()
        with _locked(self._folder / f"{name}.lock", self._timeout_s if may_wait else 0) as acquired:
            self.waited_s += time.monotonic() - started
            claim.result = _published(claim.path)
            claim.timed_out = may_wait and not acquired and claim.result is None
            yield claim

    def measuring(self, gpu_uuid: str = "") -> AbstractContextManager[bool]:
        return self._gpu.measuring(gpu_uuid)


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


@contextmanager
def _locked(path: Path, timeout_s: float) -> Iterator[bool]:
    """Hold a lock file; yields False, without it, when it could not be had in time.

    filelock closes its descriptor in forked children, so that a child that lives
    on does not keep the lock of a parent that was killed.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=timeout_s, poll_interval=POLL_S, thread_local=False)
    try:
        lock.acquire()
    except (Timeout, OSError):
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
