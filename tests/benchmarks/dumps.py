"""Any suite, unmodified: what a dump takes beside a plain run, and whether other dumps choose the same.

    python tests/benchmarks/dumps.py FOLDER PLAIN_WORKERS WORKERS PYTEST_ARGUMENT...
    python tests/benchmarks/dumps.py ../mamba 0 4 tests/ops/triton/test_ssd.py

Plain and dump begin with empty compile caches. Then, with what the dump has compiled: two fresh dumps, which are
compared, and one more into the file of the second, which should change nothing. With DUMPS_KEEP the caches of
files and of compiled kernels are kept in that folder, and with DUMPS_RUNS only some of the runs are made
(``plain,dump,fresh,fresh-again,again``).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from common import machine, pytest_seconds, table

from pytest_autotune.cache import stores
from pytest_autotune.cache.diff import ChangeKind, compare_caches

RUNS = ("plain", "dump", "fresh", "fresh-again", "again")


def main() -> None:
    folder, plain_workers, workers, args = Path(sys.argv[1]), sys.argv[2], sys.argv[3], sys.argv[4:]
    print(machine("torch", "triton", "pytest-xdist"), flush=True)
    kept = os.environ.get("DUMPS_KEEP")
    place = Path(kept or tempfile.mkdtemp())
    place.mkdir(parents=True, exist_ok=True)
    rows = []
    for run in os.environ.get("DUMPS_RUNS", ",".join(RUNS)).split(","):
        print(run, *(rows := [*rows, _row(run, place, folder, plain_workers, workers, args)])[-1], flush=True)
    table(("run", "wall", "tests", "tuned", "the tunings", "compared"), rows)
    if not kept:
        shutil.rmtree(place)


def _row(run: str, place: Path, folder: Path, plain_workers: str, workers: str, args: list[str]) -> tuple[Any, ...]:
    report = place / f"{run}.json"
    compiled = place / ("compiled-plain" if run == "plain" else "compiled")
    if run in ("plain", "dump"):
        shutil.rmtree(compiled, ignore_errors=True)
    file = place / f"{run}.textproto"
    if run == "again":
        shutil.copy(place / "fresh-again.textproto", file)
    else:
        file.unlink(missing_ok=True)
    report.unlink(missing_ok=True)
    options = ["-pno:autotune"] if run == "plain" else [f"--autotune-dump={file}", f"--autotune-report={report}"]
    number = plain_workers if run == "plain" else workers
    options += [f"-n{number}"] if number != "0" else []
    began = time.perf_counter()
    try:
        seconds, output = pytest_seconds(folder, "-q", *args, *options, TRITON_CACHE_DIR=str(compiled))
    except SystemExit as failed:
        return run, f"{time.perf_counter() - began:.1f} s", str(failed)[-1500:], "", "", ""
    passed = re.findall(r"\d+ passed", output)[-1]
    if not report.exists():
        return run, f"{seconds:.1f} s", passed, "", "", ""
    told = json.loads(report.read_text())
    compared = {"fresh-again": "fresh", "again": "fresh-again"}.get(run)
    text = _compared(place / f"{compared}.textproto", file) if compared else ""
    return run, f"{seconds:.1f} s", passed, told["counts"]["tuned"], f"{told['tuning_seconds']:.1f} s", text


def _compared(old: Path, new: Path) -> str:
    before, after = stores.read_cache(old), stores.read_cache(new)
    found = compare_caches(before, after)
    same = len(set(before.entries) & set(after.entries))
    moved = [change for change in found.changes if change.kind is not ChangeKind.TIME]
    return f"{len(moved)} of {len(after.entries)} choices differ; {same} entries equal"


if __name__ == "__main__":
    main()
