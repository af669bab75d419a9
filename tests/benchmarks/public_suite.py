"""Any suite, unmodified: plain, dump and load, with an empty compile cache in every run.

python tests/benchmarks/public_suite.py FOLDER PYTEST_ARGUMENT...
python tests/benchmarks/public_suite.py ../mamba tests/ops/triton/test_ssd.py
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from common import machine, pytest_seconds, table


def main() -> None:
    folder, args = Path(sys.argv[1]), sys.argv[2:]
    print(machine("torch", "triton", "pytest-xdist"))
    rows = []
    with tempfile.TemporaryDirectory() as name:
        cache, report = Path(name) / "cache.textproto", Path(name) / "report.json"
        runs = {
            "plain": ["-pno:autotune"],
            "dump": [f"--autotune-dump={cache}", f"--autotune-report={report}"],
            "load": [f"--autotune-load={cache}", "--autotune-max-misses=0", f"--autotune-report={report}"],
        }
        for run, options in runs.items():
            report.unlink(missing_ok=True)
            compiled = Path(name) / f"compiled-{run}"
            seconds, output = pytest_seconds(folder, "-q", *args, *options, TRITON_CACHE_DIR=str(compiled))
            passed = re.findall(r"\d+ passed", output)[-1]
            told = json.loads(report.read_text()) if report.exists() else None
            counts = f"{told['counts']['hit']} hits, {told['counts']['tuned']} tuned" if told else ""
            rows.append((run, f"{seconds:.1f} s", passed, counts, f"{told['tuning_seconds']:.1f} s" if told else ""))
            print(rows[-1], flush=True)
    table(("run", "wall", "tests", "problems", "tuning_seconds"), rows)


if __name__ == "__main__":
    main()
