"""A load compiles ahead of its tests: real runs, with kernels that are really compiled for a GPU that is not there."""

from __future__ import annotations

import json
import re
import shutil
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
# Triton takes for a descriptor what it imported first, for good: not what a pytester run imports anew.
pytest.importorskip("triton.tools.tensor_descriptor")

import triton

from pytest_autotune.cache.model import Device
from pytest_autotune.tuners.triton import ahead
from pytest_autotune.tuners.triton.internals import apart
from pytest_autotune.tuners.triton.internals.apart import compile_apart
from tests.conftest import autotuners

ROOT = Path(__file__).parent.parent.parent
#: Triton's hash of a kernel has the constants that it reads: since 3.5. Else none is compiled ahead that reads any.
HASHES_CONSTANTS = hasattr(triton.runtime.jit, "JITCallable")
needs_hashed_constants = pytest.mark.skipif(not HASHES_CONSTANTS, reason="this Triton's hash has no constants")

CONFTEST = f"""
import gc
import sys
sys.path.insert(0, {str(ROOT)!r})
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import triton
from triton import knobs
from triton.runtime import driver
from tests.test_triton_compiled import AbsentGpu

folder = Path(__file__).parent
state = dict(vars(driver))
driver.set_active(AbsentGpu())
triton.compiler.compiler.max_shared_mem = lambda device: 100_000
compiled = []


def pytest_unconfigure():
    for one in gc.get_referrers(triton.JITFunction):  # since 3.9 a kernel that goes asks the driver to unload it
        if type(one) is triton.JITFunction:
            one.device_caches.clear()
    vars(driver).update(state)


@pytest.fixture(autouse=True)
def seen(monkeypatch):
    source, kernel = triton.compiler.compiler.ASTSource, triton.compiler.compiler.CompiledKernel
    make_ir, made = source.make_ir, kernel.__init__

    def log(word):
        if threading.current_thread() is threading.main_thread():
            with (folder / "compiled.log").open("a") as file:
                file.write(word + " ")

    monkeypatch.setattr(source, "make_ir", lambda *args, **kwargs: (log("compiled"), make_ir(*args, **kwargs))[1])
    monkeypatch.setattr(kernel, "__init__", lambda *args, **kwargs: (log("made"), made(*args, **kwargs))[1])


@pytest.fixture
def all_on_disk():
    # The speed of the threads depends on the machine, and the result of a test must not.
    give_up_at = time.monotonic() + 60
    wanted = int((folder / "wanted").read_text())
    while len(list(Path(knobs.cache.dir).glob("*/__grp__*.json"))) < wanted and time.monotonic() < give_up_at:
        time.sleep(0.05)
"""

LIBRARY = """
import triton
import triton.language as tl


def configs():
    return [triton.Config({"BLOCK": block}, num_warps=1) for block in (16, 32)]


@triton.autotune(configs(), key=["n"])
@triton.jit
def scale(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)


def made(shift):
    @triton.autotune(configs(), key=["n"])
    @triton.heuristics({"SHIFT": lambda args: shift})
    @triton.jit
    def shifted(x, y, n, BLOCK: tl.constexpr, SHIFT: tl.constexpr):
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + at, SHIFT + tl.load(x + at, mask=at < n), mask=at < n)

    return shifted


shift_one, shift_two = made(1), made(2)
"""

TESTS = """
import lib
import torch


def launch(kernel, n=64, offset=0):
    x = torch.zeros(4096)
    kernel[(1,)](x[offset:], x, n)


def test_scale(all_on_disk):
    launch(lib.scale)
    launch(lib.scale, 50)


def test_unaligned():
    launch(lib.scale, 64, 1)


def test_made_by_a_factory():
    launch(lib.shift_one)
    launch(lib.shift_two)
"""


_DUMPED: list[bytes] = []


