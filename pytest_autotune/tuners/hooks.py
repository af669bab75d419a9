"""Hooks the tuners whose libraries a suite imports, when it imports them."""

from __future__ import annotations

import importlib
import weakref
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from importlib.metadata import EntryPoint
from types import ModuleType

from pytest_autotune.run.tuning_run import TuningRun
from pytest_autotune.tuners import TUNERS, third_party_tuners
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
        """Hook each tuner as soon as its library is there; imports none of these libraries."""
        for name, module in TUNERS.items():
            if self._is_wanted(name):
                self._add(name, importlib.import_module(module).Adapter)
        for entry_point in third_party_tuners():
            if self._is_wanted(entry_point.name):
                self._add_third_party(entry_point)

    def _is_wanted(self, name: str) -> bool:
        return self._wanted is None or any(wanted.split(".")[0] == name for wanted in self._wanted)

    def _add(self, name: str, make_adapter: Callable[[], Adapter]) -> None:
        adapter = make_adapter()
        self._adapters[name] = adapter
        self._hook_when_imported(name, adapter.module)

    def _add_third_party(self, entry_point: EntryPoint) -> None:
        name = entry_point.name
        if name in self._adapters or name in TUNERS:
            self._run.note(f"{name}: there is a tuner of this name already; {entry_point.value} was left out")
            return
        try:
            self._add(name, entry_point.load())
        except Exception as error:
            self._adapters.pop(name, None)
            self._leave_alone(name, error, f"{entry_point.value}: ")

    def _leave_alone(self, name: str, error: Exception, where: str = "") -> None:
        reason = where + (str(error) if isinstance(error, HookError) else f"{type(error).__name__}: {error}")
        reason = " ".join(reason.split())
        self.unhooked[name] = reason
        self._run.note(f"{name} was left alone: {reason}")

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
            self._leave_alone(name, error)
            del self._adapters[name]

    def uninstall(self) -> None:
        """Restore what was hooked."""
        for name, adapter in self._adapters.items():
            with self._told_of(name, "unhook"):
                adapter.unhook()
        self._adapters.clear()

    @contextmanager
    def _told_of(self, name: str, method: str) -> Iterator[None]:
        """Turn an error of an adapter into one line: it must never fail a test, or the run."""
        try:
            yield
        except Exception as error:
            self._run.note(f"{name}: error in {method}(): {type(error).__name__}: {error}")

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Give the tuners an empty memory, and their own back afterwards."""
        with ExitStack() as stack:
            for name, adapter in self._adapters.items():
                with self._told_of(name, "isolated"):
                    swapped = adapter.isolated()
                    swapped.__enter__()
                    stack.callback(self._swap_back, name, swapped)
            yield

    def _swap_back(self, name: str, swapped: AbstractContextManager[None]) -> None:
        with self._told_of(name, "isolated"):
            swapped.__exit__(None, None, None)

    def unseen(self) -> list[str]:
        """``tuner:kernel`` of what was tuned without passing the run's door."""
        found: list[str] = []
        for name, adapter in self._adapters.items():
            with self._told_of(name, "unseen"):
                found += [f"{name}:{kernel}" for kernel in adapter.unseen()]
        return found
