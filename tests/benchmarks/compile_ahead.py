"""A load with an empty compile cache, with and without compiling ahead, and with a full one.

    python tests/benchmarks/compile_ahead.py [--seconds=N] [--runs=0,4,0@2,2@2] NAME=FOLDER[:ARGUMENT,...]
    python tests/benchmarks/compile_ahead.py --seconds=600 --cache=liger=liger.textproto \\
        liger=../Liger-Kernel:test/transformers/test_dyt.py,test/transformers/test_fused_moe.py

``--runs`` has the number of workers (0: serial) and, after ``@``, to how many cores the run is restricted. For each
suite: a dump, which also adds to the cache what its choices are compiled for; then, for each of the runs, a load
without compiling ahead (`off`), one with it (`on`), and one with what that one has compiled (`full`). In every other
round `on` comes before `off`. Every arm has a compile cache of its own, of Triton and of Inductor, and every load is a
process of its own. ``--cache=NAME=FILE`` spares a suite the dump: the file is loaded, and a copy of it dumped, unless
``--as-it-is`` says that it knows what its choices were compiled for. Before the first arm the
libraries are read and the suite is collected once, so that no arm pays for files that nobody has read yet: on a
fresh machine that may be more than what compiling ahead gains.

A line says what is about to run, one what it took: the process, pytest alone, and what was compiled ahead. After
``--seconds`` nothing is begun any more, what runs is ended, and the table, which comes last, has what there is: of
several rounds the best.
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
    """One way to run a suite, and what its arms took."""

    workers: int
    cores: int
    seconds: dict[str, list[float]] = field(default_factory=lambda: {arm: [] for arm in ARMS})
    told: dict[str, Any] = field(default_factory=dict)
    tests: str = ""

    @property
    def title(self) -> str:
        return ("serial" if not self.workers else f"-n {self.workers}") + (f", {self.cores} cores" * bool(self.cores))


class _Suite:
    def __init__(self, text: str, place: Path) -> None:
        self.title, _, rest = text.partition("=")
        folder, _, arguments = rest.partition(":")
        self.folder = Path(folder)
        self.args = [one for one in arguments.split(",") if one]
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
        """The wall time of a run, and what it printed; None where it failed or there was no time for it."""
        left = self._over_at - time.monotonic()
        if left <= 0:
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
                process.wait(timeout=left)
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
        """Read what the tests load, at most for a minute."""
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
        """Have a cache that says what its choices were compiled for."""
        suite.place.mkdir()
        given = dict(one.split("=", 1) for one in self._options.cache).get(suite.title)
        if given:
            shutil.copy(given, suite.cache)
        if not given or not self._options.as_it_is:
            self.say(f"{suite.title}: dump{' of what was loaded' * bool(given)} ...")
            load = [f"--autotune-load={suite.cache}"] if given else []
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
        ahead = mapping.get("compiled_ahead", {})  # none where it is off
        run.seconds[arm].append(seconds)
        if arm == "on":
            run.told = ahead
        ended = next((line for line in reversed(output.splitlines()) if " passed" in line), "")
        run.tests = ended.strip("= ").split(" in ")[0] or run.tests
        of_pytest = re.search(r" in ([\d.]+)s", ended)
        counts = {name: number for name, number in mapping["counts"].items() if number}
        self.say(
            f"{suite.title}, {run.title}, {arm}: {seconds:.1f} s, pytest alone {of_pytest[1] if of_pytest else '?'} s; "
            f"{counts}; {_told(ahead)}{''.join(f'; {note}' for note in mapping['notes'])}"
        )

    def measure(self, suite: _Suite, run: _Run) -> None:
        for number in range(self._options.rounds):
            for arm in ("on", "off", "full") if number % 2 else ("off", "on", "full"):
                name = f"{run.workers}-{run.cores}-{number}-{'on' if arm == 'full' else arm}"
                self.arm(suite, run, arm, suite.place / name)


def _told(ahead: Mapping[str, Any]) -> str:
    """All that a report says of what was compiled ahead."""
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
        _told(run.told),
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
            for one in options.runs.split(","):
                workers, _, cores = one.partition("@")
                run = _Run(int(workers), int(cores or 0))
                benchmark.measure(suite, run)
                rows.append(_row(suite, run))
                print(rows[-1], flush=True)
    head = ("suite", "run", "tests", "cold, off", "cold, on", "full", "on / full", "on / off", "compiled", "file")
    table(head, rows)


if __name__ == "__main__":
    sys.exit(main())