class Suite:
    """A suite of kernels, and what the compiler did in the tests' process."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester
        self.folder = pytester.path
        self.log = self.folder / "compiled.log"
        self.cache = self.folder / "cache.textproto"
        pytester.makeconftest(CONFTEST)
        pytester.makepyfile(lib=LIBRARY, test_lib=TESTS)
        self.wants(0)

    def wants(self, kernels: int) -> None:
        (self.folder / "wanted").write_text(str(kernels))

    def run(self, *args: str, cold: bool = True) -> dict[str, Any]:
        """Run, with an empty compile cache; returns the JSON report."""
        if cold:
            shutil.rmtree(self.folder / "triton", ignore_errors=True)
        self.log.unlink(missing_ok=True)
        options = ["-ppytest_autotune.plugin", "--autotune-report=r.json", "--autotune-tuners=triton"]
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
            patch.setenv("TRITON_CACHE_DIR", str(self.folder / "triton"))
            patch.delenv("TRITON_INTERPRET", raising=False)
            self.result = self.pytester.runpytest("-Wignore", *options, *args)
        for autotuner in autotuners():  # the next run would find what this one has chosen
            autotuner.cache.clear()
        report = self.folder / "r.json"
        return json.loads(report.read_text()) if report.exists() else {}

    def dump(self) -> None:
        self.wants(0)
        if not _DUMPED:  # once is enough: the tests of this module compile the same
            self.run("--autotune-dump=cache.textproto")
            _DUMPED.append(self.cache.read_bytes())
        self.cache.write_bytes(_DUMPED[0])
        self.wants(5)

    @property
    def compiled(self) -> int:
        """How often the tests' own thread compiled."""
        return self.log.read_text().count("compiled") if self.log.exists() else 0

    @property
    def found(self) -> int:
        """How often it found on disk what it needed."""
        return self.log.read_text().count("made") - self.compiled if self.log.exists() else 0


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setattr("pytest_autotune.devices.current_gpu", lambda: None)
    monkeypatch.setattr("pytest_autotune.devices.find_only_type", lambda known: Device("cuda", "sm_90"))
    monkeypatch.setattr("pytest_autotune.devices.count_usable_cores", lambda: 3)
    return Suite(pytester)


Section = Callable[[pytest.RunResult], list[str]]


def test_a_load_compiles_each_uncompiled_kernel_before_its_test(suite: Suite, section: Section) -> None:
    """The summary counts the kernels that were compiled ahead.

    After a warm load the summary says nothing about them.
    """
    suite.dump()
    written = suite.cache.read_bytes()

    report = suite.run("--autotune-load=cache.textproto")

    assert report["counts"]["hit"] == 4
    assert (suite.compiled, suite.found) == (0, 5)
    assert report["compiled_ahead"]["kernels"] == 5
    assert re.fullmatch(r"5 kernels compiled before their tests in \d+\.\ds", section(suite.result)[0])

    report = suite.run("--autotune-load=cache.textproto", "--autotune-dump=cache.textproto", cold=False)
    assert suite.cache.read_bytes() == written
    assert report["compiled_ahead"]["kernels"] == 0
    assert not any("ahead" in line for line in section(suite.result))


ALL_KINDS = """
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor


def configs(**options):
    return [triton.Config({"BLOCK": block}, num_warps=warps, **options) for block, warps in ((16, 1), (32, 2))]


def block_of_descriptor(args):
    args["of"].block_shape = [args["BLOCK"], 16]


@triton.jit
def twice(x):
    return x + x


@triton.jit(noinline=True)
def thrice(x):
    return x * 3


@triton.heuristics({"SHIFT": lambda args: args["n"] // 2})
@triton.autotune(configs(), key=["n"])
@triton.heuristics({"EVEN": lambda args: args["n"] % args["BLOCK"] == 0})
@triton.jit
def with_heuristics(x, y, n, BLOCK: tl.constexpr, EVEN: tl.constexpr, SHIFT: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=(at < n) | EVEN) + SHIFT)


@triton.autotune(configs(pre_hook=block_of_descriptor), key=["n"])
@triton.jit
def with_descriptor(of, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * 16 + tl.arange(0, 16)[None, :]
    tl.store(y + at, of.load([n, 0]))


@triton.autotune(configs(maxnreg=64), key=["n"])
@triton.jit(do_not_specialize=["n"], do_not_specialize_on_alignment=["m"])
def with_functions(x, y, n, m, KIND: tl.constexpr, BLOCK: tl.constexpr, LAST: tl.constexpr = 3):
    at = tl.arange(0, BLOCK) + n + m
    tl.store(y + at, twice(libdevice.tanh(tl.load(x + at).to(KIND).to(tl.float32))) + thrice(n) + LAST)


@triton.autotune(configs(), key=["n"])
@triton.jit
def with_anything(x, absent, y, n, m, yes, real, NONE: tl.constexpr, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32) + real + yes
    if (absent is None) and (NONE is None):
        value += m
    tl.store(y + at, value)
"""

