"""Hooks each tuner when the suite imports its library.

To hook a tuner is to replace some of its functions, so that it asks the session for its choices. The tuner's *adapter*
does this. A tuner *acts* in a run if it is to be hooked. A *bypassed* tuner is left as it is: its adapter failed.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint
from types import ModuleType
from typing import Any

from pytest_autotune.cache.model import library_of
from pytest_autotune.cache.wording import error_message
from pytest_autotune.run import ACTIVE_RUNS
from pytest_autotune.run.session import Job, Session, Suite
from pytest_autotune.tuners import TUNERS, BuiltInTuner, list_third_party_tuners
from pytest_autotune.tuners.protocol import Adapter, HookError
from pytest_autotune.tuners.shared.patches import undo_patches, when_imported


class Hooks:
    """The hooked tuners of one process.

    :param wanted: the tuners that ``--autotune-tuners`` names, such as ``inductor.config``; None for all.
    """

    def __init__(self, session: Session, wanted: tuple[str, ...] | None) -> None:
        self._session = session
        self._wanted = wanted
        #: The tuners that act in this run. Each is hooked when the suite imports its library.
        self._acting: set[str] = set()
        #: The adapters that were made. The plugin's own adapters are made when their libraries are imported.
        self._adapters: dict[str, Adapter] = {}
        #: The tuners whose adapters' ``hook`` was called.
        self._hooked: set[str] = set()
        #: Ends the isolation of the tuners, while they are isolated.
        self._isolation: ExitStack | None = None

    def install(self) -> None:
        """Hook each tuner that acts in this run, now or when the suite imports its library.

        The plugin calls this again when a test loads another cache, because more tuners may act then.
        """
        _see_imports()
        ACTIVE_RUNS.add(self)
        for name, tuner in TUNERS.items():
            if self._may_add(name) and self._must_act(name, tuner):
                self._add_built_in(name, tuner)
        for entry_point in list_third_party_tuners():
            if entry_point.name in TUNERS:
                self._session.note(f"{entry_point.value} was left out: there is a tuner {entry_point.name} already")
            elif self._may_add(entry_point.name):
                self._add_third_party(entry_point)

    def _may_add(self, name: str) -> bool:
        """Whether a tuner was not added before, and ``--autotune-tuners`` does not leave it out."""
        if name in self._acting or name in self._session.unhooked_tuners:
            return False
        return self._wanted is None or name in map(library_of, self._wanted)

    def _add_built_in(self, name: str, tuner: BuiltInTuner) -> None:
        """Hook a tuner that comes with the plugin, as soon as its library is imported."""
        self._acting.add(name)
        with self._bypassing(name):
            if tuner.module == tuner.adapter_module:
                # The tuner is a part of the plugin. Import it in this run: pytester removes the modules that are first
                # imported by a run inside a test.
                import_module(tuner.module)
            when_imported(tuner.module, self._hook, name)

    def _add_third_party(self, entry_point: EntryPoint) -> None:
        """Make an adapter of another package, and hook its tuner as soon as its library is imported.

        Only the adapter tells whether its tuner acts in runs without entries.
        """
        name = entry_point.name
        with self._bypassing(name, origin=f"{entry_point.value}: "):
            adapter: Adapter = entry_point.load()()
            if not self._must_act(name, adapter):
                return
            self._acting.add(name)
            self._adapters[name] = adapter
            when_imported(adapter.module, self._hook, name)
            # If the library is imported already, hooking may have failed. The tuner is bypassed then.
            is_bypassed = name not in self._acting
            if self._isolation is not None and not is_bypassed:
                self._isolate(name, adapter, self._isolation)

    def _must_act(self, name: str, tuner: BuiltInTuner | Adapter) -> bool:
        """Whether this run needs a tuner to act, if ``--autotune-tuners`` does not leave the tuner out.

        Acting may slow a suite: an adapter may have to switch off the tuner's own cache. A tuner therefore acts only if
        the run needs it.
        """
        if self._wanted is not None:
            # The user named the tuner.
            return True
        if self._session.policy.is_dumping or tuner.acts_without_entries:
            return True
        if self._session.picks_candidates:
            # A sweep runs a kernel with other candidates, and needs no entries.
            return getattr(tuner, "names_candidates", False)
        for index in self._session.indexes:
            libraries = [library_of(tuner_name) for tuner_name in index.list_tuners()]
            if name in libraries:
                return True
        return False

    @contextmanager
    def _bypassing(self, name: str, origin: str = "") -> Iterator[None]:
        """Return a context that bypasses a tuner if its adapter raises an error in the context.

        :param origin: the beginning of the message: where the adapter of another package comes from.
        """
        try:
            yield
        # Not only Exception: an adapter's module may call sys.exit() or pytest.skip() if a library is missing.
        except BaseException as error:
            self._acting.discard(name)
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
        if name not in self._acting:
            # Before the import, the run has ended, or the tuner was bypassed.
            return
        with self._bypassing(name):
            adapter = self._adapters.get(name)
            if adapter is not None:
                # The adapter of another package was made before.
                self._call_hook(name, adapter, library)
                return
            adapter = self._adapters[name] = import_module(TUNERS[name].adapter_module).Adapter()
            self._call_hook(name, adapter, library)
            if self._isolation is not None:
                self._isolate(name, adapter, self._isolation)

    def _call_hook(self, name: str, adapter: Adapter, library: ModuleType) -> None:
        # Before the call: a hook that fails half-way must be unhooked, too.
        self._hooked.add(name)
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
        self._acting.clear()

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
            # A test may be isolated inside an isolated run.
            outer_isolation, self._isolation = self._isolation, exits
            try:
                yield
            finally:
                self._isolation = outer_isolation

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
