"""How Inductor's measurements are timed, on a GPU that is made up."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.run.session import Policy, Session
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.kernels import Kernels
from pytest_autotune.tuners.shared.library import Patches
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.locks import Locks
from tests.sessions import a_session
from tests.test_race import Gpu

OWN_MS = 7.0


class Inductor:
    """Inductor's module of benchmarks, and what its own benchmark was asked."""

    def __init__(self, deterministic: bool = False) -> None:
        asked = self.asked = []  # type: list[dict[str, Any]]

        class InductorBenchmarker:
            def benchmark(self, fn: Any, **settings: Any) -> Any:
                return self.benchmark_gpu(fn, **settings)

            def benchmark_gpu(self, _callable: Any, **settings: Any) -> float:
                asked.append(settings)
                _callable()
                return OWN_MS

        for name in ("benchmark", "benchmark_gpu"):
            vars(InductorBenchmarker)[name].__module__ = "torch._inductor.runtime.benchmarking"
        self.InductorBenchmarker = InductorBenchmarker
        self.benchmarker: Any = InductorBenchmarker()
        self.torch = SimpleNamespace(_inductor=SimpleNamespace(config=SimpleNamespace(deterministic=deterministic)))


class Search:
    """A session inside a tuning."""

    held = 0
    disturbed = False

    def mark_disturbed(self) -> None:
        self.disturbed = True

    def report_race(self, left: int, of: int) -> None: ...

    @contextmanager
    def measuring(self) -> Iterator[None]:
        self.held += 1
        yield
        self.held -= 1


def hooked(inductor: Any, gpu: Gpu) -> tuple[Benchmarks, Session]:
    session = Session(Policy(), None, Coordinator(Locks(1.0)), pytest.fail)
    part = Benchmarks(lambda: gpu)
    part.hook(inductor, session, Patches(session, part.tuner))
    return part, session


def search() -> Any:
    return Search()


def test_in_a_search_inductors_benchmark_is_timed_by_this_package_and_elsewhere_by_itself() -> None:
    inductor = Inductor()
    part, _ = hooked(inductor, Gpu())
    session = search()
    outside = inductor.benchmarker.benchmark(lambda: 5.0, rep=40)
    with part.during(session):
        inside = inductor.benchmarker.benchmark(lambda: 5.0, rep=40, is_vetted_benchmarking=True, device_type="cuda")
        assert session.held == 1

    assert outside == OWN_MS
    assert inside == pytest.approx(0.005, rel=0.01)
    assert len(inductor.asked) == 1


def test_an_error_is_met_by_inductors_own_benchmark() -> None:
    inductor = Inductor()
    part, session = hooked(inductor, Gpu())

    def fails() -> float:
        raise RuntimeError("invalid configuration")

    with part.during(search()), pytest.raises(RuntimeError, match="invalid configuration"):
        inductor.benchmarker.benchmark(fails)
    assert len(inductor.asked) == 1
    assert not session.notes


def test_a_torch_that_measures_in_another_way_measures_by_itself_and_is_told() -> None:
    _, session = hooked(SimpleNamespace(), Gpu())

    assert session.notes == [
        "inductor: this torch measures in another way than those known here; it measures by itself"
    ]


class CachingAutotuner:
    """Inductor's autotuners of a torch that measures the list of a kernel in another way."""

    def precompile(self, warm_cache_only: Any, reload_kernel: Any, static_triton_bundle_key: Any) -> None: ...

    def bench(self, launcher: Any, args: Any, with_profiler: Any, kwargs: Any) -> None: ...


def test_a_torch_whose_lists_cannot_race_is_noted_and_hooked() -> None:
    session, _ = a_session()
    patches = Patches(session, "inductor.config")

    Kernels(Benchmarks()).hook(SimpleNamespace(CachingAutotuner=CachingAutotuner), session, patches)  # type: ignore[arg-type]
    patches.undo()

    (note,) = session.notes
    assert note.startswith("inductor.config: configurations are measured one after the other and not raced: ")
    assert "CachingAutotuner.benchmark_all_configs" in note
    assert session.unhooked_tuners == {}


class Kernel:
    """Inductor's autotuner of one kernel, which changes one of its arguments."""

    def __init__(self, times_us: list[float]) -> None:
        self.device_props = SimpleNamespace(type="cuda")
        self.launched: Counter[int] = Counter()
        self.given: set[str] = set()
        self.launchers = [self._launcher(number, time_us) for number, time_us in enumerate(times_us)]

    def _launcher(self, number: int, time_us: float) -> Any:
        def launch(x: str, *, stream: int) -> float:
            assert stream == 3
            self.given.add(x)
            self.launched[number] += 1
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


def raced(part: Benchmarks, kernel: Kernel) -> list[float]:
    times_ms = part.raced_ms(kernel, kernel.launchers, ("x",), {})
    return [times_ms[launcher] for launcher in kernel.launchers] if times_ms else []


def test_the_configurations_of_a_kernel_take_turns_on_copies_of_what_they_change() -> None:
    part, _ = hooked(Inductor(), Gpu())
    kernel = Kernel([9.0, 5.02, 5.0, 30.0, 5.01])
    with part.during(search()):
        times_ms = raced(part, kernel)

    assert min(range(5), key=times_ms.__getitem__) == 1  # as good as the best, and the first
    assert kernel.launched[3] == kernel.launched[0] < kernel.launched[1]
    assert kernel.given == {"copy of x"}


def test_a_benchmarker_that_somebody_has_put_in_place_of_inductors_is_used() -> None:
    inductor = Inductor()
    part, _ = hooked(inductor, Gpu())
    inductor.benchmarker = SimpleNamespace(benchmark=lambda: 1.0, benchmark_gpu=lambda: 1.0)
    kernel = Kernel([9.0, 5.0])
    with part.during(search()):
        assert raced(part, kernel) == []
    assert not kernel.launched
