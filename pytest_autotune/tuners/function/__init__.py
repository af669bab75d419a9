"""The tuner of hand-written kernels; here are its adapter, and what it remembers.

That does not stand with the tuner: a run inside a test may be what imports it first, out of sight of the run around it,
and pytester removes it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import threading

    from pytest_autotune.cache.model import Identity
    from pytest_autotune.run.session import Session
    from pytest_autotune.tuners.function.space import Configuration


@dataclass
class Memory:
    """What was chosen in this process, as long as one run lasts; ``session`` is None outside pytest."""

    session: Session | None = None
    chosen: dict[Identity, Configuration] = field(default_factory=dict)
    #: A lock for each problem that is being tuned, so that another thread waits for it.
    searches: dict[Identity, threading.RLock] = field(default_factory=dict)
    #: Kernels that were tuned before the run began.
    untracked: set[str] = field(default_factory=set)


class Memories:
    """One for each run that is attached, like the layers of a stack, since one pytest may run inside another."""

    def __init__(self) -> None:
        self._layers = [Memory()]

    @property
    def now(self) -> Memory:
        """What belongs to the run that is attached now."""
        return self._layers[-1]

    def attach(self, session: Session) -> Memory:
        """Let a run see what is tuned; what was chosen before is not remembered while it lasts."""
        before = self.now
        layer = Memory(
            session, untracked={problem.kernel for problem, _ in before.chosen} if before.session is None else set()
        )
        self._layers.append(layer)
        return layer

    def detach(self, layer: Memory) -> None:
        """End what :meth:`attach` began."""
        self._layers = [other for other in self._layers if other is not layer]


#: Those of this process.
MEMORIES = Memories()


class Adapter:
    """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = __name__
    acts_without_entries = True

    def __init__(self) -> None:
        self._memories: Memories | None = None
        self._memory = Memory()

    def hook(self, module: ModuleType, session: Session) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        self._memories = module.MEMORIES
        self._memory = self._memories.attach(session)

    def unhook(self) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        if self._memories is not None:
            self._memories.detach(self._memory)
            self._memories = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        memory = self._memory
        before = memory.chosen, memory.untracked
        memory.chosen, memory.untracked = {}, set()
        try:
            yield
        finally:
            memory.chosen, memory.untracked = before

    def untracked(self) -> list[str]:
        """Kernels that were tuned before the run began, as in a conftest.py."""
        session, kernels = self._memory.session, self._memory.untracked
        return sorted(kernel for kernel in kernels if session is not None and not session.ignores("function", kernel))
