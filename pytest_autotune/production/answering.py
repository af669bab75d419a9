"""Where :func:`~pytest_autotune.production.use.use` answers: Triton's autotuner, and the tuner of hand-written kernels.

Of Triton's ``Autotuner`` one method is replaced, ``prune_configs``, which then leaves the choice. Triton before 3.8
would time that one candidate: meanwhile, the autotuner has a ``do_bench`` that times nothing. Neither is called where a
kernel has its choice.
"""

from __future__ import annotations

import inspect
import warnings
from functools import cached_property, partial
from types import ModuleType
from typing import Any

from pytest_autotune.cache.distance import LaunchValue, launch_key, launch_value
from pytest_autotune.cache.model import UncacheableError, Value
from pytest_autotune.production.choices import identity
from pytest_autotune.production.shipped import AskedProblem, MissError, find_shipped_cache
from pytest_autotune.tuners.shared.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.scalars import unwrapped

_BENCH = "do_bench"


def _times_nothing(kernel_call: object, quantiles: object = None) -> list[float]:
    """In place of a benchmark, where one candidate is left."""
    return [0.0] * 3


def hook_triton(module: ModuleType) -> None:
    """Answer for autotuned kernels.

    :param module: ``triton.runtime.autotuner``.
    """
    autotuner_class: Any = module.Autotuner
    original: Any = vars(autotuner_class).get("prune_configs")
    is_cached = isinstance(vars(autotuner_class).get(_BENCH), cached_property)  # then an instance may have its own
    if original is None or list(inspect.signature(original).parameters) != ["self", "kwargs"] or not is_cached:
        warnings.warn("pytest_autotune.use(): this Triton's Autotuner is not known, so it tunes", stacklevel=2)
        return

    def prune_configs(self: Any, kwargs: Any) -> Any:
        if vars(self).get(_BENCH) is _times_nothing:
            del vars(self)[_BENCH]
        left = original(self, kwargs)
        left = left if isinstance(left, list) else list(left)  # pruners may be generators
        try:
            choice = _choice(self, kwargs, left)
        except MissError:
            raise
        except Exception as error:
            warnings.warn(f"pytest_autotune.use(): Triton tunes: {error!r}", stacklevel=2)
            choice = None
        if choice is None:
            return left
        vars(self)[_BENCH] = _times_nothing
        return [choice]

    autotuner_class.prune_configs = prune_configs


def _choice(autotuner: Any, kwargs: Any, configs: Any) -> Any:
    """The candidate to launch; None where Triton is to tune."""
    from pytest_autotune.devices import INTERPRETER, current_gpu
    from pytest_autotune.tuners.triton.identity import (
        Call,
        distinct_params,
        find_target_device,
        list_heuristics,
        list_key_values,
    )
    from pytest_autotune.tuners.triton.internals.autotuners import is_interpreted

    kernel = qualified_name(autotuner.base_fn)
    loaded = find_shipped_cache(kernel)
    if loaded is None or len(configs) < 2:
        return None
    call = Call(autotuner, None, tuple(autotuner.nargs.values()), kwargs, list_heuristics(autotuner))
    key = dict(_part(name, value) for name, value in list_key_values(call, autotuner.base_fn))
    on = INTERPRETER if is_interpreted(autotuner) else current_gpu() or find_target_device()
    return loaded.choice(
        AskedProblem("triton", kernel, key, identity(on)),
        lambda choice: dict(zip(distinct_params(configs), configs, strict=True)).get(choice.params),
        configs,
        partial(_fits, call),
    )


def _part(name: str, value: object) -> tuple[str, LaunchValue]:
    """A part of a key as exports have it: a function by its name, whose source is for the tests.

    What has no stable form is in no cache: there it is a miss.
    """
    from pytest_autotune.tuners.triton.identity import encode_key_value

    if (function := python_function(unwrapped(value))) is not None:
        return name, launch_value(Value(name, qualified_name(function), "function"))
    try:
        return name, launch_value(encode_key_value(name, value))
    except UncacheableError as error:
        return name, str(error)


def _fits(call: Any, config: Any) -> bool:
    """Whether a candidate that was tuned for something else compiles here, and finds room."""
    from pytest_autotune.devices import stream_is_capturing
    from pytest_autotune.tuners.triton.compiling import compile_and_load
    from pytest_autotune.tuners.triton.internals.autotuners import is_interpreted

    if is_interpreted(call.autotuner) or stream_is_capturing():
        return True
    try:
        compile_and_load(call, config)
    except Exception:  # the next one may
        return False
    return True


def hook_function(module: ModuleType) -> None:
    """Answer for hand-written kernels.

    :param module: :mod:`pytest_autotune.tuners.function.tuner`.
    """
    tuner: Any = module

    def shipped(request: Any) -> Any:
        problem, space = request.problem, request.plan.space
        loaded = find_shipped_cache(problem.kernel)
        if loaded is None:
            return None
        return loaded.choice(
            AskedProblem("function", problem.kernel, launch_key(problem.key), identity(problem.device)),
            lambda choice: space.find(choice.params),
            space,
            lambda configuration: not tuner.explain_unusable(request, configuration),
        )

    tuner.find_shipped = shipped
