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
        self._isolation: ExitStack | None = None

    def install(self) -> None:
        """Hook each tuner that is to act now as soon as its library is there; imports none of them.

        To be called again when another cache is loaded.
        """
        for name, module in TUNERS.items():
            if name in self._adapters or name in self._run.unhooked:
                continue
            adapter: Adapter = importlib.import_module(module).Adapter()
            if self._is_to_act(name, adapter):
                self._adapters[name] = adapter
                self._hook_when_imported(name, adapter.module)
                if self._isolation is not None:
                    self._isolation.enter_context(adapter.isolated())

    def _is_to_act(self, name: str, adapter: Adapter) -> bool:
        if self._wanted is not None:
            return any(wanted.split(".")[0] == name for wanted in self._wanted)
        if self._run.policy.dumping or adapter.acts_without_entries:
            return True
        return any(tuner.split(".")[0] == name for index in self._run.indexes for tuner in index.tuners())

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
            self._run.left_alone(name, reason)
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
            self._isolation = stack
            try:
                yield
            finally:
                self._isolation = None

    def unseen(self) -> list[str]:
        """``tuner:kernel`` of what was tuned without passing the run's door."""
        return [f"{name}:{kernel}" for name, adapter in self._adapters.items() for kernel in adapter.unseen()]
