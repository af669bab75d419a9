"""Compiling on the cores that other workers leave idle.

A worker that waits for another one's tuning, or whose tests need no compiler,
would leave its share of the cores idle while the one that tunes compiles its
candidates with too few. Each core has a lock file. Who compiles a candidate takes one
that is free; where none is, it goes ahead all the same while its process compiles less
than its share, so that nobody ever waits for a worker that hangs.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from pathlib import Path

from pytest_autotune import devices
from pytest_autotune.run.together.locks import POLL_S, in_forked_children, locked_at_once


class SharedCores:
    """The cores of this machine, as the workers of one run share them.

    :param folder: the run's own folder, the same for every worker on this machine.
    :param workers: how many workers share the cores.
    """

    def __init__(self, folder: Path, workers: int) -> None:
        self._folder = folder
        self._cores = devices.cpu().multiprocessors
        self._share = max(self._cores // workers, 1)
        self._begin_child()
        in_forked_children(self._begin_child)

    def _begin_child(self) -> None:
        self._compiling = 0
        self._counter = threading.Lock()
        # One thread looks for a core at a time; the others would only find the same.
        self._turn = threading.Lock()

    @contextmanager
    def core(self) -> Iterator[None]:
        """Wait for a core and hold it; it may be left in another thread than it was entered in."""
        with self._turn:
            while (free := self._free_core()) is None and self._compiling >= self._share:
                time.sleep(POLL_S)
            self._count(1)
        try:
            with free or nullcontext():
                yield
        finally:
            self._count(-1)

    def take(self, most: int, *, helping: bool = False) -> list[ExitStack]:
        """Take cores to compile on at once, without a wait; each is set free by closing it.

        :param most: take no more than these.
        :param helping: take only those that are free, and not this process's share where fewer are.
        """
        found: list[ExitStack] = []
        with self._turn:
            while len(found) < min(most, self._cores) and (free := self._free_core()) is not None:
                found.append(free)
        if not helping:
            found += [ExitStack() for _ in range(min(most, self._share) - len(found))]
        return found

    def _free_core(self) -> ExitStack | None:
        """A core that nobody compiles on; closing it sets it free."""
        with suppress(OSError):  # then no core is found free, and each process keeps to its share
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        first = random.Random().randrange(self._cores)  # the tests' own random numbers stay as they are
        for number in range(self._cores):
            with ExitStack() as core:
                path = self._folder / f"core-{(first + number) % self._cores}.lock"
                if core.enter_context(locked_at_once(path)):
                    return core.pop_all()
        return None

    def _count(self, by: int) -> None:
        with self._counter:
            self._compiling += by
