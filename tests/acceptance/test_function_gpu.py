"""Hand-written tuners on a real GPU, timed by events of torch or CuPy."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from pytest_autotune.tuners.function import MEMORIES, Memory
from pytest_autotune.tuners.function.space import TuningError
from pytest_autotune.tuners.function.tuner import loss, tune
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.options import Measuring, make_clock
from pytest_autotune.tuners.measuring.race import Race
from tests.conftest import REPOSITORY, Suite

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

SCALE = """
extern "C" __global__ void scale(const float* x, float* y, int n, int rounds) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) return;
    float value = x[i];
    for (int r = 0; r < rounds; r++) value = value * 1.0001f + 0.5f;
    y[i] = value * STEP;
}
"""
SUITE = """
import cupy, pytest
import pytest_autotune
from pytest_autotune import Measuring

SOURCE = '''
extern "C" __global__ void add_one(const float* x, float* y, int n) {
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x) y[i] = x[i] + 1;
}
'''

@pytest.mark.parametrize("n", [1000, 1000000])
def test_add_one(autotune_cache, n):
    x, y = cupy.arange(n, dtype=cupy.float32), cupy.zeros(n, dtype=cupy.float32)
    kernel = cupy.RawKernel(SOURCE, "add_one")

    def run(config):
        kernel((config["blocks"],), (config["threads"],), (x, y, n))

    config = autotune_cache.tune(
        "lib.add_one", key={"n": n, "dtype": x.dtype}, space={"blocks": [1, 64, 264], "threads": [32, 256]},
        run=run, source=SOURCE, measuring=Measuring(flush_l2=True),
        verify=lambda config, _: bool((y == x + 1).all()), setup=lambda config: y.fill(0),
    )
    run(config)
    assert (y == x + 1).all()
"""


@pytest.fixture(autouse=True)
def memory() -> Iterator[None]:
    """The tuner has a memory of the test's own."""
    MEMORIES.append(Memory())
    yield
    del MEMORIES[-1]


@pytest.mark.parametrize("flush_l2", [False, True])
def test_tuning_with_the_torch_clock_chooses_the_faster_kernel(flush_l2: bool) -> None:
    import torch

    x = torch.randn(4096, 4096, device="cuda")
    sizes = [4096, 256]

    choice = tune(
        "k",
        space=sizes,
        run=lambda size: x[:size, :size] @ x[:size, :size],
        verify=lambda size, result: result.shape == (size, size),
        measuring=Measuring(clock="torch", flush_l2=flush_l2),
    )
    measured_loss = loss(
        4096,
        space=sizes,
        run=lambda size: x[:size, :size] @ x[:size, :size],
        measuring=Measuring(clock="torch", flush_l2=flush_l2),
    )

    assert choice == 256
    assert measured_loss.share > 5
    assert 1 < (measured_loss.best.time_us or 0) < 1000
    assert (measured_loss.choice.time_us or 0) < 100_000


