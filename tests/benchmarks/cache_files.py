"""How fast caches are read, written and looked up: ``python tests/benchmarks/cache_files.py [repetitions]``."""

from __future__ import annotations

import gc
import os
import pickle
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from pytest_autotune.cache.formats import Format, decode, encode
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions, plain_value
from pytest_autotune.cache.stores import read, update
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.nearest import Nearest
from pytest_autotune.run.policy import Policy
from pytest_autotune.run.together.coordination import Alone, GpuLock

REPETITIONS = int(sys.argv[1]) if len(sys.argv) > 1 else 5
DEVICES = [Device("NVIDIA H200", "sm_90", 132), Device("AMD Instinct MI300X", "gfx942", 304)]
KERNELS = [f"lib.ops.kernel_{number}" for number in range(40)]
SIZES = range(64, 64 * 400, 64)
VERSIONS = Versions.of("triton 3.6.0")


def some_entries(count: int, kernels: list[str] = KERNELS) -> tuple[Entry, ...]:
    """Entries as Triton's tuner gives them, in no order, sharing no objects."""
    chance = random.Random(1)
    entries = {}
    while len(entries) < count:
        kernel = chance.choice(kernels)
        key: dict[str, tuple[object, str]] = {name: (chance.choice(SIZES), "") for name in "MNK"}
        key |= {f"{name}_ptr.dtype": (chance.choice(["fp16", "bf16", "fp32"]), "dtype") for name in "ab"}
        key |= {"EVEN_K": (key["K"][0] % 128 == 0, "")}
        params = {"BLOCK_M": [32, 64, 128], "BLOCK_N": [32, 64, 128, 256], "BLOCK_K": [32, 64], "GROUP_M": [8]}
        params |= {"num_warps": [4, 8], "num_stages": [2, 3, 4, 5]}
        problem = Problem(
            "triton", kernel, tuple(plain_value(name, *part) for name, part in key.items()), chance.choice(DEVICES)
        )
        entries[problem.digest] = Entry(
            problem,
            (Value("source", f"{kernels.index(kernel):012x}", "digest"), Value("search", "c0ffee123456", "digest")),
            Candidate(
                "", tuple(Value(n, chance.choice(v)) for n, v in params.items()), round(chance.uniform(5, 900), 3)
            ),
            tuning_seconds=round(chance.uniform(0.5, 20), 2),
            versions=Versions.of("triton 3.6.0, torch 2.11.0, cuda 13.0"),
        )
    return tuple(entries.values())


def median_s(action: Callable[[], object]) -> float:
    """The median time of an action in seconds."""
    times = []
    for _ in range(REPETITIONS):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def tell(what: str, measured: float, unit: str, limit: float) -> None:
    print(f"{what:<58} {measured:10.2f} {unit:<3} (target <= {limit:g} {unit})", flush=True)


