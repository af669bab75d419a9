"""Measure a JAX suite on a GPU: plain, dump and load, with one process and with four workers.

    python tests/benchmarks/jax_suite.py [REPEATS]

The script runs the suite in each way REPEATS times (default 3), and prints medians in seconds. "wall" is the whole
pytest process. "compiling" is the time of XLA, by JAX's own event ``backend_compile_duration``, summed over all
processes. It includes tuning, the plugin's work, and the time that a compilation waits for another one.

The second table compares the choices of the dumps with those of the first dump. A choice is "slower than the best" by
the times that the two serial dumps measured together. One of the dumps with four workers compiles one program at a
time: its choices show how much parallel compilations disturb the measurements.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from common import machine, median, pytest_seconds, table

SUITE = """
import jax, jax.numpy as jnp, pytest

EPILOGUES = {"tanh": jnp.tanh, "gelu": jax.nn.gelu, "bias": lambda y: y + 1, "softmax": jax.nn.softmax}
SIZES = [(256, 256, 256), (512, 1024, 256), (1024, 1024, 1024), (2048, 512, 2048)]

@pytest.mark.parametrize("shape", SIZES, ids=str)
@pytest.mark.parametrize("epilogue", EPILOGUES)
def test_dot(epilogue, shape):
    m, k, n = shape
    f = jax.jit(lambda a, b: EPILOGUES[epilogue](a @ b))
    f(jnp.ones((m, k), jnp.bfloat16), jnp.ones((k, n), jnp.bfloat16)).block_until_ready()

@pytest.mark.parametrize("length", [128, 512])
def test_attention(length):
    def attention(q, k, v):
        return jnp.einsum("bqk,bkd->bqd", jax.nn.softmax(jnp.einsum("bqd,bkd->bqk", q, k)), v)
    x = jnp.ones((8, length, 64), jnp.bfloat16)
    jax.jit(attention)(x, x, x).block_until_ready()

@pytest.mark.parametrize("channels", [32, 64])
def test_convolution(channels):
    f = jax.jit(lambda x, w: jax.nn.relu(jax.lax.conv(x, w, (1, 1), "SAME")))
    x, w = jnp.ones((8, channels, 32, 32), jnp.float16), jnp.ones((channels, channels, 3, 3), jnp.float16)
    f(x, w).block_until_ready()
"""
CONFTEST = """
import os, jax

compile_times_s = []

def note_compilation(event, seconds, **metadata):
    if event.endswith("backend_compile_duration"):
        compile_times_s.append(seconds)

jax.monitoring.register_event_duration_secs_listener(note_compilation)

def pytest_unconfigure(config):
    with open(os.environ["COMPILE_TIMES"], "a") as file:
        file.write(f"{sum(compile_times_s)}\\n")
"""
ONE_AT_A_TIME = """
from filelock import FileLock
from pytest_autotune.tuners.xla.compilations import CompilationHook

ask = CompilationHook.ask

def ask_with_lock(self, call):
    # The lock is released after the compilation.
    call.enter(FileLock("one_at_a_time.lock", poll_interval=0.02))
    return ask(self, call)

