"""CuTe DSL and cuTile on a GPU, step by step, on a copy of the example suite.

    python tests/benchmarks/adapters_gpu.py [cute] [cutile] [both] [conformance]

For each of the two tuners: a dump, a load that fails on any miss, a verification, an edited kernel (stale, with the
function's name), and a dump by four workers, which tune each problem once. Then a suite with kernels of Triton, CuTe
DSL and cuTile in one cache. The script needs the libraries, and for CuTe DSL ``dense_gemm.py`` of CUTLASS's examples on
the path. It prints a line for each step, and exits with status 1 if a step did not do what it should.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from common import REPOSITORY, machine

NO_MISSES = "--autotune-max-misses=0"


@dataclass(frozen=True)
class Steps:
    """The steps of one tuner.

    :param tests: the test files.
    :param edited_file: the file of a kernel that is edited, with the text before and after.
    :param function: the function that the stale problems name.
    """

    name: str
    tests: tuple[str, ...]
    edited_file: str
    before: str
    after: str
    function: str


CUTE = Steps(
    "cute",
    ("tests/test_add_cute.py", "tests/test_gemm_cute.py"),
    "example_kernels/add_cute.py",
    "tiled_x[(None, index)].load() + tiled_y[(None, index)].load()",
    "tiled_y[(None, index)].load() + tiled_x[(None, index)].load()",
    "add_kernel",
)
CUTILE = Steps(
    "cutile",
    ("tests/test_matmul_cutile.py", "tests/test_axpy_cutile.py"),
    "example_kernels/matmul_cutile.py",
    "total = ct.mma(left, right, total)",
    "total = total + ct.mma(left, right, ct.zeros((TM, TN), ct.float32))",
    "matmul_kernel",
)
ALL = ("tests/test_add.py", *CUTE.tests, *CUTILE.tests)


class Suite:
    """A copy of the example suite."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "suite"
        shutil.copytree(REPOSITORY / "example_suite", self.folder)
        self.has_failed = False
        self.environment = {
            **os.environ,
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")]),
            # Neither library finds what an earlier run has compiled.
            "CUDA_TILE_CACHE_DIR": str(folder / "cutile_cache"),
            "TRITON_CACHE_DIR": str(folder / "triton_cache"),
        }
        # tileiras loads the libnvvm of the CUDA that this names.
        self.environment.pop("CUDA_HOME", None)

    def run(self, *arguments: str) -> dict[str, Any]:
        """Run pytest. Return its JSON report, with the status, the seconds, and the output."""
        plugins = ["-ppytest_autotune.plugin", "-pxdist.plugin", "-pno:cacheprovider"]
        command = [sys.executable, "-m", "pytest", "-q", *plugins, "--autotune-report=report.json", *arguments]
        report_file = self.folder / "report.json"
        report_file.unlink(missing_ok=True)
        started = time.perf_counter()
        done = subprocess.run(command, cwd=self.folder, env=self.environment, capture_output=True, text=True)
        report: dict[str, Any] = {"counts": {}, "lookups": []}
        if report_file.exists():
            report = json.loads(report_file.read_text())
        report["seconds"] = time.perf_counter() - started
        report["status"] = done.returncode
        report["output"] = done.stdout + done.stderr
        return report

    def check(self, step: str, report: dict[str, Any], is_right: bool, summary_lines: int = 3) -> None:
        """Print a step, with the counts and the last lines of the summary."""
        counts = {name: count for name, count in report["counts"].items() if count}
        word = "ok " if is_right else "BAD"
        print(f"{word} {step}: {report['seconds']:.1f} s, status {report['status']}, {counts}", flush=True)
        lines = report["output"].rstrip().splitlines()
        for line in lines[-summary_lines if is_right else -60 :]:
            print(f"      {line}")
        self.has_failed |= not is_right

    def edit(self, file: str, before: str, after: str) -> None:
        """Replace a text of a file."""
        path = self.folder / file
        text = path.read_text()
        if before not in text:
            raise SystemExit(f"{file} has no {before!r}")
        path.write_text(text.replace(before, after))


def run_steps(suite: Suite, steps: Steps) -> None:
    """Run the steps of one tuner."""
    cache = f"{steps.name}.textproto"
    dumped = suite.run(*steps.tests, f"--autotune-dump={cache}")
    problems = dumped["counts"].get("tuned", 0)
    suite.check(f"{steps.name}: dump", dumped, dumped["status"] == 0 and problems == 4)
    for lookup in dumped["lookups"]:
        failed = [candidate["failed"] for candidate in lookup["candidates"] if candidate.get("failed")]
        print(f"      {lookup['kernel']} {lookup['key']}: {lookup['choice']}, {len(lookup['candidates'])} candidates")
        for words in sorted(set(failed)):
            print(f"          {failed.count(words)} failed: {words}")

    loaded = suite.run(*steps.tests, f"--autotune-load={cache}", NO_MISSES)
    is_right = loaded["status"] == 0 and loaded["counts"].get("hit") == 4 and not loaded["counts"].get("tuned")
    suite.check(f"{steps.name}: load", loaded, is_right)

    verified = suite.run(*steps.tests, f"--autotune-load={cache}", "--autotune-verify", "-v")
    suite.check(f"{steps.name}: verify", verified, verified["status"] == 0, 12)

    suite.edit(steps.edited_file, steps.before, steps.after)
    edited = suite.run(*steps.tests, f"--autotune-load={cache}", NO_MISSES)
    suite.edit(steps.edited_file, steps.after, steps.before)
    reason = f"source changed ({steps.function})"
    stale = [lookup for lookup in edited["lookups"] if lookup["outcome"] == "stale"]
    is_right = edited["status"] != 0 and len(stale) == 2 and all(reason in lookup["reason"] for lookup in stale)
    suite.check(f"{steps.name}: edited kernel", edited, is_right, 10)

    by_workers = suite.run(*steps.tests, "-n4", "--autotune-dump=workers.textproto")
    is_right = by_workers["status"] == 0 and by_workers["counts"].get("tuned") == 4
    suite.check(f"{steps.name}: dump, -n 4", by_workers, is_right)


