"""How Triton's autotuner measures: the function that it makes for a call, and ``_bench``, which times a candidate."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from pytest_autotune.tuners.shared.functions import closure_cells
from pytest_autotune.tuners.triton.internals.modules import AUTOTUNER_MODULE, module
from pytest_autotune.tuners.triton.internals.targets import triton_driver

_BENCH_PARAMETERS = ["self", "args", "config", "meta"]
_BENCHMARK_NEEDS = ("get_device_interface", "get_empty_cache_for_benchmark", "clear_cache")
#: What ``triton.testing.do_bench`` takes by itself, in milliseconds.
_WARMUP_MS, _REP_MS = 25, 100


def arguments_of(bench_fn: Callable[[], None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, which only the closure of its benchmark function holds.

    :raises LookupError: when it is not the function that Triton is known to pass.
    """
    cells = closure_cells(bench_fn) if inspect.isfunction(bench_fn) else {}
    args, kwargs = cells["args"], cells["kwargs"]
    if not (isinstance(args, tuple) and isinstance(kwargs, dict)):
        raise LookupError("args")
    return args, kwargs


def candidate_of(kernel_call: Callable[[], object]) -> Any:
    """The candidate that Triton's benchmark launches; None where that is not known."""
    return closure_cells(kernel_call).get("config") if inspect.isfunction(kernel_call) else None


def expected_failures() -> tuple[type[BaseException], ...]:
    """What Triton's own benchmark takes for a failure of one candidate."""
    errors, compiler = module("runtime.errors"), module("compiler.errors")
    return errors.OutOfResources, errors.PTXASError, compiler.CompileTimeAssertionFailure


def driver_of(autotuner: Any) -> Any:
    """The active driver, with what Triton's own benchmark needs of it; None where another benchmark is to be used.

    That is one that a kernel's author brings, one with another ``warmup=`` or ``rep=`` than by itself or with
    ``use_cuda_graph=``, one that another package has put in its place, and that of a backend without events.
    """
    bench = getattr(type(autotuner), "_bench", None)
    # What is put around Triton's by functools.wraps has its __module__.
    if getattr(bench, "__globals__", {}).get("__name__") != AUTOTUNER_MODULE or "_bench" in vars(autotuner):
        return None
    if list(inspect.signature(type(autotuner)._bench).parameters) != _BENCH_PARAMETERS:
        return None
    if not _is_own_benchmark(autotuner):
        return None
    driver = triton_driver().active
    return driver if all(hasattr(driver, name) for name in _BENCHMARK_NEEDS) else None


def _is_own_benchmark(autotuner: Any) -> bool:
    benchmark = autotuner.do_bench
    named = getattr(benchmark, "__module__", ""), getattr(benchmark, "__qualname__", "")
    if autotuner._do_bench is None:
        return named == ("triton.testing", "do_bench")
    given = getattr(autotuner, "num_warmups", None), getattr(autotuner, "num_reps", None)
    spelt_out = all(number in (None, usual) for number, usual in zip(given, (_WARMUP_MS, _REP_MS), strict=True))
    is_made_by_triton = named == (AUTOTUNER_MODULE, "Autotuner.__init__.<locals>.<lambda>")
    return spelt_out and is_made_by_triton and not getattr(autotuner, "use_cuda_graph", False)
