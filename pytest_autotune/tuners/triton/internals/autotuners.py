"""Triton's ``Autotuner``: its hooked methods, the layers of its kernel, how it measures, and its memory."""

from __future__ import annotations

import gc
import inspect
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from operator import itemgetter
from types import FunctionType, MemberDescriptorType, ModuleType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import CallHook, HookedCall, Patches, check_signature
from pytest_autotune.tuners.source.functions import closure_cells, list_layers

AUTOTUNER_MODULE = "triton.runtime.autotuner"
DISK_CACHE, PRUNE = "check_disk_cache", "prune_configs"
_DISK_CACHE_PARAMETERS = ["self", "tuning_key", "configs", "bench_fn"]
_ADVICE = "triton >= 3.4 is needed"
_JIT_FUNCTION = ("triton.runtime.jit", "JITFunction")
_BENCH_PARAMETERS = ["self", "args", "config", "meta"]
_BENCHMARK_NEEDS = ("get_device_interface", "get_empty_cache_for_benchmark", "clear_cache")


def keep_disk_cache(autotuner_class: Any, patches: Patches) -> Any:
    """Return Triton's method ``check_disk_cache``, which the adapter then replaces.

    Undoing the patches puts Triton's method back.

    Triton calls ``check_disk_cache`` with the candidates that pruning left, and with the function that benchmarks them.

    :raises HookError: if Triton has no such method, or calls it in another way.
    """
    return patches.keep_original(autotuner_class, DISK_CACHE, _DISK_CACHE_PARAMETERS, advice=_ADVICE)


def hook_pruning(autotuner_class: Any, patches: Patches, hook: CallHook) -> None:
    """Replace ``prune_configs`` so that each call asks a hook.

    Triton calls ``prune_configs`` at the beginning of a search, with the keyword arguments of the launch.

    :raises HookError: if Triton has no such method, or calls it in another way.
    """
    patches.replace(autotuner_class, PRUNE, ["self", "kwargs"], hook, advice=_ADVICE)


def was_tuned(autotuner: Any, autotuner_class: Any) -> bool:
    """Whether an autotuner has searched: it remembers a choice among several candidates, and has launched a choice.

    :param autotuner_class: Triton's ``Autotuner``.
    """
    attributes = vars(autotuner)
    remembers_nothing = attributes.get("cache") == {}
    if remembers_nothing or "best_config" not in attributes or len(autotuner.configs) < 2:
        return False
    # If pruning leaves a single candidate, Triton >= 3.8 takes it without a benchmark, and sets no bench_time. A class
    # with its own run may not set it after a search either.
    return "bench_time" in attributes or type(autotuner).run is not autotuner_class.run


def list_live_objects(*classes: Any) -> list[Any]:
    """Return all objects of this process that are of one of the classes, or of a class derived from them.

    Each object refers to its class, so the garbage collector finds the objects as referrers of the classes. Two simpler
    ways have a side effect:

    - ``isinstance`` asks a proxy for the class of its object, which may run the proxy's code.
    - ``gc.get_objects()`` makes a list of up to a million objects, and so changes the reference count of each object.
      In a forked child, each change copies a page of the parent's memory.
    """
    classes_by_id = _find_derived_classes(classes)
    referrers = gc.get_referrers(*classes_by_id.values())
    return [referrer for referrer in referrers if id(type(referrer)) in classes_by_id]


def _find_derived_classes(classes: Iterable[Any]) -> dict[int, Any]:
    """Return classes and all classes derived from them, by ``id``: a metaclass may have a hash that runs code."""
    classes_by_id = {id(cls): cls for cls in classes}
    queue = list(classes_by_id.values())
    while queue:
        for derived in type.__subclasses__(queue.pop()):
            if id(derived) not in classes_by_id:
                classes_by_id[id(derived)] = derived
                queue.append(derived)
    return classes_by_id


