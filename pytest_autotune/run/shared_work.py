"""One tuning's preparation, done in pieces by all workers that need the tuning.

A worker that meets a problem which another one tunes would only wait. Compiling is
most of a tuning, and what one process compiles the others find in the compiler's own
cache on disk: so whoever waits takes candidates from the list, too.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Protocol

from pytest_autotune.run.locks import locked


class Work(Protocol):
    """The pieces of one tuning's preparation, by number."""

    def take(self, piece: int) -> AbstractContextManager[bool]:
        """Do a piece inside; yields False when another worker does it or has done it.

        It may be left in another thread than it was entered in.
        """

    def wait_for(self, piece: int) -> None:
        """Wait until no other worker does this piece any more."""


class UndividedWork:
    """Work that no other worker takes a piece of."""

    def take(self, piece: int) -> AbstractContextManager[bool]:
        return nullcontext(True)

    def wait_for(self, piece: int) -> None:
        pass


class SharedWork:
    """Work that the workers of one run on this machine divide among themselves.

    :param folder: the run's own folder, the same for every worker on this machine.
    :param name: tells this work from others in the folder.
    :param timeout_s: how long to wait for other workers' pieces, in seconds, all of them together.
    """

    def __init__(self, folder: Path, name: str, timeout_s: float) -> None:
        self._folder = folder
        self._name = name
        self._timeout_s = timeout_s
        self._give_up_at: float | None = None

    @contextmanager
    def take(self, piece: int) -> Iterator[bool]:
        done = self._folder / f"{self._name}-{piece}.done"
        with locked(self._lock_of(piece), 0) as free:
            mine = free and not done.exists()
            yield mine
            if mine:
                done.touch()

    def wait_for(self, piece: int) -> None:
        if self._give_up_at is None:
            self._give_up_at = time.monotonic() + self._timeout_s
        with locked(self._lock_of(piece), max(self._give_up_at - time.monotonic(), 0)):
            pass

    def _lock_of(self, piece: int) -> Path:
        return self._folder / f"{self._name}-{piece}.lock"
