"""Each problem is tuned once in a run, and no two measurements overlap on a GPU.

Both rest on locks that the operating system releases when their holder dies, so
a worker that is killed never leaves another one waiting. Every wait is bounded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

from pytest_autotune.workers.events import Event, OtherWorkers
from pytest_autotune.workers.locks import Locks, RunMembership, in_distributed_run


class Claim(NamedTuple):
    """The right to make something once in this run, such as a tuning, or what another worker has made of it.

    :param result: what another worker has made of it.
    :param is_mine: nobody else has claimed it, or is done with it.
    :param timed_out: another worker has claimed it and did not finish in time.
    """

    result: Event | None = None
    is_claimed: bool = True
    has_timed_out: bool = False


class Coordinator:
    """How this process goes together with others: with all of this user's by the GPU, with its run's by claims.

    Attributes: ``notes``, for the summary; ``budget``, how long one tuning waits.

    The order of a tuning: :meth:`claim` it; unless another worker has made it meanwhile, compile, alone by name
    (:meth:`compiling`), then measure, alone on the GPU (:meth:`measuring`), and write the event down while the claim is
    held: whoever waits for the claim finds it then.

    Invariants: who holds a lock or a claim, or is inside a tuning, waits for no claim. All waits of one tuning together
    are bounded; after that the process goes on alone. Of ranks (``torch.distributed``) none claims or locks.

    :param locks: of this process; their time-out bounds the waits of one tuning together.
    :param folder: the run's own on this machine, the same for all its workers there; None where it has no others.
    :param others: what the other workers have tuned; by default they write it down in ``folder``.
    """

    def __init__(self, locks: Locks, folder: Path | None = None, others: OtherWorkers | None = None) -> None:
        self._locks = locks
        self.budget = locks.budget
        self._folder = folder
        self._others = others or (OtherWorkers(folder, "") if folder is not None else None)
        self._membership: RunMembership | None = None
        #: Where it is seen who compiles what; None where nobody else does.
        self._compiles_in: Path | None = None

    @property
    def notes(self) -> list[str]:
        """What the user is to read in the summary."""
        return self._locks.notes

    @contextmanager
    def claim(self, name: str, meanwhile: Callable[[], object] | None) -> Iterator[Claim]:
        """Claim what has this name in all workers.

        :param name: of a file; the event that says what came of it has it, too.
        :param meanwhile: called before it waits for a worker that makes it now, to help; None where it does not wait.
        """
        with self.budget.limit_waits(), ExitStack() as held:
            # A kernel with a collective needs every rank: none may wait for, or skip, a tuning.
            if self._others is None or self._folder is None or in_distributed_run() or not self._joined():
                yield Claim()
            else:
                meanwhile = None if self._locks.is_holding_gpu else meanwhile
                yield self._take(name, self._folder / f"{name}.lock", self._others, meanwhile, held)

    def _take(
        self, name: str, path: Path, others: OtherWorkers, meanwhile: Callable[[], object] | None, held: ExitStack
    ) -> Claim:
        """Claim something until ``held`` is left, unless another worker has made it."""
        if result := others.find(name):
            return Claim(result, is_claimed=False)
        lock = self._locks.acquire(path, wait=False)
        if lock is None and meanwhile is not None:
            meanwhile()
            lock = self._locks.acquire(path, unless=lambda: others.find(name) is not None)
        result = others.find(name)
        if lock is None:
            return Claim(result, is_claimed=False, has_timed_out=meanwhile is not None and result is None)
        held.callback(lock.release)
        if result is not None:
            held.close()  # all who wait have what they waited for: none waits for the next one to be done with it
        return Claim(result, is_claimed=result is None)

    def _joined(self) -> bool:
        """Whether this process can share tunings with the other workers."""
        if self._membership is None and self._folder is not None:
            try:
                self._membership = RunMembership(self._folder)
                self._compiles_in = self._folder
            except OSError as error:
                self._locks.note(f"{self._folder.parent}: {error.strerror or error}; workers do not share tunings")
        return self._membership is not None

    def compile_in(self, folder: Path) -> None:
        """Let threads of a run without workers compile, too: who compiles what is seen in this folder of the run.

        Where the workers of the run share tunings, they share what they compile instead.
        """
        if self._folder is None:
            self._compiles_in = folder

    @contextmanager
    def compiling(self, name: str, wait: bool) -> Iterator[bool]:
        """Compile what other processes and threads of this run may compile; yields False where another one does now.

        :param name: the same wherever that is compiled.
        :param wait: for that one, in which case what it made is there then.
        """
        self._joined()
        if self._compiles_in is None or in_distributed_run():
            yield True
            return
        lock = self._locks.acquire(self._compiles_in / f"{name}.compiling", wait=wait)
        with ExitStack() as held:
            if lock is not None:
                held.callback(lock.release)
            yield lock is not None

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        """Hold the current GPU, or the processor named ``on``; yields False where it could not be had in time."""
        return self._locks.measuring(on)
