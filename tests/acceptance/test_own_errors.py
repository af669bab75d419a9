"""An error of the plugin's own, at any step of a lookup: the tests pass as they do without it, and one line says so.

Kernels are really compiled, for a GPU that is not there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.compiled_suite import CompiledSuite
from tests.conftest import autotuners

TESTS = """
import json
from pathlib import Path

import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=1) for block in (16, 32)]
benchmarked = []


def bench(kernel_call, quantiles=None):
    kernel_call()
    benchmarked.append(kernel_call)
    return [float(len(benchmarked))] * 3


@triton.autotune(CONFIGS, key=["n"])
@triton.jit
def raced(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n))


@triton.autotune(CONFIGS, key=["n"], do_bench=bench)
@triton.jit
def own(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n))


def launch(kernel):
    x = torch.zeros(64)
    compiled = kernel[(1,)](x, x, 64)
    assert compiled.src.constants[3,] == kernel.best_config.kwargs["BLOCK"]
    assert list(kernel.cache.values()) == [kernel.best_config]
    assert kernel.nargs is None


def test_raced():
    launch(raced)


def test_own_benchmark():
    launch(own)
    assert len(benchmarked) in (0, len(CONFIGS))
    Path("benchmarked").write_text(str(len(benchmarked)))
"""


_DUMPED: list[str] = []


class Suite(CompiledSuite):
    """Two kernels: Triton's benchmark, for which there is a race, and a benchmark of their own."""

    def __init__(self, pytester: pytest.Pytester, compile_cache: Path) -> None:
        super().__init__(pytester, compile_cache)
        self.write(test_kernels=TESTS)

    def dump_once(self) -> None:
        """Write the cache; once is enough for all tests of this module."""
        if not _DUMPED:
            self.dump().assert_outcomes(passed=2)
            _DUMPED.append(self.cache.read_text())
        self.cache.write_text(_DUMPED[0])

    @property
    def benchmarked(self) -> int:
        """How many candidates the benchmark of the second kernel has measured in the last run."""
        return int((self.folder / "benchmarked").read_text())


@pytest.fixture(scope="module")
def compile_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A compile cache for all tests, because each of them compiles the same four candidates."""
    return tmp_path_factory.mktemp("triton")


@pytest.fixture
def suite(pytester: pytest.Pytester, compile_cache: Path) -> Suite:
    return Suite(pytester, compile_cache)


ALWAYS = [
    "tuners.triton.adapter.PruningHook.ask",
    "tuners.triton.choosing.python_function",
    "tuners.triton.choosing.Call.from_bench_fn",
    "tuners.triton.choosing.find_target_device",
    "tuners.triton.choosing.compute_identity",
    "tuners.triton.choosing.list_versions",
    "tuners.triton.choosing.CallQuestion",
    "tuners.triton.choosing.Choices._take_choice",
    "tuners.triton.choosing.Choices._forget_before_the_next_test",
    "tuners.triton.compile_watcher.CompileWatcher.choosing",
    "tuners.triton.compile_watcher.CompileWatcher.note_choice",
    "run.session.Session.leaves_alone",
    "run.session.Session.tuning",
    "run.session.Session._close",
    "run.session.Session.report_lookup",
    "run.session.Lookup",
    "run.session.Tuning",
    "run.tuning.Tuning.ask",
    "run.lookup.Lookup.to_event",
]
OF_A_HIT = ["run.sources.LoadedCaches.ask", "run.tuning.Tuning.race", "tuners.triton.choosing.Call.adopt"]
OF_A_SEARCH = [
    "run.sources.OtherWorker._claim",
    "run.sources.OtherWorker.ask",
    "run.reporter.Progress.begin_search",
    "run.reporter.Progress.end",
    "run.tuning.Entry",
    "run.tuning.Tuning.measuring",
    "run.tuning.Tuning.record",
    "workers.coordinator.Coordinator.claim",
    "workers.coordinator.Coordinator.measuring",
    "tuners.triton.choosing.Choices._note_tuned",
    "tuners.triton.tuning.compile_candidates",
    "tuners.triton.tuning.load_ahead",
    "tuners.triton.tuning.Race.finish",
    "tuners.triton.tuning.find_clocks",
    "tuners.triton.tuning.noted_failures",
    "tuners.triton.tuning.distinct_params",
    "tuners.triton.identity.Call.adopt",
]


def break_step(step: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have a function of the plugin raise an error in the place of what it does."""

    def broken(*args: object, **kwargs: object) -> Any:
        raise AttributeError("an error of our own")

    monkeypatch.setattr(f"pytest_autotune.{step}", property(broken) if step.endswith(".event") else broken)


def own_errors(suite: Suite) -> list[str]:
    return [note for note in suite.report["notes"] if "an error of our own" in note]


@pytest.mark.parametrize("step", [*ALWAYS, *OF_A_HIT])
def test_a_plugin_error_during_a_hit_fails_no_test(suite: Suite, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    suite.dump_once()
    break_step(step, monkeypatch)

    result = suite.load()

    result.assert_outcomes(passed=2)
    assert len(own_errors(suite)) == 1


@pytest.mark.parametrize("step", [*ALWAYS, *OF_A_SEARCH])
def test_a_plugin_error_during_tuning_fails_no_test(suite: Suite, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    break_step(step, monkeypatch)

    result = suite.dump()

    result.assert_outcomes(passed=2)
    assert suite.benchmarked == 2
    assert len(own_errors(suite)) == 1


MOCKS = """
import torch
import triton
import triton.language as tl


def bench(kernel_call, quantiles=None):
    kernel_call()
    return [1.0] * 3


@triton.autotune([triton.Config({"BLOCK": block}) for block in (16, 32)], key=["n"], do_bench=bench)
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n))


def test_with_a_mock(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    kernel[(1,)](torch.zeros(64), torch.zeros(64), 64)
"""


def test_a_mocked_gpu_under_the_triton_interpreter_fails_no_test(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch says that there is a GPU, and fails when it is asked for more."""
    if pytest.importorskip("torch").cuda.is_available():
        pytest.skip("there is a GPU")
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile(MOCKS)

    for option in ("-pno:autotune", "--autotune-dump=cache.textproto", "--autotune-load=cache.textproto"):
        result = pytester.runpytest("-Wignore", "-ppytest_autotune.plugin", option)
        for autotuner in autotuners():
            autotuner.cache.clear()

        result.assert_outcomes(passed=1)
