"""``autotune_jit``, with the memory and both flaws of nvidia-cutlass-dsl 4.8."""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import Any

from cutlass import cute
from cutlass.testing import _benchmark_for_autotune
from cutlass.testing import tune as _tune


def tune(*args: Any, **kwargs: Any) -> Any:
    """The old name."""
    return _tune(*args, **kwargs)


class autotune_jit:
    def __init__(
        self,
        params_dict: Any = None,
        update_on_change: Any = None,
        warmup_iterations: int = 10,
        iterations: int = 100,
    ) -> None:
        self.params_dict = params_dict or {}
        self.update_on_change = update_on_change or []
        self.warmup_iterations = warmup_iterations
        self.iterations = iterations

    def __call__(self, func: Any) -> Any:
        launch = self._create_tuning_wrapper(func, self.warmup_iterations, self.iterations, self.update_on_change)
        if not hasattr(launch, "_autotune_params"):
            launch = func
        launch._autotune_params.update(self.params_dict)
        return launch

    @classmethod
    def _create_tuning_wrapper(
        cls, func: Any, warmup_iterations: int, iterations: int, autotune_update_params: Any
    ) -> Any:
        if hasattr(func, "_autotune_params"):
            return func
        func._original_func = func
        func._autotune_params = {}
        func._autotune_update_params = autotune_update_params
        func._best_kernel = {}
        func._best_config = {}

        @functools.wraps(func)
        def tuning_wrapper(*args: Any, **kwargs: Any) -> Any:
            given = inspect.signature(func).bind_partial(*args, **kwargs).arguments
            key = tuple(given[name] for name in func._autotune_update_params if name in given)
            if key in func._best_kernel:
                return func._best_kernel[key](*args, **kwargs)
            best_us = float("inf")
            for values in itertools.product(*func._autotune_params.values()):
                config = dict(zip(func._autotune_params, values, strict=True))
                # The first flaw: an error in here ends the call.
                kernel = cute.compile(func, *args, **{**kwargs, **config})
                names = [argument["argument_name"] for argument in kernel.execution_args.get_constexpr_args()]
                passed = {name: value for name, value in given.items() if name not in names}
                time_us = _benchmark_for_autotune(
                    kernel,
                    warmup_iterations=warmup_iterations,
                    iterations=iterations,
                    use_cold_l2=True,
                    print_verbose=False,
                    **passed,
                )
                # The second flaw: the key of the next call has more names.
                func._autotune_update_params += [name for name in names if name not in func._autotune_update_params]
                if time_us < best_us:
                    best_us, func._best_kernel[key], func._best_config[key] = time_us, kernel, config
            return func._best_kernel[key](*args, **kwargs)

        tuning_wrapper.__name__ = f"{func.__name__}_autotune_wrapper"
        tuning_wrapper.__qualname__ = f"{func.__qualname__}_autotune_wrapper"
        return tuning_wrapper
