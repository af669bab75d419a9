"""A load compiles ahead of its tests: real runs, with kernels that are really compiled for a GPU that is not there."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")
# Triton takes for a descriptor what it imported first, for good: not what a pytester run imports anew.
pytest.importorskip("triton.tools.tensor_descriptor")

import triton

from pytest_autotune.cache.formats import Format, decode
from pytest_autotune.cache.model import Device
from pytest_autotune.tuners.triton.ahead_plan import Plan
from tests.conftest import autotuners
from tests.test_children import is_gone, pid_in, until

ROOT = Path(__file__).parent.parent.parent

CONFTEST = f"""
import gc
import sys
sys.path.insert(0, {str(ROOT)!r})
import time
from pathlib import Path

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
def listening(monkeypatch):
    def listener(*, src, cache_hit, **_):
        with (folder / "compiled.log").open("a") as log:
            log.write(f"{{src.name}} {{'found' if cache_hit else 'compiled'}}\\n")
    monkeypatch.setattr(knobs.compilation, "listener", listener)


@pytest.fixture
def all_on_disk():
    # The children are quick where a machine is idle, and tests must not depend on it.
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
        for one in autotuners():  # the next run would find what this one has chosen
            one.cache.clear()
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
        """How often the tests' own process compiled."""
        return self.log.read_text().count(" compiled") if self.log.exists() else 0

    @property
    def found(self) -> int:
        """How often it found on disk what it needed."""
        return self.log.read_text().count(" found") if self.log.exists() else 0


@pytest.fixture
def suite(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setattr("pytest_autotune.devices.current_gpu", lambda: None)
    monkeypatch.setattr("pytest_autotune.session.preparing.number_of", lambda *_: 2)
    monkeypatch.setattr("pytest_autotune.run.together.machine.IdleCores.now", lambda _: 2.0)  # whatever else runs
    return Suite(pytester)


Section = Callable[[pytest.RunResult], list[str]]


def test_tests_of_a_cold_load_compile_nothing_and_the_summary_says_what_was_saved(
    suite: Suite, section: Section
) -> None:
    suite.dump()
    written = suite.cache.read_bytes()

    report = suite.run("--autotune-load=cache.textproto")

    assert report["counts"]["hit"] == 4
    assert (suite.compiled, suite.found) == (0, 5)
    assert report["compiled_ahead"]["kernels"] == report["compiled_ahead"]["used"] == 5
    assert report["compiled_ahead"]["saved_seconds"] > 0
    words = r"5 kernels compiled ahead in \d+\.\ds, all asked for; about \d+\.\ds of compiling saved"
    assert re.fullmatch(words, section(suite.result)[0])

    suite.run("--autotune-load=cache.textproto", "--autotune-dump=cache.textproto", cold=False)
    assert suite.cache.read_bytes() == written


def test_what_calls_the_gpu_and_what_launches_a_kernel_are_built_ahead_where_a_c_compiler_builds_them(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    from triton.backends.nvidia import driver

    suite.dump()
    built = suite.folder / "built"
    (suite.folder / "test_lib.py").write_text(TESTS + WAITS.format(path=str(built)))

    class Launcher:
        def __init__(self, source: Any, metadata: Any) -> None:
            (suite.folder / f"{source.name}-{metadata.hash}.built").write_text(str(os.getpid()))

    class Utils:
        def __init__(self) -> None:
            built.write_text(str(os.getpid()))

    monkeypatch.setattr(driver, "make_launcher", None, raising=False)  # as before Triton 3.7
    monkeypatch.setattr(driver, "CudaLauncher", Launcher)
    monkeypatch.setattr(driver, "CudaUtils", Utils)

    suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=4)
    assert suite.compiled == 0
    launchers = list(suite.folder.glob("*.built"))
    assert 1 <= len(launchers) <= 5  # what launches one kernel launches others of the same types
    assert str(os.getpid()) not in [path.read_text() for path in (built, *launchers)]


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
def with_functions(x, y, n, m, FUNCTION: tl.constexpr, KIND: tl.constexpr, BLOCK: tl.constexpr, LAST: tl.constexpr = 3):
    at = tl.arange(0, BLOCK) + n + m
    tl.store(y + at, FUNCTION(libdevice.tanh(tl.load(x + at).to(KIND).to(tl.float32))) + thrice(n) + LAST)


@triton.autotune(configs(), key=["n"])
@triton.jit
def with_anything(x, absent, numbers, n, yes, real, NONE: tl.constexpr, NAME: tl.constexpr, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < n).to(tl.float32) + real + yes
    if (absent is None) and (NONE is None):
        value += numbers[1] + tl.load(numbers[2][0] + at).to(tl.float32)
    tl.store(numbers[0] + at, value)
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
    kinds.with_functions[(1,)](x, x, 1, 16, kinds.twice, tl.float32, enable_fp_fusion=False)
    kinds.with_functions[(1,)](HALF, x, 16, 17, FUNCTION=kinds.twice, KIND=tl.float16, LAST=(1,)[0], debug=True)
    for numbers in ((x, 1, (x,)), (x, 16, (HALF[1:],)), (x, 2**40, (x.to(torch.float8_e5m2),))):
        kinds.with_anything[(1,)](x.to(torch.uint8), None, numbers, 1, True, 0.5, None, "name")
        kinds.with_anything[(1,)](x.to(torch.bool), x, numbers, 16, False, 1.0, 1, "other")
"""
KINDS = 2 + 3 + 2 + 6


def test_what_children_compile_is_what_a_launch_looks_for_whatever_its_arguments_are(suite: Suite) -> None:
    suite.pytester.makepyfile(kinds=ALL_KINDS, test_lib=ALL_TESTS)
    (suite.folder / "lib.py").unlink()
    suite.run("--autotune-dump=cache.textproto")
    suite.result.assert_outcomes(passed=1)
    suite.wants(KINDS)

    report = suite.run("--autotune-load=cache.textproto")

    assert report["compiled_ahead"]["failed"] == {}
    assert (suite.compiled, suite.found) == (0, KINDS)


PLAIN = """
import triton
import triton.language as tl


@triton.jit
def plain(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n))


