"""Print the machine, print tables, and time pytest runs, for all benchmark scripts."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

REPOSITORY = Path(__file__).parent.parent.parent


def machine(*packages: str) -> str:
    """Return one line with the processor, the GPUs, and the versions of Python, pytest and these packages."""
    gpus = "".join(f", {name}" for name in _list_gpus())
    versions = [f"Python {platform.python_version()}"]
    for package in ("pytest", *packages):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    return f"{_find_cpu_name()}, {len(os.sched_getaffinity(0))} cores{gpus}; {', '.join(versions)}"


def _find_cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.machine()
    for line in lines:
        if line.startswith("model name"):
            return line.split(":")[1].strip()
    return platform.machine()


def _list_gpus() -> list[str]:
    command = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        return []


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def median(values: Sequence[float]) -> float:
    """Return the median of the values."""
    return statistics.median(values)


def pytest_seconds(folder: Path, *args: str, **environment: str) -> tuple[float, str]:
    """Run pytest in a new process. Return its wall time in seconds, and its output.

    :raises SystemExit: if the run failed; its time means nothing.
    """
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *args],
        cwd=folder,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    seconds = time.perf_counter() - started
    if done.returncode != 0:
        sys.exit(f"pytest {' '.join(args)} ended with {done.returncode}:\n{done.stdout[-3000:]}\n{done.stderr[-2000:]}")
    return seconds, done.stdout
