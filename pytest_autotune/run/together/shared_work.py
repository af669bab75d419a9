"""One tuning's preparation, done in pieces by all workers that need the tuning.

A worker that meets a problem which another one tunes would only wait. Compiling is
most of a tuning, and what one process compiles the others find in the compiler's own
cache on disk: so whoever waits takes candidates from the list, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Protocol

from pytest_autotune.run.together.locks import locked_at_once
from pytest_autotune.run.together.waiting import Waits


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
    :param name: of this work alone in the folder.
    :param waits: the waits of this process.
    """

    def __init__(self, folder: Path, name: str, waits: Waits) -> None:
        self._folder = folder
        self._name = name
        self._waits = waits

    @contextmanager
    def take(self, piece: int) -> Iterator[bool]:
        done = self._folder / f"{self._name}-{piece}.done"
        with locked_at_once(self._lock_of(piece)) as free:
            mine = free and not done.exists()
            yield mine
            if mine:
                with suppress(OSError):
                    done.touch()

    def wait_for(self, piece: int) -> None:
        lock = self._waits.acquire(self._lock_of(piece))
        if lock is not None:
            lock.release()

    def _lock_of(self, piece: int) -> Path:
        return self._folder / f"{self._name}-{piece}.lock"