class OuterHeuristics:
    """The ``triton.heuristics`` around autotuners.

    An autotuner does not know the decorators around it. This class therefore notes each ``Heuristics`` object when
    user code makes it.

    :param module: ``triton.runtime.autotuner``.
    :param patches: the class notes new heuristics until these patches are undone.
    :raises HookError: if Triton makes heuristics in another way.
    """

    def __init__(self, module: ModuleType, patches: Patches) -> None:
        heuristics_class: Any = module.Heuristics
        #: All heuristics of this process, in the order in which they were made.
        self._heuristics: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()
        self._heuristics.update(dict.fromkeys(list_live_objects(heuristics_class)))
        parameters = ["self", "fn", "arg_names", "values"]
        patches.replace(heuristics_class, "__init__", parameters, _NotingHeuristics(self._heuristics))

    def list_around(self, autotuner: Any) -> list[Any]:
        """Return the heuristics around an autotuner, from the innermost to the outermost.

        User code may decorate an autotuner ``f`` more than once: ``a = triton.heuristics(x)(f)`` and
        ``b = triton.heuristics(y)(f)``. The list then has the heuristics of both.
        """
        # Pairs of the number of layers inside heuristics, and the heuristics.
        around: list[tuple[int, Any]] = []
        for heuristics in list(self._heuristics):
            inner_layers = list(list_layers(getattr(heuristics, "fn", None)))
            if any(layer is autotuner for layer in inner_layers):
                around.append((len(inner_layers), heuristics))
        around.sort(key=itemgetter(0))
        return [heuristics for _, heuristics in around]


class _NotingHeuristics(CallHook):
    """Notes heuristics when they are made."""

    def __init__(self, heuristics: weakref.WeakKeyDictionary[Any, None]) -> None:
        self._heuristics = heuristics

    def note(self, call: HookedCall, result: Any) -> None:
        self._heuristics[call.arguments["self"]] = None


def find_pruner(autotuner: Any) -> Any:
    """Return the function with which the author of a kernel prunes candidates; None if there is no such function.

    An export puts its picker in the place of the pruner, and keeps the author's pruner in ``autotune_pruner``. In a run
    the picker removes no candidate, so it does not count. See :mod:`pytest_autotune.production`.
    """
    pruner = getattr(autotuner, "early_config_prune", None)
    return getattr(pruner, "autotune_pruner", pruner)


def remove_exported_benchmark(autotuner: Any) -> None:
    """Take the ``do_bench`` of an export out of an autotuner, so that the autotuner uses Triton's own benchmark.

    The export uses its ``do_bench`` if its picker leaves several candidates.
    """
    bench = getattr(getattr(autotuner, "early_config_prune", None), "do_bench", None)
    if bench is not None and bench is autotuner._do_bench:
        autotuner._do_bench = None
        vars(autotuner).pop("do_bench", None)


class PrunedConfigs(list[Any]):
    """The candidates that pruning left.

    :param configs: the candidates after the whole pruning.
    :param before_model: the candidates that ``early_config_prune`` left. A performance model may have chosen
        ``configs`` among them.
    """

    def __init__(self, configs: Iterable[Any], before_model: Iterable[Any]) -> None:
        super().__init__(configs)
        self.before_model = list(before_model)


class _NotedPruner:
    """Stands in for a kernel's pruner until its next call, and notes the candidates that the pruner leaves.

    :param autotuner: an autotuner with a pruner.
    """

    def __init__(self, autotuner: Any) -> None:
        self._autotuner = autotuner
        self._pruner = autotuner.early_config_prune
        #: The candidates that the pruner left; empty if it was not called, or returned no list.
        self.configs: list[Any] = []

    def prune(self, *args: Any, **kwargs: Any) -> Any:
        # A pruner may read the autotuner's attribute, and gets itself.
        self._autotuner.early_config_prune = self._pruner
        configs = self._pruner(*args, **kwargs)
        if isinstance(configs, list):
            self.configs = list(configs)
        return configs

    def put_back(self) -> None:
        """Put the pruner back if nothing has called it. A pruner that was called may have put another in its place."""
        if getattr(self._autotuner.early_config_prune, "__self__", None) is self:
            self._autotuner.early_config_prune = self._pruner


