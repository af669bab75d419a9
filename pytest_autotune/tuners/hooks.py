"""Hooks the tuners whose libraries a suite imports, when it imports them."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType

from pytest_autotune.run.tuning_run import TuningRun
from pytest_autotune.tuners import TUNERS
from pytest_autotune.tuners.protocol import Adapter, HookError


class Hooks:
    """The hooked tuners of one process.

    :param wanted: the tuners to act on, matched by prefix; None for all.
    """

    def __init__(self, run: TuningRun, wanted: tuple[str, ...] | None) -> None:
        self._run = run
        self._wanted = wanted
        self._adapters: dict[str, Adapter] = {}
        #: tuner -> why it could not be hooked.
        self.unhooked: dict[str, str] = {}

    def install(self) -> None:
        """Hook each tuner as soon as its library is there; imports none of them."""
        for name, module in TUNERS.items():
            if self._wanted is None or any(wanted.split(".")[0] == name for wanted in self._wanted):
                adapter: Adapter = importlib.import_module(module).Adapter()
                needs_entries = self._wanted is None and getattr(adapter, "only_with_entries", False)
                if not needs_entries or self._has_use_for(name):
                    self._adapters[name] = adapter
                    self._hook_when_imported(name, adapter.module)

    def _has_use_for(self, tuner: str) -> bool:
        loaded = self._run.index.tuners() if self._run.index is not None else ()
        return self._run.policy.dumping or any(name.split(".")[0] == tuner for name in loaded)

    def _hook_when_imported(self, name: str, module: str) -> None:
        import wrapt

        # wrapt keeps its hooks for the life of the process: they must not keep a run alive.
        reference = weakref.ref(self)

        def hook(library: ModuleType) -> None:
            if (hooks := reference()) is not None:
                hooks._hook(name, library)

        wrapt.register_post_import_hook(hook, module)

    def _hook(self, name: str, library: ModuleType) -> None:
        adapter = self._adapters.get(name)
        if adapter is None:
            return
        try:
            adapter.hook(library, self._run)
        except Exception as error:
            reason = str(error) if isinstance(error, HookError) else f"{type(error).__name__}: {error}"
            self.unhooked[name] = reason
            self._run.note(f"{name} was left alone: {reason}")
            del self._adapters[name]

    def uninstall(self) -> None:
        """Restore what was hooked."""
        for adapter in self._adapters.values():
            adapter.unhook()
        self._adapters.clear()

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Give the tuners an empty memory, and their own back afterwards."""
        with ExitStack() as stack:
            for adapter in self._adapters.values():
                stack.enter_context(adapter.isolated())
            yield

    def unseen(self) -> list[str]:
        """``tuner:kernel`` of what was tuned without passing the run's door."""
        return [f"{name}:{kernel}" for name, adapter in self._adapters.items() for kernel in adapter.unseen()]
