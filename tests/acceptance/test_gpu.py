"""Dump and load on a real GPU."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tests.conftest import Suite

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("gpu")]

KERNELS = """
import torch, triton, triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=warps) for block in (128, 1024) for warps in (2, 8)]

@triton.autotune(configs=CONFIGS, key=["n"], reset_to_zero=["y"])
@triton.jit
def accumulate(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

@triton.autotune(configs=CONFIGS, key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

def grid(meta):
    return (triton.cdiv(meta["n"], meta["BLOCK"]),)
"""

SUITE = """
import pytest, torch, kernels

@pytest.mark.parametrize("n", [1000, 100_000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_double(n, dtype):
    x = torch.randn(n, device="cuda", dtype=dtype)
    y = torch.empty_like(x)
    kernels.double[kernels.grid](x, y, n)
    torch.testing.assert_close(y, 2 * x)

def test_accumulate():
    y = torch.full((4096,), 5.0, device="cuda")
    kernels.accumulate[kernels.grid](torch.ones_like(y), y, 4096)
    torch.testing.assert_close(y, torch.ones_like(y))

def test_in_a_graph():
    x = torch.randn(5000, device="cuda")
    y = torch.empty_like(x)
    kernels.double[kernels.grid](x, y, 5000)
    y.zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernels.double[kernels.grid](x, y, 5000)
    graph.replay()
    torch.testing.assert_close(y, 2 * x)
"""


@pytest.fixture(params=["serial", "n2"])
def suite(request: pytest.FixtureRequest, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Suite:
    monkeypatch.delenv("PYTEST_ADDOPTS", raising=False)
    monkeypatch.setenv("TRITON_CACHE_DIR", str(pytester.path / "compiled"))
    monkeypatch.setattr(pytester, "_method", "subprocess")
    pytester.makepyfile(kernels=KERNELS, test_kernels=SUITE)
    pytester.makeini("[pytest]\npythonpath = .\n")
    return Suite(pytester, [] if request.param == "serial" else ["-pxdist", "-n2"])


def test_a_dump_and_a_load_on_the_gpu_choose_the_same_candidate(suite: Suite) -> None:
    """The load tunes nothing."""
    dumped = suite.report("--autotune-dump=cache.textproto")
    loaded = suite.report("--autotune-load=cache.textproto", "--autotune-max-misses=0")

    def choices(report: dict[str, Any]) -> list[Any]:
        return [(row["kernel"], row["key"], row["choice"]["params"]) for row in report["lookups"]]

    assert dumped["counts"]["tuned"] == 6
    assert loaded["counts"]["hit"] == 6
    assert loaded["tuning_seconds"] == 0
    assert choices(loaded) == choices(dumped)


def test_the_report_describes_the_gpu_as_torch_does(suite: Suite) -> None:
    import torch

    report = suite.report("--autotune-dump=cache.textproto")

    properties = torch.cuda.get_device_properties(0)
    assert report["devices"] == [
        {
            "id": report["devices"][0]["id"],
            "name": properties.name,
            "arch": f"sm_{properties.major}{properties.minor}",
            "multiprocessors": properties.multi_processor_count,
        }
    ]


def test_no_cuda_context_is_made_before_a_test_needs_it(suite: Suite) -> None:
    suite.run("--autotune-dump=cache.textproto")
    (suite.folder / "test_kernels.py").unlink()
    suite.pytester.makepyfile(
        test_first="""
            import torch
            def test_first():
                import kernels
                assert not torch.cuda.is_initialized()
        """
    )

    result = suite.run("--autotune-load=cache.textproto", "--autotune-dump=cache.textproto")

    assert result.ret == 0


SLOW = """
import torch, triton, triton.language as tl

@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (1024, 16, 2048)], key=["n"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + offsets, 2 * tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

def test_double():
    x = torch.randn(4_000_000, device="cuda")
    y = torch.empty_like(x)
    double[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    assert torch.equal(y, 2 * x)
"""


def test_options_verify_and_update_replace_a_slow_choice(suite: Suite) -> None:
    """The second verification finds nothing to report."""
    suite.pytester.makepyfile(test_slow=SLOW)
    suite.run("--autotune-dump=cache.textproto", "test_slow.py")
    good = suite.cache.read_text()
    planted = re.sub(r'name: "BLOCK" int: \d+', 'name: "BLOCK" int: 16', good)
    assert planted != good

    suite.cache.write_text(planted)
    load = "--autotune-load=cache.textproto"
    report = suite.report(load, "--autotune-update", "--autotune-verify=all", "test_slow.py")
    again = suite.report(load, "--autotune-verify=all", "test_slow.py")

    assert (report["verify"]["raced"], report["verify"]["slower"], report["counts"]["tuned"]) == (1, 1, 0)
    assert report["lookups"][0]["verdict"]["slower"] > 0.5
    assert report["dump"]["changed"] == 1
    assert (again["verify"]["raced"], again["verify"]["slower"]) == (1, 0)
