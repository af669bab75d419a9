"""How Triton's autotuner measures: the function that it makes for a call, and ``_bench``, which times a candidate."""

from __future__ import annotations

import inspect
import time
from collections.abc import Callable, Sequence
from typing import Any

from pytest_autotune.tuners.shared.source.functions import closure_cells, names_in
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


def measures_all(bench_fn: Callable[[], None]) -> bool:
    """Whether a benchmark function measures the candidates itself, as Triton's does, and leaves that to no search."""
    return "_bench" in names_in(inspect.unwrap(bench_fn).__code__)


def of_all(
    autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any], configs: Sequence[Any], take: Callable[[Any], object]
) -> Callable[[], None]:
    """What Triton's ``run`` does where it has no choice, as a benchmark function that :func:`measures_all`.

    :param take: called with the fastest candidate.
    """

    def benchmark() -> None:
        began = time.time()
        timings = {config: autotuner._bench(*args, config=config, **kwargs) for config in configs}
        autotuner.bench_time = time.time() - began
        take(min(timings, key=timings.get))  # type: ignore[arg-type]
        autotuner.configs_timings = timings

    return benchmark


def expected_failures() -> tuple[type[BaseException], ...]:
    """What Triton's own benchmark takes for a failure of one candidate."""
    errors, compiler = module("runtime.errors"), module("compiler.errors")
    return errors.OutOfResources, errors.PTXASError, compiler.CompileTimeAssertionFailure


def driver_of(autotuner: Any, is_known: bool = False) -> Any:
    """The active driver, with what Triton's own benchmark needs of it; None where another benchmark is to be used.

    That is one that a kernel's author brings, one with another ``warmup=`` or ``rep=`` than by itself or with
    ``use_cuda_graph=``, one that another package has put in its place, and that of a backend without events.

    :param is_known: the benchmark is one that may be replaced, although it is not Triton's own.
    """
    bench = getattr(type(autotuner), "_bench", None)
    # What is put around Triton's by functools.wraps has its __module__.
    if getattr(bench, "__globals__", {}).get("__name__") != AUTOTUNER_MODULE or "_bench" in vars(autotuner):
        return None
    if list(inspect.signature(type(autotuner)._bench).parameters) != _BENCH_PARAMETERS:
        return None
    if not (is_known or _is_own_benchmark(autotuner)):
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


class _Answer:
    """Answers with a known time where a search goes on to measure the one candidate that it was left with, once."""

    def __init__(self, autotuner: Any, chosen: Any, timing: Any) -> None:
        held = vars(autotuner)
        self._autotuner, self._chosen, self._timing = autotuner, chosen, timing
        self._call, self._before = id(autotuner.nargs), held.get("_bench")
        held["_bench"] = self

    def __call__(self, *args: Any, config: Any, **meta: Any) -> Any:
        self.take_back()
        if config is self._chosen and id(self._autotuner.nargs) == self._call:
            return self._timing
        return self._autotuner._bench(*args, config=config, **meta)

    def take_back(self) -> None:
        held = vars(self._autotuner)
        if self._before is None:
            held.pop("_bench", None)
        else:
            held["_bench"] = self._before


def answer_once(autotuner: Any, chosen: Any, timing: Any) -> None:
    """Let the search that is under way have a known time, where it goes on to measure the one candidate left to it.

    :param timing: as ``Autotuner.configs_timings`` holds it.
    """
    _Answer(autotuner, chosen, timing)


def take_back_answer(autotuner: Any) -> None:
    """Take back a time that the search before did not ask for."""
    answer = vars(autotuner).get("_bench")
    if isinstance(answer, _Answer):
        answer.take_back()