def run_all(suite: Suite) -> None:
    """Run kernels of Triton, CuTe DSL and cuTile in one cache, with one summary."""
    dumped = suite.run(*ALL, "-n4", "--autotune-dump=all.textproto")
    tuners = {lookup["tuner"] for lookup in dumped["lookups"]}
    is_right = dumped["status"] == 0 and tuners == {"triton", "cute", "cutile", "function"}
    suite.check("Triton, CuTe and cuTile: dump, -n 4", dumped, is_right, 6)
    loaded = suite.run(*ALL, "-n4", "--autotune-load=all.textproto", NO_MISSES)
    is_right = loaded["status"] == 0 and loaded["counts"].get("hit") == dumped["counts"].get("tuned")
    suite.check("Triton, CuTe and cuTile: load, -n 4", loaded, is_right, 6)
    suite.edit(CUTE.edited_file, CUTE.before, CUTE.after)
    suite.edit(CUTILE.edited_file, CUTILE.before, CUTILE.after)
    edited = suite.run(*ALL, "--autotune-load=all.textproto", NO_MISSES)
    suite.check("Triton, CuTe and cuTile: two edited kernels", edited, edited["status"] != 0, 16)
    suite.edit(CUTE.edited_file, CUTE.after, CUTE.before)
    suite.edit(CUTILE.edited_file, CUTILE.after, CUTILE.before)


COMPILE_AHEAD = """
import sys, torch
sys.path.insert(0, ".")
from example_kernels.axpy_cutile import SPACE, axpy_kernel, compile_ahead, ct
x, y, out = (torch.randn(1 << 20, device="cuda") for _ in range(3))
for configuration in SPACE:
    config = configuration.config
    arguments = (x, y, out, 2.0, config["TILE"])
    kernel = compile_ahead(config, arguments)
    if sys.argv[1] == "launch":
        ct.launch(torch.cuda.current_stream(), (ct.cdiv(1 << 20, config["TILE"]),), kernel, arguments)
torch.cuda.synchronize()
"""


def check_compile_ahead(suite: Suite, folder: Path) -> None:
    """Print whether a launch finds in cuTile's cache what ``compile=`` has compiled."""
    rows = []
    for what in ("compile", "launch"):
        environment = {**suite.environment, "CUDA_TILE_CACHE_DIR": str(folder / "ahead")}
        command = [sys.executable, "-c", COMPILE_AHEAD, what]
        done = subprocess.run(command, cwd=suite.folder, env=environment, capture_output=True, text=True)
        if done.returncode:
            print(f"BAD compile ahead: {done.stderr[-2000:]}")
            return
        rows.append(count_rows(folder / "ahead"))
    print(f"    cuTile's cache has {rows[0]} rows after compile_ahead() and {rows[1]} after launches", flush=True)


def count_rows(folder: Path) -> int:
    """Return the number of rows in cuTile's cache on disk."""
    count = 0
    for file in folder.rglob("*.db"):
        with sqlite3.connect(file) as database:
            for (table,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'").fetchall():
                count += database.execute(f'SELECT count(*) FROM "{table}"').fetchone()[0]
    return count


def run_conformance(suite: Suite, folder: Path) -> None:
    """Run the conformance tests of both adapters with the GPU."""
    for name in ("cute", "cutile"):
        copy = folder / f"conformance_{name}"
        shutil.copytree(REPOSITORY / "tests/data" / name, copy)
        (copy / "pytest.ini").write_text("[pytest]\n")
        environment = {**suite.environment, "WITH_GPU": "1"}
        command = [sys.executable, "-m", "pytest", "-q", "-ppytest_autotune.plugin", "-pno:cacheprovider"]
        done = subprocess.run(
            [*command, "test_conformance.py"],
            cwd=copy,
            env=environment,
            capture_output=True,
            text=True,
        )
        output = re.sub(r"\n{2,}", "\n", done.stdout + done.stderr).splitlines()
        print(f"{'ok ' if done.returncode == 0 else 'BAD'} {name}: conformance", flush=True)
        for line in output[-2 if done.returncode == 0 else -60 :]:
            print(f"      {line}")
        suite.has_failed |= done.returncode != 0


def main() -> int:
    wanted = sys.argv[1:] or ["cute", "cutile", "both", "conformance"]
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        suite = Suite(folder)
        if "cute" in wanted:
            run_steps(suite, CUTE)
        if "cutile" in wanted:
            run_steps(suite, CUTILE)
            check_compile_ahead(suite, folder)
        if "both" in wanted:
            run_all(suite)
        if "conformance" in wanted:
            run_conformance(suite, folder)
    return int(suite.has_failed)


if __name__ == "__main__":
    sys.exit(main())
