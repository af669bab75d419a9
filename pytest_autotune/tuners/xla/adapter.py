"""The adapter for XLA under JAX: it replaces two functions of JAX; see :mod:`.internals`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.patches import Patches
from pytest_autotune.tuners.xla import internals
from pytest_autotune.tuners.xla.compilations import CacheUseHook, CompilationHook, XlaCompileWatcher


class Adapter:
    """Hooks the compilations of JAX; see :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "jax"
    acts_without_entries = False

    def __init__(self) -> None:
        self._hooked = ExitStack()
        self._bypassed: Iterable[str] = ()

    def hook(self, module: ModuleType, session: Session) -> None:
        compilations = XlaCompileWatcher(session)
        self._hooked.callback(compilations.close)
        self._bypassed = compilations.bypassed
        patches = Patches(session, "xla")
        self._hooked.callback(patches.undo)
        internals.replace(patches, CompilationHook(compilations), CacheUseHook(compilations))
        if internals.is_in_use():
            session.note(
                "xla: JAX was in use before the tests ran (by a conftest.py or a plugin), so programs that it compiled "
                "by then used no cache (use JAX in tests and fixtures only)"
            )

    def unhook(self) -> None:
        self._hooked.close()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Do nothing: XLA's memory of choices belongs to the process and cannot be swapped."""
        yield

    def untracked(self) -> list[str]:
        """Return a line for each reason for which compilations were bypassed. XLA may have tuned in them."""
        return [f"JAX programs ({reason})" for reason in self._bypassed]
