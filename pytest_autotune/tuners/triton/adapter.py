"""The adapter for ``triton.autotune``: Triton 3.4 and later.

It touches members of ``triton.runtime.autotuner.Autotuner``:
``check_disk_cache``, which Triton calls when it has no choice in memory, with the
candidates that are left after pruning and a function that benchmarks them;
``cache_results``, the switch that makes Triton call it; and ``prune_configs``, which
leaves no trace in the candidates. ``Heuristics.__init__`` notes what
stands over an autotuner. The launch of a kernel that has its choice is not touched.
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
from pytest_autotune.tuners.shared.library import Patches, guarded
from pytest_autotune.tuners.triton import ahead
from pytest_autotune.tuners.triton.choosing import Choices
from pytest_autotune.tuners.triton.compilations import CompileWatcher
from pytest_autotune.tuners.triton.identity import NAME
from pytest_autotune.tuners.triton.internals import autotuners, environment
from pytest_autotune.tuners.triton.internals.autotuners import prune_copies

_SWITCH = "cache_results"


class _AlwaysAsk:
    """A data descriptor for ``cache_results``: it covers autotuners made before the hook, too.

    The user's own setting stays where it was, in the instance, and holds for classes with a disk cache of their own.

    :param check: what Triton asks where it is switched on.
    :param passed_by: told of an autotuner that searches and asks nobody.
    """

    def __init__(self, check: Callable[..., bool], passed_by: Callable[[Any], object] = lambda autotuner: None) -> None:
        self._check = check
        self._passed_by = passed_by

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None or getattr(type(instance), autotuners.DISK_CACHE) is self._check:
            return True
        is_on = instance.__dict__.get(_SWITCH, False)
        if not is_on:
            self._passed_by(instance)
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
        self._hooked = ExitStack()
        #: The autotuners that came by.
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()
        #: Kernels of autotuners that searched past us, which may be gone at the end.
        self._passed: set[str] = set()
        self._ahead: ahead.AheadCompiler | None = None

    def hook(self, module: ModuleType, session: Session) -> None:
        autotuner_class: Any = module.Autotuner
        patches = Patches(session, NAME)
        self._hooked.callback(patches.undo)
        own_check = autotuners.find_original_method(autotuner_class, autotuners.DISK_CACHE, patches)
        prune = autotuners.find_original_method(autotuner_class, autotuners.PRUNE, patches)
        heuristics = autotuners.OuterHeuristics(module, patches)
        compilations = CompileWatcher(session)
        self._hooked.callback(compilations.unhook)
        choices = Choices(session, compilations, heuristics, own_check)
        adapter = self

        def choose(self: Any, tuning_key: Any, configs: Any, bench_fn: Any) -> bool:
            adapter._seen.add(self)
            return choices.choose(self, tuning_key, configs, bench_fn)

        # A hit calls a hook of the user's.
        original = choices.check_disk_cache
        guarded_choose = guarded(choose, original, session, NAME, NAME, lambda autotuner, *_: (autotuner.pre_hook,))

        @wraps(guarded_choose)
        def check_disk_cache(self: Any, *args: Any, **kwargs: Any) -> Any:
            arguments = getattr(self, "nargs", None)
            try:
                return guarded_choose(self, *args, **kwargs)
            except BaseException:
                if getattr(self, "nargs", None) is arguments:  # else they are of a call in another thread
                    self.nargs = None  # Triton's run lets go of the arguments only where it returns
                raise

        def prune_configs(self: Any, kwargs: Any) -> Any:
            return prune(self, kwargs) if session.is_paused else prune_copies(self, prune, kwargs)

        if why := autotuners.explain_no_race(autotuner_class):
            session.note(f"{NAME}: candidates are measured one after the other and not raced: {why}")
        self._session = session
        self._autotuner_class = autotuner_class
        self._ahead = ahead.AheadCompiler(session, autotuner_class, heuristics, compilations)
        setattr(autotuner_class, autotuners.DISK_CACHE, check_disk_cache)
        setattr(autotuner_class, autotuners.PRUNE, prune_configs)
        outer = [held[_SWITCH]] if _SWITCH in (held := vars(autotuner_class)) else []  # of a run around this one
        self._hooked.callback(setattr if outer else delattr, autotuner_class, _SWITCH, *outer)
        setattr(autotuner_class, _SWITCH, _AlwaysAsk(check_disk_cache, self._pass_by_in_tests))

    def prepare(self, suite: Suite) -> list[Job]:
        """Compile loaded choices ahead of the tests."""
        return self._ahead.list_jobs(suite) if self._ahead is not None else []

    def unhook(self) -> None:
        self._hooked.close()
        self._autotuner_class = self._ahead = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Give every autotuner an empty memory, and its own back afterwards."""
        swapped = []
        for autotuner in self._live_autotuners():
            held = vars(autotuner)
            if type(held.get("cache")) is dict:
                swapped.append((held, held["cache"]))
                held["cache"] = {}
        try:
            yield
        finally:
            for autotuner in list(self._seen):  # some were made inside
                if type(vars(autotuner).get("cache")) is dict:
                    vars(autotuner)["cache"] = {}
            for held, cache in swapped:
                held["cache"] = cache

    def untracked(self) -> list[str]:
        """Kernels of autotuners that were tuned and never came by: before the hook, or by a search of their class's."""
        for one in self._live_autotuners():
            if one not in self._seen and autotuners.was_tuned(one, self._autotuner_class):
                self._pass_by(one)
        return sorted(self._passed)

    def _pass_by_in_tests(self, autotuner: Any) -> None:
        if self._session is not None and not self._session.is_paused:
            with self._session.guard(NAME, _SWITCH):
                self._pass_by(autotuner)

    def _pass_by(self, autotuner: Any) -> None:
        function = python_function(autotuner)
        if function is None or self._session is None:
            return
        kernel = qualified_name(function)
        if not self._session.ignores(NAME, kernel):
            self._passed.add(f"{kernel} ({type(autotuner).__module__}.{type(autotuner).__qualname__})")

    def _live_autotuners(self) -> list[Any]:
        return autotuners.list_live_objects(self._autotuner_class) if self._autotuner_class is not None else []
