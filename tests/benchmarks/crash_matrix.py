"""Tunings that had finished, and those in the file, for each fault and place.

    python tests/benchmarks/crash_matrix.py

It runs the suite of tests/acceptance/test_crashes.py with two workers.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

from common import REPOSITORY, machine, table

sys.path.insert(0, str(REPOSITORY))

from tests.acceptance.test_crashes import CRASHING, PLACES
from tests.conftest import TOY_TUNER

FAULTS = {
    "kill -9 of a worker": ("kill", []),
    "os._exit in a worker": ("exit", []),
    "kill -9, --max-worker-restart=0": ("kill", ["--max-worker-restart=0"]),
    "error, -x": ("error", ["-x"]),
    "Ctrl-C": ("interrupt", []),
}


def run(fault: str, place: str, args: list[str]) -> tuple[int, int]:
    """How many tunings had finished, and how many of them are in the file."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "conftest.py").write_text(TOY_TUNER)
        (folder / "test_crashing.py").write_text(textwrap.dedent(CRASHING))
        command = [sys.executable, "-m", "pytest", "-q", "-ppytest_autotune.plugin", "-pxdist", "-n2"]
        subprocess.run(
            [*command, "--autotune-dump=cache.textproto", *args],
            cwd=folder,
            env={
                **os.environ,
                "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
                "TOY_LOG": str(folder / "log"),
                "FAULT": fault,
                "PLACE": place,
            },
            capture_output=True,
            start_new_session=True,
        )
        finished = set((folder / "finished").read_text().split())
        cache = folder / "cache.textproto"
        written = set(re.findall(r'kernel: "([^"]*)"', cache.read_text())) if cache.exists() else set()
        return len(finished), len(finished & written)


def main() -> None:
    print(machine("pytest-xdist"))
    rows = []
    for label, (fault, args) in FAULTS.items():
        cells = [run(fault, place, args) for place in PLACES]
        rows.append((label, *(f"{finished} / {written}" for finished, written in cells)))
    table(("fault: finished / in the file", *PLACES), rows)


if __name__ == "__main__":
    main()
