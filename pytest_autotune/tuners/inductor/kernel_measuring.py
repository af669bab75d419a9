"""What Inductor measures while it searches for a kernel: lists race, and the neighbours of a descent, compiled before.

Members of ``CachingAutotuner`` and of its tuner for coordinate descent are replaced; outside of a search they do what
they did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from contextvars import copy_context
from functools import partial
from types import ModuleType
from typing import Any

from pytest_autotune.run.door import TuningRun
from pytest_autotune.tuners.inductor.benchmarks import STEP, Benchmarks
from pytest_autotune.tuners.inductor.compile_children import CompileChildren
from pytest_autotune.tuners.inductor.configurations import Params, descends, params_of
from pytest_autotune.tuners.inductor.descent import Descent
from pytest_autotune.tuners.inductor.kernel_search import may_win
from pytest_autotune.tuners.inductor.patches import Patches
from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.compile_pool import CompilePool

#: What kernels are tuned as, in options and entries.
TUNER = "inductor.config"


class KernelMeasuring:
    """Watches and times the measurements of kernels' configurations.

    :param children: where there are any, they compile what a descent tries.
    :param elsewhere: called with a kernel of which something is measured outside of a search.
    """

    def __init__(self, timed: Benchmarks, children: CompileChildren, elsewhere: Callable[[Any], object]) -> None:
        self._timed = timed
        self._children = children
        self._elsewhere = elsewhere
        self._run: TuningRun | None = None
        self._compile_one: Callable[[Any, Any], Any] = lambda autotuner, config: None
        #: What is measured now of each autotuner that is searched for, in milliseconds.
        self._times_ms: dict[int, dict[Params, float]] = {}
        #: The descents under way, by Inductor's tuner and by its autotuner.
        self._descents: dict[int, Descent] = {}
        #: What a race has found of those that Inductor asks for now, in milliseconds.
        self._raced_ms: dict[Any, float] = {}

    def hook(self, module: ModuleType, run: TuningRun, patches: Patches) -> None:
        """Hook what measures.

        :raises HookError: where ``bench`` is not the one known here; without another one, each is measured alone.
        """
        self._run = run
        self._hook_measuring(module.CachingAutotuner, patches)
        with suppress(HookError, AttributeError):  # then each neighbour is compiled and measured at its turn
            self._hook_descent(module.CachingAutotuner, module.CoordescTuner, patches)

    def _hook_measuring(self, owner: Any, patches: Patches) -> None:
        part = self

        def make_bench(original: Any) -> Any:
            def bench(self: Any, launcher: Any, *args: Any, with_profiler: bool = False, **kwargs: Any) -> Any:
                time_ms = part._raced_time_ms(self, launcher)
                if time_ms is None:
                    with part._held(self):
                        time_ms = original(self, launcher, *args, with_profiler=with_profiler, **kwargs)
                part._saw(self, launcher, time_ms)
                return time_ms

            return bench

        def make_benchmark_all(original: Any) -> Any:
            def benchmark_all_configs(self: Any, *args: Any, **kwargs: Any) -> Any:
                part._race(self, args, kwargs)
                try:
                    return original(self, *args, **kwargs)
                finally:
                    part._raced_ms.clear()

            return benchmark_all_configs

        patches.replace(owner, "bench", ["self", "launcher", "args", "with_profiler", "kwargs"], make_bench)
        with suppress(HookError):  # then each is measured alone
            patches.replace(owner, "benchmark_all_configs", ["self", "args", "kwargs"], make_benchmark_all)

    def _hook_descent(self, owner: Any, tuner: Any, patches: Patches) -> None:
        part = self

        def make_compare(original: Any) -> Any:
            def compare_config(self: Any, func: Any, candidate_config: Any, best_config: Any, best_timing: Any) -> Any:
                part._look_ahead(self, candidate_config, best_config, best_timing)
                return original(self, func, candidate_config, best_config, best_timing)

            return compare_config

        def make_compile_one(original: Any) -> Any:
            part._compile_one = original

            def _precompile_config(self: Any, cfg: Any) -> Any:
                descent = part._descents.get(id(self))
                ready = descent.compiled(cfg) if descent is not None else None
                return original(self, cfg) if ready is None else ready

            return _precompile_config

        def make_descent(original: Any) -> Any:
            def coordinate_descent_tuning(self: Any, launcher: Any, *args: Any, **kwargs: Any) -> Any:
                with part._descending(self, launcher, args, kwargs):
                    return original(self, launcher, *args, **kwargs)

            return coordinate_descent_tuning

        compared = ["self", "func", "candidate_config", "best_config", "best_timing"]
        patches.replace(tuner, "compare_config", compared, make_compare)
        patches.replace(owner, "_precompile_config", ["self", "cfg"], make_compile_one)
        descended = ["self", "launcher", "args", "kwargs"]
        patches.replace(owner, "coordinate_descent_tuning", descended, make_descent)

    @contextmanager
    def watched(self, autotuner: Any) -> Iterator[dict[Params, float]]:
        """The times that are measured inside of a kernel that is searched for, in milliseconds."""
        times_ms: dict[Params, float] = {}
        self._times_ms[id(autotuner)] = times_ms
        try:
            yield times_ms
        finally:
            del self._times_ms[id(autotuner)]

    def _race(self, autotuner: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if id(autotuner) in self._times_ms:
            limits = STEP if descends(autotuner) else None
            launchers = may_win(autotuner, autotuner.launchers)
            self._raced_ms.update(self._timed.raced_ms(autotuner, launchers, args, kwargs, limits))

    def _raced_time_ms(self, autotuner: Any, launcher: Any) -> float | None:
        """What a race has found of a launcher that Inductor is about to measure."""
        descent = self._descents.get(id(autotuner))
        return (self._raced_ms if descent is None else descent.raced_ms).pop(launcher, None)

    def _held(self, autotuner: Any) -> AbstractContextManager[None]:
        """The device, for a measurement of a search."""
        return self._timed.held() if id(autotuner) in self._times_ms else nullcontext()

    @contextmanager
    def _descending(
        self, autotuner: Any, launcher: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Iterator[None]:
        """Compile and race the neighbours that Inductor compares inside, where it searches for a kernel."""
        if id(autotuner) not in self._times_ms or not descends(autotuner):
            yield
            return

        def race(launchers: Sequence[Any], first_ms: float) -> Mapping[Any, float]:
            first, *others = launchers
            racing = [first, *may_win(autotuner, others)]
            return self._timed.steps_ms(autotuner, racing, first_ms, args, kwargs)

        descent = Descent(autotuner, launcher, partial(self._compile_side_by_side, autotuner), race)
        self._descents[id(autotuner)] = self._descents[id(autotuner.coordesc_tuner)] = descent
        try:
            yield
            descent.forget_frames()
        finally:
            for one in (autotuner, autotuner.coordesc_tuner):
                self._descents.pop(id(one), None)

    def _look_ahead(self, tuner: Any, candidate: Any, best: Any, best_ms: float) -> None:
        descent = self._descents.get(id(tuner))
        if descent is None:
            return
        try:
            descent.looks_at(candidate, best, best_ms)
        except Exception as error:  # Inductor's tuner goes on by itself
            assert self._run is not None
            del self._descents[id(tuner)]
            self._run.went_wrong(TUNER, "compare_config()", error)

    def _compile_side_by_side(self, autotuner: Any, configs: Sequence[Any]) -> list[Any]:
        """Compile on the cores that are idle; what fails is None, and fails again where Inductor compiles it."""
        run = self._run
        assert run is not None
        if len(configs) < 2 or run.policy.cores < 2:
            return [None] * len(configs)
        ready = self._children.compiled(autotuner, configs)
        if ready is not None:
            pairs = zip(configs, ready, strict=True)
            return [self._compile_one(autotuner, config) if is_ready else None for config, is_ready in pairs]
        futures: list[Future[Any]] = []
        with CompilePool(min(run.policy.cores, len(configs))) as pool:
            for config in configs:
                with ExitStack() as held:
                    held.enter_context(run.core())
                    pool.held_for_next = held.pop_all()
                    held.push(pool.held_for_next)
                    # Inductor's settings hold in the context of the thread that asks.
                    futures.append(pool.submit(copy_context().run, self._compile_one, autotuner, config))
        return [None if future.exception() else future.result() for future in futures]

    def _saw(self, autotuner: Any, launcher: Any, time_ms: Any) -> None:
        measured = self._times_ms.get(id(autotuner))
        if measured is not None:
            measured[params_of(launcher.config)] = float(time_ms)
        else:
            self._elsewhere(autotuner)
