"""The adapter for ``triton.autotune``: Triton 3.4 and later.

The adapter replaces three members of ``triton.runtime.autotuner.Autotuner``:

- ``check_disk_cache``: Triton calls this method if its memory has no choice for the launch. It passes the candidates
  that pruning left, and a function that benchmarks them.
- ``cache_results``: Triton calls ``check_disk_cache`` only if this attribute is true.
- ``prune_configs``: the replacement undoes the changes that the kernel's pruner makes to the candidates.

The adapter also replaces ``Heuristics.__init__``, because an autotuner does not know the heuristics around it. A launch
of a kernel that has its choice runs no code of the adapter.

The autotuner is the ``Autotuner`` object that the decorator ``triton.autotune`` puts around a kernel. Its memory is the
dict ``autotuner.cache``: Triton's key of a launch -> the choice.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import wraps
from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Job, Session, Suite
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall, Patches
from pytest_autotune.tuners.source.functions import python_function, qualified_name
from pytest_autotune.tuners.triton.ahead import AheadCompiler
from pytest_autotune.tuners.triton.choosing import Choices
from pytest_autotune.tuners.triton.compile_watcher import CompileWatcher
from pytest_autotune.tuners.triton.identity import NAME
from pytest_autotune.tuners.triton.internals import autotuners
from pytest_autotune.tuners.triton.internals.autotuners import PruningSnapshot

#: The attribute with which a kernel's author turns Triton's disk cache on.
_SWITCH = "cache_results"


def _ignore_autotuner(autotuner: Any) -> None:
    pass


class _AlwaysAsk:
    """A data descriptor for ``cache_results``: the attribute is true, so that each search asks the adapter.

    The descriptor is an attribute of the class, so it also applies to autotuners that were made before the hook. A
    value that user code sets is kept in the instance. Only a derived class that overrides ``check_disk_cache`` reads
    this value.

    :param check: the adapter's ``check_disk_cache``.
    :param on_bypass: called with an autotuner of such a derived class, if its search will not call
        ``check_disk_cache``.
    """

    def __init__(self, check: Callable[..., bool], on_bypass: Callable[[Any], object] = _ignore_autotuner) -> None:
        self._check = check
        self._on_bypass = on_bypass

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        # User code reads the attribute of the class.
        if instance is None:
            return True
        # The autotuner has the adapter's method, which each search must ask.
        if getattr(type(instance), autotuners.DISK_CACHE) is self._check:
            return True
        is_on = instance.__dict__.get(_SWITCH, False)
        if not is_on:
            self._on_bypass(instance)
        return is_on

    def __set__(self, instance: Any, value: object) -> None:
        instance.__dict__[_SWITCH] = value


class Adapter:
    """Hooks ``triton.autotune``; see :class:`~pytest_autotune.tuners.protocol.Adapter`."""

    module = autotuners.AUTOTUNER_MODULE
    acts_without_entries = True

    def __init__(self) -> None:
        self._session: Session | None = None
        self._autotuner_class: Any = None
        #: The steps that undo the hooks.
        self._exits = ExitStack()
        #: The autotuners that asked the adapter for a choice.
        self._asking_autotuners: weakref.WeakSet[Any] = weakref.WeakSet()
        #: The names of kernels whose autotuners searched without asking the adapter. The set holds names, because an
        #: autotuner may be deleted before the end of the run.
        self._bypassing_kernels: set[str] = set()
        self._ahead_compiler: AheadCompiler | None = None

    def hook(self, module: ModuleType, session: Session) -> None:
        """Replace the members of Triton's classes.

        The order of the steps matters. The steps that can fail come first, and each registers how it is undone. No
        autotuner asks the adapter before the last step.

        :param module: ``triton.runtime.autotuner``.
        :raises HookError: if this Triton is not known.
        """
        autotuner_class: Any = module.Autotuner
        patches = Patches(session, NAME)
        self._exits.callback(patches.undo)
        # Check that this Triton is known. These three calls raise HookError if it is not.
        triton_check = autotuners.keep_disk_cache(autotuner_class, patches)
        autotuners.hook_pruning(autotuner_class, patches, PruningHook(session))
        heuristics = autotuners.OuterHeuristics(module, patches)
        # Build the objects that Triton calls through the hooks.
        compile_watcher = CompileWatcher(session)
        self._exits.callback(compile_watcher.unhook)
        choices = Choices(session, compile_watcher, heuristics, triton_check, self._asking_autotuners)
        self._note_no_race(autotuner_class, session)
        self._session = session
        self._autotuner_class = autotuner_class
        self._ahead_compiler = AheadCompiler(session, autotuner_class, heuristics, compile_watcher)
        # Replace check_disk_cache by a method that asks the object `choices` first.
        ask_choices = patches.wrap(choices.check_disk_cache, choices)
        check_disk_cache = _build_check_disk_cache(triton_check, ask_choices)
        setattr(autotuner_class, autotuners.DISK_CACHE, check_disk_cache)
        # The switch comes last, because it is on only for classes that have this method.
        self._turn_on_switch(autotuner_class, check_disk_cache)

    def _note_no_race(self, autotuner_class: Any, session: Session) -> None:
        """Tell the user if searches of this Triton cannot race."""
        reason = autotuners.explain_no_race(autotuner_class)
        if reason:
            session.note(
                f"{NAME}: candidates are timed one after the other, so new choices are less exact: "
                f"{reason} (upgrade the plugin)"
            )

    def _turn_on_switch(self, autotuner_class: Any, check_disk_cache: Callable[..., bool]) -> None:
        """Have Triton call ``check_disk_cache`` in each search, until the adapter is unhooked."""
        if _SWITCH in vars(autotuner_class):
            # A run of pytest around this run has its own descriptor in the class, as in the tests of a plugin.
            self._exits.callback(setattr, autotuner_class, _SWITCH, vars(autotuner_class)[_SWITCH])
        else:
            self._exits.callback(delattr, autotuner_class, _SWITCH)
        setattr(autotuner_class, _SWITCH, _AlwaysAsk(check_disk_cache, self._note_bypass_in_tests))

    def prepare(self, suite: Suite) -> list[Job]:
        """Return jobs that threads run. Each job compiles a loaded choice, so that the test need not compile it."""
        if self._ahead_compiler is None:
            return []
        return self._ahead_compiler.list_jobs(suite)

    def unhook(self) -> None:
        self._exits.close()
        self._autotuner_class = self._ahead_compiler = None

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Give every autotuner an empty memory in this context, and afterwards the memory that it had before."""
        memories = []
        for autotuner in self._list_live_autotuners():
            if _has_replaceable_memory(autotuner):
                memories.append((autotuner, vars(autotuner)["cache"]))
                vars(autotuner)["cache"] = {}
        try:
            yield
        finally:
            # A test in this context may have made further autotuners. Their memory holds choices of this context.
            for autotuner in list(self._asking_autotuners):
                if _has_replaceable_memory(autotuner):
                    vars(autotuner)["cache"] = {}
            for autotuner, memory in memories:
                vars(autotuner)["cache"] = memory

    def untracked(self) -> list[str]:
        """Return the names of kernels that were tuned without asking the adapter.

        Such a kernel was tuned before the hook, or its autotuner is of a derived class that has its own search.
        """
        for autotuner in self._list_live_autotuners():
            if autotuner in self._asking_autotuners:
                continue
            if not autotuners.was_tuned(autotuner, self._autotuner_class):
                continue
            kernel = _find_kernel_name(autotuner)
            # The session is paused now, at the end of the run. A kernel that the user left out is not untracked.
            if kernel and self._session is not None and not self._session.is_left_out(NAME, kernel):
                self._note_bypass(autotuner, kernel)
        return sorted(self._bypassing_kernels)

    def _note_bypass_in_tests(self, autotuner: Any) -> None:
        """Note that an autotuner searches without asking the adapter, unless the plugin leaves this call alone."""
        if self._session is None:
            return
        with self._session.guard(NAME, _SWITCH):
            kernel = _find_kernel_name(autotuner)
            if kernel and not self._session.leaves_alone(NAME, kernel):
                self._note_bypass(autotuner, kernel)

    def _note_bypass(self, autotuner: Any, kernel: str) -> None:
        """Note the name of a kernel that was tuned without the adapter, with the class of its autotuner."""
        self._bypassing_kernels.add(f"{kernel} ({type(autotuner).__module__}.{type(autotuner).__qualname__})")

    def _list_live_autotuners(self) -> list[Any]:
        if self._autotuner_class is None:
            return []
        return autotuners.list_live_objects(self._autotuner_class)


