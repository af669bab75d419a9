"""What this process may have to itself among others: a problem, a race, the device.

Guarded: where it cannot be had for an error of ours, the process goes on as if it were alone.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.notes import Notes
from pytest_autotune.run.progress import WAITING_FOR_WORKER, Progress
from pytest_autotune.workers.coordinator import Claim, Coordinator
from pytest_autotune.workers.events import race_of


class Claims:
    """The claims of one process.

    :param progress: is told what is waited for.
    """

    def __init__(self, coordination: Coordinator, notes: Notes, progress: Progress) -> None:
        self._coordination = coordination
        self._notes = notes
        self._progress = progress
        self._open = 0
        self._lock = threading.Lock()

    def tuning(self, lookup: Lookup, held: ExitStack, meanwhile: Callable[[], None] | None) -> Claim:
        """Claim a problem until ``held`` is left; waits for a worker that tunes it now, unless inside of a tuning."""
        with self._lock:
            nested, self._open = self._open > 0, self._open + 1
        held.callback(self._leave)
        self._progress.begin(lookup.problem, WAITING_FOR_WORKER)
        # Waiting inside a tuning could wait for a worker that waits for this one.
        claiming = self._coordination.claim(lookup.identity, wait=not nested, meanwhile=meanwhile)
        return held.enter_context(self._notes.guarded(lookup.problem.tuner, claiming, Claim()))

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1

    def race(self, lookup: Lookup, held: ExitStack) -> Claim:
        """Claim the race of a loaded choice until ``held`` is left; waits for nobody."""
        claiming = self._coordination.claim(race_of(lookup.identity), wait=False)
        return held.enter_context(self._notes.guarded(lookup.problem.tuner, claiming, Claim()))

    def compile_in(self, folder: Path) -> None:
        """Let threads of this process compile, too: who compiles what is seen in this folder, the run's own."""
        self._coordination.compile_in(folder)

    def compiling(self, name: str, wait: bool) -> AbstractContextManager[bool]:
        """Compile what others of this run may compile, too; yields False where another one does that now."""
        return self._notes.guarded("lock", self._coordination.compiling(name, wait), True)

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        """Have the device to oneself; yields False where that took too long.

        :param on: names the processor where it is not the current GPU.
        """
        return self._notes.guarded("lock", self._coordination.measuring(on), False)
