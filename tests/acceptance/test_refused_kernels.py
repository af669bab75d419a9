"""A kernel that Triton refuses is refused as without the plugin, and no other kernel's code runs in its place."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton

from tests.compiled_suite import CompiledSuite

pytestmark = pytest.mark.skipif(
    not hasattr(triton, "constexpr_function"), reason="this Triton refuses no kernel for a function"
)

#: Triton refuses to compute the hash of a kernel that calls ``scale``, which would compile.
LIBRARY = """
import os

import triton
import triton.language as tl


@triton.constexpr_function
def scale():
    return int(os.environ.get("SCALE", "3"))


@triton.autotune([triton.Config({"BLOCK": block}, num_warps=1) for block in (16, 32)], key=["n"])
@triton.jit
def refused(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) OPERATOR scale())


@triton.autotune([triton.Config({"BLOCK": block}, num_warps=1) for block in (16, 32)], key=["n"])
@triton.jit
def compiled(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at))
"""

TESTS = """
import importlib.util
from pathlib import Path

import pytest
import torch


def kernels(name):
    path = Path(__file__).parent / f"{name}.txt"
    spec = importlib.util.spec_from_loader("lib", importlib.machinery.SourceFileLoader("lib", str(path)))
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def launch(kernel):
    return kernel[(1,)](torch.zeros(64), torch.zeros(64), 64)


def test_compiled():
    launch(kernels("plus").compiled)


@pytest.mark.parametrize("name", ["plus", "times"])
def test_is_refused(name):
    kernel = kernels(name).refused
    with pytest.raises(RuntimeError, match="^Unsupported function referenced: <bound method"):
        launch(kernel)
    # Triton remembers no refusal: as it is without us, the next launch passes.
    assert kernel.fn.hash.startswith("recursion:")


@pytest.mark.xfail(strict=True, raises=RuntimeError)
def test_fails_as_expected():
    launch(kernels("minus").refused)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester) -> CompiledSuite:
    suite = CompiledSuite(pytester)
    suite.write(test_kernels=TESTS)
    for name, operator in {"plus": "+", "minus": "-", "times": "*"}.items():
        (suite.folder / f"{name}.txt").write_text(LIBRARY.replace("OPERATOR", operator))
    return suite


@pytest.mark.parametrize("threads", [1, 3])
def test_an_error_of_the_triton_compiler_reaches_the_test(
    suite: CompiledSuite, monkeypatch: pytest.MonkeyPatch, threads: int
) -> None:
    monkeypatch.setattr("pytest_autotune.devices.count_usable_cores", lambda: threads)
    for run in (suite.plain, suite.dump, suite.load):
        run().assert_outcomes(passed=3, xfailed=1)