@triton.heuristics({"BLOCK": lambda args: args["n"], "num_warps": lambda args: 2})
@triton.jit
def guided(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(y + at, 2 * tl.load(x + at, mask=at < n))
"""

PLAIN_TESTS = """
import lib
import plain
import torch

x = torch.zeros(4096)


def test_scale(all_on_disk):
    lib.scale[(1,)](x, x, 64)


def test_plain():
    plain.plain[(1,)](x, x, 64, BLOCK=16, num_warps=1)
    plain.plain[(1,)](x[1:], x, 64, 32)


def test_guided():
    plain.guided[(1,)](x, x, 32)
"""
WITH_PLAIN = "-oautotune_plain_kernels=true"


def test_kernels_without_an_autotuner_are_compiled_ahead_where_a_dump_was_to_note_them(suite: Suite) -> None:
    suite.pytester.makepyfile(plain=PLAIN, test_lib=PLAIN_TESTS)
    without = suite.run("--autotune-dump=cache.textproto")
    assert without["dump"]["added"] == 1

    both = suite.run("--autotune-load=cache.textproto", "--autotune-dump=cache.textproto", WITH_PLAIN)
    assert (both["dump"]["added"], both["dump"]["unchanged"]) == (2, 1)
    assert both["compiled_ahead"]["by_tests"]["without an autotuner"]["kernels"] == 3
    written = suite.cache.read_bytes()
    texts = {text for entry in decode(written, Format.TEXT, "cache").entries for text in entry.compiled}
    assert "*fp32:16 *fp32:16 i32:16 =16 | num_warps=1" in texts

    suite.wants(4)
    report = suite.run("--autotune-load=cache.textproto")
    assert report["counts"]["hit"] == 1
    assert report["compiled_ahead"]["kernels"] == report["compiled_ahead"]["used"] == 4
    assert (suite.compiled, suite.found, report["unused"]) == (0, 4, [])

    head, *tests = PLAIN_TESTS.split("def test_")
    suite.pytester.makepyfile(test_lib=head + "".join(f"def test_{test}\n\n" for test in reversed(tests)))
    suite.run("--autotune-dump=other.textproto", "--autotune-load=cache.textproto", WITH_PLAIN, cold=False)
    assert (suite.folder / "other.textproto").read_bytes() == written


def test_a_kernel_without_an_autotuner_that_is_launched_no_more_goes_with_the_unused(suite: Suite) -> None:
    suite.pytester.makepyfile(plain=PLAIN, test_lib=PLAIN_TESTS)
    suite.run("--autotune-dump=cache.textproto", WITH_PLAIN)
    suite.pytester.makepyfile(test_lib=PLAIN_TESTS.replace("plain.guided[(1,)](x, x, 32)", "pass"))

    both = "--autotune-load=cache.textproto", "--autotune-dump=cache.textproto", "-oautotune_compile_ahead=off"
    report = suite.run(*both, cold=False)
    assert [(one["tuner"], one["kernel"]) for one in report["unused"]] == [("triton.jit", "plain.guided")]

    report = suite.run(*both, "--autotune-update=prune", cold=False)
    assert (report["dump"]["removed"], report["dump"]["unchanged"]) == (1, 2)


def test_a_dump_that_loads_nothing_keeps_up_what_the_file_has_of_kernels_without_an_autotuner(suite: Suite) -> None:
    suite.pytester.makepyfile(plain=PLAIN, test_lib=PLAIN_TESTS)
    suite.run("--autotune-dump=cache.textproto", WITH_PLAIN)

    report = suite.run("--autotune-dump=cache.textproto", cold=False)

    assert (report["dump"]["removed"], report["dump"]["unchanged"], report["unused"]) == (0, 3, [])


def test_that_holds_for_a_suite_without_autotuners_too(suite: Suite) -> None:
    (suite.folder / "lib.py").unlink()
    tests = "import plain\nimport torch\nx = torch.zeros(64)\ndef test(): plain.plain[(1,)](x, x, 64, 32)"
    guided = "; plain.guided[(1,)](x, x, 32)"
    suite.pytester.makepyfile(plain=PLAIN, test_lib=tests + guided)
    suite.run("--autotune-dump=cache.textproto", WITH_PLAIN)
    suite.pytester.makepyfile(test_lib=tests)
    load = "--autotune-load=cache.textproto", "-oautotune_compile_ahead=off"

    report = suite.run(*load, "--autotune-fail-on-unused", cold=False)
    assert [(one["tuner"], one["kernel"]) for one in report["unused"]] == [("triton.jit", "plain.guided")]
    assert suite.result.ret == pytest.ExitCode.TESTS_FAILED

    report = suite.run(*load, "--autotune-update=prune", cold=False)
    assert (report["dump"]["removed"], report["dump"]["unchanged"]) == (1, 1)


def test_with_a_full_compile_cache_nothing_is_compiled_or_said(suite: Suite, section: Section) -> None:
    suite.dump()
    suite.run("--autotune-load=cache.textproto")

    report = suite.run("--autotune-load=cache.textproto", cold=False)

    assert report["compiled_ahead"]["kernels"] == 0
    assert not any("ahead" in line for line in section(suite.result))


@pytest.mark.parametrize("off", ["-oautotune_compile_ahead=off", "--collect-only"])
def test_it_can_be_turned_off(suite: Suite, monkeypatch: pytest.MonkeyPatch, off: str) -> None:
    suite.dump()
    suite.wants(0)
    monkeypatch.setattr("os.fork", lambda: pytest.fail("forked"))

    suite.run("--autotune-load=cache.textproto", off)

    assert "forked" not in suite.result.stdout.str()


USES_OF_CUDA = ("_lazy_init", "current_device", "get_device_capability", "get_device_properties", "current_stream")


def test_children_of_a_process_that_has_initialised_cuda_use_nothing_of_it(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.dump()
    used = suite.folder / "used"
    process = os.getpid()

    def use(*args: object) -> Any:
        if os.getpid() != process:
            used.touch()
            raise RuntimeError("Cannot re-initialize CUDA in forked subprocess.")
        return SimpleNamespace(name="cuda", major=9, minor=0, multi_processor_count=0)

    for name in USES_OF_CUDA:
        monkeypatch.setattr(f"torch.cuda.{name}", use)
    monkeypatch.setattr("torch.cuda.is_initialized", lambda: os.getpid() == process)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.is_current_stream_capturing", lambda: False)
    monkeypatch.setattr("pytest_autotune.devices.current_gpu", lambda: Device("cuda", "sm_90"))

    report = suite.run("--autotune-load=cache.textproto")

    assert report["compiled_ahead"]["kernels"] == 5
    assert suite.compiled == 0
    assert not used.exists()


def test_of_a_part_of_the_suite_only_what_its_tests_reach_is_compiled(suite: Suite) -> None:
    suite.dump()
    suite.wants(3)

    report = suite.run("--autotune-load=cache.textproto", "-k", "scale or unaligned")

    assert report["compiled_ahead"]["kernels"] == 3, suite.cache.read_text()
    assert suite.compiled == 0


def test_a_kernel_that_was_edited_is_not_compiled_for_what_it_was(suite: Suite) -> None:
    suite.dump()
    suite.pytester.makepyfile(lib=LIBRARY.replace("2 * tl.load", "3 * tl.load"))
    suite.wants(2)

    report = suite.run("--autotune-load=cache.textproto")

    assert report["counts"]["stale"] == 2
    assert report["compiled_ahead"]["kernels"] == 2


HOSTILE = [
    "",
    "_",
    "*fp32 *fp32",
    "=1 =1 =1 _",
    '={"jit":"os:system"} *fp32 i32 _',
    '*fp32 *fp32 i32 _ | extern_libs={"x":"/etc/passwd"}',
    '*fp32 *fp32 i32 _ | ir_override="/etc/passwd"',
    "*fp32 *fp32 i32 _ | grid=1",
    "*fp32 *fp32 i32 _ | num_warps=1000000",
    "*fp32 *fp32 i32 =1000000000",
    "x" * 5000,
    "(" * 1000,
]


def test_what_a_stranger_writes_costs_a_compilation_at_most(suite: Suite) -> None:
    suite.dump()
    text = suite.cache.read_text()
    lines = "".join(f"  compiled: {json.dumps(one)}\n" for one in HOSTILE)
    suite.cache.write_text(re.sub(r"(?:  compiled: .*\n)+", lambda _: lines, text))
    suite.wants(0)

    report = suite.run("--autotune-load=cache.textproto", "-k", "not factory")

    suite.result.assert_outcomes(passed=2, deselected=1)
    assert report["counts"]["hit"] == 2
    assert report["notes"] == []


def test_where_a_child_dies_the_tests_compile_themselves(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.dump()
    suite.wants(0)
    kill = "pytest_autotune.tuners.triton.internals.without_gpu.compile_kernel"
    monkeypatch.setattr(kill, lambda *_: os.kill(os.getpid(), signal.SIGKILL))

    report = suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=3)
    assert suite.compiled == 5
    assert report["compiled_ahead"]["kernels"] == 0


def test_a_choice_that_crashes_the_compiler_in_a_child_is_stale_and_crashes_no_test(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.dump()
    suite.wants(2)
    source, here = triton.compiler.compiler.ASTSource, os.getpid()
    make_ir = source.make_ir

    def crash(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self.fn.__name__ == "scale" and 16 in self.constants.values():
            assert os.getpid() != here, "this process would have ended"
            os.kill(os.getpid(), signal.SIGSEGV)
        return make_ir(self, *args, **kwargs)

    monkeypatch.setattr(source, "make_ir", crash)

    report = suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=3)
    stale = [lookup for lookup in report["lookups"] if lookup["outcome"] == "stale"]
    assert {lookup["reason"] for lookup in stale} == {"the choice no longer compiles: the compiler crashed (SIGSEGV)"}
    assert {lookup["choice"]["params"]["BLOCK"] for lookup in stale} == {32}
    assert report["counts"]["hit"] == 2


def test_where_nothing_can_be_forked_a_line_says_so(suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    suite.dump()
    suite.wants(0)

    def fork() -> int:
        raise BlockingIOError(11, "Resource temporarily unavailable")

    monkeypatch.setattr("os.fork", fork)

    report = suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=3)
    assert report["notes"] == ["triton: nothing was compiled ahead: Resource temporarily unavailable"]


def test_where_tests_cannot_wait_for_children_they_compile_themselves_and_a_line_says_so(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.dump()
    suite.wants(0)

    def full(path: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pytest_autotune.run.together.waiting.HeldLock", full)

    report = suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=3)
    (note,) = report["notes"]
    assert note.endswith(": No space left on device; workers do not wait for each other there")


WAITS = """

def test_waits():
    import pathlib, time
    give_up_at = time.monotonic() + 60
    while not pathlib.Path({path!r}).exists():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)
