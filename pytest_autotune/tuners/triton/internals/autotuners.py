"""Triton's ``Autotuner``: its hooked methods, the layers of its kernel, how it measures, and its memory."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.functions import closure_cells, list_layers
from pytest_autotune.tuners.shared.library import check_signature
from pytest_autotune.tuners.shared.patches import CallHook, HookedCall, Patches
from pytest_autotune.tuners.triton.internals.environment import (
    AUTOTUNER_MODULE,
    JIT_MODULE,
    find_driver,
    find_module,
)

DISK_CACHE, PRUNE = "check_disk_cache", "prune_configs"
_DISK_CACHE_PARAMETERS = ["self", "tuning_key", "configs", "bench_fn"]
_NEEDED = "triton >= 3.4 is needed"
_JIT_FUNCTION = (JIT_MODULE, "JITFunction")
_BENCH_PARAMETERS = ["self", "args", "config", "meta"]
_BENCHMARK_NEEDS = ("get_device_interface", "get_empty_cache_for_benchmark", "clear_cache")


def keep_disk_cache(autotuner_class: Any, patches: Patches) -> Any:
    """Return ``check_disk_cache``, which the adapter replaces. Undoing the patches puts the method back.

    Triton calls ``check_disk_cache`` with the candidates that pruning left, and with the function that benchmarks them.

    :raises HookError: if Triton has no such method, or calls it in another way.
    """
    return patches.keep_original(autotuner_class, DISK_CACHE, _DISK_CACHE_PARAMETERS, needed=_NEEDED)


def hook_pruning(autotuner_class: Any, patches: Patches, hook: CallHook) -> None:
    """Have a hook asked about each ``prune_configs``.

    Triton calls it at the beginning of a search, with the keyword arguments of the call.

    :raises HookError: if Triton has no such method, or calls it in another way.
    """
    patches.replace(autotuner_class, PRUNE, ["self", "kwargs"], hook, needed=_NEEDED)


def was_tuned(autotuner: Any, autotuner_class: Any) -> bool:
    """Whether an autotuner remembers the choice of a search, and has launched it."""
    attributes = vars(autotuner)
    if attributes.get("cache") == {} or "best_config" not in attributes or len(autotuner.configs) < 2:
        return False
    # Triton >= 3.8 takes the only candidate left after pruning without asking: nothing was tuned.
    return "bench_time" in attributes or type(autotuner).run is not autotuner_class.run


def list_live_objects(*classes: Any) -> list[Any]:
    """Return the objects of this process that are of some classes, or of classes derived from them."""
    # isinstance would ask proxies for their class, which may run their code. A list of all objects, which may be a
    # million, counts a reference to each: in a forked child that copies the memory of all of them.
    classes_by_id = {id(cls): cls for cls in classes}
    queue = list(classes)
    while queue:
        for derived in type.__subclasses__(queue.pop()):
            if id(derived) not in classes_by_id:
                classes_by_id[id(derived)] = derived
                queue.append(derived)
    referrers = gc.get_referrers(*classes_by_id.values())
    return [referrer for referrer in referrers if id(type(referrer)) in classes_by_id]


class OuterHeuristics:
    """The ``triton.heuristics`` around autotuners. An autotuner does not know them: they are noted when they are made.

    :param module: ``triton.runtime.autotuner``.
    :param patches: new heuristics are noted until these patches are undone.
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
        """Return the heuristics around an autotuner, from the inside out.

        If several stand side by side around the autotuner, all of them are returned.
        """
        depths = []
        for heuristics in list(self._heuristics):
            inner_layers = list(list_layers(getattr(heuristics, "fn", None)))
            if any(layer is autotuner for layer in inner_layers):
                depths.append((len(inner_layers), heuristics))
        depths.sort(key=lambda pair: pair[0])
        return [heuristics for _, heuristics in depths]


class _NotingHeuristics(CallHook):
    """Notes heuristics when they are made."""

    def __init__(self, heuristics: weakref.WeakKeyDictionary[Any, None]) -> None:
        self._heuristics = heuristics

    def note(self, call: HookedCall, result: Any) -> None:
        self._heuristics[call.arguments["self"]] = None


def find_pruner(autotuner: Any) -> Any:
    """Return the function that the author of a kernel prunes with; None if the author has given none.

    The picker of an export is no pruner. It keeps all candidates in a run: see :mod:`pytest_autotune.production`.
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
    """A kernel's pruner that notes the candidates that it left."""

    def __init__(self, pruner: Callable[..., Any]) -> None:
        self._pruner = pruner
        self.configs: list[Any] = []

    def prune(self, *args: Any, **kwargs: Any) -> Any:
        configs = self._pruner(*args, **kwargs)
        self.configs = []
        if isinstance(configs, list):
            self.configs = list(configs)
        return configs


class CopiesForPruning:
    """Copies of an autotuner's candidates, which it prunes inside of this context.

    The pruners of public libraries are generators, make candidates of their own, or change the given candidates ("no
    TMA where the input is permuted"). A test in a suite would get other candidates than the same test alone.
    """

    def __init__(self, autotuner: Any) -> None:
        self._autotuner = autotuner
        self._configs = autotuner.configs
        self._pruner = autotuner.early_config_prune
        self._copies = [_copy_config(config) for config in autotuner.configs]
        self._noted_pruner = _NotedPruner(self._pruner)

    def __enter__(self) -> CopiesForPruning:
        self._autotuner.configs = list(self._copies)
        self._autotuner.early_config_prune = self._noted_pruner.prune
        return self

    def __exit__(self, *error: object) -> None:
        self._autotuner.configs = self._configs
        self._autotuner.early_config_prune = self._pruner

    def find_originals(self, pruned: Sequence[Any]) -> PrunedConfigs:
        """Return the autotuner's own candidates for the copies that pruning left.

        A candidate that the pruner changed is the changed copy.
        """
        originals = {}
        for copy, config in zip(self._copies, self._configs, strict=True):
            if vars(copy) == vars(config):
                originals[id(copy)] = config
        before_model = self._noted_pruner.configs or pruned
        return PrunedConfigs(
            [originals.get(id(config), config) for config in pruned],
            [originals.get(id(config), config) for config in before_model],
        )