CompilationHook.ask = ask_with_lock
"""
DUMPS = ["dump", "dump, once more", "dump, -n 4", "dump, -n 4, one compilation at a time"]
REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 3


def main() -> None:
    print(machine("jax", "jaxlib", "pytest-xdist"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_jax.py").write_text(SUITE)
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "one_at_a_time.py").write_text(ONE_AT_A_TIME)
        runs = {
            "plain": ["-pno:autotune"],
            "dump": ["--autotune-dump=serial.textproto"],
            "dump, once more": ["--autotune-dump=again.textproto"],
            "load": ["--autotune-load=serial.textproto", "--autotune-max-misses=0"],
            "plain, -n 4": ["-pno:autotune", "-n4"],
            "dump, -n 4": ["-n4", "--autotune-dump=sharded.textproto"],
            "dump, -n 4, one compilation at a time": ["-n4", "-pone_at_a_time", "--autotune-dump=alone.textproto"],
            "load, -n 4": ["-n4", "--autotune-load=serial.textproto", "--autotune-max-misses=0"],
        }
        rows = []
        compiling_s: dict[str, float] = {}
        for run, options in runs.items():
            timings = []
            for _ in range(REPEATS):
                remove_dump(folder, options)
                timings.append(run_suite(folder, run, options))
            wall_s = median([timing.wall_s for timing in timings])
            compiling_s[run] = median([timing.compiling_s for timing in timings])
            rows.append((run, f"{wall_s:.1f} s", f"{compiling_s[run]:.2f} s", timings[-1].counts, REPEATS))
            print(rows[-1], file=sys.stderr, flush=True)
        table(("run", "wall", "compiling", "problems", "runs"), rows)
        print(f"\ncompiling, plain / load: {compiling_s['plain'] / compiling_s['load']:.2f}")
        compare_choices(folder)


def remove_dump(folder: Path, options: list[str]) -> None:
    """Remove the file that a run with these options dumps, so that the run tunes everything again."""
    for option in options:
        if option.startswith("--autotune-dump="):
            (folder / option.partition("=")[2]).unlink(missing_ok=True)


@dataclass(frozen=True)
class Timing:
    """The times of one run.

    :param counts: words for the counts of its report; empty for a run without the plugin.
    """

    wall_s: float
    compiling_s: float
    counts: str


def run_suite(folder: Path, run: str, options: list[str]) -> Timing:
    """Run the suite once, and leave its JSON report."""
    times_file, report = folder / "compile_times.txt", report_path(folder, run)
    times_file.unlink(missing_ok=True)
    report.unlink(missing_ok=True)
    if "-pno:autotune" not in options:
        options = [*options, f"--autotune-report={report}"]
    environment = {
        "COMPILE_TIMES": str(times_file),
        "PYTHONPATH": os.pathsep.join([".", os.environ.get("PYTHONPATH", "")]),
        "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
    }
    wall_s, _ = pytest_seconds(folder, "-q", *options, **environment)
    # Each process has written a line.
    compiling_s = sum(float(line) for line in times_file.read_text().split())
    if not report.exists():
        return Timing(wall_s, compiling_s, "")
    counts = json.loads(report.read_text())["counts"]
    return Timing(wall_s, compiling_s, f"{counts['hit']} hits, {counts['tuned']} tuned")


def compare_choices(folder: Path) -> None:
    """Print how the choices of each dump differ from those of the first one."""
    serial, repeated = read_tunings(folder, "dump"), read_tunings(folder, "dump, once more")
    rows = []
    for run in DUMPS:
        tunings = read_tunings(folder, run)
        differing_count = 0
        slowdowns = []
        for problem, tuning in tunings.items():
            if problem in serial and serial[problem].choice != tuning.choice:
                differing_count += 1
            slowdown = compute_slowdown(serial[problem], repeated[problem], tuning.choice)
            if slowdown is not None:
                slowdowns.append(slowdown)
        worst = ["", ""]
        if slowdowns:
            worst = [f"{statistics.mean(slowdowns):.1%}", f"{max(slowdowns):.1%}"]
        rows.append((run, len(tunings), serial.keys() == tunings.keys(), differing_count, *worst, len(slowdowns)))
    print()
    head = ("run", "problems", "the same ones", "other choices", "slower than the best, mean", "most", "of")
    table(head, rows)


@dataclass(frozen=True)
class TunedProblem:
    """The choice of a dump for one problem, and the microseconds of each candidate by its params."""

    choice: str
    times_us: dict[str, float]


def read_tunings(folder: Path, run: str) -> dict[str, TunedProblem]:
    """Return the problems that a run tuned, from its report."""
    tunings = {}
    for row in json.loads(report_path(folder, run).read_text())["lookups"]:
        times_us = {}
        for candidate in row["candidates"]:
            if candidate.get("time_us"):
                times_us[str(candidate["params"])] = candidate["time_us"]
        tunings[str((row["kernel"], row["key"]))] = TunedProblem(str(row["choice"]["params"]), times_us)
    return tunings


def compute_slowdown(first: TunedProblem, second: TunedProblem, choice: str) -> float | None:
    """Return by which share a choice is slower than the best candidate, by the times of two dumps together.

    :returns: None if one of the dumps has no time of the choice.
    """
    sums_us = {}
    for params, time_us in first.times_us.items():
        if params in second.times_us:
            sums_us[params] = time_us + second.times_us[params]
    if choice not in sums_us:
        return None
    return sums_us[choice] / min(sums_us.values()) - 1


def report_path(folder: Path, run: str) -> Path:
    """Return the path of a run's JSON report."""
    return folder / f"{run.replace(' ', '')}.json"


if __name__ == "__main__":
    main()
