"""Kernels that read a setting of the test while they are compiled, print or warn: compiled as without the plugin."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import triton

from pytest_autotune.cache.model import Device
from tests.compiled_suite import CompiledSuite

pytestmark = pytest.mark.skipif(
    not hasattr(triton, "constexpr_function"), reason="this Triton has no constexpr_function"
)

LIBRARY = """
import contextvars
import threading

import triton
import triton.language as tl

SETTINGS = {"scale": 1}
CONTEXT = contextvars.ContextVar("scale", default=1)
THREAD = threading.local()
DTYPE = tl.float16


class Settings:
    def __deepcopy__(self, memo):  # Triton compares globals with copies of them
        return self

    @property
    def scale(self):
        return SETTINGS["scale"] * CONTEXT.get() * getattr(THREAD, "scale", 1)


current = Settings()


@triton.constexpr_function
def scale():
    return current.scale


def configs(**kwargs):
    return [triton.Config({"BLOCK": block, **kwargs}, num_warps=1) for block in (16, 32)]


@triton.autotune(configs(), key=["n"])
@triton.jit
def by_global(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * (1000 + scale()))


@triton.jit
def scaled(value):
    return value * (1000 + scale())


@triton.autotune(configs(), key=["n"])
@triton.jit
def by_helper(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, scaled(tl.load(x + at)))


@triton.autotune(configs(FUNCTION=scale), key=["n"])
@triton.jit
def by_argument(x, y, n, BLOCK: tl.constexpr, FUNCTION: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at) * (1000 + FUNCTION()))


def made(function):
    @triton.autotune(configs(), key=["n"])
    @triton.jit
    def by_closure(x, y, n, BLOCK: tl.constexpr):
        at = tl.arange(0, BLOCK)
        tl.store(y + at, tl.load(x + at) * (1000 + function()))

    return by_closure


by_closure = made(scale)
KERNELS = [by_global, by_helper, by_argument, by_closure]


@triton.autotune(configs(), key=["n"])
@triton.jit
def by_dtype(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at).to(DTYPE))


@triton.autotune(configs(), key=["n"])
@triton.jit
def prints(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.static_print("compiling", BLOCK)
    tl.store(y + at, tl.load(x + at))


@triton.autotune(configs(), key=["n"])
@triton.jit
def warns(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at)
    tl.store(y + at, tl.where((value > 1) and (value < 3), value, 0.0))


@triton.autotune(configs(), key=["n"])
@triton.jit
def ordinary(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.sort(tl.load(x + at)) + tl.sum(tl.load(x + at)) + triton.cdiv(BLOCK, 3))
"""

TESTS = """
import lib
import pytest
import torch
import triton.language as tl


def code(kernel):
    x = torch.zeros(64)
    return kernel[(1,)](x, x, 64).asm["ttir"]


@pytest.mark.parametrize("kernel", lib.KERNELS, ids=lambda kernel: kernel.base_fn.__name__)
def test_a_setting(compiled_ahead, monkeypatch, kernel):
    monkeypatch.setitem(lib.SETTINGS, "scale", 8)
    assert "1.008000e+03" in code(kernel)


def test_a_value_that_is_not_in_the_hash(compiled_ahead, monkeypatch):
    monkeypatch.setattr(lib, "DTYPE", tl.bfloat16)
    assert "bf16" in code(lib.by_dtype)


def test_what_is_printed(compiled_ahead, capsys):
    code(lib.prints)
    assert "compiling" in capsys.readouterr().out


def test_what_is_warned_of(compiled_ahead):
    with pytest.warns(UserWarning, match="Logical operators 'and' and 'or' are deprecated"):
        code(lib.warns)


def test_ordinary():
    code(lib.ordinary)
"""

#: Kernels are compiled ahead in the order of the tests, so the kernel of the last test comes last.
CONFTEST = """
import time
from pathlib import Path

import pytest
from triton import knobs


@pytest.fixture
def compiled_ahead(request):
    loads = request.config.getoption("autotune_load", None)
    give_up_at = time.monotonic() + 60
    while loads and not list(Path(knobs.cache.dir).glob("*/ordinary.json")) and time.monotonic() < give_up_at:
        time.sleep(0.05)
"""


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> CompiledSuite:
    monkeypatch.setattr("pytest_autotune.devices.find_only_type", lambda known: Device("cuda", "sm_90"))
    monkeypatch.setattr("pytest_autotune.devices.count_usable_cores", lambda: 3)
    suite = CompiledSuite(pytester)
    suite.write(conftest=CONFTEST, lib=LIBRARY, test_lib=TESTS)
    return suite


def test_only_kernels_that_call_nothing_but_triton_compile_early(suite: CompiledSuite) -> None:
    """A kernel that calls only Triton's own functions is compiled ahead, another one by its test."""
    suite.plain().assert_outcomes(passed=8)
    suite.dump().assert_outcomes(passed=8)

    suite.load().assert_outcomes(passed=8)

    ahead = suite.report["compiled_ahead"]
    assert (ahead["kernels"], ahead["failed"]) == (1, 0)
    assert suite.report["counts"]["hit"] == 8


THREADS = """
import lib
import pytest
import torch


@pytest.mark.parametrize("kernel", lib.KERNELS, ids=lambda kernel: kernel.base_fn.__name__)
@pytest.mark.parametrize("place", ["context", "thread"])
def test_a_setting_of(kernel, place, monkeypatch):
    token = lib.CONTEXT.set(8 if place == "context" else 1)
    monkeypatch.setattr(lib.THREAD, "scale", 8 if place == "thread" else 1, raising=False)
    kernel.fn.device_caches.clear()
    x = torch.zeros(64 if place == "context" else 128)
    assert "1.008000e+03" in kernel[(1,)](x, x, len(x)).asm["ttir"]
    lib.CONTEXT.reset(token)
"""


def test_kernels_that_read_settings_compile_in_the_test_thread(suite: CompiledSuite) -> None:
    """A kernel that reads a setting is compiled in the test's thread, although threads compile the other candidates."""
    suite.write(lib=LIBRARY, test_lib=THREADS)

    for run in (suite.plain, suite.dump, suite.load):
        run().assert_outcomes(passed=8)
