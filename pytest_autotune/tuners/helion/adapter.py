"""The adapter for Helion 1.5.

Each search of Helion is a ``BaseSearch``, and the adapter answers the call of its ``autotune``. Helion wraps a search
that has no list of configs in a cache. ``AutotuneCacheBase.autotune`` runs several searches for
``autotune_best_of_k``, so the adapter answers that call, too. A call of a kernel that has its config runs no code of
the adapter.

Helion's own cache is off while the adapter is hooked. Else its configs would be neither recorded nor checked.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.helion.identity import NAME
from pytest_autotune.tuners.helion.searching import AutotuneHook, BatchHook, MeasurementHook
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import Patches

#: Helion's variable that turns its own cache off, for reading and for writing.
_SKIP_CACHE = "HELION_SKIP_CACHE"
_NEEDED = "1.5 is needed"


class Adapter:
    """Hooks Helion's searches; see :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = "helion.autotuner"
    acts_without_entries = True

    def __init__(self) -> None:
        self._exits = ExitStack()
        self._autotune_hook: AutotuneHook | None = None

    def hook(self, module: ModuleType, session: Session) -> None:
        search_module = _find_submodule(module, "base_search")
        cache_module = _find_submodule(module, "base_cache")
        provider_module = _find_submodule(module, "benchmark_provider")
        worker_module = _find_submodule(module, "benchmark_worker")
        patches = Patches(session, NAME)
        self._exits.callback(patches.undo)
        hook = AutotuneHook(session)
        for cls in (search_module.BaseSearch, cache_module.AutotuneCacheBase):
            patches.replace(cls, "autotune", ["self", "skip_cache"], hook, needed=_NEEDED)
        batch = ["self", "configs"]
        patches.replace(search_module.BaseSearch, "benchmark_batch", batch, BatchHook(), and_others=True)
        measurement = MeasurementHook()
        for owner in (search_module, provider_module):
            patches.replace(owner, "do_bench", ["fn"], measurement, and_others=True, needed=_NEEDED)
        patches.replace(search_module, "interleaved_bench", ["fns"], measurement, and_others=True)
        # A process of Helion's measures here, and this process waits for it.
        patches.replace(worker_module.BenchmarkWorker, "run", ["self", "job", "timeout"], measurement)
        self._set_variable(_SKIP_CACHE, "1")
        self._autotune_hook = hook

    def unhook(self) -> None:
        self._exits.close()
        self._autotune_hook = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Have every kernel forget its configs, and forget those of the meantime afterwards.

        A kernel asks again after that. The session remembers its choices, so nothing is tuned a second time.
        """
        self._reset_kernels()
        try:
            yield
        finally:
            self._reset_kernels()

    def untracked(self) -> list[str]:
        """Return nothing: each search of Helion asks."""
        return []

    def _reset_kernels(self) -> None:
        if self._autotune_hook is not None:
            for kernel in list(self._autotune_hook.kernels):
                kernel.reset()

    def _set_variable(self, name: str, value: str) -> None:
        """Set a variable of the environment until the adapter is unhooked."""
        before = os.environ.get(name)
        if before is None:
            self._exits.callback(os.environ.pop, name, None)
        else:
            self._exits.callback(os.environ.__setitem__, name, before)
        os.environ[name] = value


def _find_submodule(package: ModuleType, name: str) -> Any:
    """Return a module of a package.

    :raises HookError: if the package has no such module.
    """
    module = getattr(package, name, None)
    if module is None:
        raise HookError(f"{package.__name__} has no {name}; Helion {_NEEDED}")
    return module
