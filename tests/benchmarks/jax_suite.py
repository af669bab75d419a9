"""A JAX suite on a GPU: plain, dump and load, by one process and by four.

    python tests/benchmarks/jax_suite.py [REPEATS]

"compiling" is what JAX spent in XLA (its own event ``backend_compile_duration``), tuning and this plugin's work
included, summed over the processes: with the GPU lock it holds the waiting for it.
"""

from __future__ import annotations

import json
import re
import sys
import tempfile
from pathlib import Path

from common import machine, median, pytest_seconds, table

from pytest_autotune.cache import stores
from pytest_autotune.cache.model import Entry, Value

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
WITHOUT_LOCK = """
from contextlib import nullcontext
from pytest_autotune.run.coordination import GpuLock
GpuLock.measuring = lambda self, gpu_uuid="": nullcontext(True)
"""
REPEATS = int(sys.argv[1]) if len(sys.argv) > 1 else 3


def main() -> None:
    print(machine("jax", "jaxlib", "pytest-xdist"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_jax.py").write_text(SUITE)
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "without_lock.py").write_text(WITHOUT_LOCK)
        runs = {
            "plain": ["-pno:autotune"],
            "dump": ["--autotune-dump=serial.textproto"],
            "dump, once more": ["--autotune-dump=again.textproto"],
            "load": ["--autotune-load=serial.textproto", "--autotune-max-misses=0"],
            "plain, -n 4": ["-pno:autotune", "-n4"],
            "dump, -n 4": ["-n4", "--autotune-dump=sharded.textproto"],
            "dump, -n 4, without the GPU lock": ["-n4", "-pwithout_lock", "--autotune-dump=unlocked.textproto"],
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
                wall, spent, told = measured(folder, options)
                walls.append(wall)
                spents.append(spent)
            compiling[run] = median(spents)
            rows.append((run, f"{median(walls):.1f} s", f"{median(spents):.2f} s", told, REPEATS))
            print(rows[-1], file=sys.stderr, flush=True)
        table(("run", "wall", "compiling", "problems", "runs"), rows)
        print(f"\ncompiling, plain / load: {compiling['plain'] / compiling['load']:.2f}")
        compare(folder)


def measured(folder: Path, options: list[str]) -> tuple[float, float, str]:
    """Wall seconds, seconds in XLA, and the counts of one run."""
    spent, report = folder / "spent.txt", folder / "report.json"
    spent.unlink(missing_ok=True)
    report.unlink(missing_ok=True)
    if "-pno:autotune" not in options:
        options = [*options, f"--autotune-report={report}"]
    wall, _ = pytest_seconds(
        folder, "-q", *options, SPENT=str(spent), PYTHONPATH=".", XLA_PYTHON_CLIENT_PREALLOCATE="false"
    )
    seconds = sum(map(float, re.findall(r"\S+", spent.read_text())))
    if not report.exists():
        return wall, seconds, ""
    counts = json.loads(report.read_text())["counts"]
    return wall, seconds, f"{counts['hit']} hits, {counts['tuned']} tuned"


def compare(folder: Path) -> None:
    """How other dumps differ from that of one process, by the times that it measured."""
    serial = {entry.sort_key: entry for entry in stores.read(folder / "serial.textproto").entries}
    rows = []
    for name in ("again", "sharded", "unlocked"):
        other = {entry.sort_key: entry for entry in stores.read(folder / f"{name}.textproto").entries}
        both = [(serial[key], other[key]) for key in serial.keys() & other.keys()]
        differing = sum(choice(one) != choice(another) for one, another in both)
        slower = [share for one, another in both if (share := share_lost(one, another)) is not None]
        told = [f"{sum(slower) / len(slower):.1%}", f"{max(slower):.1%}"] if slower else ["", ""]
        rows.append((name, len(other), serial.keys() == other.keys(), differing, *told))
    print()
    table(("dump", "entries", "keys of the serial dump", "other choices", "slower, mean", "slower, most"), rows)


def choice(entry: Entry) -> tuple[Value, ...]:
    return entry.choice.params if entry.choice else ()


def share_lost(serial: Entry, other: Entry) -> float | None:
    """How much longer another dump's choice takes than the best one; None where the serial dump has no time of it."""
    times = {candidate.params: candidate.time_us for candidate in serial.candidates if candidate.time_us}
    time = times.get(choice(other))
    return time / min(times.values()) - 1 if time else None


if __name__ == "__main__":
    main()