@dataclass(frozen=True)
class _ConfigContents:
    """The contents of a ``triton.Config``, or of an object of a derived class."""

    #: The attributes in the object's ``__dict__``.
    attributes: dict[str, Any]
    #: The values of ``__slots__`` by the descriptor of the slot. A derived class may have such attributes.
    slots: dict[Any, Any]
    #: The dict ``config.kwargs``, which a pruner may change in place.
    kwargs: dict[str, Any]
    #: A copy of ``kwargs``.
    kwargs_items: dict[str, Any]
    #: The items of the object itself, if its class derives from dict, too; else empty.
    own_items: dict[Any, Any]

    @classmethod
    def from_config(cls, config: Any) -> _ConfigContents:
        slots = {}
        for slot in _list_slots(type(config)):
            # A slot may have no value yet.
            with suppress(AttributeError):
                slots[slot] = slot.__get__(config)
        own_items = {}
        if isinstance(config, dict):
            # No code of the derived class runs, such as its ``items``.
            own_items = dict(dict.items(config))
        return cls(dict(vars(config)), slots, config.kwargs, dict(config.kwargs), own_items)

    def are_in(self, config: Any) -> bool:
        """Whether a config still has these contents."""
        current = _ConfigContents.from_config(config)
        return (
            _are_same(self.attributes, current.attributes)
            and _are_same(self.slots, current.slots)
            and _are_same(self.kwargs_items, current.kwargs_items)
            and _are_same(self.own_items, current.own_items)
        )

    def write_to(self, config: Any) -> None:
        """Give these contents to a config. No code of a derived class runs, such as its ``__setattr__``."""
        vars(config).clear()
        vars(config).update(self.attributes)
        for slot in _list_slots(type(config)):
            if slot in self.slots:
                slot.__set__(config, self.slots[slot])
                continue
            with suppress(AttributeError):
                slot.__delete__(config)
        self.kwargs.clear()
        self.kwargs.update(self.kwargs_items)
        if isinstance(config, dict):
            dict.clear(config)
            dict.update(config, self.own_items)


#: The types whose ``==`` runs no code of a user.
_SCALARS = (bool, int, float, str)


def _are_same(before: Mapping[Any, Any], after: Mapping[Any, Any]) -> bool:
    """Whether two mappings have the same keys in the same order, with the same objects or equal scalars of one type.

    ``True`` and ``1`` differ here: a digest holds the type of a value and the order of the values.
    """
    if list(before) != list(after):
        return False
    for key, value in before.items():
        other = after[key]
        is_equal_scalar = type(value) is type(other) and type(value) in _SCALARS and value == other
        if value is not other and not is_equal_scalar:
            return False
    return True


def _list_slots(config_class: type) -> list[Any]:
    """Return the descriptors of the attributes that a class and its bases have in ``__slots__``."""
    slots = []
    for base in config_class.__mro__:
        if "__slots__" in vars(base):
            slots += [value for value in vars(base).values() if isinstance(value, MemberDescriptorType)]
    return slots


def _copy_config(config: Any) -> Any:
    """Return a copy of a candidate with a ``kwargs`` of its own.

    ``copy.copy`` would lose the attributes of a derived class, because ``Config.__setstate__`` does not know them.
    """
    config_class = type(config)
    # A derived class may have a second base, such as dict, whose objects only its own __new__ can make.
    copy: Any = dict.__new__(config_class) if isinstance(config, dict) else object.__new__(config_class)
    contents = _ConfigContents.from_config(config)
    own_kwargs = dict(contents.kwargs_items)
    own_attributes = {**contents.attributes, "kwargs": own_kwargs}
    replace(contents, attributes=own_attributes, kwargs=own_kwargs).write_to(copy)
    return copy


