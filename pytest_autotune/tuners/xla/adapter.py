"""The adapter for XLA under JAX: it replaces two functions of JAX; see :mod:`.internals`."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.library import Patches
from pytest_autotune.tuners.xla import internals


class Adapter:
    """Hooks the compilations of JAX; see :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "jax"
    acts_without_entries = False

    def __init__(self) -> None:
        self._hooked = ExitStack()
        self._bypassed: Iterable[str] = ()

    def hook(self, module: ModuleType, session: Session) -> None:
        # Most runs never import JAX: until then nothing of this package is needed but this module.
        from pytest_autotune.tuners.xla.compilations import XlaCompileWatcher

        compilations = XlaCompileWatcher(session)
        self._hooked.callback(compilations.close)
        self._bypassed = compilations.bypassed
        process = os.getpid()

        def compiles(original: Any, backend: Any, module: Any, devices: Any, options: Any, callbacks: Any) -> Any:
            compile_it = partial(original, backend, module, devices, options, callbacks)
            if os.getpid() != process:  # a forked child has no way to report
                return compile_it()
            return compilations.watch(compile_it, backend, devices, options, internals.program_name(module))

        def is_cache_used(original: Any, backend: Any) -> Any:
            return False if compilations.tunes_on(backend) else original(backend)

        patches = Patches(session, "xla")
        self._hooked.callback(patches.undo)
        internals.replace(patches, compiles, is_cache_used)
        if internals.is_in_use():
            session.note(
                "xla: JAX was in use before the tests ran (by a conftest.py or a plugin): what was compiled by then "
                "took nothing from the cache; use JAX in tests and fixtures, not while modules are imported"
            )

    def unhook(self) -> None:
        self._hooked.close()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Do nothing: XLA's memory of choices belongs to the process and cannot be swapped."""
        yield

    def untracked(self) -> list[str]:
        """Why compilations that may have tuned were bypassed."""
        return [f"JAX programs ({reason})" for reason in self._bypassed]
