"""Measure a load with an empty compile cache, with and without compiling ahead, and with a full compile cache.

    python tests/benchmarks/compile_ahead.py [--seconds=N] [--runs=0,4,0@2,2@2] NAME=FOLDER[:ARGUMENT,...]
    python tests/benchmarks/compile_ahead.py --seconds=600 --cache=liger=liger.textproto \\
        liger=../Liger-Kernel:test/transformers/test_dyt.py,test/transformers/test_fused_moe.py

Each item of ``--runs`` is the number of workers (0: serial) and, after ``@``, the number of cores for the run.

1. The script reads the libraries once and collects each suite once. On a fresh machine the first read of these files
   may take longer than compiling ahead saves.
2. For each suite, a dump writes the choices and the specializations that they are compiled for. With
   ``--cache=NAME=FILE`` the dump begins with this file. ``--as-it-is`` leaves the dump out; the file must then have the
   specializations.
3. For each item of ``--runs``, three loads, each a new process: without compiling ahead (`off`), with it (`on`), and
   with the compile cache that `on` has filled (`full`). `off` and `on` begin with empty compile caches of Triton and
   Inductor. In every second round `on` comes before `off`.

The script prints a line before and after each run. The second has the seconds of the process and of pytest, and the
report of compiling ahead. After ``--seconds`` the script ends the current run and begins no other. The last table has
the lowest times of all rounds.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import machine, table

from pytest_autotune.cache.codec import Format, decode

ARMS = ("off", "on", "full")


@dataclass
class _Run:
    """One way to run a suite, with the seconds of its arms and the report of compiling ahead."""

    workers: int
    cores: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {arm: [] for arm in ARMS})
    ahead_report: dict[str, Any] = field(default_factory=dict)
    tests: str = ""

    @property
    def title(self) -> str:
        return ("serial" if not self.workers else f"-n {self.workers}") + (f", {self.cores} cores" * bool(self.cores))


class _Suite:
    def __init__(self, text: str, place: Path) -> None:
        self.title, _, rest = text.partition("=")
        folder, _, arguments = rest.partition(":")
        self.folder = Path(folder)
        self.args = [argument for argument in arguments.split(",") if argument]
        self.place = place / self.title
        self.cache = self.place / "cache.textproto"
        self.added = ""


class _Benchmark:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._over_at = time.monotonic() + options.seconds
        self._started = time.monotonic()

    def say(self, text: str) -> None:
        print(f"[{time.monotonic() - self._started:6.1f} s] {text}", flush=True)

    def pytest(self, suite: _Suite, *args: str, compiled: Path, cores: int = 0) -> tuple[float, str] | None:
        """Run pytest, and return its wall time and output; None if it failed or ran out of time."""
        remaining_s = self._over_at - time.monotonic()
        if remaining_s <= 0:
            return None
        environment = {"TRITON_CACHE_DIR": str(compiled / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(compiled / "ind")}
        command = [sys.executable, "-m", "pytest", "-q", *suite.args, *args]
        if cores:
            numbers = sorted(os.sched_getaffinity(0))[:cores]
            command = ["taskset", "-c", ",".join(map(str, numbers)), *command]
        started = time.perf_counter()
        with tempfile.TemporaryFile("w+") as output:
            process = subprocess.Popen(
                command,
                cwd=suite.folder,
                env={**os.environ, **environment},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                process.wait(timeout=remaining_s)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                self.say(f"ended after {time.perf_counter() - started:.1f} s: no time left")
                return None
            seconds = time.perf_counter() - started
            output.seek(0)
            text = output.read()
        if process.returncode != 0:
            self.say(f"FAILED with {process.returncode}: {' '.join(command)}\n{text[-3000:]}")
            return None
        return seconds, text

    def read_libraries(self) -> None:
        """Read the files of the libraries that the tests load, for a minute at most."""
        give_up_at = min(time.monotonic() + 60, self._over_at)
        started, read = time.monotonic(), 0
        for name in ("torch", "triton", "nvidia"):
            spec = importlib.util.find_spec(name)
            for place in (spec.submodule_search_locations or ()) if spec else ():
                for path in sorted(Path(place).rglob("*.so*")):
                    with suppress(OSError), path.open("rb") as file:
                        while time.monotonic() < give_up_at and (part := file.read(1 << 24)):
                            read += len(part)
        self.say(f"read {read / 1e9:.1f} GB of libraries in {time.monotonic() - started:.1f} s")

    def make_cache(self, suite: _Suite) -> bool:
        """Write a cache with the specializations of its choices, and return whether this worked."""
        suite.place.mkdir()
        loaded_file = dict(option.split("=", 1) for option in self._options.cache).get(suite.title)
        if loaded_file:
            shutil.copy(loaded_file, suite.cache)
        if not loaded_file or not self._options.as_it_is:
            self.say(f"{suite.title}: dump{' of what was loaded' * bool(loaded_file)} ...")
            load = [f"--autotune-load={suite.cache}"] if loaded_file else []
            options = [f"-n{self._options.dump_workers}"]
            if not self.pytest(suite, *load, f"--autotune-dump={suite.cache}", *options, compiled=suite.place / "dump"):
                return False
        text = suite.cache.read_text()
        lines = [line for line in text.splitlines() if line.startswith("  compiled: ")]
        added = sum(len(line) + 1 for line in lines)
        suite.added = f"+{added / (len(text) - added):.1%}"
        texts = sum(len(entry.compiled) for entry in decode(text.encode(), Format.TEXT, str(suite.cache)).entries)
        self.say(f"{suite.title}: {text.count('entries {')} entries with {texts} texts; the file grew {suite.added}")
        return self.pytest(suite, "--collect-only", compiled=suite.place / "dump") is not None

    def arm(self, suite: _Suite, run: _Run, arm: str, compiled: Path) -> None:
        report = suite.place / "report.json"
        report.unlink(missing_ok=True)
        options = [f"--autotune-load={suite.cache}", f"--autotune-report={report}", f"-n{run.workers}"]
        options.append(f"-oautotune_compile_ahead={'off' if arm == 'off' else 'on'}")
        self.say(f"{suite.title}, {run.title}, {arm} ...")
        done = self.pytest(suite, *options, "-v", compiled=compiled, cores=run.cores)
        if done is None:
            return
        seconds, output = done
        mapping = json.loads(report.read_text())
        ahead = mapping.get("compiled_ahead", {})  # absent without compiling ahead
        run.seconds[arm].append(seconds)
        if arm == "on":
            run.ahead_report = ahead
        ended = next((line for line in reversed(output.splitlines()) if " passed" in line), "")
        run.tests = ended.strip("= ").split(" in ")[0] or run.tests
        of_pytest = re.search(r" in ([\d.]+)s", ended)
        counts = {name: number for name, number in mapping["counts"].items() if number}
        self.say(
            f"{suite.title}, {run.title}, {arm}: {seconds:.1f} s, pytest alone {of_pytest[1] if of_pytest else '?'} s; "
            f"{counts}; {_describe_ahead(ahead)}{''.join(f'; {note}' for note in mapping['notes'])}"
        )

    def measure(self, suite: _Suite, run: _Run) -> None:
        for number in range(self._options.rounds):
            for arm in ("on", "off", "full") if number % 2 else ("off", "on", "full"):
                name = f"{run.workers}-{run.cores}-{number}-{'on' if arm == 'full' else arm}"
                self.arm(suite, run, arm, suite.place / name)


def _describe_ahead(ahead: Mapping[str, Any]) -> str:
    """Return the fields of a report about compiling ahead, in words."""
    return ", ".join(f"{name.replace('_', ' ')} {json.dumps(value)}" for name, value in ahead.items() if value)


def _row(suite: _Suite, run: _Run) -> tuple[str, ...]:
    best = {arm: min(run.seconds[arm], default=None) for arm in ARMS}
    off, on, full = (best[arm] for arm in ARMS)
    return (
        suite.title,
        run.title,
        run.tests,
        *("" if best[arm] is None else f"{best[arm]:.1f} s" for arm in ARMS),
        f"{on / full:.2f}" if on and full else "",
        f"{on / off:.2f}" if on and off else "",
        _describe_ahead(run.ahead_report),
        suite.added,
    )


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--runs", default="0,4,0@2,2@2")
    parser.add_argument("--dump-workers", default="4")
    parser.add_argument("--cache", action="append", default=[])
    parser.add_argument("--as-it-is", action="store_true")
    options = parser.parse_args()
    print(machine("torch", "triton", "pytest-xdist"), flush=True)
    benchmark = _Benchmark(options)
    benchmark.read_libraries()
    rows = []
    with tempfile.TemporaryDirectory() as name:
        for text in options.suites:
            suite = _Suite(text, Path(name))
            if not benchmark.make_cache(suite):
                continue
            for item in options.runs.split(","):
                workers, _, cores = item.partition("@")
                run = _Run(int(workers), int(cores or 0))
                benchmark.measure(suite, run)
                rows.append(_row(suite, run))
                print(rows[-1], flush=True)
    head = ("suite", "run", "tests", "cold, off", "cold, on", "full", "on / full", "on / off", "compiled", "file")
    table(head, rows)


if __name__ == "__main__":
    sys.exit(main())