class PruningSnapshot:
    """A context in which a pruner may change an autotuner's candidates. Afterwards they are as they were before.

    Pruners of public libraries change the candidates themselves ("no TMA where the input is permuted"). The change
    would stay for later launches: a test in a suite would get other candidates than the same test without the others.

    The pruner gets the autotuner's own list and its own candidates, because a pruner may know its candidates by
    identity: ``[config for config in configs if config is LARGE]``.

    :param autotuner: an autotuner with a pruner.
    """

    def __init__(self, autotuner: Any) -> None:
        self._autotuner = autotuner
        #: The autotuner's list, and the candidates in it before pruning.
        self._list = autotuner.configs
        self._configs = list(autotuner.configs)
        self._contents = [_ConfigContents.from_config(config) for config in self._configs]
        self._noted_pruner = _NotedPruner(autotuner)
        self._restores = True

    def __enter__(self) -> PruningSnapshot:
        # Without a performance model, the result of the whole pruning is the pruner's list.
        if getattr(self._autotuner, "perf_model", None) is not None:
            self._autotuner.early_config_prune = self._noted_pruner.prune
        return self

    def __exit__(self, *error: object) -> None:
        self._noted_pruner.put_back()
        if not self._restores:
            return
        for config, contents in zip(self._configs, self._contents, strict=True):
            contents.write_to(config)
        # The list may be a tuple, which no pruner can change.
        if isinstance(self._list, list):
            self._list[:] = self._configs
        self._autotuner.configs = self._list

    def keep_changes(self, pruned: Sequence[Any]) -> PrunedConfigs:
        """Return the candidates that pruning left, with a copy in place of each candidate that the pruner changed.

        A pruner may also add candidates of its own, and give them the ``kwargs`` that it has changed.
        """
        # If this method fails, the tuner goes on with the changed candidates, as without the plugin.
        self._restores = False
        # The ids of the changed candidates and of the dicts that they had as kwargs.
        changed_ids: set[int] = set()
        for config, contents in zip(self._configs, self._contents, strict=True):
            if not contents.are_in(config):
                changed_ids.update((id(config), id(contents.kwargs)))
        # Without a performance model, or if the pruner is a generator, the pruner's candidates are not noted.
        before_model = self._noted_pruner.configs or pruned
        # The copies by the id of the candidate.
        copies: dict[int, Any] = {}
        for config in [*pruned, *before_model]:
            is_changed = id(config) in changed_ids or id(getattr(config, "kwargs", None)) in changed_ids
            if is_changed and id(config) not in copies:
                copies[id(config)] = _copy_config(config)
        pruned_configs = PrunedConfigs(
            configs=[copies.get(id(config), config) for config in pruned],
            before_model=[copies.get(id(config), config) for config in before_model],
        )
        self._restores = True
        return pruned_configs


def list_pruned(prune_configs: Callable[[Any, Any], Iterable[Any]], autotuner: Any, kwargs: Any) -> list[Any]:
    """Return the candidates that Triton's pruning leaves. A pruner may be a generator, which runs here."""
    return list(prune_configs(autotuner, kwargs))


def is_heuristics(layer: Any) -> bool:
    """Whether a decorator of a kernel is ``triton.heuristics``, or a library's copy of this class."""
    has_name = any(base.__name__ == "Heuristics" for base in type(layer).__mro__)
    return has_name and isinstance(getattr(layer, "values", None), dict)


def is_interpreted(autotuner: Any) -> bool:
    """Whether the kernel of an autotuner runs under the interpreter. The decorator ``triton.jit`` decides this."""
    return any(type(layer).__name__ == "InterpretedFunction" for layer in list_layers(autotuner))


def launches_triton_kernel(autotuner: Any) -> bool:
    """Whether an autotuner launches a kernel of Triton or Gluon, which ``warmup=True`` compiles without a launch.

    Some autotuners are made around a Python function, which may launch anything.
    """
    for layer in list_layers(autotuner.fn):
        if any(base.__name__ == "JITFunction" for base in type(layer).__mro__):
            return True
    return False


def find_jit_function(layer: Any) -> Any:
    """Return the ``JITFunction`` under decorators of Triton; None if there is none."""
    for inner_layer in list_layers(layer):
        if (type(inner_layer).__module__, type(inner_layer).__name__) == _JIT_FUNCTION:
            return inner_layer
    return None


def find_search_observer(autotuner: Any, function: FunctionType) -> str:
    """Return the name of the hook by which a test observes an autotuner's searches; empty if no test observes them.

    A test that observes searches checks that there was a search. Such a test would fail if the plugin took the choice
    from a cache. The test observes through one of two hooks, which must be able to keep data for the test:

    - a ``post_hook`` of a kernel that the test has made. A library's kernel has hooks that restore tensors.
    - ``triton.knobs.autotuning.listener``, since Triton 3.8.

    :param function: the function of the kernel.
    """
    is_made_by_test = "<locals>" in function.__qualname__
    has_post_hook = getattr(autotuner, "user_defined_post_hook", False)
    if is_made_by_test and has_post_hook and _can_keep_data(autotuner.post_hook):
        return "its post_hook"
    autotuning_knobs = getattr(sys.modules.get("triton.knobs"), "autotuning", None)
    if _can_keep_data(getattr(autotuning_knobs, "listener", None)):
        return "knobs.autotuning.listener"
    return ""


