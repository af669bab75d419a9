"""Where the suite runs: on the GPU, or without one under Triton's interpreter."""

import os

import pytest
import torch

# Triton reads this when a kernel is decorated, so it is set before any test imports one.
if not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")
    collect_ignore = ["test_compiled_gpu.py"]

import triton


@pytest.fixture(scope="session")
def device() -> str:
    return "cpu" if triton.knobs.runtime.interpret else "cuda"


@pytest.fixture
def generator(device: str) -> torch.Generator:
    """The same numbers in every run and every order of tests."""
    return torch.Generator(device).manual_seed(0)
