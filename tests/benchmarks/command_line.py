"""How long the command takes on large caches: ``python tests/benchmarks/command_line.py [repetitions]``.

Of two binary caches of which every tenth entry differs; start-up, reading and writing included.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

from common import machine, median, table

from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.cache.stores import open_store

REPETITIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 3
DEVICES = [Device("NVIDIA H200", "sm_90", 132), Device("AMD Instinct MI300X", "gfx942", 304)]
COUNTS = (1_000, 10_000, 100_000)


def some_entries(count: int) -> list[Entry]:
    """Entries as Triton's tuner gives them."""
    chance = random.Random(1)
    entries = []
    for number in range(count):
        sizes = {"M": 64 * (number % 400), "N": 64 * (number // 400 % 400), "K": 64 * (number // 160_000)}
        key = [Value(name, size) for name, size in sizes.items()]
        key += [Value(f"{name}_ptr.dtype", chance.choice(["fp16", "bf16"]), "dtype") for name in "ab"]
        params = {
            "BLOCK_M": chance.choice([32, 64, 128]),
            "BLOCK_N": 64,
            "BLOCK_K": 32,
            "num_warps": 4,
            "num_stages": 3,
        }
        problem = Problem("triton", f"lib.ops.kernel_{number % 40}", tuple(key), DEVICES[number % 2])
        entries.append(
            Entry(
                problem,
                (Value("search", "c0ffee123456", "digest"), Value("source", f"{number % 40:012x}", "digest")),
                Candidate(
                    params=tuple(Value(*one) for one in params.items()), time_us=round(chance.uniform(5, 900), 3)
                ),
                tuning_seconds=round(chance.uniform(0.5, 20), 2),
                versions=Versions.parse("triton 3.6.0, torch 2.11.0, cuda 13.0"),
            )
        )
    return entries


def with_changes(entries: list[Entry]) -> list[Entry]:
    """Every tenth with another choice."""
    faster = Candidate(params=(Value("BLOCK_M", 16),), time_us=1.0)
    return [replace(entry, choice=faster) if number % 10 == 0 else entry for number, entry in enumerate(entries)]


def seconds(folder: Path, *arguments: str) -> tuple[float, float]:
    """What a command takes: wall time, and its own time on the processor."""
    before = os.times()
    started = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "pytest_autotune.cli", *arguments], cwd=folder, stdout=subprocess.DEVNULL
    )
    wall = time.perf_counter() - started
    after = os.times()
    assert done.returncode == 0
    used = after.children_user + after.children_system - before.children_user - before.children_system
    return wall, used


def main() -> None:
    print(machine("click"))
    commands = {
        "show": ("show", "old.pb"),
        "diff": ("diff", "old.pb", "new.pb"),
        "merge": ("merge", "old.pb", "new.pb", "-o", "out.pb"),
        "check": ("check", "old.pb"),
        "git-merge": ("git-merge", "old.pb", "ours.pb", "new.pb", "x.pb"),
        "show --help": ("show", "--help"),
    }
    measured: dict[str, list[str]] = {name: [] for name in commands}
    for count in COUNTS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            entries = some_entries(count)
            for path, held in (("old.pb", entries), ("new.pb", with_changes(entries))):
                with open_store(folder / path).open_for_update() as opened:
                    opened.write(Cache(tuple(held)))
            for command, arguments in commands.items():
                times = []
                for _ in range(REPETITIONS):
                    (folder / "out.pb").unlink(missing_ok=True)
                    (folder / "ours.pb").write_bytes((folder / "old.pb").read_bytes())
                    times.append(seconds(folder, *arguments))
                wall, used = (median(column) for column in zip(*times, strict=True))
                measured[command].append(f"{wall:.2f} s ({used:.2f})")
    table(
        ["wall time (on the processor)", *(f"{count:,} entries" for count in COUNTS)],
        [[f"`{command}`", *row] for command, row in measured.items()],
    )


if __name__ == "__main__":
    main()