ALL_TESTS = """
import kinds
import torch
import triton.language as tl
from kinds import TensorDescriptor

x = torch.zeros(4096)
HALF = torch.zeros(4096, dtype=torch.float16)


def test_all(all_on_disk):
    kinds.with_heuristics[(1,)](x, x, 64)
    kinds.with_heuristics[(1,)](x[1:], x, 50)
    for n in (1, 16, 17):
        kinds.with_descriptor[(1,)](TensorDescriptor.from_tensor(HALF.view(-1, 16), [16, 16]), HALF, n)
    kinds.with_functions[(1,)](x, x, 1, 16, tl.float32, enable_fp_fusion=False)
    kinds.with_functions[(1,)](HALF, x, 16, 17, KIND=tl.float16, LAST=(1,)[0], debug=True)
    for y, m in ((x, 1), (x[1:], 16), (x, 2**40)):
        kinds.with_anything[(1,)](x.to(torch.uint8), None, y, 1, m, True, 0.5, None, "a name")
        kinds.with_anything[(1,)](x.to(torch.bool), x, y, 16, m, False, 1.0, tl.constexpr(1), "other")
"""
KINDS = 2 + 3 + 2 + 6


def test_a_precompiled_kernel_is_reused_for_every_argument_type(suite: Suite) -> None:
    """The launches have arguments of all kinds, and none of them compiles its kernel again."""
    suite.pytester.makepyfile(kinds=ALL_KINDS, test_lib=ALL_TESTS)
    (suite.folder / "lib.py").unlink()
    suite.run("--autotune-dump=cache.textproto")
    suite.result.assert_outcomes(passed=1)
    suite.wants(KINDS)

    report = suite.run("--autotune-load=cache.textproto")

    assert report["compiled_ahead"]["failed"] == 0, report["compiled_ahead"]
    assert (suite.compiled, suite.found) == (0, KINDS)


@pytest.mark.parametrize("off", ["-oautotune_compile_ahead=off", "--collect-only"])
def test_the_ini_file_or_collect_only_turns_off_compiling_ahead(
    suite: Suite, monkeypatch: pytest.MonkeyPatch, off: str
) -> None:
    suite.dump()
    suite.wants(0)
    monkeypatch.setattr(ahead.AheadCompiler, "list_jobs", lambda *_: pytest.fail("started"))

    suite.run("--autotune-load=cache.textproto", off)

    assert "started" not in suite.result.stdout.str()


