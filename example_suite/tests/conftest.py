"""Where the suite runs: on the GPU, or without one under Triton's interpreter."""

import importlib.util
import os

import pytest
import torch

# Triton reads this when a kernel is decorated, so it is set before any test imports one.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    collect_ignore = ["test_compiled_gpu.py"]

import triton

# JAX would take most of the GPU's memory for itself, and torch is here too.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
HAS_JAX = importlib.util.find_spec("jax") is not None
# Not skipped: a run with skipped tests is no complete run, and would not tell of unused entries.
collect_ignore = [] if HAS_JAX else ["test_jax_ops.py"]


def pytest_report_header() -> str | None:
    return None if HAS_JAX else "example: test_jax_ops.py is left out, it needs jax"


@pytest.fixture(scope="session")
def device() -> str:
    return "cpu" if triton.knobs.runtime.interpret else "cuda"


@pytest.fixture
def generator(device: str) -> torch.Generator:
    """The same numbers in every run and every order of tests."""
    return torch.Generator(device).manual_seed(0)
