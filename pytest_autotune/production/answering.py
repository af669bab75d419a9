"""Where :func:`~pytest_autotune.production.use.use` answers: Triton's autotuner, and the tuner of hand-written kernels.

Of Triton's ``Autotuner`` two methods are replaced: ``prune_configs``, which then leaves the choice, and ``_bench``, by
which Triton before 3.8 would time the one candidate that is left. Neither is called where a kernel has its choice.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from functools import partial
from types import ModuleType
from typing import Any

from pytest_autotune.cache.model import Candidate
from pytest_autotune.production import picker
from pytest_autotune.production.choices import plain_key
from pytest_autotune.production.use import Asked, MissError, loaded_for

_PARAMETERS = {"prune_configs": ["self", "kwargs"], "_bench": ["self", "args", "config", "meta"]}
#: In an autotuner: the candidate that is not to be timed.
_SHIPPED = "_pytest_autotune_shipped"


def hook_triton(module: ModuleType) -> None:
    """Answer for autotuned kernels.

    :param module: ``triton.runtime.autotuner``.
    """
    autotuner_class: Any = module.Autotuner
    originals = [vars(autotuner_class).get(name) for name in _PARAMETERS]
    for (name, parameters), original in zip(_PARAMETERS.items(), originals, strict=True):
        if original is None or list(inspect.signature(original).parameters) != parameters:
            warnings.warn(
                f"pytest_autotune.use(): Autotuner.{name} of this Triton is not known, so it tunes", stacklevel=2
            )
            return
    original_prune: Any
    original_prune, original_bench = originals

    def prune_configs(self: Any, kwargs: Any) -> Any:
        left = original_prune(self, kwargs)
        try:
            choice = _choice(self, kwargs, left)
        except MissError:
            raise
        except Exception as error:
            warnings.warn(f"pytest_autotune.use(): Triton tunes: {error!r}", stacklevel=2)
            choice = None
        vars(self)[_SHIPPED] = choice
        return left if choice is None else [choice]

    def _bench(self: Any, *args: Any, config: Any, **meta: Any) -> Any:
        if config is vars(self).get(_SHIPPED):
            return [0.0] * 3
        return original_bench(self, *args, config=config, **meta)

    autotuner_class.prune_configs = prune_configs
    autotuner_class._bench = _bench


def _choice(autotuner: Any, kwargs: Any, configs: Any) -> Any:
    """The candidate to launch; None where Triton is to tune."""
    kernel = picker.plain(autotuner.base_fn)
    loaded = loaded_for(kernel)
    if loaded is None or len(configs) < 2:
        return None
    named = {**autotuner.nargs, **kwargs}
    named = {name: value for name, value in named.items() if name in autotuner.arg_names}
    key = picker.key_parts(named, autotuner.keys) | dict(_cells(autotuner.base_fn))

    def live(choice: Candidate) -> Any:
        params = plain_key(choice.params)
        return next((config for config in configs if picker.is_candidate(config, params)), None)

    return loaded.choice(
        Asked("triton", kernel, key, picker.device()),
        live,
        configs,
        partial(_fits, autotuner, kwargs),
    )


def _cells(function: Any) -> Iterator[tuple[str, Any]]:
    """What a kernel took from the function around it, as far as it is no code."""
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        value = cell.cell_contents
        if not isinstance(value, (type, ModuleType)) and not callable(value):
            yield f"closure.{name}", picker.plain(value)


def _fits(autotuner: Any, kwargs: Any, config: Any) -> bool:
    """Whether a candidate that was tuned for something else compiles here, and finds room."""
    from pytest_autotune.devices import stream_is_capturing
    from pytest_autotune.tuners.triton.compiling import compile_and_load
    from pytest_autotune.tuners.triton.identity import Call
    from pytest_autotune.tuners.triton.internals.autotuners import interprets

    if interprets(autotuner) or stream_is_capturing():
        return True
    try:
        compile_and_load(Call(autotuner, None, tuple(autotuner.nargs.values()), kwargs, []), config)
    except Exception:  # the next one may
        return False
    return True


def hook_function(module: ModuleType) -> None:
    """Answer for hand-written kernels.

    :param module: :mod:`pytest_autotune.tuners.function.choosing`.
    """
    choosing: Any = module

    def shipped(request: Any) -> Any:
        problem, space = request.problem, request.plan.space
        loaded = loaded_for(problem.kernel)
        if loaded is None:
            return None
        on = problem.device.name, problem.device.arch, problem.device.multiprocessors
        return loaded.choice(
            Asked("function", problem.kernel, plain_key(problem.key), on),
            lambda choice: space.find(choice.params),
            space,
            lambda configuration: not choosing.why_unusable(request, configuration),
        )

    choosing.shipped = shipped