def _find_kernel_name(autotuner: Any) -> str:
    """Return the name of an autotuner's kernel in caches and reports; empty if the kernel is no Python function."""
    function = python_function(autotuner)
    if function is None:
        return ""
    return qualified_name(function)


def _has_replaceable_memory(autotuner: Any) -> bool:
    """Whether the adapter can replace an autotuner's memory. A derived class may have a memory of another type."""
    return type(vars(autotuner).get("cache")) is dict


def _build_check_disk_cache(triton_check: Callable[..., bool], ask_choices: Callable[..., bool]) -> Callable[..., bool]:
    """Return the method that replaces ``check_disk_cache``. After an error, it also releases the call's tensors.

    :param triton_check: Triton's own method.
    :param ask_choices: the function that asks :class:`Choices`. It finds the choice, or lets Triton search.
    """

    @wraps(triton_check)
    def check_disk_cache(self: Any, *args: Any, **kwargs: Any) -> bool:
        # Triton keeps the arguments of the launch here until the launch ends.
        arguments = getattr(self, "nargs", None)
        try:
            return ask_choices(self, *args, **kwargs)
        except BaseException:
            # After an error, Triton's run does not remove the arguments, and so keeps their tensors. They are removed
            # here, unless a launch in another thread has set its own arguments meanwhile.
            if getattr(self, "nargs", None) is arguments:
                self.nargs = None
            raise

    return check_disk_cache


class PruningHook(CallHook):
    """The hook of ``prune_configs``. A pruner's changes of the candidates apply only to the launch that they are for.

    :class:`PruningSnapshot` says why.
    """

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, call: HookedCall) -> CallInstead | None:
        """Note the candidates before the pruner changes them. They are restored at the end of the call.

        An autotuner without a pruner, or with a kernel that the plugin leaves alone, prunes as always.
        """
        autotuner = call.arguments["self"]
        if getattr(autotuner, "early_config_prune", None) is None:
            return None
        kernel = _find_kernel_name(autotuner)
        if not kernel or self._session.leaves_alone(NAME, kernel):
            return None
        # Pruning begins a search, which must use Triton's own benchmark.
        autotuners.remove_exported_benchmark(autotuner)
        if autotuners.find_pruner(autotuner) is None:
            return None
        call.state = call.enter(PruningSnapshot(autotuner))
        return CallInstead(autotuners.list_pruned, (call.original, autotuner, call.arguments["kwargs"]))

    def note(self, call: HookedCall, result: Any) -> CallResult | None:
        """Return the candidates that pruning left, with the pruner's changes."""
        if call.state is None:
            return None
        return CallResult(call.state.keep_changes(result))
