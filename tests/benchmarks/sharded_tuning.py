"""Tuning with four workers on one GPU: serial, uncoordinated, and through a sharded dump.

    python tests/benchmarks/sharded_tuning.py           # xdist gives each worker some of the tests
    python tests/benchmarks/sharded_tuning.py --each    # each worker runs every test
    python tests/benchmarks/sharded_tuning.py --without-serial    # leaves the slowest run out

Six matmul problems with 48 candidates, each with compilations of its own. Compile
caches are empty in every run. Every choice is then measured again, alone, beside
the best four of a measurement of all candidates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, pytest_seconds, table

WORKERS = 4
KERNEL = """
import torch, triton, triton.language as tl

CONFIGS = [
    triton.Config({"BM": bm, "BN": bn, "BK": bk}, num_warps=warps, num_stages=stages)
    for bm in (64, 128) for bn in (64, 128, 256) for bk in (32, 64) for warps in (4, 8) for stages in (3, 4)
]

@triton.autotune(configs=CONFIGS, key=["M", "N", "K", "ACT"])
@triton.jit
def matmul(a, b, c, M, N, K, ACT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    pid = tl.program_id(0)
    columns = tl.cdiv(N, BN)
    rm = (pid // columns) * BM + tl.arange(0, BM)
    rn = (pid % columns) * BN + tl.arange(0, BN)
    rk = tl.arange(0, BK)
    total = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        x = tl.load(a + rm[:, None] * K + (k + rk)[None, :], mask=rm[:, None] < M)
        y = tl.load(b + (k + rk)[:, None] * N + rn[None, :], mask=rn[None, :] < N)
        total += tl.dot(x, y)
    if ACT == 1:
        total = tl.maximum(total, 0.0)
    if ACT == 2:
        total = total * tl.sigmoid(total)
    tl.store(c + rm[:, None] * N + rn[None, :], total.to(c.dtype.element_ty),
             mask=(rm[:, None] < M) & (rn[None, :] < N))

PROBLEMS = [(dtype, act) for dtype in (torch.float16, torch.bfloat16) for act in (0, 1, 2)]
SIZE = 2048

def run(dtype, act):
    a = torch.randn(SIZE, SIZE, device="cuda", dtype=dtype)
    b = torch.randn(SIZE, SIZE, device="cuda", dtype=dtype)
    c = torch.empty(SIZE, SIZE, device="cuda", dtype=dtype)
    grid = lambda meta: (triton.cdiv(SIZE, meta["BM"]) * triton.cdiv(SIZE, meta["BN"]),)
    matmul[grid](a, b, c, SIZE, SIZE, SIZE, act)
    return a, b, c, grid
"""
SUITE = """
import json, os
import pytest, torch, kernel

@pytest.mark.parametrize("problem", range(6))
@pytest.mark.parametrize("again", range(4))
def test_matmul(problem, again):
    dtype, act = kernel.PROBLEMS[problem]
    a, b, c, _ = kernel.run(dtype, act)
    expected = a.float() @ b.float()
    if act == 1:
        expected = expected.relu()
    if act == 2:
        expected = torch.nn.functional.silu(expected)
    torch.testing.assert_close(c.float(), expected, rtol=2e-2, atol=1.0)
    worker = os.environ.get("PYTEST_XDIST_WORKER", "main")
    chosen = kernel.matmul.best_config.all_kwargs()
    with open(f"chosen-{worker}.jsonl", "a") as file:
        file.write(json.dumps([problem, chosen]) + "\\n")
"""
MEASURE = """
import json, sys
import torch, triton, kernel

kernel.matmul.prune_configs = lambda kwargs: kernel.CONFIGS[:1]
chosen = json.load(sys.stdin)  # run -> problem -> choices
found = {run: [] for run in chosen}
for problem, (dtype, act) in enumerate(kernel.PROBLEMS):
    a, b, c, grid = kernel.run(dtype, act)
    def time_ms(config):
        n = kernel.SIZE
        call = lambda: kernel.matmul.fn[grid](a, b, c, n, n, n, act, **config.all_kwargs())
        try:
            return triton.testing.do_bench(call, return_mode="median")
        except triton.runtime.errors.OutOfResources:
            return float("inf")
    first = {json.dumps(c.all_kwargs(), sort_keys=True): (time_ms(c), c) for c in kernel.CONFIGS}
    everyone = {name for problems in chosen.values() for name in problems[str(problem)]}
    leaders = sorted(first, key=lambda name: first[name][0])[:4] + sorted(everyone)
    again = {name: min(time_ms(first[name][1]) for _ in range(5)) for name in dict.fromkeys(leaders)}
    best = min(again.values())
    for run, problems in chosen.items():
        found[run] += [again[name] / best for name in problems[str(problem)]]
print(json.dumps(found))
"""


def chosen_in(folder: Path) -> dict[str, list[str]]:
    """problem -> the distinct choices of all processes of a run."""
    choices: dict[str, list[str]] = {}
    for file in sorted(folder.glob("chosen-*.jsonl")):
        for line in file.read_text().splitlines():
            problem, config = json.loads(line)
            name = json.dumps(config, sort_keys=True)
            known = choices.setdefault(str(problem), [])
            if name not in known:
                known.append(name)
    return choices


def main() -> None:
    print(machine("pytest-xdist", "torch", "triton"))
    each = ["--dist=each"] if "--each" in sys.argv else []
    shared = [f"-n{WORKERS}", *each]
    runs = [
        ("serial, without the plugin", ["-pno:autotune"]),
        (f"-n {WORKERS}, without the plugin", ["-pno:autotune", *shared]),
        (
            f"-n {WORKERS} dump",
            [*shared, "--autotune-dump=../cache.textproto", "--autotune-report=../report.json"],
        ),
        (f"-n {WORKERS} load", [*shared, "--autotune-load=../cache.textproto", "--autotune-max-misses=0"]),
    ]
    if "--without-serial" in sys.argv:
        del runs[0]
    seconds: dict[str, float] = {}
    choices: dict[str, dict[str, list[str]]] = {}
    with tempfile.TemporaryDirectory() as name:
        for number, (label, args) in enumerate(runs):
            folder = Path(name) / str(number)
            folder.mkdir()
            (folder / "kernel.py").write_text(KERNEL)
            (folder / "test_matmul.py").write_text(SUITE)
            (folder / "conftest.py").write_text("import sys\nsys.path.insert(0, '.')\n")
            seconds[label], _ = pytest_seconds(folder, "-q", *args, TRITON_CACHE_DIR=str(folder / "compiled"))
            choices[label] = chosen_in(folder)
            print(label, f"{seconds[label]:.1f} s", flush=True)
        spent = json.loads((Path(name) / "report.json").read_text())["tuning_seconds"]
        print(f"the dump spent {spent:.1f} s of that on six searches, without waiting for the GPU", flush=True)
        measured = subprocess.run(
            [sys.executable, "-c", MEASURE],
            cwd=Path(name) / "0",
            input=json.dumps(choices),
            capture_output=True,
            text=True,
            env={**os.environ, "TRITON_CACHE_DIR": str(Path(name) / "0" / "compiled")},
        )
    if measured.returncode:
        sys.exit(measured.stderr[-3000:])
    slower = json.loads(measured.stdout.splitlines()[-1])
    serial = seconds.get("serial, without the plugin")
    uncoordinated = seconds[f"-n {WORKERS}, without the plugin"]
    rows = [
        (
            label,
            f"{wall:.1f} s",
            f"{wall / serial:.2f}" if serial else "",
            f"{wall / uncoordinated:.2f}",
            sum(map(len, choices[label].values())),
            f"{(max(slower[label]) - 1) * 100:.1f} %",
        )
        for label, wall in seconds.items()
    ]
    head = ("run", "wall", "of serial", "of uncoordinated", "choices for 6 problems", "slowest choice, over the best")
    table(head, rows)


if __name__ == "__main__":
    main()