def test_kernels_are_compiled_ahead_only_with_a_spare_core(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """The only core of a process is for its tests, and a second core compiles."""
    monkeypatch.setattr("pytest_autotune.devices.count_usable_cores", lambda: 1)
    suite.dump()
    suite.wants(0)

    assert suite.run("--autotune-load=cache.textproto")["compiled_ahead"]["kernels"] == 0
    suite.wants(5)
    monkeypatch.setattr("pytest_autotune.devices.count_usable_cores", lambda: 2)
    report = suite.run("--autotune-load=cache.textproto")
    assert report["compiled_ahead"]["kernels"] == 5


def test_kernels_of_tests_deselected_by_option_k_do_not_compile(suite: Suite) -> None:
    suite.dump()
    suite.wants(3)

    report = suite.run("--autotune-load=cache.textproto", "-k", "scale or unaligned")

    assert report["compiled_ahead"]["kernels"] == 3, suite.cache.read_text()
    assert suite.compiled == 0


def test_a_full_run_compiles_kernels_that_no_test_names(suite: Suite) -> None:
    """If tests are deselected, the unnamed kernels probably belong to them."""
    suite.dump()
    test_file = suite.folder / "test_lib.py"
    source = test_file.read_text()
    for name in ("one", "two"):
        source = source.replace(f"lib.shift_{name}", f"getattr(lib, '_'.join(['shift', '{name}']))")
    test_file.write_text(source)

    assert suite.run("--autotune-load=cache.textproto")["compiled_ahead"]["kernels"] == 5

    suite.wants(0)
    report = suite.run("--autotune-load=cache.textproto", "-k", "factory")
    assert not report["compiled_ahead"] or report["compiled_ahead"]["kernels"] == 0


WAITS = """

def test_waits():
    import pathlib, time
    give_up_at = time.monotonic() + 60
    while not pathlib.Path({path!r}).exists():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
"""


USES_A_GLOBAL = """
import triton
import triton.language as tl

SHIFT = tl.constexpr(1)


@triton.jit
def called(x):
    return x + SHIFT


@triton.autotune([triton.Config({"BLOCK": block}, num_warps=1) for block in (16, 32)], key=["n"])
@triton.jit
def kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, called(tl.load(x + at, mask=at < n)))
"""

SETS_IT = """
import kinds
import torch
import triton.language as tl


def test_sets_it_before_its_first_launch(all_on_disk, monkeypatch):
    monkeypatch.setattr(kinds, "SHIFT", tl.constexpr(2))
    assert kinds.called.hash is kinds.kernel.fn.hash is None
    kinds.kernel[(1,)](torch.zeros(64), torch.zeros(64), 64)
"""


def dumped_with_a_global(suite: Suite) -> None:
    (suite.folder / "lib.py").unlink()
    tests = SETS_IT.replace("    monkeypatch.", "    # ").replace("    assert", "    #")
    suite.pytester.makepyfile(kinds=USES_A_GLOBAL, test_lib=tests)
    suite.run("--autotune-dump=cache.textproto")


def test_a_global_set_in_a_test_makes_a_precompiled_kernel_stale(suite: Suite) -> None:
    """A test sets a global that its kernel reads. The kernel is stale, as it is without compiling ahead."""
    dumped_with_a_global(suite)
    suite.pytester.makepyfile(test_lib=SETS_IT)
    suite.wants(int(HASHES_CONSTANTS))

    report = suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=1)
    ahead = report["compiled_ahead"]
    assert (ahead["kernels"], ahead["failed"]) == (int(HASHES_CONSTANTS), 0)
    assert report["counts"]["stale"] == 1


