"""A generated kernel goes from its compilation to its choice, with an autotuner that stands in for Inductor's."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Value
from pytest_autotune.run.lookup import Lookup, TunedEntry
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.inductor.autotuners import params_of, read_candidates
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.compile_threads import CompileThreads, Precompilation
from pytest_autotune.tuners.inductor.generated_kernel import (
    CompiledBy,
    GeneratedKernel,
    KernelQuestion,
    KernelState,
    KernelTools,
)
from pytest_autotune.tuners.shared.patches import Patches
from tests.sessions import a_session

CPU = Device("x86", "avx2", 1)
PROBLEM = Problem("inductor.config", "triton_poi", (Value("code", "1", "digest"),), CPU)


def config(block: int) -> Any:
    return SimpleNamespace(kwargs={"XBLOCK": block}, num_warps=4, num_stages=1)


class CachingAutotuner:
    """Inductor's autotuner of a kernel.

    :param times_ms: the time of each candidate, by its block.
    :param scaled_block: the block of a candidate that Inductor adds to a reduction after its compilation; 0 for none.
    """

    custom_kernel = False

    def __init__(self, times_ms: dict[int, float], scaled_block: int = 0) -> None:
        self.times_ms = times_ms
        self.scaled_block = scaled_block
        self.configs: Any = [config(block) for block in times_ms]
        self.compile_results: list[Any] = []
        self.launchers: list[Any] = []
        self.compiled: list[int] = []
        self.measured: list[int] = []
        self.launched: list[int] = []
        self.error: BaseException | None = None
        self.kernel: GeneratedKernel | None = None
        self.heuristic_type = SimpleNamespace(name="REDUCTION")
        self.inductor_meta = {"kernel_name": "triton_poi_0"}
        self.device_props = SimpleNamespace(type="cpu", index=None)
        self.fn = SimpleNamespace(fn=True)

    def precompile(self, warm_cache_only: bool, reload_kernel: Any, static_triton_bundle_key: Any) -> None:
        if not self.compile_results:
            for compiled in self.configs:
                self.compile_results.append(SimpleNamespace(config=compiled))
                self.compiled.append(compiled.kwargs["XBLOCK"])
        if not warm_cache_only:
            self.launchers = [SimpleNamespace(config=result.config) for result in self.compile_results]
            if self.scaled_block:
                self.launchers.append(SimpleNamespace(config=config(self.scaled_block)))

    def run(self, *args: Any, stream: int, benchmark_run: bool = False, **kwargs: Any) -> str:
        if len(self.launchers) > 1:
            for launcher in self.launchers:
                self._measure(launcher)
            self.launchers = [min(self.launchers, key=self._time_of)]
        self.launched.append(self.launchers[0].config.kwargs["XBLOCK"])
        return "launched"

    def _measure(self, launcher: Any) -> None:
        if self.error is not None:
            raise self.error
        self.measured.append(launcher.config.kwargs["XBLOCK"])
        if self.kernel is not None and self.kernel.state is KernelState.SEARCHING:
            self.kernel.note_time(launcher, self._time_of(launcher))

    def _time_of(self, launcher: Any) -> float:
        return self.times_ms[launcher.config.kwargs["XBLOCK"]]


def compile_kernel(autotuner: CachingAutotuner, session: Session) -> GeneratedKernel:
    """Do what the hook of ``precompile`` does."""
    heuristics = SimpleNamespace(torch=SimpleNamespace(_inductor=SimpleNamespace(config=INDUCTOR_CONFIG)))
    tools = KernelTools(session, Benchmarks(), CompileThreads(session, heuristics), Patches(session, "inductor.config"))
    precompilation = Precompilation(CachingAutotuner.precompile, None, None)
    candidates = read_candidates(autotuner)
    assert candidates is not None
    kernel = GeneratedKernel(tools, autotuner, precompilation, KernelQuestion(PROBLEM, candidates, "fp32"))
    autotuner.kernel = kernel
    if kernel.compile_choice() is CompiledBy.INDUCTOR:
        kernel.begin_compiling_all()
        precompilation.run(autotuner)
        kernel.end_compiling_all()
    return kernel


INDUCTOR_CONFIG = SimpleNamespace(compile_threads=1, fx_graph_cache=False, cpp_wrapper=False)
TIMES_MS = {16: 3.0, 64: 1.0}


def an_entry(block: int) -> Entry:
    return Entry(PROBLEM, (), Candidate(params=params_of(config(block))))


def recorded_entry(lookups: list[Lookup]) -> Entry:
    result = lookups[-1].result
    assert isinstance(result, TunedEntry)
    return result.entry


def outcomes(lookups: list[Lookup]) -> list[str]:
    return [str(lookup.outcome.value) for lookup in lookups if lookup.outcome is not None]


def test_a_successful_tuning_uses_the_choice_and_records_times() -> None:
    session, lookups = a_session(is_dumping=True)
    autotuner = CachingAutotuner(TIMES_MS)
    kernel = compile_kernel(autotuner, session)
    assert kernel.state is KernelState.WAITING
    assert not lookups

    assert autotuner.run(1, stream=0) == "launched"

    assert kernel.state is KernelState.CHOSEN
    assert "run" not in vars(autotuner)
    entry = recorded_entry(lookups)
    assert entry.choice is not None
    assert entry.choice.params == params_of(config(64))
    assert [candidate.time_us for candidate in entry.candidates] == [3000.0, 1000.0]


@pytest.mark.parametrize(
    "error", [RuntimeError("launch failed"), pytest.skip.Exception("for now"), KeyboardInterrupt()]
)
def test_after_a_failed_tuning_the_next_launch_starts_a_new_one(error: BaseException) -> None:
    session, lookups = a_session(is_dumping=True)
    autotuner = CachingAutotuner(TIMES_MS)
    kernel = compile_kernel(autotuner, session)
    autotuner.error = error

    with pytest.raises(type(error)):
        autotuner.run(1, stream=0)
    assert kernel.state is KernelState.WAITING

    autotuner.error = None
    autotuner.run(1, stream=0)
    assert kernel.state is KernelState.CHOSEN
    assert recorded_entry(lookups).choice is not None


def test_option_on_miss_error_fails_each_launch_without_an_entry() -> None:
    session, _ = a_session((), on_miss="error")
    autotuner = CachingAutotuner({16: 3.0}, scaled_block=8)
    kernel = compile_kernel(autotuner, session)

    for _ in range(2):
        assert kernel.state is KernelState.WAITING
        with pytest.raises(pytest.fail.Exception, match="no entry"):
            autotuner.run(1, stream=0)
    assert not autotuner.launched


def test_a_hit_compiles_and_launches_only_the_loaded_choice() -> None:
    session, lookups = a_session((an_entry(16),))
    autotuner = CachingAutotuner(TIMES_MS)

    kernel = compile_kernel(autotuner, session)
    autotuner.run(1, stream=0)

    assert kernel.state is KernelState.CHOSEN
    assert (autotuner.compiled, autotuner.measured, autotuner.launched) == ([16], [], [16])
    assert outcomes(lookups) == ["hit"]


def test_a_thread_compiles_the_loaded_choice_before_the_launch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    session, lookups = a_session((an_entry(16),), compile_threads=2)
    autotuner = CachingAutotuner(TIMES_MS)

    kernel = compile_kernel(autotuner, session)
    assert kernel.state is KernelState.COMPILING_IN_THREAD
    assert not autotuner.launchers
    assert autotuner.run(1, stream=0) == "launched"

    assert kernel.state is KernelState.CHOSEN
    assert (autotuner.compiled, autotuner.measured, autotuner.launched) == ([16], [], [16])
    assert outcomes(lookups)[0] == "hit"


def test_after_a_plugin_error_inductor_tunes_the_kernel_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    session, _ = a_session(is_dumping=True)
    autotuner = CachingAutotuner(TIMES_MS)
    kernel = compile_kernel(autotuner, session)
    monkeypatch.delattr(Session, "tuning")

    assert autotuner.run(1, stream=0) == "launched"

    assert kernel.state is KernelState.CHOSEN
    assert autotuner.launched == [64]
    (note,) = session.notes
    assert note.startswith("inductor.config: internal error in run()")