def list_pruned(prune_configs: Callable[[Any, Any], Iterable[Any]], autotuner: Any, kwargs: Any) -> list[Any]:
    """Return the candidates that Triton's pruning leaves. A pruner may be a generator, which runs here."""
    return list(prune_configs(autotuner, kwargs))


def _copy_config(config: Any) -> Any:
    copy = object.__new__(type(config))
    vars(copy).update(vars(config), kwargs=dict(config.kwargs))
    return copy


def is_heuristics(layer: Any) -> bool:
    """Whether a decorator of a kernel is ``triton.heuristics``, or a copy of it."""
    has_name = any(base.__name__ == "Heuristics" for base in type(layer).__mro__)
    return has_name and isinstance(getattr(layer, "values", None), dict)


def is_interpreted(autotuner: Any) -> bool:
    """Whether the kernel of an autotuner runs under the interpreter. Triton decides this at the decoration."""
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


def find_watcher(autotuner: Any, function: FunctionType) -> str:
    """Name the hook that sees an autotuner's searches and can remember them; empty if there is none.

    Such a hook is a ``post_hook`` of the user, or Triton's listener (since 3.8), if it is a closure or a method. A
    test that has made it asks whether there was a search. A plain function restores a tensor or writes a log. So
    does a hook that a library has given to a kernel that no test has made.

    :param function: the function of the kernel.
    """
    has_own_hook = "<locals>" in function.__qualname__ and getattr(autotuner, "user_defined_post_hook", False)
    if has_own_hook and _can_remember(autotuner.post_hook):
        return "its post_hook"
    if _can_remember(getattr(getattr(find_module("knobs"), "autotuning", None), "listener", None)):
        return "knobs.autotuning.listener"
    return ""


def _can_remember(hook: Any) -> bool:
    if not hook:
        return False
    return not inspect.isfunction(hook) or bool(hook.__closure__)


def list_inner_heuristics(autotuner: Any) -> list[Any]:
    """Return the ``triton.heuristics`` between an autotuner and its kernel."""
    return [layer for layer in list_layers(autotuner.fn) if is_heuristics(layer)]


def find_arguments(bench_fn: Callable[[], None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the positional and keyword arguments of a call. Only the closure of its benchmark function holds them.

    :raises LookupError: if the function is not the function of a known Triton.
    """
    cells = _find_cells(bench_fn)
    args, kwargs = cells.get("args"), cells.get("kwargs")
    if not isinstance(args, tuple) or not isinstance(kwargs, dict):
        raise LookupError("its benchmark is not the one that is known here")
    return args, kwargs


def find_launched_config(kernel_call: Callable[[], object]) -> Any:
    """Return the candidate that Triton's benchmark launches with a function; None if it is not known."""
    return _find_cells(kernel_call).get("config")


def _find_cells(function: Any) -> dict[str, Any]:
    if not inspect.isfunction(function):
        return {}
    return closure_cells(function)


def list_candidate_errors() -> tuple[type[BaseException], ...]:
    """Return the classes of errors that Triton's own benchmark takes for the failure of a single candidate."""
    errors = find_module("runtime.errors")
    compiler_errors = find_module("compiler.errors")
    return errors.OutOfResources, errors.PTXASError, compiler_errors.CompileTimeAssertionFailure


def explain_no_race(autotuner_class: Any) -> str:
    """Return the reason why no search of this Triton can race, in one line; empty if searches can race.

    A benchmark that another package has put in place of Triton's own is used as it is, and is no reason.
    """
    bench = getattr(autotuner_class, "_bench", None)
    if bench is not None and not _is_from_triton(bench):
        return ""
    try:
        check_signature(
            bench, "Autotuner._bench", "triton", _BENCH_PARAMETERS, needed="pytest-autotune may have to be upgraded"
        )
    except HookError as error:
        return str(error)
    return ""


def _is_from_triton(bench: Any) -> bool:
    # functools.wraps copies __module__ to a function around Triton's, so __module__ would not tell.
    return getattr(bench, "__globals__", {}).get("__name__") == AUTOTUNER_MODULE


def find_benchmark_driver(autotuner: Any) -> Any:
    """Return the active driver if an autotuner uses Triton's own benchmark; None if it uses another benchmark.

    Other benchmarks are: the author's, one with ``warmup=``, ``rep=`` or ``use_cuda_graph=``, one that another package
    has put in place of Triton's, and the benchmark of a backend without events.
    """
    autotuner_class = type(autotuner)
    if explain_no_race(autotuner_class) or not _is_from_triton(autotuner_class._bench) or "_bench" in vars(autotuner):
        return None
    benchmark = autotuner.do_bench
    qualified_name = getattr(benchmark, "__module__", ""), getattr(benchmark, "__qualname__", "")
    if autotuner._do_bench is not None or qualified_name != ("triton.testing", "do_bench"):
        return None
    driver = find_driver().active
    if not all(hasattr(driver, name) for name in _BENCHMARK_NEEDS):
        return None
    return driver
