"""A JAX suite on a GPU: plain, dump and load, by one process and by four.

    python tests/benchmarks/jax_suite.py [REPEATS]

"compiling" is what JAX spent in XLA (its own event ``backend_compile_duration``), tuning and this plugin's work
included, summed over the processes: where one compilation waits for another, the waiting too.
"""

from __future__ import annotations

import json
import os
import re
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

spent = []
jax.monitoring.register_event_duration_secs_listener(
    lambda event, seconds, **_: spent.append(seconds) if event.endswith("backend_compile_duration") else None
)

def pytest_unconfigure(config):
    with open(os.environ["SPENT"], "a") as file:
        file.write(f"{sum(spent)}\\n")
"""
ONE_AT_A_TIME = """
from filelock import FileLock
from pytest_autotune.tuners.xla.compilations import CompilationHook

ask = CompilationHook.ask

def ask_alone(self, call):
    # The call's contexts end after the compilation.
    call.enter(FileLock("one_at_a_time.lock", poll_interval=0.02))
    ask(self, call)

CompilationHook.ask = ask_alone
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
        compiling: dict[str, float] = {}
        for run, options in runs.items():
            walls, spents, told = [], [], ""
            for _ in range(REPEATS):
                for option in options:
                    if option.startswith("--autotune-dump="):
                        (folder / option.partition("=")[2]).unlink(missing_ok=True)
                wall, spent, told = measured(folder, run, options)
                walls.append(wall)
                spents.append(spent)
            compiling[run] = median(spents)
            rows.append((run, f"{median(walls):.1f} s", f"{median(spents):.2f} s", told, REPEATS))
            print(rows[-1], file=sys.stderr, flush=True)
        table(("run", "wall", "compiling", "problems", "runs"), rows)
        print(f"\ncompiling, plain / load: {compiling['plain'] / compiling['load']:.2f}")
        compare(folder)


def measured(folder: Path, run: str, options: list[str]) -> tuple[float, float, str]:
    """Wall seconds, seconds in XLA, and the counts of one run."""
    spent, report = folder / "spent.txt", report_of(folder, run)
    spent.unlink(missing_ok=True)
    report.unlink(missing_ok=True)
    if "-pno:autotune" not in options:
        options = [*options, f"--autotune-report={report}"]
    path = os.pathsep.join([".", os.environ.get("PYTHONPATH", "")])
    wall, _ = pytest_seconds(
        folder, "-q", *options, SPENT=str(spent), PYTHONPATH=path, XLA_PYTHON_CLIENT_PREALLOCATE="false"
    )
    seconds = sum(map(float, re.findall(r"\S+", spent.read_text())))
    if not report.exists():
        return wall, seconds, ""
    counts = json.loads(report.read_text())["counts"]
    return wall, seconds, f"{counts['hit']} hits, {counts['tuned']} tuned"


def compare(folder: Path) -> None:
    """How the dumps differ from one of one process, by the times that two of those measured."""
    serial, again = problems(folder, "dump"), problems(folder, "dump, once more")
    rows = []
    for run in DUMPS:
        other = problems(folder, run)
        differing = sum(serial[key].choice != found.choice for key, found in other.items() if key in serial)
        slower = [share_lost(serial[key], again[key], found.choice) for key, found in other.items()]
        known = [share for share in slower if share is not None]
        told = [f"{statistics.mean(known):.1%}", f"{max(known):.1%}"] if known else ["", ""]
        rows.append((run, len(other), serial.keys() == other.keys(), differing, *told, len(known)))
    print()
    head = ("run", "problems", "the same ones", "other choices", "slower than the best, mean", "most", "of")
    table(head, rows)


@dataclass(frozen=True)
class Tuned:
    """What a dump chose for a problem, and the microseconds of each candidate, by its params."""

    choice: str
    times_us: dict[str, float]


def problems(folder: Path, run: str) -> dict[str, Tuned]:
    """What a run tuned, by the problem, from its report."""
    found = {}
    for row in json.loads(report_of(folder, run).read_text())["lookups"]:
        times = {str(one["params"]): one["time_us"] for one in row["candidates"] if one.get("time_us")}
        found[str((row["kernel"], row["key"]))] = Tuned(str(row["choice"]["params"]), times)
    return found


def share_lost(one: Tuned, another: Tuned, choice: str) -> float | None:
    """How much longer a choice takes than the best candidate; None where either dump has no time of it."""
    both = {
        params: time + another.times_us[params] for params, time in one.times_us.items() if params in another.times_us
    }
    return both[choice] / min(both.values()) - 1 if choice in both else None


def report_of(folder: Path, run: str) -> Path:
    return folder / f"{run.replace(' ', '')}.json"


if __name__ == "__main__":
    main()
