"""The adapter for ``triton.autotune``: Triton 3.4 and later.

The adapter replaces members of ``triton.runtime.autotuner.Autotuner``. Triton calls ``check_disk_cache`` if it has no
choice in memory, with the candidates that pruning left and a function that benchmarks them. ``cache_results`` is the
switch that makes Triton call it. The replaced ``prune_configs`` changes no candidate. ``Heuristics.__init__`` notes
the heuristics around an autotuner. A launch of a kernel that has its choice runs no code of the adapter.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from pytest_autotune.run.mode import Job, Suite
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall, Patches
from pytest_autotune.tuners.triton.ahead import AheadCompiler
from pytest_autotune.tuners.triton.choosing import Choices
from pytest_autotune.tuners.triton.compilations import CompileWatcher
from pytest_autotune.tuners.triton.identity import NAME
from pytest_autotune.tuners.triton.internals import autotuners, environment
from pytest_autotune.tuners.triton.internals.autotuners import CopiesForPruning

_SWITCH = "cache_results"


def _ignore_autotuner(autotuner: Any) -> None:
    pass


class _AlwaysAsk:
    """A data descriptor for ``cache_results``. It also covers autotuners that were made before the hook.

    The user's own setting stays in the instance. It holds for classes that have a disk cache of their own.

    :param check: the function that Triton calls if the switch is on.
    :param on_bypass: called with an autotuner that searches without a call of ``check``.
    """

    def __init__(self, check: Callable[..., bool], on_bypass: Callable[[Any], object] = _ignore_autotuner) -> None:
        self._check = check
        self._on_bypass = on_bypass

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or getattr(type(instance), autotuners.DISK_CACHE) is self._check:
            return True
        is_on = instance.__dict__.get(_SWITCH, False)
        if not is_on:
            self._on_bypass(instance)
        return is_on

    def __set__(self, instance: Any, value: object) -> None:
        instance.__dict__[_SWITCH] = value


class Adapter:
    """Hooks ``triton.autotune``; see :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = environment.AUTOTUNER_MODULE
    acts_without_entries = True

    def __init__(self) -> None:
        self._session: Session | None = None
        self._autotuner_class: Any = None
        self._exits = ExitStack()
        #: The autotuners that asked the adapter.
        self._asked: weakref.WeakSet[Any] = weakref.WeakSet()
        #: The kernels of autotuners that searched without asking. Such an autotuner may be gone at the end.
        self._bypassing: set[str] = set()
        self._ahead_compiler: AheadCompiler | None = None

    def hook(self, module: ModuleType, session: Session) -> None:
        autotuner_class: Any = module.Autotuner
        patches = Patches(session, NAME)
        self._exits.callback(patches.undo)
        triton_check = autotuners.keep_disk_cache(autotuner_class, patches)
        autotuners.hook_pruning(autotuner_class, patches, PruningHook(session))
        heuristics = autotuners.OuterHeuristics(module, patches)
        compilations = CompileWatcher(session)
        self._exits.callback(compilations.unhook)
        choices = Choices(session, compilations, heuristics, triton_check, self._asked)
        reason = autotuners.explain_no_race(autotuner_class)
        if reason:
            session.note(f"{NAME}: candidates are measured one after the other and not raced: {reason}")
        self._session = session
        self._autotuner_class = autotuner_class
        self._ahead_compiler = AheadCompiler(session, autotuner_class, heuristics, compilations)
        check_disk_cache = self._build_check_disk_cache(triton_check, patches.wrap(choices.check_disk_cache, choices))
        setattr(autotuner_class, autotuners.DISK_CACHE, check_disk_cache)
        if _SWITCH in vars(autotuner_class):  # the descriptor of a run around this run
            self._exits.callback(setattr, autotuner_class, _SWITCH, vars(autotuner_class)[_SWITCH])
        else:
            self._exits.callback(delattr, autotuner_class, _SWITCH)
        setattr(autotuner_class, _SWITCH, _AlwaysAsk(check_disk_cache, self._note_bypass_in_tests))

    def _build_check_disk_cache(
        self, triton_check: Callable[..., bool], choose: Callable[..., bool]
    ) -> Callable[..., bool]:
        """Return the method that replaces ``check_disk_cache``.

        :param choose: finds the choice, or lets Triton search.
        """

        @wraps(triton_check)
        def check_disk_cache(self: Any, *args: Any, **kwargs: Any) -> bool:
            arguments = getattr(self, "nargs", None)
            try:
                return choose(self, *args, **kwargs)
            except BaseException:
                # Triton's run releases the arguments of a call only if it returns. Other arguments are those of a call
                # in another thread.
                if getattr(self, "nargs", None) is arguments:
                    self.nargs = None
                raise

        return check_disk_cache

    def prepare(self, suite: Suite) -> list[Job]:
        """Return the compilations of loaded choices that threads can do ahead of the tests."""
        if self._ahead_compiler is None:
            return []
        return self._ahead_compiler.list_jobs(suite)

    def unhook(self) -> None:
        self._exits.close()
        self._autotuner_class = self._ahead_compiler = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Give every autotuner an empty memory, and afterwards the memory that it had before."""
        swapped = []
        for autotuner in self._list_live_autotuners():
            attributes = vars(autotuner)
            if type(attributes.get("cache")) is dict:
                swapped.append((attributes, attributes["cache"]))
                attributes["cache"] = {}
        try:
            yield
        finally:
            for autotuner in list(self._asked):  # some were made inside
                if type(vars(autotuner).get("cache")) is dict:
                    vars(autotuner)["cache"] = {}
            for attributes, cache in swapped:
                attributes["cache"] = cache

    def untracked(self) -> list[str]:
        """Return the kernels that were tuned without asking: before the hook, or by a search of their own class."""
        for autotuner in self._list_live_autotuners():
            if autotuner not in self._asked and autotuners.was_tuned(autotuner, self._autotuner_class):
                self._note_bypass(autotuner)
        return sorted(self._bypassing)

    def _note_bypass_in_tests(self, autotuner: Any) -> None:
        if self._session is not None and not self._session.is_paused:
            with self._session.guard(NAME, _SWITCH):
                self._note_bypass(autotuner)

    def _note_bypass(self, autotuner: Any) -> None:
        function = python_function(autotuner)
        if function is None or self._session is None:
            return
        kernel = qualified_name(function)
        if not self._session.ignores(NAME, kernel):
            self._bypassing.add(f"{kernel} ({type(autotuner).__module__}.{type(autotuner).__qualname__})")

    def _list_live_autotuners(self) -> list[Any]:
        if self._autotuner_class is None:
            return []
        return autotuners.list_live_objects(self._autotuner_class)


class PruningHook(CallHook):
    """Has Triton prune copies of an autotuner's candidates."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, call: HookedCall) -> CallInstead | None:
        """Put the copies in the place of the candidates until the end of the call, if there is a pruner."""
        autotuner = call.arguments["self"]
        if self._session.is_paused:
            return None
        autotuners.remove_exported_benchmark(autotuner)
        if autotuners.find_pruner(autotuner) is None:
            return None
        call.state = call.enter(CopiesForPruning(autotuner))
        return CallInstead(autotuners.list_pruned, (call.original, autotuner, call.arguments["kwargs"]))

    def note(self, call: HookedCall, result: Any) -> CallResult | None:
        """Return the autotuner's own candidates for the copies that are left."""
        if call.state is None:
            return None
        return CallResult(call.state.find_originals(result))
