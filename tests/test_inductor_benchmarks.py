"""Inductor's measurements are timed by this package, on a GPU that a test makes up."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.run.session import Policy, Session
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.kernels import Kernels
from pytest_autotune.tuners.shared.patches import Patches
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.locks import Locks
from tests.sessions import a_session
from tests.test_race import Gpu

INDUCTORS_TIME_MS = 7.0


class Inductor:
    """Inductor's module of benchmarks; ``benchmarked`` has the arguments of each call of its own benchmark."""

    def __init__(self, deterministic: bool = False) -> None:
        benchmarked: list[dict[str, Any]] = []
        self.benchmarked = benchmarked

        class InductorBenchmarker:
            def benchmark(self, fn: Any, **settings: Any) -> Any:
                return self.benchmark_gpu(fn, **settings)

            def benchmark_gpu(self, _callable: Any, **settings: Any) -> float:
                benchmarked.append(settings)
                _callable()
                return INDUCTORS_TIME_MS

        for name in ("benchmark", "benchmark_gpu"):
            vars(InductorBenchmarker)[name].__module__ = "torch._inductor.runtime.benchmarking"
        self.InductorBenchmarker = InductorBenchmarker
        self.benchmarker: Any = InductorBenchmarker()
        self.torch = SimpleNamespace(_inductor=SimpleNamespace(config=SimpleNamespace(deterministic=deterministic)))


class FakeTuning:
    """Stands in for the tuning of a search; ``holders`` counts the measurements that hold the device now."""

    holders = 0
    disturbed = False

    def mark_disturbed(self) -> None:
        self.disturbed = True

    def report_race(self, remaining: int, count: int) -> None: ...

    @contextmanager
    def measuring(self) -> Iterator[None]:
        self.holders += 1
        yield
        self.holders -= 1


def a_tuning() -> Any:
    return FakeTuning()


def hooked(inductor: Any, gpu: Gpu) -> tuple[Benchmarks, Session]:
    session = Session(Policy(), None, Coordinator(Locks(1.0)), pytest.fail)
    part = Benchmarks(lambda: gpu)
    part.hook(inductor, session, Patches(session, part.tuner))
    return part, session


def test_the_benchmark_is_replaced_only_while_the_plugin_tunes() -> None:
    inductor = Inductor()
    part, _ = hooked(inductor, Gpu())
    tuning = a_tuning()
    outside = inductor.benchmarker.benchmark(lambda: 5.0, rep=40)
    with part.measuring(tuning):
        inside = inductor.benchmarker.benchmark(lambda: 5.0, rep=40, is_vetted_benchmarking=True, device_type="cuda")
        assert tuning.holders == 1

    assert outside == INDUCTORS_TIME_MS
    assert inside == pytest.approx(0.005, rel=0.01)
    assert len(inductor.benchmarked) == 1


def test_each_thread_takes_the_gpu_lock_only_for_its_own_tuning() -> None:
    """A search in another thread begins and ends while a search of this thread measures."""
    inductor = Inductor()
    part, _ = hooked(inductor, Gpu())
    outer, inner = a_tuning(), a_tuning()
    times_ms: list[float] = []

    def search_in_thread() -> None:
        times_ms.append(inductor.benchmarker.benchmark(lambda: 5.0, rep=40))
        with part.searching(inner), part.hold_device():
            times_ms.append(inner.holders)

    with part.searching(outer):
        thread = threading.Thread(target=search_in_thread)
        thread.start()
        thread.join()
        with part.hold_device():
            assert (outer.holders, inner.holders) == (1, 0)

    # The thread had no search at first, so Inductor's own benchmark measured.
    assert times_ms == [INDUCTORS_TIME_MS, 1]


@pytest.mark.parametrize(
    ("deterministic", "arguments"),
    [
        (False, {"device_type": "cpu"}),
        (False, {"unknown_argument": 1}),
        (True, {}),
    ],
)
def test_cpu_calls_and_unknown_arguments_are_left_to_inductor(deterministic: bool, arguments: dict[str, Any]) -> None:
    inductor = Inductor(deterministic)
    part, _ = hooked(inductor, Gpu())

    with part.measuring(a_tuning()):
        assert inductor.benchmarker.benchmark(lambda: 5.0, **arguments) == INDUCTORS_TIME_MS


