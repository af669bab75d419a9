"""``tune``, and the benchmark of both tuners, with the signatures of nvidia-cutlass-dsl 4.8."""

from __future__ import annotations

import itertools
from typing import Any

from cutlass.base_dsl.compiler import Compiled

#: The compiled kernels that were benchmarked.
benchmarked: list[Any] = []


class JitArguments:
    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.args = args
        self.kwargs = kwargs
        self.references: list[Any] = []

    def add_to_scope(self, references: Any) -> None:
        self.references.extend(references)


def _benchmark_for_autotune(
    callable: Any,
    *args: Any,
    warmup_iterations: int,
    iterations: int,
    use_cold_l2: bool,
    print_verbose: bool,
    current_stream: Any = None,
    **kwargs: Any,
) -> float:
    try:
        for _ in range(warmup_iterations + iterations):
            callable(*args, **kwargs)
    except Exception as error:
        print(f"This config execution error: {error}")
        return float("inf")
    benchmarked.append(Compiled.launched)
    return Compiled.launched.time_us


def tune(
    func: Any,
    params_dict: Any = None,
    kernel_arguments: Any = JitArguments(),  # noqa: B008
    warmup_iterations: int = 10,
    iterations: int = 100,
    stream: Any = None,
) -> dict[str, Any]:
    if params_dict is None:
        raise ValueError("params_dict must be provided")
    times = []
    for values in itertools.product(*params_dict.values()):
        config = dict(zip(params_dict, values, strict=True))
        try:
            launch = func(*kernel_arguments.args, **{**kernel_arguments.kwargs, **config})
            time_us = _benchmark_for_autotune(
                launch,
                warmup_iterations=warmup_iterations,
                iterations=iterations,
                use_cold_l2=True,
                print_verbose=False,
                current_stream=stream,
            )
        except NotImplementedError:
            raise
        except Exception:
            continue
        if time_us < float("inf"):
            times.append((time_us, len(times), config))
    if not times:
        raise ValueError("No best kernel found")
    return min(times)[2]