def machine() -> str:
    """The processor, as Linux tells it, and how fast an empty loop is on it now: shared machines vary."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]

    def loop() -> None:
        for _ in range(1_000_000):
            pass

    speed = f"a million empty loops in {median_s(loop) * 1e3:.0f} ms"
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores, {speed}"


PEAK = """if True:
    import re, sys
    from pytest_autotune.cache.stores import read, update
    cache = read(sys.argv[1])
    if len(sys.argv) > 2:
        update(sys.argv[2], lambda _: cache)
    # Not getrusage: it counts what the parent had when it forked.
    print(int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1]) / 1024)
    """
START = """if True:
    import sys, time, dataclasses, hashlib, pickle
    with open(sys.argv[1], "rb") as stream:
        groups = pickle.load(stream)
    start = time.perf_counter()
    from pytest_autotune.cache.index import EntryIndex
    index = EntryIndex.from_groups(groups)
    ready = time.perf_counter()
    index.of_kernel(*groups[-1][:2])
    print((ready - start) * 1e3, (time.perf_counter() - ready) * 1e3)
    """


def in_process(program: str, *args: object) -> list[float]:
    """The numbers that a program prints, the median of each."""
    command = [sys.executable, "-c", program, *map(str, args)]
    runs = [subprocess.run(command, check=True, capture_output=True, text=True).stdout for _ in range(REPETITIONS)]
    return [statistics.median(column) for column in zip(*[map(float, run.split()) for run in runs], strict=True)]


def measure(count: int, folder: Path) -> None:
    """Print the figures for a cache of so many entries."""
    entries = some_entries(count)
    text = folder / "cache.textproto"
    cache = Cache(entries)
    print(f"\n{count:,} entries")
    tell("text write, entries fresh and in no order", median_s(lambda: encode(cache, Format.TEXT)), "s", 1.5)
    data = encode(cache, Format.TEXT)
    loaded = decode(data, Format.TEXT, "cache")
    tell("text write, entries as they were read", median_s(lambda: encode(loaded, Format.TEXT)), "s", 1.5)
    update(text, lambda _: cache)
    tell(f"text read ({len(data) / 1e6:.1f} MB)", median_s(lambda: read(text)), "s", 1.0)
    problems = [entry.problem for entry in entries]
    random.Random(2).shuffle(problems)
    groups = EntryIndex.of([loaded]).groups()
    for name, make in indexes(loaded, groups):
        index = make()
        started = time.perf_counter()
        for problem in problems:
            assert index.same_key(problem)
        each = (time.perf_counter() - started) / count
        tell(f"lookup, mean over all entries, fresh index of {name}", each * 1e6, "us", 40)
    warm = median_s(lambda: [index.same_key(problem) for problem in problems[:10_000]]) / min(count, 10_000)
    tell("lookup, warm", warm * 1e6, "us", 20)

    (folder / "groups").write_bytes(pickle.dumps(groups))
    ready, first_kernel = in_process(START, folder / "groups")
    tell("worker start-up from groups", ready, "ms", 50)
    tell("  its first kernel, with the import of protobuf", first_kernel, "ms", 500)
    tell("peak memory, text read", in_process(PEAK, text)[0], "MB", 500)
    tell("peak memory, text read and written", in_process(PEAK, text, folder / "copy.textproto")[0], "MB", 500)


def indexes(loaded: Cache, groups: list[tuple[str, str, bytes]]) -> list[tuple[str, Callable[[], EntryIndex]]]:
    """How a process comes to its index: one that reads the file, and a worker that is sent it in binary form."""
    return [("text", lambda: EntryIndex.of([loaded])), ("binary", lambda: EntryIndex.from_groups(groups))]


def ask(run: TuningRun, problem: Problem, entry: Entry) -> None:
    with run.tuning(problem, entry.fingerprint, lambda entry: True, VERSIONS):
        pass


def measure_one_kernel(count: int) -> None:
    """Print what a lookup costs at the door, where one kernel has so many entries."""
    print(f"\n{count:,} entries of one kernel")
    entries = some_entries(count, ["lib.ops.kernel"])
    loaded = decode(encode(Cache(entries), Format.TEXT), Format.TEXT, "cache")
    groups = EntryIndex.of([loaded]).groups()
    known = {entry.problem for entry in entries}
    others = [entry.problem for entry in some_entries(count + 500, ["lib.ops.kernel"])]
    missing = [problem for problem in others if problem not in known][:200]
    gc.collect()
    gc.freeze()  # a collection would look at what this script holds, and no suite does
    for name, make in indexes(loaded, groups):
        make().same_key(entries[0].problem)  # imports what a first lookup imports
        for what, problem in (("hit", entries[1].problem), ("miss", missing[0])):
            firsts = []
            for _ in range(REPETITIONS):
                run = TuningRun(Policy(), make(), Alone(GpuLock(1.0)), lambda lookup: None)
                started = time.perf_counter()
                ask(run, problem, entries[1])
                firsts.append(time.perf_counter() - started)
            tell(f"first lookup, a {what}, index of {name}", statistics.median(firsts) * 1e3, "ms", 10)
        run = TuningRun(Policy(), make(), Alone(GpuLock(1.0)), lambda lookup: None)
        for entry in entries:
            run.indexes[0].same_key(entry.problem)
        for what, problems, unit, factor, limit in (
            ("hit", [entry.problem for entry in entries[:2_000]], "us", 1e6, 30.0),
            ("miss", missing, "ms", 1e3, 1.0),
        ):
            times = []
            for problem in problems:
                started = time.perf_counter()
                ask(run, problem, entries[1])
                times.append(time.perf_counter() - started)
            tell(f"a {what}, median of {len(times):,}, index of {name}", statistics.median(times) * factor, unit, limit)
    nearest = Nearest([EntryIndex.of([loaded])], {})
    nearest.reason(missing[0])
    times = []
    for problem in missing[:20]:
        started = time.perf_counter()
        nearest.reason(problem)
        times.append(time.perf_counter() - started)
    tell("the nearest entry, for a row at the end of a run", statistics.median(times) * 1e3, "ms", 20)


def main() -> None:
    import google.protobuf
    from google.protobuf.internal import api_implementation

    print(machine())
    print(f"Python {platform.python_version()}, protobuf {google.protobuf.__version__} ({api_implementation.Type()})")
    with tempfile.TemporaryDirectory() as folder:
        measure_one_kernel(10_000)
        for count in (10_000, 100_000):
            measure(count, Path(folder))


if __name__ == "__main__":
    main()
