"""Where the suite runs: on the GPU, or without one under Triton's interpreter."""

import importlib.util
import os
import time

import pytest
import torch

HAS_GPU = torch.cuda.is_available()
# Triton reads this when a kernel is decorated, so it is set before any test imports one.
if not HAS_GPU:
    os.environ.setdefault("TRITON_INTERPRET", "1")

import triton

# JAX would take most of the GPU's memory for itself, and torch is here too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")


def lacks(library: str) -> bool:
    try:
        return importlib.util.find_spec(library) is None
    except ImportError:  # the package that the library is in
        return True


def needs_on_gpu(*libraries: str) -> str:
    if HAS_GPU and not any(map(lacks, libraries)):
        return ""
    return f"{', '.join(libraries)} and a GPU"


# Left out and not skipped: a run with skipped tests is no complete run, and would not tell of unused entries.
LEFT_OUT = {
    "test_add_cute.py": needs_on_gpu("cutlass"),
    "test_axpy_cutile.py": needs_on_gpu("cuda.tile"),
    "test_compiled_gpu.py": "" if HAS_GPU else "a GPU",
    "test_gemm_cute.py": needs_on_gpu("cutlass", "dense_gemm"),
    "test_jax_ops.py": "jax" if lacks("jax") else "",
    "test_matmul_cpu.py": "numba" if lacks("numba") else "",
    "test_axpy_helion.py": "helion" if lacks("helion") else "",
    "test_matmul_cutile.py": needs_on_gpu("cuda.tile"),
    "test_transpose_cuda.py": needs_on_gpu("cupy"),
}
collect_ignore = [file for file, needed in LEFT_OUT.items() if needed]


def time_on_the_host(fn, **_options) -> float:
    """The milliseconds of one call: the clock for Helion, whose own clock needs a GPU."""
    started = time.perf_counter()
    fn()
    return (time.perf_counter() - started) * 1000


if not HAS_GPU and not lacks("helion"):
    # Helion's processes for compilation and measurement need a GPU, too.
    os.environ["HELION_AUTOTUNE_BENCHMARK_SUBPROCESS"] = "0"
    os.environ["HELION_AUTOTUNE_PRECOMPILE"] = ""
    from helion.autotuner import benchmark_provider

    benchmark_provider.do_bench = time_on_the_host


def pytest_report_header() -> list[str]:
    return [f"example: {file} is left out, it needs {needed}" for file, needed in LEFT_OUT.items() if needed]


@pytest.fixture(scope="session")
def device() -> str:
    return "cpu" if triton.knobs.runtime.interpret else "cuda"


@pytest.fixture
def generator(device: str) -> torch.Generator:
    """The same numbers in every run and every order of tests."""
    return torch.Generator(device).manual_seed(0)
