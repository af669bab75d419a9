"""Triton's ``Autotuner``: what of it is hooked, the layers of its kernel, how it measures, what it remembers."""

from __future__ import annotations

import gc
import inspect
import weakref
from collections.abc import Callable, Iterable
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.functions import closure_cells, layers
from pytest_autotune.tuners.shared.library import Patches, check_signature
from pytest_autotune.tuners.triton.internals.environment import AUTOTUNER_MODULE, JIT_MODULE, module, triton_driver

DISK_CACHE, PRUNE = "check_disk_cache", "prune_configs"
_PARAMETERS = {DISK_CACHE: ["self", "tuning_key", "configs", "bench_fn"], PRUNE: ["self", "kwargs"]}
_JIT_FUNCTION = (JIT_MODULE, "JITFunction")
_BENCH_PARAMETERS = ["self", "args", "config", "meta"]
_BENCHMARK_NEEDS = ("get_device_interface", "get_empty_cache_for_benchmark", "clear_cache")


def method_of(autotuner_class: Any, name: str, patches: Patches) -> Any:
    """A method of ``Autotuner`` that is hooked, until these patches are undone.

    ``check_disk_cache`` is called with the candidates that pruning left, and what benchmarks them; ``prune_configs``
    where a search begins, with the keyword arguments of the call.

    :raises HookError: where there is none, or it is called otherwise.
    """
    return patches.known(autotuner_class, name, _PARAMETERS[name], needed="triton >= 3.4 is needed")


def was_tuned(autotuner: Any, autotuner_class: Any) -> bool:
    """Whether an autotuner has launched what some search has chosen, and remembers it."""
    held = vars(autotuner)
    if held.get("cache") == {} or "best_config" not in held or len(autotuner.configs) < 2:
        return False
    # Triton >= 3.8 takes the only candidate left after pruning without asking: nothing was tuned.
    return "bench_time" in held or type(autotuner).run is not autotuner_class.run


def live_objects(*classes: Any) -> list[Any]:
    """The objects in this process that are of some classes, or of classes derived from them."""
    # isinstance would ask proxies for their class, which may run code of theirs. A list of all objects, of which there
    # may be a million, counts a reference to each: in a forked child that copies the memory of all of them.
    wanted = {id(cls): cls for cls in classes}
    queue = list(classes)
    while queue:
        below = [one for one in type.__subclasses__(queue.pop()) if id(one) not in wanted]
        wanted |= {id(one): one for one in below}
        queue += below
    return [one for one in gc.get_referrers(*wanted.values()) if id(type(one)) in wanted]


class HeuristicsOver:
    """The ``triton.heuristics`` over autotuners, which these know nothing of: noted where they are made.

    :param module: ``triton.runtime.autotuner``.
    :param patches: until these are undone, new ones are noted.
    :raises HookError: where they are made otherwise.
    """

    def __init__(self, module: ModuleType, patches: Patches) -> None:
        heuristics: Any = module.Heuristics
        original = patches.known(heuristics, "__init__", ["self", "fn", "arg_names", "values"])
        self._all: weakref.WeakKeyDictionary[Any, None] = weakref.WeakKeyDictionary()  # in their order
        all_of_them = self._all
        all_of_them.update(dict.fromkeys(live_objects(heuristics)))

        def __init__(self: Any, fn: Any, arg_names: Any, values: Any) -> None:
            original(self, fn, arg_names, values)
            all_of_them[self] = None

        heuristics.__init__ = __init__

    def over(self, autotuner: Any) -> list[Any]:
        """Those over an autotuner, from the inside out; all of them, where several stand side by side."""
        found = [(list(layers(getattr(one, "fn", None))), one) for one in list(self._all)]
        over = [(len(inner), one) for inner, one in found if any(layer is autotuner for layer in inner)]
        return [one for _, one in sorted(over, key=lambda pair: pair[0])]


def pruner_of(autotuner: Any) -> Any:
    """The function that the author of a kernel prunes with; None where there is none but the picker of an export.

    That one leaves all candidates in a run: see :mod:`pytest_autotune.production`.
    """
    pruner = getattr(autotuner, "early_config_prune", None)
    return getattr(pruner, "autotune_pruner", pruner)


def measure_as_triton(autotuner: Any) -> None:
    """Take the ``do_bench`` of an export out of an autotuner: it is Triton's own, where more than one is left."""
    bench = getattr(getattr(autotuner, "early_config_prune", None), "do_bench", None)
    if bench is not None and bench is autotuner._do_bench:
        autotuner._do_bench = None
        vars(autotuner).pop("do_bench", None)


class Pruned(list[Any]):
    """The candidates that pruning left.

    :param early: those that ``early_config_prune`` left, of which a performance model may have chosen some.
    """

    def __init__(self, left: Iterable[Any], early: Iterable[Any]) -> None:
        super().__init__(left)
        self.early = list(early)


