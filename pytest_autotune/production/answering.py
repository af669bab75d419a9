"""The tuners that :func:`~pytest_autotune.production.use.use` answers: Triton's autotuner and ``tune()``.

One method of Triton's ``Autotuner`` is replaced: ``prune_configs``, which then leaves only the shipped choice. Triton
before 3.8 would time this single candidate, so the autotuner gets a ``do_bench`` that times nothing. Triton calls both
only when it chooses, so launches of a kernel that has its choice cost no more than before.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterable, Sequence
from functools import cached_property
from types import ModuleType
from typing import TYPE_CHECKING, Any

from pytest_autotune.cache.distance import LaunchValue, launch_key, launch_value
from pytest_autotune.cache.model import Candidate, UncacheableError, Value
from pytest_autotune.production.choices import device_identity, exact_key
from pytest_autotune.production.shipped import LaunchedProblem, MissError, find_shipped_cache
from pytest_autotune.tuners.source.functions import python_function, qualified_name, unwrapped

if TYPE_CHECKING:
    from pytest_autotune.tuners.triton.identity import Call

#: The attribute of Triton's autotuner that is its benchmark.
_BENCH = "do_bench"


# Triton.


def hook_triton(module: ModuleType) -> None:
    """Replace ``Autotuner.prune_configs``, so that it leaves only the shipped choice of a launch.

    If the class is not as expected, Triton tunes as always, and the user is warned.

    :param module: ``triton.runtime.autotuner``.
    """
    autotuner_class: Any = module.Autotuner
    original: Any = vars(autotuner_class).get("prune_configs")
    if original is None or not _has_expected_attributes(autotuner_class):
        warnings.warn(
            "pytest_autotune.use(): this version of Triton is not supported, so Triton tunes (upgrade pytest-autotune)",
            stacklevel=2,
        )
        return

    def prune_configs(self: Any, kwargs: Any) -> Any:
        # The last launch may have had a choice. This launch may have none, and then needs the real benchmark.
        if vars(self).get(_BENCH) is _time_nothing:
            del vars(self)[_BENCH]
        configs = original(self, kwargs)
        if not isinstance(configs, list):
            configs = list(configs)  # a pruner may be a generator
        choice = _choose_config(self, kwargs, configs)
        if choice is None:
            return configs
        # Python takes an autotuner's own attribute before the cached property of its class.
        vars(self)[_BENCH] = _time_nothing
        return [choice]

    autotuner_class.prune_configs = prune_configs


def _has_expected_attributes(autotuner_class: Any) -> bool:
    """Whether the class has a method ``prune_configs(self, kwargs)`` and a cached property ``do_bench``."""
    prune_configs: Any = vars(autotuner_class)["prune_configs"]
    parameters = list(inspect.signature(prune_configs).parameters)
    return parameters == ["self", "kwargs"] and isinstance(vars(autotuner_class).get(_BENCH), cached_property)


def _time_nothing(kernel_call: object, quantiles: object = None) -> list[float]:
    """Stand in for a benchmark when a single candidate is left."""
    return [0.0] * 3


def _choose_config(autotuner: Any, kwargs: Any, configs: Sequence[Any]) -> Any:
    """Return the candidate to launch; None if Triton has to tune.

    :param configs: the candidates that the kernel's pruner left.
    :raises MissError: if a miss is an error in the library.
    """
    try:
        kernel = qualified_name(autotuner.base_fn)
        shipped = find_shipped_cache(kernel)
        if shipped is None or len(configs) < 2:
            # No shipped cache has the kernel, or only one candidate is left: there is nothing to choose.
            return None
        return shipped.choose(TritonLaunch(autotuner, kwargs, configs, kernel))
    except MissError:
        raise
    except Exception as error:
        warnings.warn(
            f"pytest_autotune.use(): no shipped choice could be used, so Triton tunes: {error!r}", stacklevel=3
        )
        return None


class TritonLaunch:
    """A launch of an autotuned kernel; see :class:`~pytest_autotune.production.shipped.KernelLaunch`.

    :param kwargs: the arguments that the launch passes by name.
    :param configs: the candidates that the kernel's pruner left.
    :param kernel: the module and the name of the kernel.
    """

    def __init__(self, autotuner: Any, kwargs: Any, configs: Sequence[Any], kernel: str) -> None:
        from pytest_autotune.devices import INTERPRETER, current_gpu
        from pytest_autotune.tuners.triton.identity import Call, find_target_device, list_heuristics, list_key_values
        from pytest_autotune.tuners.triton.internals.autotuners import is_interpreted

        self._configs = configs
        self._call = Call(
            autotuner,
            # Only a test run needs Triton's own key of the launch.
            tuning_key=None,
            # While Triton chooses, nargs has the positional arguments of the launch by their names.
            args=tuple(autotuner.nargs.values()),
            kwargs=kwargs,
            heuristics=list_heuristics(autotuner),
        )
        key = {}
        for name, value in list_key_values(self._call, autotuner.base_fn):
            key[name] = _encode_key_part(name, value)
        if is_interpreted(autotuner):
            device = INTERPRETER
        else:
            device = current_gpu() or find_target_device()
        self.problem = LaunchedProblem("triton", kernel, key, device_identity(device))

    def find_candidate(self, choice: Candidate) -> Any:
        from pytest_autotune.tuners.triton.identity import distinct_params

        config_by_params = dict(zip(distinct_params(self._configs), self._configs, strict=True))
        return config_by_params.get(choice.params)

    def list_candidates(self) -> Iterable[Any]:
        return self._configs

    def can_run(self, candidate: Any) -> bool:
        return can_compile(self._call, candidate)


def _encode_key_part(name: str, value: object) -> LaunchValue:
    """Return the value of a part of a launch's key, in the form that exports and caches of production have.

    A function becomes its name. Production does not compare a function's source: tests report when it has changed.

    A value without a stable form becomes the words that say so. No cache has such a value, so the launch is a miss, and
    its warning names the value.
    """
    from pytest_autotune.tuners.triton.identity import encode_key_value

    function = python_function(unwrapped(value))
    if function is not None:
        return launch_value(Value(name, qualified_name(function), "function"))
    try:
        return launch_value(encode_key_value(name, value))
    except UncacheableError as error:
        return str(error)


def can_compile(call: Call, config: Any) -> bool:
    """Whether a candidate that was tuned for another problem compiles for a call, and fits the device.

    :param call: the launch.
    :param config: the candidate.
    """
    from pytest_autotune.devices import stream_is_capturing
    from pytest_autotune.tuners.triton.compiling import compile_and_load
    from pytest_autotune.tuners.triton.internals.autotuners import is_interpreted

    if is_interpreted(call.autotuner) or stream_is_capturing():
        # The interpreter compiles nothing. While a stream is captured, no code can be loaded for a check.
        return True
    try:
        compile_and_load(call, config)
    except Exception:
        return False
    return True


# Hand-written kernels.


def hook_function(module: ModuleType) -> None:
    """Let calls of ``tune()`` ask for a shipped choice first.

    The tuner calls its attribute ``find_shipped`` before it tunes.

    :param module: :mod:`pytest_autotune.tuners.function.tuner`.
    """
    tuner: Any = module

    def find_shipped(request: Any) -> Any:
        shipped = find_shipped_cache(request.problem.kernel)
        if shipped is None:
            return None
        return shipped.choose(FunctionLaunch(tuner, request))

    tuner.find_shipped = find_shipped


class FunctionLaunch:
    """A call of ``tune()``; see :class:`~pytest_autotune.production.shipped.KernelLaunch`.

    :param tuner: :mod:`pytest_autotune.tuners.function.tuner`.
    :param request: its ``TuneRequest``.
    """

    def __init__(self, tuner: Any, request: Any) -> None:
        self._tuner = tuner
        self._request = request
        problem = request.problem
        key, device = launch_key(problem.key), device_identity(problem.device)
        self.problem = LaunchedProblem("function", problem.kernel, key, device, exact_key=exact_key(problem))

    def find_candidate(self, choice: Candidate) -> Any:
        return self._request.plan.space.find(choice.params)

    def list_candidates(self) -> Iterable[Any]:
        space: Iterable[Any] = self._request.plan.space
        return space

    def can_run(self, candidate: Any) -> bool:
        return not self._tuner.explain_unusable(self._request, candidate)
