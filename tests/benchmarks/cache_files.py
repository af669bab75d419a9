"""Measure how long caches take to read, to write and to look up.

    python tests/benchmarks/cache_files.py [REPETITIONS]

1. For each format: read and write caches of 1,000 and of 10,000 entries (seconds).
2. Look up a hit (microseconds) and a miss (milliseconds) among 10,000 entries of one kernel.
3. Find the nearest entry for 1,000 misses of a kernel with 1,000 entries (seconds for all).

A figure is the lowest processor time of the repetitions (default 5), because other processes of the machine disturb
this time least. A line ends in a target; MORE marks a figure above it. The exit status is always 0.
"""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Sequence
from typing import Protocol

from common import machine

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value, Versions
from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.nearest import explain_miss

REPETITIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
DEVICES = [Device("NVIDIA H200", "sm_90", 132), Device("AMD Instinct MI300X", "gfx942", 304)]
KERNELS = [f"lib.ops.kernel_{number}" for number in range(40)]
SIZES = range(64, 64 * 400, 64)


def build_entries(count: int, kernels: Sequence[str] = KERNELS) -> tuple[Entry, ...]:
    """Return random entries like those of Triton's tuner, in random order; entries share no objects."""
    chance = random.Random(1)
    entries = {}
    while len(entries) < count:
        kernel = chance.choice(kernels)
        key: dict[str, tuple[Scalar, str]] = {name: (chance.choice(SIZES), "") for name in "MNK"}
        key |= {f"{name}_ptr.dtype": (chance.choice(["fp16", "bf16", "fp32"]), "dtype") for name in "ab"}
        key |= {"EVEN_K": (key["K"][0] % 128 == 0, "")}
        params = {"BLOCK_M": [32, 64, 128], "BLOCK_N": [32, 64, 128, 256], "BLOCK_K": [32, 64], "GROUP_M": [8]}
        params |= {"num_warps": [4, 8], "num_stages": [2, 3, 4, 5]}
        values = tuple(Value(name, *value_and_type) for name, value_and_type in key.items())
        problem = Problem("triton", kernel, values, chance.choice(DEVICES))
        source = Value("source", f"{kernels.index(kernel):012x}", "digest")
        chosen_params = tuple(Value(name, chance.choice(sizes)) for name, sizes in params.items())
        entries[problem.digest] = Entry(
            problem,
            (source, Value("search", "c0ffee123456", "digest")),
            Candidate("", chosen_params, round(chance.uniform(5, 900), 3)),
            tuning_seconds=round(chance.uniform(0.5, 20), 2),
            versions=Versions.parse("triton 3.6.0, torch 2.11.0, cuda 13.0"),
        )
    return tuple(entries.values())


class Action(Protocol):
    """Work that is measured."""

    def run(self) -> None:
        """Do the work once."""


class Reading:
    """Decode the bytes of a cache."""

    def __init__(self, data: bytes, format: Format) -> None:
        self.data = data
        self.format = format

    def run(self) -> None:
        decode(self.data, self.format, "cache")


class Writing:
    """Encode a cache."""

    def __init__(self, cache: Cache, format: Format) -> None:
        self.cache = cache
        self.format = format

    def run(self) -> None:
        encode(self.cache, self.format)


class LookingUp:
    """Look up problems in an index."""

    def __init__(self, index: EntryIndex, problems: Sequence[Problem]) -> None:
        self.index = index
        self.problems = problems

    def run(self) -> None:
        for problem in self.problems:
            self.index.list_same_key(problem)


class ExplainingMisses:
    """Find the nearest entry for problems without an entry."""

    def __init__(self, index: EntryIndex, problems: Sequence[Problem]) -> None:
        self.index = index
        self.problems = problems

    def run(self) -> None:
        for problem in self.problems:
            explain_miss([self.index], problem, Policy())


def measure_seconds(action: Action) -> float:
    """Return the lowest processor time of the repetitions."""
    times_s = []
    for _ in range(REPETITIONS):
        started = time.process_time()
        action.run()
        times_s.append(time.process_time() - started)
    return min(times_s)


def print_figure(label: str, figure: float, unit: str, limit: float = math.inf) -> None:
    """Print a line with a figure and, if there is a limit, with the target."""
    target = ""
    if limit != math.inf:
        sign = ": MORE" if figure > limit else ""
        target = f" (target <= {limit:g} {unit}{sign})"
    print(f"{label:<44} {figure:9.3f} {unit:<3}{target}", flush=True)


def measure_files(count: int, text_limit_s: float) -> None:
    """Print how long each format takes to read and to write a cache.

    :param text_limit_s: the target for reading text. The target for binary is half of it; other formats have none.
    """
    cache = Cache(build_entries(count))
    limits_s = {Format.TEXT: text_limit_s, Format.BINARY: text_limit_s / 2}
    for format in Format:
        data = encode(cache, format)
        label = f"{count:,} entries, {format.value.name} ({len(data) / 1e6:.1f} MB)"
        read_s = measure_seconds(Reading(data, format))
        print_figure(f"{label}: read", read_s, "s", limits_s.get(format, math.inf))
        print_figure(f"{label}: write", measure_seconds(Writing(cache, format)), "s")


def measure_lookups(count: int) -> None:
    """Print how long a hit and a miss take in an index in which one kernel has all entries."""
    entries = build_entries(count, ["lib.ops.kernel"])
    index = EntryIndex.from_caches([decode(encode(Cache(entries), Format.TEXT), Format.TEXT, "cache")])
    hits = [entry.problem for entry in entries]
    indexed_problems = set(hits)
    misses = []
    for entry in build_entries(count + 500, ["lib.ops.kernel"]):
        if entry.problem not in indexed_problems:
            misses.append(entry.problem)
    # The first lookup builds the index.
    index.list_same_key(hits[0])
    hit_s = measure_seconds(LookingUp(index, hits)) / len(hits)
    print_figure(f"a hit among {count:,} entries", hit_s * 1e6, "us", 30.0)
    miss_s = measure_seconds(LookingUp(index, misses)) / len(misses)
    print_figure(f"a miss among {count:,} entries", miss_s * 1e3, "ms", 1.0)


def measure_nearest(count: int) -> None:
    """Print how long it takes to find the nearest entry for as many misses of a kernel as it has entries."""
    index = EntryIndex.from_caches([Cache(build_entries(count, ["lib.ops.kernel"]))])
    misses = [entry.problem for entry in build_entries(2 * count, ["lib.ops.kernel"])][count:]
    seconds = measure_seconds(ExplainingMisses(index, misses))
    print_figure(f"the nearest of {count:,} entries for {len(misses):,} misses", seconds, "s", 5.0)


def main() -> None:
    print(machine("protobuf"))
    for count, text_limit_s in ((1_000, 0.1), (10_000, 1.5)):
        measure_files(count, text_limit_s)
    measure_lookups(10_000)
    measure_nearest(1_000)


if __name__ == "__main__":
    main()