def pruned_alone(autotuner: Any, prune: Callable[[], Any]) -> Any:
    """Prune copies of the candidates of an autotuner, so that nothing of it is left in those of later calls.

    Pruners of public libraries are generators, make candidates of their own, or change those that they are given: "no
    TMA where the input is permuted". A test would not get in a suite what it gets alone.

    :param prune: the ``prune_configs`` of the autotuner's class.
    :returns: where there is a pruner, :class:`Pruned`: the autotuner's own, but for those that the pruner changed.
    """
    measure_as_triton(autotuner)
    if pruner_of(autotuner) is None:
        return prune()
    own, pruner = autotuner.configs, autotuner.early_config_prune
    copies = [_copied(config) for config in own]
    early: list[Any] = []

    def noted(*args: Any, **kwargs: Any) -> Any:
        left = pruner(*args, **kwargs)
        early[:] = left if isinstance(left, list) else ()
        return left

    autotuner.configs, autotuner.early_config_prune = list(copies), noted
    try:
        left = list(prune())
    finally:
        autotuner.configs, autotuner.early_config_prune = own, pruner
    unchanged = {id(copy): config for copy, config in zip(copies, own, strict=True) if vars(copy) == vars(config)}
    return Pruned(*([unchanged.get(id(config), config) for config in some] for some in (left, early or left)))


def _copied(config: Any) -> Any:
    copy = object.__new__(type(config))
    vars(copy).update(vars(config), kwargs=dict(config.kwargs))
    return copy


def is_heuristics(layer: Any) -> bool:
    """Whether a decorator of a kernel is ``triton.heuristics``, or a copy of it."""
    is_named_so = any(base.__name__ == "Heuristics" for base in type(layer).__mro__)
    return is_named_so and isinstance(getattr(layer, "values", None), dict)


def interprets(autotuner: Any) -> bool:
    """Whether the kernel of an autotuner runs under the interpreter: decided when it was decorated."""
    return any(type(layer).__name__ == "InterpretedFunction" for layer in layers(autotuner))


def is_of_triton(autotuner: Any) -> bool:
    """Whether what an autotuner launches is a kernel of Triton's, Gluon's too, that ``warmup=True`` only compiles.

    Some autotuners are made around a Python function, which launches what it likes.
    """
    return any(base.__name__ == "JITFunction" for layer in layers(autotuner.fn) for base in type(layer).__mro__)


def jit_function(layer: Any) -> Any:
    """The ``JITFunction`` under decorators of Triton; None where there is none."""
    return next((one for one in layers(layer) if (type(one).__module__, type(one).__name__) == _JIT_FUNCTION), None)


def watched_by(autotuner: Any, function: FunctionType) -> str:
    """What looks on at the searches of an autotuner and can remember it, in words; empty where nothing does.

    That is a ``post_hook`` of the user's, or Triton's listener (since 3.8), which is a closure or a method: a test that
    has made it asks whether there was a search. What is a function of its own restores a tensor, or writes a log, and
    so does what a library has given a kernel that no test has made.
    """
    settings = getattr(module("knobs"), "autotuning", None)
    is_made_inside = "<locals>" in function.__qualname__ and getattr(autotuner, "user_defined_post_hook", False)
    lookers = {
        "its post_hook": autotuner.post_hook if is_made_inside else None,
        "knobs.autotuning.listener": getattr(settings, "listener", None),
    }
    found = (name for name, one in lookers.items() if one and (not inspect.isfunction(one) or one.__closure__))
    return next(found, "")


def heuristics_under(autotuner: Any) -> list[Any]:
    """The ``triton.heuristics`` between an autotuner and its kernel."""
    return [layer for layer in layers(autotuner.fn) if is_heuristics(layer)]


def arguments_of(bench_fn: Callable[[], None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, which only the closure of its benchmark function holds.

    :raises LookupError: when it is not the function that Triton is known to pass.
    """
    cells = closure_cells(bench_fn) if inspect.isfunction(bench_fn) else {}
    args, kwargs = cells.get("args"), cells.get("kwargs")
    if not (isinstance(args, tuple) and isinstance(kwargs, dict)):
        raise LookupError("its benchmark is not the one that is known here")
    return args, kwargs


def candidate_of(kernel_call: Callable[[], object]) -> Any:
    """The candidate that Triton's benchmark launches; None where that is not known."""
    return closure_cells(kernel_call).get("config") if inspect.isfunction(kernel_call) else None


def expected_failures() -> tuple[type[BaseException], ...]:
    """What Triton's own benchmark takes for a failure of one candidate."""
    errors, compiler = module("runtime.errors"), module("compiler.errors")
    return errors.OutOfResources, errors.PTXASError, compiler.CompileTimeAssertionFailure


def why_no_race(autotuner_class: Any) -> str:
    """Return why no search of this Triton can race, in one line; empty where searches can.

    What another package has put in place of Triton's own benchmark is used as it is, and is no reason.
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
    # What is put around Triton's by functools.wraps has its __module__.
    return getattr(bench, "__globals__", {}).get("__name__") == AUTOTUNER_MODULE


def driver_of(autotuner: Any) -> Any:
    """The active driver, with what Triton's own benchmark needs of it; None where another benchmark is to be used.

    That is one that a kernel's author brings, one with ``warmup=``, ``rep=`` or ``use_cuda_graph=``, one that another
    package has put in its place, and that of a backend without events.
    """
    cls = type(autotuner)
    if why_no_race(cls) or not _is_from_triton(cls._bench) or "_bench" in vars(autotuner):
        return None
    benchmark = autotuner.do_bench
    named = getattr(benchmark, "__module__", ""), getattr(benchmark, "__qualname__", "")
    if autotuner._do_bench is not None or named != ("triton.testing", "do_bench"):
        return None
    driver = triton_driver().active
    return driver if all(hasattr(driver, name) for name in _BENCHMARK_NEEDS) else None
