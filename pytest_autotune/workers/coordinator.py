"""Coordination of this process with others: a problem is tuned once in a run, and no two measurements share a GPU.

A run has several workers under pytest-xdist. A worker that wants to tune a problem claims it. It answers the claim with
an event, which holds the result. Workers that claim the same problem meanwhile wait for that event.

Claims and the lock of a GPU are file locks of :mod:`pytest_autotune.workers.locks`. The operating system releases them
when their holder dies, so a killed worker leaves no other worker waiting. Every wait is bounded.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from pytest_autotune.workers.events import Event, OtherWorkers
from pytest_autotune.workers.locks import Locks, RunMembership, in_distributed_run

if TYPE_CHECKING:
    from filelock import FileLock


@dataclass(frozen=True)
class Claim:
    """The answer to a worker that claims some work, such as a tuning, which takes place once in the run.

    :param result: the event with which another worker has answered the same claim; None if there is none.
    :param is_claimed: this worker has the claim. No other worker does the work now, or has done it.
    :param has_timed_out: another worker has the claim and did not end in time.
    """

    result: Event | None = None
    is_claimed: bool = True
    has_timed_out: bool = False


class Helper(Protocol):
    """Work that a worker can do for the worker that has the claim."""

    def help(self) -> object:
        """Help, for example by compiling candidates."""


class Coordinator:
    """Coordinates this process with the other workers of its run, and with the user's other processes.

    A tuning takes three steps:

    1. The worker takes a :meth:`claim`. If another worker has already answered the claim, the tuning is over.
    2. The worker compiles each candidate (:meth:`compiling`).
    3. The worker measures all candidates (:meth:`measuring`), and writes the event with the result. It releases the
       claim after this, so that a waiting worker finds the event.

    Further rules:

    - A worker that holds the GPU lock or a claim, or is inside a tuning, waits for no claim. Two such workers could
      wait for each other for ever.
    - All waits of a tuning share one time-out. After the time-out, the worker tunes by itself.
    - The ranks of a distributed job take no claims and no locks.

    Attributes: ``notes``, lines for the summary; ``budget``, the time-out of a tuning.

    :param locks: the locks of this process.
    :param folder: the folder of the run on this machine, the same for all its workers; None if this process is alone.
    :param others: finds the events of the other workers; None if they write their logs into ``folder``.
    """

    def __init__(self, locks: Locks, folder: Path | None = None, others: OtherWorkers | None = None) -> None:
        self._locks = locks
        self.budget = locks.budget
        self._folder = folder
        if others is None and folder is not None:
            others = OtherWorkers(folder, "")
        self._others = others
        self._membership: RunMembership | None = None
        #: The folder of the locks for compilations; None if no other process or thread compiles.
        self._compile_folder: Path | None = None

    @property
    def notes(self) -> list[str]:
        """Lines for the summary."""
        return self._locks.notes

    @contextmanager
    def claim(self, name: str, helper: Helper | None) -> Iterator[Claim]:
        """Claim a name among all workers of the run. The claim is released when the context ends.

        :param name: a file name. The event that answers the claim has this name, too.
        :param helper: helps the worker that has the claim, before this worker waits for it; None to wait for no worker.
        """
        with self.budget.limit_waits():
            if self._others is None or self._folder is None or not self._can_share_tunings():
                yield Claim()
                return
            if self._locks.is_holding_gpu:
                # The worker that has the claim may need the GPU, so this worker must not wait for it.
                helper = None
            with self._shared_claim(name, self._folder, self._others, helper) as claim:
                yield claim

    def _can_share_tunings(self) -> bool:
        """Whether this process may wait for the tunings of other workers, and sees their claims."""
        if in_distributed_run():
            # A kernel with a collective operation needs all ranks, so no rank may wait for a tuning or skip it.
            return False
        return self._join()

    @contextmanager
    def _shared_claim(self, name: str, folder: Path, others: OtherWorkers, helper: Helper | None) -> Iterator[Claim]:
        """Claim a name that other workers may claim, too; see :meth:`claim`.

        :param folder: the folder of the run, with a lock file for each claim.
        :param others: finds the events with which other workers answered their claims.
        """
        result = others.find(name)
        lock = None
        if result is None:
            lock = self._acquire_claim(name, folder, others, helper)
            # Another worker may have written its event and released the claim since the first look.
            result = others.find(name)
        if result is not None:
            # This worker needs only the result. It releases the claim at once, because other workers may wait for it.
            if lock is not None:
                lock.release()
            yield Claim(result, is_claimed=False)
            return
        if lock is None:
            # Another worker has the claim. Only with a helper has this worker waited for it.
            yield Claim(is_claimed=False, has_timed_out=helper is not None)
            return
        try:
            yield Claim()
        finally:
            lock.release()

    def _acquire_claim(self, name: str, folder: Path, others: OtherWorkers, helper: Helper | None) -> FileLock | None:
        """Take a claim, and return its lock. Return None if another worker has the claim.

        With a helper, this worker first helps the other worker. It then waits until the other worker has answered the
        claim or released it.
        """
        path = folder / f"{name}.lock"
        lock = self._locks.acquire(path, wait=False)
        if lock is None and helper is not None:
            helper.help()
            lock = self._locks.acquire(path, unless=lambda: others.find(name) is not None)
        return lock

    def _join(self) -> bool:
        """Enter the folder of the run at the first call; return whether this process is in it.

        If the folder cannot be used, this process cannot see the claims of other workers.
        """
        if self._membership is None and self._folder is not None:
            try:
                self._membership = RunMembership(self._folder)
                self._compile_folder = self._folder
            except OSError as error:
                self._locks.note(
                    f"{self._folder.parent}: {error.strerror or error}; workers do not share tunings (free space, or "
                    f"set TMPDIR to a local disk)"
                )
        return self._membership is not None

    def compile_in(self, folder: Path) -> None:
        """Keep the locks for compilations in this folder. Threads of a run without workers need such locks, too.

        The call has no effect in workers that share tunings: they keep the locks in the folder of the run.
        """
        if self._folder is None:
            self._compile_folder = folder

    @contextmanager
    def compiling(self, name: str, wait: bool) -> Iterator[bool]:
        """Enter a compilation; yields whether no other process or thread of this run compiles the same thing now.

        :param name: the same wherever the same thing is compiled.
        :param wait: wait for the process that compiles the same thing now. Its result is on disk afterwards.
        """
        # This sets the folder for the locks of compilations.
        self._join()
        if self._compile_folder is None or in_distributed_run():
            yield True
            return
        lock = self._locks.acquire(self._compile_folder / f"{name}.compiling", wait=wait)
        if lock is None:
            yield False
            return
        try:
            yield True
        finally:
            lock.release()

    def measuring(self, processor: str = "") -> AbstractContextManager[bool]:
        """Take a processor for a measurement; yields False if that took too long.

        :param processor: its name; empty for the current GPU.
        """
        return self._locks.measuring(processor)
