"""Hooks each tuner when the suite imports its library."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

from pytest_autotune.cache.model import library_of
from pytest_autotune.cache.wording import error_message
from pytest_autotune.run import ACTIVE_RUNS
from pytest_autotune.run.mode import Job, Suite
from pytest_autotune.run.session import Session
from pytest_autotune.tuners import TUNERS, adapter_class, list_third_party_tuners
from pytest_autotune.tuners.protocol import Adapter, HookError
from pytest_autotune.tuners.shared.patches import undo_patches, when_imported


@dataclass(frozen=True)
class OwnAdapter:
    """An adapter that comes with the plugin."""

    name: str
    #: The beginning of a message that says why the adapter cannot be loaded. The plugin's own adapters need none.
    origin: str = ""

    def make(self) -> Adapter:
        adapter: Adapter = adapter_class(self.name)()
        return adapter


@dataclass(frozen=True)
class ThirdPartyAdapter:
    """An adapter of another package."""

    entry_point: EntryPoint

    @property
    def name(self) -> str:
        return self.entry_point.name

    @property
    def origin(self) -> str:
        """The beginning of a message that says why the adapter cannot be loaded: the package's entry point."""
        return f"{self.entry_point.value}: "

    def make(self) -> Adapter:
        adapter: Adapter = self.entry_point.load()()
        return adapter


class Hooks:
    """The hooked tuners of one process.

    :param wanted: the tuners that ``--autotune-tuners`` names, such as ``inductor.config``; None for all.
    """

    def __init__(self, session: Session, wanted: tuple[str, ...] | None) -> None:
        self._session = session
        self._wanted = wanted
        self._adapters: dict[str, Adapter] = {}
        #: The tuners whose adapters' ``hook`` was called.
        self._hooked: set[str] = set()
        #: Ends the isolation of the tuners, while they are isolated.
        self._isolation: ExitStack | None = None

    def install(self) -> None:
        """Make the adapters of the tuners that act in this run. Each hooks its library when the suite imports it.

        The plugin calls this again when a test loads another cache, because more tuners may act then.
        """
        _see_imports()
        ACTIVE_RUNS.add(self)
        for name in TUNERS:
            self._add(OwnAdapter(name))
        for entry_point in list_third_party_tuners():
            if entry_point.name in TUNERS:
                self._session.note(f"{entry_point.value} was left out: there is a tuner {entry_point.name} already")
            else:
                self._add(ThirdPartyAdapter(entry_point))

    def _add(self, source: OwnAdapter | ThirdPartyAdapter) -> None:
        """Make an adapter, unless it was made before or the tuner does not act. It hooks its library at the import."""
        name = source.name
        if name in self._adapters or name in self._session.unhooked_tuners or not self._is_wanted(name):
            return
        with self._bypassing(name, source.origin):
            adapter = source.make()
            if self._is_to_act(name, adapter):
                self._adapters[name] = adapter
                when_imported(adapter.module, self._hook, name)
                if self._isolation is not None:
                    self._isolate(name, adapter, self._isolation)

    def _is_wanted(self, name: str) -> bool:
        return self._wanted is None or name in map(library_of, self._wanted)

    def _is_to_act(self, name: str, adapter: Adapter) -> bool:
        """Whether a wanted tuner acts in this run.

        Acting may slow a suite: an adapter may have to switch off the tuner's own cache. A tuner therefore acts only if
        the run needs it.
        """
        if self._wanted is not None:
            # The user named the tuner.
            return True
        if self._session.policy.is_dumping or adapter.acts_without_entries:
            return True
        if self._session.picks_candidates:
            # A sweep runs a kernel with other candidates, and needs no entries.
            return getattr(adapter, "names_candidates", False)
        for index in self._session.indexes:
            if name in map(library_of, index.list_tuners()):
                return True
        return False

    @contextmanager
    def _bypassing(self, name: str, origin: str = "") -> Iterator[None]:
        """Return a context that bypasses a tuner if its adapter raises an error in the context.

        :param origin: the beginning of the message; see ``ThirdPartyAdapter.origin``.
        """
        try:
            yield
        # Not only Exception: an adapter's module may call sys.exit() or pytest.skip() if a library is missing.
        except BaseException as error:
            adapter = self._adapters.pop(name, None)
            if adapter is not None and name in self._hooked:
                self._unhook(name, adapter)
            if isinstance(error, KeyboardInterrupt):
                raise
            reason = error_message(error)
            if not isinstance(error, HookError):  # the message of a HookError needs no name of a class
                reason = f"{type(error).__name__}: {reason}"
            self._session.report_bypass(name, " ".join(f"{origin}{reason}".split()), error)

    def _hook(self, name: str, library: ModuleType) -> None:
        """Hook a tuner, whose library is imported now."""
        adapter = self._adapters.get(name)
        if adapter is None:
            # The run has ended, or the tuner is bypassed, before the import.
            return
        # Before the call: a hook that fails half-way must be unhooked, too.
        self._hooked.add(name)
        with self._bypassing(name):
            adapter.hook(library, self._session)

    def prepare(self, suite: Suite) -> list[Job]:
        """Return the jobs of all adapters that threads can do while the tests run; see :class:`Adapter`."""
        jobs: list[Job] = []
        for jobs_of_tuner in self._ask_adapters("prepare", suite).values():
            jobs += jobs_of_tuner
        return jobs

    def untracked(self) -> list[str]:
        """Return ``tuner:kernel`` for each kernel that was tuned without asking the session."""
        names = []
        for tuner, kernels in self._ask_adapters("untracked").items():
            names += [f"{tuner}:{kernel}" for kernel in kernels]
        return names

    def _ask_adapters(self, method: str, *arguments: object) -> dict[str, list[Any]]:
        """Call a method of each adapter that has it; return the results by the names of the tuners."""
        results: dict[str, list[Any]] = {}
        for name, adapter in self._adapters.items():
            function = getattr(adapter, method, None)
            if function is None:
                continue
            with self._session.guard(name, f"{method}()"):
                results[name] = list(function(*arguments))
        return results

    def uninstall(self) -> None:
        """Put back all functions that the adapters replaced."""
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
        """Give the tuners an empty memory, and afterwards the memory that they had before."""
        with ExitStack() as exits:
            for name, adapter in self._adapters.items():
                self._isolate(name, adapter, exits)
            self._isolation = exits
            try:
                yield
            finally:
                self._isolation = None

    def _isolate(self, name: str, adapter: Adapter, exits: ExitStack) -> None:
        """Give one tuner an empty memory until ``exits`` ends."""
        isolation = ExitStack()
        with self._session.guard(name, "isolated()"):
            isolation.enter_context(adapter.isolated())
        exits.callback(self._end_isolation, name, isolation)

    def _end_isolation(self, name: str, isolation: ExitStack) -> None:
        with self._session.guard(name, "isolated()"):
            isolation.close()


def _see_imports() -> None:
    """Put wrapt's finder, which reports imports to ``when_imported``, in front of all other finders of imports.

    pytest's finder imports the modules of a suite itself. Python does not ask the finders after it. pytester removes
    wrapt's finder, so a new finder may be needed.
    """
    from wrapt.importer import ImportHookFinder  # type: ignore[import-untyped]

    finders = [finder for finder in sys.meta_path if isinstance(finder, ImportHookFinder)]
    others = [finder for finder in sys.meta_path if finder not in finders]
    sys.meta_path[:] = [*(finders or [ImportHookFinder()]), *others]
