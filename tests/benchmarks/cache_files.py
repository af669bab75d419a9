"""How fast caches are read, written and looked up: ``python tests/benchmarks/cache_files.py [repetitions]``."""

from __future__ import annotations

import math
import random
import sys
import time
from collections.abc import Callable
from functools import partial

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


def some_entries(count: int, kernels: list[str] = KERNELS) -> tuple[Entry, ...]:
    """Entries as Triton's tuner gives them, in no order, sharing no objects."""
    chance = random.Random(1)
    entries = {}
    while len(entries) < count:
        kernel = chance.choice(kernels)
        key: dict[str, tuple[Scalar, str]] = {name: (chance.choice(SIZES), "") for name in "MNK"}
        key |= {f"{name}_ptr.dtype": (chance.choice(["fp16", "bf16", "fp32"]), "dtype") for name in "ab"}
        key |= {"EVEN_K": (key["K"][0] % 128 == 0, "")}
        params = {"BLOCK_M": [32, 64, 128], "BLOCK_N": [32, 64, 128, 256], "BLOCK_K": [32, 64], "GROUP_M": [8]}
        params |= {"num_warps": [4, 8], "num_stages": [2, 3, 4, 5]}
        problem = Problem(
            "triton", kernel, tuple(Value(name, *part) for name, part in key.items()), chance.choice(DEVICES)
        )
        entries[problem.digest] = Entry(
            problem,
            (Value("source", f"{kernels.index(kernel):012x}", "digest"), Value("search", "c0ffee123456", "digest")),
            Candidate(
                "", tuple(Value(n, chance.choice(v)) for n, v in params.items()), round(chance.uniform(5, 900), 3)
            ),
            tuning_seconds=round(chance.uniform(0.5, 20), 2),
            versions=Versions.parse("triton 3.6.0, torch 2.11.0, cuda 13.0"),
        )
    return tuple(entries.values())


def seconds(action: Callable[[], object], times: int = REPETITIONS) -> float:
    """The lowest processor time of an action: other processes of the machine count little."""
    found = []
    for _ in range(times):
        start = time.process_time()
        action()
        found.append(time.process_time() - start)
    return min(found)


def tell(what: str, measured: float, unit: str, limit: float) -> None:
    target = "" if limit == math.inf else f" (target <= {limit:g} {unit}{': MORE' if measured > limit else ''})"
    print(f"{what:<44} {measured:9.3f} {unit:<3}{target}", flush=True)


def measure_files(count: int, limit_s: float) -> None:
    """Print how long a cache of so many entries takes to be read; binary half of the limit for text."""
    cache = Cache(some_entries(count))
    for format in Format:
        data = encode(cache, format)
        what = f"{count:,} entries, {format.value.name} ({len(data) / 1e6:.1f} MB)"
        limit = limit_s / 2 if format is Format.BINARY else limit_s if format is Format.TEXT else math.inf
        tell(f"{what}: read", seconds(partial(decode, data, format, "cache")), "s", limit)
        tell(f"{what}: write", seconds(partial(encode, cache, format)), "s", math.inf)


def measure_lookups(count: int) -> None:
    """Print what a lookup costs in an index, where one kernel has so many entries."""
    entries = some_entries(count, ["lib.ops.kernel"])
    index = EntryIndex.from_caches([decode(encode(Cache(entries), Format.TEXT), Format.TEXT, "cache")])
    hits = [entry.problem for entry in entries]
    known = set(hits)
    misses = [entry.problem for entry in some_entries(count + 500, ["lib.ops.kernel"]) if entry.problem not in known]
    index.list_same_key(hits[0])
    for what, problems, unit, factor, limit in (("hit", hits, "us", 1e6, 30.0), ("miss", misses, "ms", 1e3, 1.0)):
        each = seconds(lambda problems=problems: [index.list_same_key(one) for one in problems]) / len(problems)
        tell(f"a {what} among {count:,} entries", each * factor, unit, limit)


def measure_nearest(count: int) -> None:
    """Print how long it takes to tell the nearest entry of so many misses of one kernel with as many entries."""
    index = EntryIndex.from_caches([Cache(some_entries(count, ["lib.ops.kernel"]))])
    misses = [entry.problem for entry in some_entries(2 * count, ["lib.ops.kernel"])][count:]
    taken = seconds(lambda: [explain_miss([index], problem, Policy()) for problem in misses])
    tell(f"the nearest of {count:,} entries for {len(misses):,} misses", taken, "s", 5.0)


def main() -> None:
    print(machine("protobuf"))
    for count, limit_s in ((1_000, 0.1), (10_000, 1.5)):
        measure_files(count, limit_s)
    measure_lookups(10_000)
    measure_nearest(1_000)


if __name__ == "__main__":
    main()
