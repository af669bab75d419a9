"""A kernel that is wrong for a candidate that never wins: only a sweep finds it, and names it."""

from __future__ import annotations

import pytest

pytest.importorskip("numpy")
pytest.importorskip("torch")
pytest.importorskip("triton")

import triton.runtime.interpreter  # noqa: F401  (what a run is the first to import, it forgets)

from tests.conftest import Suite

PLANTED = """
import torch, triton, triton.language as tl

CONFIGS = [triton.Config({"BLOCK": block}, num_warps=4) for block in (4096, 2048, 16)]

@triton.autotune(configs=CONFIGS, key=["n"], restore_value=["y"])
@triton.jit
def double(x, y, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    if BLOCK == 16:
        tl.store(y + at, 2 * tl.load(x + at))
    else:
        tl.store(y + at, 2 * tl.load(x + at, mask=at < n), mask=at < n)

def test_double():
    device, n = ("cuda", 1_000_001) if torch.cuda.is_available() else ("cpu", 4001)
    x, y = torch.ones(n + 64, device=device), torch.zeros(n + 64, device=device)
    double[lambda meta: (triton.cdiv(n, meta["BLOCK"]),)](x, y, n)
    assert y[:n].eq(2).all()
    assert y[n:].eq(0).all()
"""


def planted_wrong_candidate_is_found(suite: Suite) -> None:
    """A missing mask for one BLOCK that never wins: plain, dumped and loaded runs are green, and one sweep is not."""
    suite.pytester.makepyfile(test_planted=PLANTED)
    assert suite.run().ret == 0
    assert suite.dump().ret == 0
    assert suite.load("--autotune-on-miss=error").ret == 0

    runs = [suite.run(f"--autotune-sweep={part}/3") for part in (1, 2, 3)]

    assert sorted(run.ret for run in runs) == [0, 0, 1]
    failed = next(run for run in runs if run.ret)
    failed.stdout.fnmatch_lines(
        [
            "triton:test_planted.double (n=*: BLOCK=16, num_warps=4*",
            "rerun: pytest --autotune-sweep=?/3 test_planted.py::test_double",
            "FAILED test_planted.py::test_double - triton:test_planted.double (*): ran with BLOCK=16, num_warps=4*",
        ]
    )


@pytest.mark.usefixtures("forget_choices")
def test_a_sweep_under_the_interpreter_finds_a_wrong_candidate(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel runs on Triton's interpreter."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    planted_wrong_candidate_is_found(serial_suite)


@pytest.mark.gpu
@pytest.mark.usefixtures("gpu")
def test_a_sweep_on_the_gpu_finds_a_wrong_candidate(serial_suite: Suite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_CACHE_DIR", str(serial_suite.folder / "compiled"))
    monkeypatch.setattr(serial_suite.pytester, "_method", "subprocess")
    planted_wrong_candidate_is_found(serial_suite)
