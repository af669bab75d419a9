"""Hooks the tuners whose libraries a suite imports, when it imports them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from types import ModuleType
from typing import Any

from pytest_autotune.cache.foreign_text import error_message
from pytest_autotune.cache.model import library_of
from pytest_autotune.run.active import ACTIVE_RUNS
from pytest_autotune.run.mode import Job, Suite
from pytest_autotune.run.session import Session
from pytest_autotune.tuners import TUNERS, adapter_class, third_party_tuners
from pytest_autotune.tuners.protocol import Adapter, HookError
from pytest_autotune.tuners.shared.library import when_imported
from pytest_autotune.tuners.shared.patches import undo_patches


class Hooks:
    """The hooked tuners of one process; ``wanted`` are those to act on, matched by prefix, or None for all."""

    def __init__(self, session: Session, wanted: tuple[str, ...] | None) -> None:
        self._session = session
        self._wanted = wanted
        self._adapters: dict[str, Adapter] = {}
        #: The tuners whose adapters' ``hook`` was called.
        self._hooked: set[str] = set()
        self._isolation: ExitStack | None = None

    def install(self) -> None:
        """Hook each tuner that is to act as soon as its library is there; again when another cache is loaded."""
        _see_imports()
        ACTIVE_RUNS.add(self)
        for name in TUNERS:
            self._add(name, partial(adapter_class, name))
        for entry_point in third_party_tuners():
            if entry_point.name in TUNERS:
                self._session.note(f"{entry_point.value} was left out: there is a tuner {entry_point.name} already")
            else:
                self._add(entry_point.name, entry_point.load, f"{entry_point.value}: ")

    def _add(self, name: str, load: Callable[[], Callable[[], Adapter]], where: str = "") -> None:
        is_wanted = self._wanted is None or name in map(library_of, self._wanted)
        if name in self._adapters or name in self._session.unhooked_tuners or not is_wanted:
            return
        with self._bypassing(name, where):
            adapter = load()()
            if self._is_to_act(name, adapter):
                self._adapters[name] = adapter
                when_imported(adapter.module, self._hook, name)
                if self._isolation is not None:
                    self._swap_out(name, adapter, self._isolation)

    def _is_to_act(self, name: str, adapter: Adapter) -> bool:
        if self._wanted is not None or self._session.policy.is_dumping or adapter.acts_without_entries:
            return True
        if self._session.picks_candidates:
            return getattr(adapter, "names_candidates", False)
        return any(library_of(tuner) == name for index in self._session.indexes for tuner in index.list_tuners())

    @contextmanager
    def _bypassing(self, name: str, where: str = "") -> Iterator[None]:
        """Go on without a tuner whose adapter raises something inside."""
        try:
            yield
        except BaseException as error:  # a module may exit, or skip, where it lacks something
            adapter = self._adapters.pop(name, None)
            if adapter is not None and name in self._hooked:
                self._unhook(name, adapter)
            if isinstance(error, KeyboardInterrupt):
                raise
            words = error_message(error)
            reason = where + (words if isinstance(error, HookError) else f"{type(error).__name__}: {words}")
            self._session.report_bypass(name, " ".join(reason.split()), error)

    def _hook(self, name: str, library: ModuleType) -> None:
        adapter = self._adapters.get(name)
        if adapter is None:
            return
        self._hooked.add(name)
        with self._bypassing(name):
            adapter.hook(library, self._session)

    def prepare(self, suite: Suite) -> list[Job]:
        """What the adapters can do beside the tests."""
        return [job for _, jobs in self._ask("prepare", suite) for job in jobs]

    def untracked(self) -> list[str]:
        """``tuner:kernel`` of what was tuned without asking the session."""
        return [f"{name}:{kernel}" for name, kernels in self._ask("untracked") for kernel in kernels]

    def _ask(self, method: str, *given: object) -> list[tuple[str, Any]]:
        """What each adapter says that has a method."""
        said: list[tuple[str, Any]] = []
        for name, adapter in self._adapters.items():
            if (callback := getattr(adapter, method, None)) is not None:
                with self._session.guard(name, f"{method}()"):
                    said.append((name, list(callback(*given))))
        return said

    def uninstall(self) -> None:
        """Restore what was hooked."""
        ACTIVE_RUNS.discard(self)
        for name, adapter in self._adapters.items():
            self._unhook(name, adapter)
        self._adapters.clear()

    def _unhook(self, name: str, adapter: Adapter) -> None:
        with self._session.guard(name, "unhook()"):
            adapter.unhook()
        self._hooked.discard(name)
        undo_patches(self._session, name)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Give the tuners an empty memory, and their own back afterwards."""
        with ExitStack() as stack:
            for name, adapter in self._adapters.items():
                self._swap_out(name, adapter, stack)
            self._isolation = stack
            try:
                yield
            finally:
                self._isolation = None

    def _swap_out(self, name: str, adapter: Adapter, stack: ExitStack) -> None:
        swapped = ExitStack()
        with self._session.guard(name, "isolated()"):
            swapped.enter_context(adapter.isolated())

        @stack.callback
        def swap_back() -> None:
            with self._session.guard(name, "isolated()"):
                swapped.close()


def _see_imports() -> None:
    """Put wrapt's finder, which pytester takes away, before pytest's, which hides imports from those behind it."""
    from wrapt.importer import ImportHookFinder as Ours  # type: ignore[import-untyped]

    found = [finder for finder in sys.meta_path if isinstance(finder, Ours)]
    sys.meta_path[:] = [*(found or [Ours()]), *(finder for finder in sys.meta_path if finder not in found)]