def _can_keep_data(hook: Any) -> bool:
    """Whether a hook can keep what it sees for a test: a method and a closure can, a plain function writes a log."""
    if not hook:
        return False
    return not inspect.isfunction(hook) or bool(hook.__closure__)


def list_inner_heuristics(autotuner: Any) -> list[Any]:
    """Return the ``triton.heuristics`` between an autotuner and its kernel."""
    return [layer for layer in list_layers(autotuner.fn) if is_heuristics(layer)]


def find_arguments(bench_fn: Callable[[], None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a launch.

    Triton passes them on only in the closure of the function that benchmarks the candidates.

    :param bench_fn: the function that Triton gives to ``check_disk_cache``.
    :raises LookupError: if the function is not the function of a known Triton.
    """
    cells = _find_cells(bench_fn)
    args, kwargs = cells.get("args"), cells.get("kwargs")
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise LookupError("the benchmark of this Triton version is unknown")
    return args, kwargs


def find_launched_config(kernel_call: Callable[[], object]) -> Any:
    """Return the candidate that a function of Triton's benchmark launches; None if the function does not tell it.

    :param kernel_call: the function that Triton gives to ``do_bench``.
    """
    return _find_cells(kernel_call).get("config")


def _find_cells(function: Any) -> dict[str, Any]:
    """Return the values in the closure of a function by name; nothing for other objects."""
    if not inspect.isfunction(function):
        return {}
    return closure_cells(function)


def list_candidate_errors() -> tuple[type[BaseException], ...]:
    """Return the classes of errors that Triton's own benchmark takes for the failure of a single candidate."""
    errors: Any = sys.modules["triton.runtime.errors"]
    compiler_errors: Any = sys.modules["triton.compiler.errors"]
    return errors.OutOfResources, errors.PTXASError, compiler_errors.CompileTimeAssertionFailure


def explain_no_race(autotuner_class: Any) -> str:
    """Return one line with the reason why no search of this Triton can race; empty if there is nothing to explain.

    A race makes the same steps as Triton's method ``_bench``, which measures one candidate. It therefore needs a Triton
    whose method is known.
    """
    bench = getattr(autotuner_class, "_bench", None)
    # Another package has replaced the method. Its searches do not race either, but the user wants this.
    if bench is not None and not _is_from_triton(bench):
        return ""
    try:
        check_signature(
            bench, "Autotuner._bench", "triton", _BENCH_PARAMETERS, advice="pytest-autotune may have to be upgraded"
        )
    except HookError as error:
        return str(error)
    return ""


def _is_from_triton(bench: Any) -> bool:
    """Whether a function is Triton's own ``_bench``, and no other package's function around it."""
    # The attribute __module__ does not tell: functools.wraps copies it from Triton's function to the other function.
    return getattr(bench, "__globals__", {}).get("__name__") == AUTOTUNER_MODULE


def find_benchmark_driver(autotuner: Any) -> Any:
    """Return Triton's active driver, whose clock a race uses. Return None if a race must not replace the benchmark.

    A race replaces only Triton's own benchmark.
    """
    autotuner_class = type(autotuner)
    # The method that benchmarks a candidate is not known.
    if explain_no_race(autotuner_class):
        return None
    # Another package, or user code, has replaced this method.
    if not _is_from_triton(autotuner_class._bench) or "_bench" in vars(autotuner):
        return None
    # The author of the kernel has set do_bench=, warmup=, rep= or use_cuda_graph=.
    if autotuner._do_bench is not None:
        return None
    # The backend has a benchmark of its own.
    benchmark = autotuner.do_bench
    benchmark_name = getattr(benchmark, "__module__", ""), getattr(benchmark, "__qualname__", "")
    if benchmark_name != ("triton.testing", "do_bench"):
        return None
    triton_runtime: Any = sys.modules["triton.runtime.driver"]
    driver = triton_runtime.driver.active
    # The backend's driver lacks the events or the buffer that the clock of a race needs.
    if not all(hasattr(driver, name) for name in _BENCHMARK_NEEDS):
        return None
    return driver
