"""The tuner of hand-written kernels; here are its adapter, and what it remembers.

That does not stand with the tuner: a run inside a test may be what imports it first, out of sight of the run around it,
and pytester removes it again.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

from pytest_autotune.workers.locks import WaitBudget

if TYPE_CHECKING:
    import threading

    from pytest_autotune.cache.model import Identity
    from pytest_autotune.run.session import Session
    from pytest_autotune.tuners.function.space import Configuration


#: How long the threads of one tuning wait for those of others, in seconds, where no run says so.
WAIT_S = 120.0
_OUTSIDE_OF_RUNS = WaitBudget(WAIT_S)


@dataclass(eq=False)
class Memory:
    """What was chosen in this process, as long as one run lasts; ``session`` is None outside pytest."""

    session: Session | None = None
    chosen: dict[Identity, Configuration] = field(default_factory=dict)
    #: A lock for each problem, so that another thread waits for the one that tunes it.
    searches: dict[Identity, threading.RLock] = field(default_factory=dict)

    @property
    def budget(self) -> WaitBudget:
        """How long a tuning may wait for one in another thread."""
        return _OUTSIDE_OF_RUNS if self.session is None else self.session.coordinator.budget


#: That of the process, then one for each run that is attached, like the layers of a stack, since one pytest may run
#: inside another; the last one counts.
MEMORIES = [Memory()]


def _forget_searches() -> None:
    """Drop the locks of searches in a forked child: it has none of the threads that would release them."""
    for memory in MEMORIES:
        memory.searches.clear()


os.register_at_fork(after_in_child=_forget_searches)


class Adapter:
    """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = __name__
    acts_without_entries = True

    def __init__(self) -> None:
        self._memory = Memory()
        self._untracked: list[str] = []

    def hook(self, module: ModuleType, session: Session) -> None:
        """Remember nothing that was chosen before, until it is unhooked."""
        before = module.MEMORIES[-1]
        if before.session is None:
            kernels = {problem.kernel for problem, _ in before.chosen}
            self._untracked = sorted(kernel for kernel in kernels if not session.ignores("function", kernel))
        self._memory = Memory(session)
        MEMORIES.append(self._memory)

    def unhook(self) -> None:
        MEMORIES[:] = [memory for memory in MEMORIES if memory is not self._memory]

    @contextmanager
    def isolated(self) -> Iterator[None]:
        before = self._memory.chosen, self._untracked
        self._memory.chosen, self._untracked = {}, []
        try:
            yield
        finally:
            self._memory.chosen, self._untracked = before

    def untracked(self) -> list[str]:
        """Kernels that were tuned before the run began, as in a conftest.py."""
        return self._untracked