def test_if_the_plugin_raises_inductor_measures_the_call_itself() -> None:
    inductor = Inductor()
    part, session = hooked(inductor, Gpu())

    def fails() -> float:
        raise RuntimeError("invalid configuration")

    with part.measuring(a_tuning()), pytest.raises(RuntimeError, match="invalid configuration"):
        inductor.benchmarker.benchmark(fails)
    assert len(inductor.benchmarked) == 1
    assert not session.notes


def test_with_an_unknown_benchmark_a_note_says_torch_measures() -> None:
    _, session = hooked(SimpleNamespace(), Gpu())

    assert session.notes == ["inductor: this torch has a benchmark that pytest-autotune does not know; torch measures"]


class CachingAutotuner:
    """Inductor's autotuners of a torch whose candidates cannot race."""

    def precompile(self, warm_cache_only: Any, reload_kernel: Any, static_triton_bundle_key: Any) -> None: ...

    def bench(self, launcher: Any, args: Any, with_profiler: Any, kwargs: Any) -> None: ...


def test_a_changed_inductor_gets_a_note_on_less_exact_choices() -> None:
    session, _ = a_session()
    patches = Patches(session, "inductor.config")

    Kernels(Benchmarks()).hook(SimpleNamespace(CachingAutotuner=CachingAutotuner), session, patches)  # type: ignore[arg-type]
    patches.undo()

    (note,) = session.notes
    assert note.startswith("inductor.config: candidates are timed one after the other, so new choices are less exact: ")
    assert "CachingAutotuner.benchmark_all_configs" in note
    assert session.unhooked_tuners == {}


class Kernel:
    """Inductor's autotuner of a kernel that changes its only argument.

    :param times_us: the time of each candidate.
    """

    def __init__(self, times_us: list[float]) -> None:
        self.device_props = SimpleNamespace(type="cuda")
        self.launch_counts: Counter[int] = Counter()
        self.arguments: set[str] = set()
        self.launchers = [self._build_launcher(number, time_us) for number, time_us in enumerate(times_us)]

    def _build_launcher(self, number: int, time_us: float) -> Any:
        def launch(x: str, *, stream: int) -> float:
            assert stream == 3
            self.arguments.add(x)
            self.launch_counts[number] += 1
            return time_us

        return launch

    def get_device_interface(self) -> Any:
        return SimpleNamespace(get_raw_stream=lambda device: 3, current_device=lambda: 0)

    def copy_args_to_cpu_if_needed(self, *args: Any) -> dict[str, Any]:
        return {}

    def maybe_clone_args(self, copies: Any, *args: Any) -> Any:
        return [f"copy of {arg}" for arg in args], {}

    def reset_to_zero_args(self, *args: Any) -> None:
        pass

    def restore_args_from_cpu(self, copies: Any) -> None:
        pass


def race_kernel(part: Benchmarks, kernel: Kernel) -> list[float]:
    """Return the times of the kernel's candidates in milliseconds; an empty list if there was no race."""
    times_ms = part.race_launchers(kernel, kernel.launchers, ("x",), {})
    if not times_ms:
        return []
    return [times_ms[launcher] for launcher in kernel.launchers]


def test_candidates_get_copies_of_arguments_that_they_change() -> None:
    part, _ = hooked(Inductor(), Gpu())
    kernel = Kernel([9.0, 5.02, 5.0, 30.0, 5.01])
    with part.measuring(a_tuning()):
        times_ms = race_kernel(part, kernel)

    assert min(range(5), key=times_ms.__getitem__) == 1  # the first of three that are equally good
    assert kernel.launch_counts[3] == kernel.launch_counts[0] < kernel.launch_counts[1]
    assert kernel.arguments == {"copy of x"}


def test_a_benchmarker_that_the_user_set_is_not_replaced() -> None:
    inductor = Inductor()
    part, _ = hooked(inductor, Gpu())
    inductor.benchmarker = SimpleNamespace(benchmark=lambda: 1.0, benchmark_gpu=lambda: 1.0)
    kernel = Kernel([9.0, 5.0])
    with part.measuring(a_tuning()):
        assert race_kernel(part, kernel) == []
    assert not kernel.launch_counts
