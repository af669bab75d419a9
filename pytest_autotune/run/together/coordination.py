"""Each problem is tuned once in a run, and no two measurements overlap on a GPU.

Both rest on locks that the operating system releases when their holder dies, so
a worker that is killed never leaves another one waiting. Every wait is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pytest_autotune.cache.model import Identity
from pytest_autotune.run.distributed import in_distributed_run
from pytest_autotune.run.events import Event, Others
from pytest_autotune.run.together.folders import Membership
from pytest_autotune.run.together.gpu_lock import GpuLock
from pytest_autotune.run.together.locks import HeldLock
from pytest_autotune.run.together.waiting import Waits

__all__ = ["Alone", "AmongWorkers", "Claim", "Coordination", "GpuLock", "SoleClaim"]

#: What a process does towards another worker's tuning, before it waits for it.
Meanwhile = Callable[[], None]


class Claim(Protocol):
    """The right to tune one problem in this run, or what another worker has made of it."""

    @property
    def result(self) -> Event | None:
        """What another worker has made of this problem in this run."""

    @property
    def is_mine(self) -> bool:
        """Nobody else has claimed the problem, or is done with it."""

    @property
    def timed_out(self) -> bool:
        """Another worker has claimed the problem and did not finish in time."""


@dataclass
class SoleClaim:
    """A claim that nobody contests."""

    result: Event | None = None
    timed_out: bool = False
    is_mine: bool = True


class Coordination(Protocol):
    """How this process goes together with others."""

    @property
    def waited_s(self) -> float:
        """Seconds spent waiting for other workers' tunings."""

    @property
    def notes(self) -> list[str]:
        """What the user is to read in the summary."""

    def claim(
        self, identity: Identity, *, wait: bool, meanwhile: Meanwhile | None = None
    ) -> AbstractContextManager[Claim]:
        """Claim a problem with a fingerprint; with ``wait``, first wait for a worker that tunes it now.

        :param meanwhile: called before such a wait, to do what can be done towards that tuning.
        """

    def compile_in(self, folder: Path) -> None:
        """Let threads of this process compile, too: who compiles what is seen in this folder, the run's own."""

    def compiling(self, name: str, wait: bool) -> AbstractContextManager[bool]:
        """Compile what other processes and threads of this run may compile; yields False where another one does now.

        :param wait: for that one, in which case what it made is there then.
        """

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        """Hold the current GPU, or the processor named ``on``; yields False where it could not be had in time."""


class Alone:
    """The coordination of a process that is the only one of its run."""

    waited_s = 0.0

    def __init__(self, gpu: GpuLock) -> None:
        self._gpu = gpu
        self._folder: Path | None = None

    @property
    def notes(self) -> list[str]:
        """What the user is to read in the summary."""
        return self._gpu.waits.notes

    @contextmanager
    def claim(self, identity: Identity, *, wait: bool, meanwhile: Meanwhile | None = None) -> Iterator[Claim]:
        with self._gpu.waits.one_tuning():
            yield SoleClaim()

    def compile_in(self, folder: Path) -> None:
        self._folder = folder

    def compiling(self, name: str, wait: bool) -> AbstractContextManager[bool]:
        return nullcontext(True) if self._folder is None else _compiling(self._folder, name, self._gpu.waits, wait)

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        return self._gpu.measuring(on)


@dataclass
class _FileClaim:
    """A claim backed by a lock file."""

    result: Event | None = None
    timed_out: bool = False
    is_mine: bool = False


class AmongWorkers:
    """The coordination of the workers of one controller that share this machine.

    :param folder: the run's own folder, the same for every worker on this machine.
    :param timeout_s: how long to wait for another worker's tuning, in seconds.
    :param others: what the other workers have tuned; by default they write it down in ``folder``.
    """

    def __init__(self, folder: Path, timeout_s: float, gpu: GpuLock, others: Others | None = None) -> None:
        self._folder = folder
        self._others = others or Others(folder, "")
        self._timeout_s = timeout_s
        self._gpu = gpu
        self._waits = gpu.waits
        self._membership: Membership | None = None
        #: Seconds spent waiting for other workers' tunings.
        self.waited_s = 0.0

    @property
    def notes(self) -> list[str]:
        """What the user is to read in the summary."""
        return self._waits.notes

    @contextmanager
    def claim(self, identity: Identity, *, wait: bool, meanwhile: Meanwhile | None = None) -> Iterator[Claim]:
        with self._waits.one_tuning(self._timeout_s):
            # A kernel with a collective needs every rank: none may wait for, or skip, a tuning.
            if in_distributed_run() or not self._joined():
                yield SoleClaim()
                return
            name = identity.digest
            claim = _FileClaim()
            may_wait = wait and not self._gpu.held
            lock = self._take(claim, identity, self._folder / f"{name}.lock", may_wait, meanwhile)
            claim.is_mine = lock is not None
            try:
                yield claim
            finally:
                if lock is not None:
                    lock.release()

    def _take(
        self, claim: _FileClaim, identity: Identity, path: Path, may_wait: bool, meanwhile: Meanwhile | None
    ) -> HeldLock | None:
        """Fill a claim in; what is returned holds it for this process, None where there is nothing to hold."""

        def is_there() -> bool:
            claim.result = self._others.find(identity)
            return claim.result is not None

        if is_there():
            return None
        lock = self._waits.acquire(path, wait=False)
        if lock is None and may_wait:
            if meanwhile is not None:
                meanwhile()
            started = time.monotonic()
            lock = self._waits.acquire(path, unless=is_there)
            self.waited_s += time.monotonic() - started
        if is_there() and lock is not None:
            lock.release()  # all who wait have what they waited for: none waits for the next one to be done with it
            return None
        claim.timed_out = may_wait and lock is None and claim.result is None
        return lock

    def _joined(self) -> bool:
        """Whether this process can share tunings with the other workers."""
        if self._membership is None:
            try:
                self._membership = Membership(self._folder)
            except OSError as error:
                self._waits.note(f"{self._folder.parent}: {error.strerror or error}; workers do not share tunings")
                return False
        return True

    def compile_in(self, folder: Path) -> None:
        pass  # where the workers of the run share tunings, they share what they compile

    def compiling(self, name: str, wait: bool) -> AbstractContextManager[bool]:
        if in_distributed_run() or not self._joined():
            return nullcontext(True)
        return _compiling(self._folder, name, self._waits, wait)

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        return self._gpu.measuring(on)


@contextmanager
def _compiling(folder: Path, name: str, waits: Waits, wait: bool) -> Iterator[bool]:
    lock = waits.acquire(folder / f"{name}.compiling", wait=wait)
    try:
        yield lock is not None
    finally:
        if lock is not None:
            lock.release()