@needs_hashed_constants
def test_a_kernel_compiled_while_its_global_changes_is_discarded(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    dumped_with_a_global(suite)
    changed = suite.folder / "changed"
    (suite.folder / "test_a.py").write_text(WAITS.format(path=str(changed)))
    source, language = triton.compiler.compiler.ASTSource, triton.language
    make_ir = source.make_ir

    def changed_meanwhile(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            sys.modules["kinds"].SHIFT = language.constexpr(2)
            changed.touch()
        return make_ir(*args, **kwargs)

    monkeypatch.setattr(source, "make_ir", changed_meanwhile)

    report = suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=2)
    assert report["compiled_ahead"]["kernels"] == 0


LAUNCHES_MEANWHILE = """
import time
from pathlib import Path

import kinds
import pytest
import torch
import triton.language as tl

folder = Path(__file__).parent


def test_launches_while_it_is_compiled(monkeypatch):
    give_up_at = time.monotonic() + 60
    while not (folder / "begun").exists() and time.monotonic() < give_up_at:
        time.sleep(0.01)
    x = torch.zeros(64)
    kinds.kernel[(1,)](x[1:], x[1:], 64)
    (folder / "launched").touch()
    while not (folder / "done").exists() and time.monotonic() < give_up_at:
        time.sleep(0.01)
    monkeypatch.setattr(kinds, "SHIFT", tl.constexpr(2))
    with pytest.raises(RuntimeError, match="SHIFT has changed since we compiled this kernel"):
        kinds.kernel[(1,)](x[1:], x[1:], 64)
"""


@needs_hashed_constants
def test_compiling_ahead_hides_no_changed_global_from_triton(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    dumped_with_a_global(suite)
    kernel_text = USES_A_GLOBAL.replace("called(tl.load(x + at, mask=at < n))", "tl.load(x + at, mask=at < n) + SHIFT")
    suite.pytester.makepyfile(kinds=kernel_text)
    suite.run("--autotune-dump=cache.textproto")
    suite.pytester.makepyfile(test_lib=LAUNCHES_MEANWHILE)
    suite.wants(0)
    source = triton.compiler.compiler.ASTSource
    make_ir = source.make_ir

    def waits(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is threading.main_thread():
            return make_ir(*args, **kwargs)
        (suite.folder / "begun").touch()
        give_up_at = time.monotonic() + 60
        while not (suite.folder / "launched").exists() and time.monotonic() < give_up_at:
            time.sleep(0.01)
        return make_ir(*args, **kwargs)

    def compiled_apart(*args: Any) -> bool:
        is_made = compile_apart(*args)
        (suite.folder / "done").touch()
        return is_made

    monkeypatch.setattr(source, "make_ir", waits)
    monkeypatch.setattr(apart, "compile_apart", compiled_apart)

    report = suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=1)
    assert report["compiled_ahead"]["kernels"] == 1


AT_THE_FIRST_CHOICE = """
import threading
import lib
import torch

x = torch.zeros(4096)


class CompilesMeanwhile(dict):
    def __getitem__(self, key):
        compiling = threading.Thread(target=lib.scale.fn.warmup, args=(x[1:], x, 64), kwargs=dict(BLOCK=16, grid=(1,)))
        compiling.start()
        compiling.join()
        return super().__getitem__(key)


def test_scale(monkeypatch):
    monkeypatch.setattr(lib.scale, "cache", CompilesMeanwhile())
    lib.scale[(1,)](x, x, 64)
"""


def test_a_kernel_called_while_a_thread_compiles_it_gives_a_hit(suite: Suite) -> None:
    """A thread compiles the kernel while the test looks it up. The lookup is a hit and adds no note."""
    suite.dump()
    suite.wants(0)
    suite.pytester.makepyfile(test_lib=AT_THE_FIRST_CHOICE)

    report = suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=1)
    assert report["counts"]["hit"] == 1
    assert report["notes"] == []


def test_if_compiling_ahead_fails_the_tests_compile_the_kernels(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.dump()
    suite.wants(0)

    def refuse(*_: object) -> None:
        raise ValueError("no")

    monkeypatch.setattr("pytest_autotune.tuners.triton.internals.apart.compile_apart", refuse)

    report = suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=3)
    assert suite.compiled == 5
    ahead = report["compiled_ahead"]
    assert (ahead["kernels"], ahead["seconds"], ahead["reason"]) == (0, 0, "ValueError: no")


def test_no_kernel_is_compiled_both_in_advance_and_by_its_test(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kernel is compiled once, either ahead or by its test."""
    suite.dump()
    suite.wants(0)
    begun = suite.folder / "begun"
    (suite.folder / "test_a.py").write_text(WAITS.format(path=str(begun)))
    source = triton.compiler.compiler.ASTSource
    make_ir = source.make_ir

    def slowly(*args: Any, **kwargs: Any) -> Any:
        if threading.current_thread() is not threading.main_thread():
            begun.touch()
            time.sleep(0.4)
        return make_ir(*args, **kwargs)

    monkeypatch.setattr(source, "make_ir", slowly)

    report = suite.run("--autotune-load=cache.textproto", "test_a.py", "test_lib.py")

    # Two threads were at two kernels when the tests asked.
    assert suite.compiled + suite.found == 5
    assert suite.found >= 1
    assert suite.compiled + report["compiled_ahead"]["kernels"] == 5


@triton.jit
def copied(x, y, BLOCK: triton.language.constexpr):
    at = triton.language.arange(0, BLOCK)
    triton.language.store(y + at, triton.language.load(x + at))


def test_compiling_a_kernel_ahead_also_builds_its_c_launcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton before 3.7 builds a launcher for its own driver with a C compiler."""
    built: list[object] = []
    driver = SimpleNamespace(make_launcher=None, CudaLauncher=lambda source, metadata: built.append(metadata.name))
    monkeypatch.setitem(sys.modules, "triton.backends.nvidia.driver", driver)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    kinds = {"x": "*fp32", "y": "*fp32", "BLOCK": "constexpr"}

    specialization = apart.Specialization(kinds, {(2,): 16})

    was_made = [compile_apart(copied, specialization, {"num_warps": 1}, "sm_90") for _ in range(2)]

    assert was_made == [True, False]
    assert built == ["copied"]
