"""A hand-written tuner: a call that has its choice, and how long candidates take that are compiled ahead.

    python tests/benchmarks/function_tuner.py

On a GPU where CuPy is installed it also compiles real kernels in threads, then measures them.
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
    return float(config["BLOCK_M"])


def clock(call: Callable[[], object]) -> float:
    return float(call())  # type: ignore[arg-type]


def per_call_us(call: Callable[[], object]) -> float:
    samples = []
    for _ in range(REPEATS):
        started = time.perf_counter()
        for _ in range(CALLS):
            call()
        samples.append((time.perf_counter() - started) / CALLS * 1e6)
    return median(samples)


def cached_calls() -> list[tuple[str, str]]:
    made_once = product(**AXES)
    listed = [dict(one.config) for one in made_once]
    spaces: dict[str, Callable[[], Any]] = {
        "space made once with product()": lambda: made_once,
        f"list of {len(listed)} mappings": lambda: listed,
    }
    rows = []
    for name, space in spaces.items():
        for where in ("outside pytest", "in a run"):
            run_of = Session(Policy(), None, Coordinator(Locks(1.0)), pytest.fail)
            function.MEMORIES.append(function.Memory(run_of if where == "in a run" else None))

            def call(space: Any = space) -> Any:
                return tune("gemm", key=KEY, space=space(), run=run, measuring=Measuring(clock=clock))

            call()
            rows.append((f"{name}, {where}", f"{per_call_us(call):.1f}"))
    function.MEMORIES.append(function.Memory())

    def with_device() -> Any:
        return tune("gemm", key=KEY, space=made_once, run=run, device="cpu", measuring=Measuring(clock=clock))

    with_device()
    rows.append(("space made once, device= said", f"{per_call_us(with_device):.1f}"))
    return rows


def on_the_gpu() -> list[tuple[str, str]]:
    import cupy

    x, y = cupy.ones(1 << 24, dtype=cupy.float32), cupy.zeros(1 << 24, dtype=cupy.float32)
    salt = time.time_ns()  # CuPy keeps what it has compiled

    def seconds() -> float:
        nonlocal salt
        salt += 1
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

    seconds()
    return [("24 CUDA kernels, compiled in threads, then measured", f"{median([seconds() for _ in range(3)]):.2f}")]


def main() -> None:
    print(machine("cupy-cuda13x", "torch"))
    table(("a call that has its choice", "us"), cached_calls())
    print()
    try:
        import cupy

        gpu = cupy.cuda.is_available()
    except ImportError:
        gpu = False
    if gpu:
        print()
        table(("NVRTC", "s"), on_the_gpu())
    else:
        print("\nno GPU that CuPy can use: real compilers were not timed")


if __name__ == "__main__":
    main()
