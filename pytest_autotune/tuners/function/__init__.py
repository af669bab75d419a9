"""The tuner of hand-written kernels; here is its adapter, which attaches a session to it when a suite first uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Session


class Adapter:
    """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "pytest_autotune.tuners.function.tuner"
    acts_without_entries = True

    def __init__(self) -> None:
        self._tuner: Any = None
        self._memory: Any = None

    def hook(self, module: ModuleType, session: Session) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        self._tuner = module.TUNER
        self._memory = self._tuner.attach(session)

    def unhook(self) -> None:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        if self._tuner is not None:
            self._tuner.detach(self._memory)
            self._tuner = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """See :class:`~pytest_autotune.tuners.protocol.Adapter`."""
        if self._tuner is None:
            yield
            return
        memory = self._memory
        before = memory.chosen, memory.untracked
        memory.chosen, memory.untracked = {}, set()
        try:
            yield
        finally:
            memory.chosen, memory.untracked = before

    def untracked(self) -> list[str]:
        """Kernels that were tuned before the run began, as in a conftest.py."""
        if self._memory is None:
            return []
        return sorted(
            kernel for kernel in self._memory.untracked if not self._memory.session.ignores("function", kernel)
        )
