"""Measure calls of ``tune()`` in a hand-written tuner.

    python tests/benchmarks/function_tuner.py

1. A call that has its choice, outside pytest and in a run: microseconds of wall time, the median of 21 x 500 calls.
2. With a GPU and CuPy: a tuning of 24 CUDA kernels, which threads compile before they are measured. Seconds of wall
   time, the median of three tunings.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest
from common import machine, median, table

from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.session import Session
from pytest_autotune.tuners import function
from pytest_autotune.tuners.function.space import product
from pytest_autotune.tuners.function.tuner import tune
from pytest_autotune.tuners.measuring.options import Measuring
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.locks import Locks

REPEATS = 21
CALLS = 500
AXES = {"BLOCK_M": [32, 64, 128], "BLOCK_N": [32, 64, 128], "BLOCK_K": [32, 64], "num_warps": [4, 8]}
KEY = {"m": 4096, "n": 4096, "k": 4096, "dtype": "fp16"}

CUDA = r"""
extern "C" __global__ void saxpy(const float* x, float* y, int n) {
    for (int i = (blockIdx.x * blockDim.x + threadIdx.x) * UNROLL; i < n; i += gridDim.x * blockDim.x * UNROLL) {
        #pragma unroll
        for (int j = 0; j < UNROLL; j++) if (i + j < n) y[i + j] += 2.0f * x[i + j];
    }
    // SALT
}
"""


def run(config: Any) -> float:
    """Return a time in place of a launch."""
    return float(config["BLOCK_M"])


def clock(call: Callable[[], object]) -> float:
    """Return the time that the call returns."""
    return float(call())  # type: ignore[arg-type]


def measure_call_us(call: Callable[[], object]) -> float:
    """Return the microseconds of a call that has its choice."""
    call()
    samples = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        samples.append((time.perf_counter() - started) / CALLS * 1e6)
    return median(samples)


def tune_gemm(space: Any, **options: Any) -> Any:
    """Call ``tune()`` for one problem."""
    return tune("gemm", key=KEY, space=space, run=run, measuring=Measuring(clock=clock), **options)


def measure_cached_calls() -> list[tuple[str, str]]:
    """Return a row for each way to call ``tune()``."""
    space = product(**AXES)
    mappings = [dict(configuration.config) for configuration in space]

    def call_with_product() -> Any:
        return tune_gemm(space)

    def call_with_mappings() -> Any:
        return tune_gemm(mappings)

    def call_with_device() -> Any:
        return tune_gemm(space, device="cpu")

    calls = {
        "space made once with product()": call_with_product,
        f"list of {len(mappings)} mappings": call_with_mappings,
    }
    rows = []
    for name, call in calls.items():
        function.MEMORIES.append(function.Memory())
        rows.append((f"{name}, outside pytest", f"{measure_call_us(call):.1f}"))
        session = Session(Policy(), None, Coordinator(Locks(1.0)), pytest.fail)
        function.MEMORIES.append(function.Memory(session))
        rows.append((f"{name}, in a run", f"{measure_call_us(call):.1f}"))
    function.MEMORIES.append(function.Memory())
    rows.append(("space made once, with device=", f"{measure_call_us(call_with_device):.1f}"))
    return rows


def measure_compiled_tuning() -> list[tuple[str, str]]:
    """Return the row of a tuning whose candidates NVRTC compiles."""
    import cupy

    x, y = cupy.ones(1 << 24, dtype=cupy.float32), cupy.zeros(1 << 24, dtype=cupy.float32)
    first_salt = time.time_ns()

    def measure_tuning_s(salt: int) -> float:
        # CuPy caches compiled sources, so each tuning compiles a source with another comment.
        source = CUDA.replace("SALT", str(salt))

        def compile(config: dict[str, int]) -> Any:
            kernel = cupy.RawKernel(source, "saxpy", options=(f"-DUNROLL={config['unroll']}",))
            kernel.compile()
            return kernel

        def launch(config: dict[str, int], kernel: Any) -> None:
            kernel((config["blocks"],), (config["threads"],), (x, y, x.size))

        started = time.perf_counter()
        function.MEMORIES.append(function.Memory())
        tune(
            "saxpy",
            space={"unroll": [1, 2, 4, 8, 16, 32], "threads": [128, 256], "blocks": [264, 1056]},
            run=launch,
            compile=compile,
            measuring=Measuring(clock="cupy"),
            device="cuda",
        )
        return time.perf_counter() - started

    # The first tuning loads NVRTC.
    measure_tuning_s(first_salt)
    times_s = [measure_tuning_s(first_salt + repetition) for repetition in (1, 2, 3)]
    return [("24 CUDA kernels, compiled in threads, then measured", f"{median(times_s):.2f}")]


def main() -> None:
    print(machine("cupy-cuda13x", "torch"))
    table(("a call that has its choice", "us"), measure_cached_calls())
    print()
    try:
        import cupy

        has_gpu = cupy.cuda.is_available()
    except ImportError:
        has_gpu = False
    if has_gpu:
        print()
        table(("NVRTC", "s"), measure_compiled_tuning())
    else:
        print("\nno GPU that CuPy can use: real compilers were not timed")


if __name__ == "__main__":
    main()
