"""Merging what 64 workers have recorded, 2,000 records each.

python tests/benchmarks/merging.py
"""

from __future__ import annotations

import random
import time
import tracemalloc

from common import machine, median, table

from pytest_autotune.cache.merge import merge_run
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.cache.ties import MeasuredEntry

WORKERS = 64
GPU = Device("NVIDIA H200", "sm_90", 132)


def record(number: int, rng: random.Random) -> Entry:
    key = tuple(Value(name, number + 16 * i) for i, name in enumerate("MNKB"))
    key += (Value("a.dtype", "fp16", "dtype"), Value("b.dtype", "fp16", "dtype"))
    candidates = tuple(
        Candidate(params=(Value("BLOCK", 16 * i), Value("num_warps", 4)), time_us=rng.uniform(9, 12)) for i in range(8)
    )
    best = min(candidates, key=lambda one: one.time_us or 0.0)
    problem = Problem("triton", f"lib.kernel_{number % 40}", key, GPU)
    fingerprint = (Value("source", "0123456789ab", "digest"), Value("search", "ba9876543210", "digest"))
    return Entry(problem, fingerprint, best, candidates, tuning_seconds=1.0, versions=Versions.parse("triton 3.6.0"))


def records(each: int) -> list[MeasuredEntry]:
    rng = random.Random(1)
    return [MeasuredEntry(record(number, rng), f"gw{worker}") for worker in range(WORKERS) for number in range(each)]


def main() -> None:
    print(machine())
    rows = []
    for each in (500, 1000, 2000):
        measured = records(each)
        seconds = []
        for _ in range(3):
            started = time.perf_counter()
            merged = merge_run(Cache(), measured)
            seconds.append(time.perf_counter() - started)
        tracemalloc.start()
        merge_run(Cache(), measured)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        rows.append(
            (f"{WORKERS} x {each:,}", len(merged.cache.entries), f"{median(seconds):.2f} s", f"{peak / 2**20:.0f} MiB")
        )
    table(("records", "problems", "merge, median of 3", "peak memory of the merge"), rows)


if __name__ == "__main__":
    main()