"""


def test_a_test_waits_for_what_is_being_compiled_and_does_not_compile_it_again(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.dump()
    suite.wants(0)
    begun = suite.folder / "begun"
    (suite.folder / "test_a.py").write_text(WAITS.format(path=str(begun)))
    turn = Plan._turn

    @contextmanager
    def slowly(self: Any, *compilation: Any) -> Iterator[None]:
        with turn(self, *compilation):
            begun.touch()
            time.sleep(0.4)
            yield

    monkeypatch.setattr(Plan, "_turn", slowly)

    report = suite.run("--autotune-load=cache.textproto", "test_a.py", "test_lib.py")

    # Two children held two kernels when the tests asked.
    assert suite.compiled + suite.found == 5
    assert report["compiled_ahead"]["used"] == suite.found >= 1


def test_no_child_is_there_when_the_run_is_over_and_none_of_its_temporary_files(
    suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    suite.dump()
    suite.wants(0)
    number = suite.folder / "number"

    def hang(*_: object) -> None:
        compiling = tempfile.mkdtemp()
        (suite.folder / "temporary").write_text(compiling)
        (suite.folder / "new").write_text(f"{os.getpid()}\n")
        (suite.folder / "new").rename(number)
        time.sleep(60)

    monkeypatch.setattr("pytest_autotune.tuners.triton.internals.without_gpu.compile_kernel", hang)
    (suite.folder / "test_lib.py").write_text(TESTS + WAITS.format(path=str(number)))

    suite.run("--autotune-load=cache.textproto")

    suite.result.assert_outcomes(passed=4)
    assert until(lambda: is_gone(pid_in(number)), 2)
    assert not Path((suite.folder / "temporary").read_text()).parent.exists()
