"""What the benchmark scripts share: where they ran, and tables."""

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
    """One line that says what the figures were measured on."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        cpu = next(line.split(":")[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        cpu = platform.machine()
    try:
        gpu = subprocess.run(
            ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"], capture_output=True, text=True, check=True
        ).stdout.splitlines()
    except (OSError, subprocess.CalledProcessError):
        gpu = []
    versions = [f"Python {platform.python_version()}"]
    for package in ("pytest", *packages):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"no {package}")
    devices = "".join(f", {name}" for name in gpu)
    return f"{cpu}, {len(os.sched_getaffinity(0))} cores{devices}; {', '.join(versions)}"


def table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a Markdown table."""
    print("| " + " | ".join(head) + " |")
    print("|" + " --- |" * len(head))
    for row in rows:
        print("| " + " | ".join(str(cell) for cell in row) + " |", flush=True)


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def pytest_seconds(folder: Path, *args: str, **environment: str) -> tuple[float, str]:
    """The wall time of a pytest run as a process of its own, and what it printed.

    :raises SystemExit: when the run did not pass; a figure of a failed run means nothing.
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
