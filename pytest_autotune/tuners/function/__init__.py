"""The tuner of hand-written kernels: its adapter, and the memory of its choices.

The memory does not stand in ``tuner.py``: a run inside a test may import that module first, invisible to the outer run,
and pytester removes the module again.
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


#: The seconds that the threads of one tuning wait for other threads outside of a run.
WAIT_S = 120.0
_BUDGET_OUTSIDE_RUNS = WaitBudget(WAIT_S)


@dataclass(eq=False)
class Memory:
    """The choices of one run in this process.

    :param session: of the run; None outside pytest.
    :param chosen: the chosen configuration of each problem and fingerprint.
    """

    session: Session | None = None
    chosen: dict[Identity, Configuration] = field(default_factory=dict)
    #: A lock for each problem, so that other threads wait for the thread that tunes it.
    searches: dict[Identity, threading.RLock] = field(default_factory=dict)

    @property
    def budget(self) -> WaitBudget:
        """The limit on the seconds that a tuning waits for a tuning in another thread."""
        if self.session is None:
            return _BUDGET_OUTSIDE_RUNS
        return self.session.coordinator.budget


#: The memory of the process, then a memory for each run that is attached: one pytest may run inside another. The last
#: memory is in use.
MEMORIES = [Memory()]


def _forget_searches() -> None:
    """Drop the locks of searches in a forked child. The threads that would release them are not in the child."""
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
        """Begin a memory for the run. Choices from before the run are not used until :meth:`unhook`."""
        earlier_memory = module.MEMORIES[-1]
        if earlier_memory.session is None:
            kernels = {problem.kernel for problem, _ in earlier_memory.chosen}
            self._untracked = sorted(kernel for kernel in kernels if not session.is_left_out("function", kernel))
        self._memory = Memory(session)
        MEMORIES.append(self._memory)

    def unhook(self) -> None:
        MEMORIES[:] = [memory for memory in MEMORIES if memory is not self._memory]

    @contextmanager
    def isolated(self) -> Iterator[None]:
        chosen, untracked = self._memory.chosen, self._untracked
        self._memory.chosen, self._untracked = {}, []
        try:
            yield
        finally:
            self._memory.chosen, self._untracked = chosen, untracked

    def untracked(self) -> list[str]:
        """Return the kernels that were tuned before the run began, as in a conftest.py."""
        return self._untracked
