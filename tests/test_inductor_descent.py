"""Inductor's own coordinate descent, with kernels that are made up, on a GPU that is made up."""

from __future__ import annotations

import gc
import math
import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.policy import Policy
from pytest_autotune.run.together.coordination import Alone, GpuLock
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.configurations import params_of
from pytest_autotune.tuners.inductor.descent import would_try
from pytest_autotune.tuners.inductor.kernel_measuring import KernelMeasuring
from pytest_autotune.tuners.inductor.patches import Patches
from pytest_autotune.tuners.measuring.clocks import Launch, Runner
from pytest_autotune.tuners.shared.compile_pool import THREAD_NAME
from tests.test_inductor import autotuner_of, config_of
from tests.test_inductor_benchmarks import Inductor, Search
from tests.test_race import Gpu

TimeOf = Callable[[Any], float]


class Kernels:
    """The adapter's part, hooked to the Inductor that is installed; what was compiled, launched and measured."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cores: int = 4) -> None:
        from torch._inductor.runtime import triton_heuristics

        self.compiled: list[tuple[str, str]] = []
        self.launched: Counter[str] = Counter()
        self.held_while_compiling: list[int] = []
        self.held_while_launching: set[int] = set()
        self.own_benchmark = Inductor()
        self.door = Search()
        self.owner: Any = triton_heuristics.CachingAutotuner
        self.time_of: TimeOf = lambda config: 1.0
        self.does_not_fit = ""
        #: What a kernel is called with.
        self.args: list[Any] = ["x"]
        self.last_us = 0.0
        monkeypatch.setattr(self.owner, "_precompile_config", self._compile())
        asked = SimpleNamespace(benchmark=lambda fn, device, **how: self.own_benchmark.benchmarker.benchmark(fn, **how))
        monkeypatch.setattr(triton_heuristics, "benchmarker", asked)
        self.run = TuningRun(Policy(cores=cores), None, Alone(GpuLock(1.0)), lambda lookup: None)
        self.patches = Patches(self.run, "inductor.config")
        timed = Benchmarks(lambda: LaunchedLast(self))
        timed.hook(self.own_benchmark, self.run, self.patches)  # type: ignore[arg-type]
        self.children = Children()
        self.part = KernelMeasuring(timed, self.children, print)  # type: ignore[arg-type]
        self.part.hook(triton_heuristics, self.run, self.patches)
        self.timed = timed

    def _compile(self) -> Any:
        kernels = self

        def _precompile_config(self: Any, cfg: Any) -> Any:
            kernels.compiled.append((str(cfg), threading.current_thread().name))
            kernels.held_while_compiling.append(kernels.door.held)
            return SimpleNamespace(make_launcher=lambda: kernels.launcher(cfg))

        return _precompile_config

    def launcher(self, config: Any) -> Any:
        if self.does_not_fit and self.does_not_fit in str(config):
            raise RuntimeError("out of resources")

        def launch(*args: Any, stream: int) -> float:
            self.launched[str(config)] += 1
            self.held_while_launching.add(self.door.held)
            self.last_us = self.time_of(config)
            return self.last_us

        found: Any = launch
        found.config, found.n_spills, found.n_regs, found.shared, found.cache_hash = config, 0, 32, 0, ""
        return found

    def descend(self, time_of: TimeOf, **meta: Any) -> str:
        """Inductor's descent from ``XBLOCK`` 256 and 4 warps; returns where it ends."""
        self.time_of = time_of
        autotuner = self.owner.__new__(self.owner)
        vars(autotuner).update(vars(autotuner_of(**meta)))
        autotuner.lock, autotuner.save_cache_hook, autotuner.custom_kernel = threading.Lock(), None, False
        autotuner.fn = SimpleNamespace(fn=print, src="", __name__="triton_poi", arg_names=["x"])
        autotuner.size_hints, autotuner.compile_id, autotuner.is_backward = {"x": 65536}, None, False
        autotuner.device_props = SimpleNamespace(type="cuda")
        autotuner.deterministic_mode = autotuner.optimize_mem = False
        autotuner.mutated_arg_names = autotuner.reset_to_zero_arg_names = ()
        autotuner.benchmark_failure_reasons = {}
        autotuner.get_device_interface = lambda: SimpleNamespace(
            get_raw_stream=lambda device: 3, current_device=lambda: 0
        )
        start = self.launcher(config_of(XBLOCK=256))
        autotuner.coordesc_tuner.cache_benchmark_result(start.config, time_of(start.config) / 1000)
        with self.timed.searching(self.door), self.part.watched(autotuner) as self.times_ms:  # type: ignore[arg-type]
            launcher = autotuner.coordinate_descent_tuning(start, *self.args)
        assert launcher.config.found_by_coordesc
        assert not self.part._descents
        return f"{launcher.config.kwargs['XBLOCK']} {launcher.config.num_warps}"


class Children:
    """Stands in for children that compile, where there are any."""

    def __init__(self) -> None:
        self.are_there = False
        self.fail = ""
        self.asked: list[list[str]] = []

    def compiled(self, autotuner: Any, configs: Sequence[Any]) -> list[bool] | None:
        if not self.are_there:
            return None
        self.asked.append([str(one) for one in configs])
        return [not self.fail or self.fail not in str(one) for one in configs]