def test_tuning_with_the_cupy_clock_rejects_wrong_results() -> None:
    cupy = pytest.importorskip("cupy")
    n = 1 << 20
    x, y = cupy.ones(n, dtype=cupy.float32), cupy.empty(n, dtype=cupy.float32)

    def compile(config: dict[str, int]) -> Any:
        kernel = cupy.RawKernel(SCALE, "scale", options=(f"-DSTEP={config['step']}",))
        kernel.compile()
        return kernel

    def run(config: dict[str, int], kernel: Any) -> None:
        kernel((n // 256,), (256,), (x, y, n, config["rounds"]))

    choice = tune(
        "k",
        space={"step": [1, 2], "rounds": [0, 2000]},
        run=run,
        compile=compile,
        # The fast ones that do not scale by 1 are wrong.
        verify=lambda config, _: bool((y[0] == 1.0) | (config["rounds"] > 0)),
        measuring=Measuring(clock="cupy", flush_l2=True),
    )

    assert choice == {"step": 1, "rounds": 0}


@pytest.mark.gpu_alone
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_option_flush_l2_makes_a_small_kernel_measurably_slower(library: str) -> None:
    call = copy_of(8 * 1024 * 1024, library)

    assert median_us(call, library, flush_l2=True) > median_us(call, library, flush_l2=False) * 1.02


@pytest.mark.gpu_alone
@pytest.mark.parametrize("library", ["torch", "cupy"])
@pytest.mark.parametrize("flush_l2", [False, True])
def test_kernel_time_excludes_a_slow_launch_by_the_host(library: str, flush_l2: bool) -> None:
    """The host takes 300 microseconds for a launch, and the measured time stays below 20 microseconds."""
    copy = copy_of(1024, library)

    def slowly_launched() -> None:
        until = time.perf_counter() + 300e-6
        while time.perf_counter() < until:
            pass
        copy()

    assert median_us(slowly_launched, library, flush_l2) < 20


def copy_of(size: int, library: str) -> Callable[[], object]:
    """A call that copies as many bytes on the GPU."""
    module = pytest.importorskip(library)
    if library == "torch":
        x = module.ones(size // 4, device="cuda")
        y = module.empty_like(x)
        return lambda: y.copy_(x)
    x = module.ones(size // 4, dtype=module.float32)
    y = module.empty_like(x)
    return lambda: module.copyto(y, x)


def median_us(call: Callable[[], object], library: str, flush_l2: bool) -> float:
    race = Race(make_clock(library, True, flush_l2))
    race.probe([Runner(call), Runner(call)])
    return race.finish()[0].time_us


def test_a_device_error_ends_the_tuning_and_names_the_candidate() -> None:
    """The test runs in a separate process. The error names the configuration that broke the device."""
    pytest.importorskip("cupy")
    script = """
import cupy, pytest_autotune
kernel = cupy.RawKernel('extern "C" __global__ void k(int* p) { *p = 1; }', "k")
def run(config):
    kernel((1,), (1,), (cupy.uint64(config),))
    cupy.cuda.runtime.deviceSynchronize()
x = cupy.zeros(4)
try:
    pytest_autotune.tune("k", space=[16, 32], run=run, strict=False, device="cuda")
except pytest_autotune.TuningError as error:
    print(error)
"""
    output = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=REPOSITORY).stdout

    assert "function:k: the device no longer works after config=16" in output


def test_tuning_during_cuda_graph_capture_raises_a_tuning_error() -> None:
    import torch

    x = torch.zeros(16, device="cuda")
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        x.add_(1)
        with pytest.raises(TuningError, match="while a CUDA graph is captured"):
            tune("k", space=[1, 2], run=lambda config: x.add_(config))


def test_a_tuning_keeps_the_random_number_state_of_the_gpu() -> None:
    import torch

    torch.cuda.manual_seed(1)
    without = torch.rand(4, device="cuda")
    torch.cuda.manual_seed(1)
    tune("k", space=[10, 10000], run=lambda config: torch.rand(config, device="cuda"))

    assert torch.equal(torch.rand(4, device="cuda"), without)


def test_cupy_without_torch_reports_same_gpu_and_uuid_as_torch() -> None:
    pytest.importorskip("cupy")
    script = """
import sys, json, dataclasses
from pytest_autotune import devices as device
assert device.current_gpu() is None
import LIBRARY
x = LIBRARY.zeros(4, **OPTIONS)
print(json.dumps([dataclasses.asdict(device.current_gpu()), device.current_gpu_uuid(), "torch" in sys.modules]))
"""

    def find_in_new_process(library: str, options: str) -> list[Any]:
        text = script.replace("LIBRARY", library).replace("OPTIONS", options)
        done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, cwd=REPOSITORY)
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)  # type: ignore[no-any-return]

    of_cupy, of_torch = find_in_new_process("cupy", "{}"), find_in_new_process("torch", "{'device': 'cuda'}")

    assert of_cupy[2] is False
    assert of_cupy[:2] == of_torch[:2]
    assert of_cupy[1]


@pytest.mark.parametrize("workers", [[], ["-pxdist", "-n2"]], ids=["serial", "n2"])
def test_a_dumped_suite_of_cupy_kernels_loads_with_hits_only(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, section: Any, workers: list[str]
) -> None:
    pytest.importorskip("cupy")
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setattr(pytester, "_method", "subprocess")
    pytester.makepyfile(test_lib=SUITE)
    suite = Suite(pytester, workers)

    dumped = suite.dump()
    loaded = suite.load("--autotune-max-misses=0")

    dumped.assert_outcomes(passed=2)
    text = suite.cache.read_text()
    assert text.count('tuner: "function"') == 2
    assert 'arch: "sm_' in text
    assert loaded.ret == 0
    assert section(loaded)[0].startswith("2 hits")