class LaunchedLast(Gpu):
    """Times what was launched, also where Inductor does not return it."""

    def __init__(self, kernels: Kernels) -> None:
        super().__init__(noise=0.004)
        self._kernels = kernels

    def launch(self, runner: Runner, busy_us: float) -> Launch:
        def run() -> float:
            runner.run()
            return self._kernels.last_us

        return super().launch(Runner(run, runner.before, runner.after), busy_us)


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> Iterator[Kernels]:
    made = Kernels(monkeypatch)
    yield made
    made.patches.undo()


def far_from(block: int, warps: int) -> TimeOf:
    """A kernel that is 10 % slower for each step away from these."""
    return lambda config: (
        20 * 1.1 ** (abs(math.log2(config.kwargs["XBLOCK"] / block)) + abs(math.log2(config.num_warps / warps)))
    )


def test_neighbours_are_compiled_side_by_side_and_race_where_inductor_would_go_on(kernels: Kernels) -> None:
    assert kernels.descend(far_from(64, 8)) == "64 8"

    assert len(kernels.compiled) == len(set(kernels.compiled)) > 6
    assert sum(thread.startswith(THREAD_NAME) for _, thread in kernels.compiled) >= len(kernels.compiled) - 2
    assert not kernels.own_benchmark.asked
    assert all(count > 3 for count in kernels.launched.values())
    assert kernels.run.notes == []


def test_children_compile_the_neighbours_where_there_are_any(kernels: Kernels) -> None:
    kernels.children.are_there = True

    assert kernels.descend(far_from(64, 8)) == "64 8"

    asked = [config for step in kernels.children.asked for config in step]
    assert len(asked) == len(set(asked)) > 6
    assert {config for config, _ in kernels.compiled} == set(asked)
    assert {thread for _, thread in kernels.compiled} == {"MainThread"}  # which takes them from the disk
    assert kernels.run.notes == []


def test_what_a_child_cannot_compile_inductor_compiles_at_its_turn(kernels: Kernels) -> None:
    kernels.children.are_there, kernels.children.fail = True, "XBLOCK: 128"

    assert kernels.descend(far_from(64, 8)) == "64 8"


def test_the_device_is_held_while_neighbours_race_and_not_while_they_are_compiled(kernels: Kernels) -> None:
    kernels.descend(far_from(64, 8))

    assert set(kernels.held_while_compiling) == {0}
    assert kernels.held_while_launching == {1}


def test_a_neighbour_counts_only_if_it_is_faster_for_certain(kernels: Kernels) -> None:
    assert kernels.descend(lambda config: 20.0 if config.kwargs["XBLOCK"] == 256 else 19.9) == "256 4"
    assert kernels.descend(lambda config: 20.0 if config.kwargs["XBLOCK"] == 256 else 19.0) != "256 4"


def test_descent_goes_in_all_directions_where_inductor_does(kernels: Kernels) -> None:
    """The best is two fields away, and nothing on the way there is better."""

    def time_us(config: Any) -> float:
        return 15.0 if (config.kwargs["XBLOCK"], config.num_warps) == (512, 8) else far_from(256, 4)(config)

    assert kernels.descend(time_us) == "256 4"
    assert kernels.descend(time_us, coordinate_descent_check_all_directions=True) == "512 8"


def test_a_neighbour_that_does_not_fit_the_device_is_passed_over(kernels: Kernels) -> None:
    kernels.does_not_fit = "XBLOCK: 128"

    assert kernels.descend(far_from(64, 8)) == "256 8"
    assert sum("XBLOCK: 128, num_warps: 4" in config for config, _ in kernels.compiled) == 1


def test_no_argument_outlives_a_descent_in_which_a_neighbour_does_not_fit_the_device(kernels: Kernels) -> None:
    kernels.does_not_fit = "XBLOCK: 128"
    kernels.args = [Counter()]
    argument = weakref.ref(kernels.args[0])
    gc.disable()
    try:
        kernels.descend(far_from(64, 8))
        kernels.args.clear()
        assert argument() is None
    finally:
        gc.enable()


def test_on_one_core_inductor_compiles_each_at_its_turn(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels = Kernels(monkeypatch, cores=1)
    try:
        assert kernels.descend(far_from(128, 4)) == "128 4"
    finally:
        kernels.patches.undo()
    assert {thread for _, thread in kernels.compiled} == {"MainThread"}


def test_an_error_of_this_package_leaves_the_descent_to_inductor(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pytest_autotune.tuners.inductor.descent.would_try", lambda *asked, **how: 1 / 0)

    assert kernels.descend(far_from(128, 4)) == "128 4"
    assert kernels.run.notes == ["inductor.config: error in compare_config(): ZeroDivisionError: division by zero"]


@pytest.mark.parametrize("everywhere", [False, True])
def test_what_inductor_would_try_is_what_it_tries(everywhere: bool) -> None:
    tuner = autotuner_of(coordinate_descent_check_all_directions=everywhere).coordesc_tuner
    best, tried = config_of(XBLOCK=256), []

    def measure(config: Any) -> float:
        tried.append(params_of(config))
        return 2.0

    tuner.autotune(measure, best, 1.0)

    near = [params_of(one) for one in would_try(tuner, best, 1.0)]
    far = [params_of(one) for one in would_try(tuner, best, 1.0, in_all_directions=True)]
    assert len(near) == 4
    assert tried[:4] == near
    assert set(tried) == (set(near) | set(far) if everywhere else set(near))
