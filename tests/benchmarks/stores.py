"""Measure the time and the safety of a store at a URL.

    python tests/benchmarks/stores.py [PAIRS]

1. Read 10,000 entries from a file, and from a store without a local copy (cold) and with it (warm): seconds, requests.
2. Start pytest with these entries, from a file and from a warm store in turns (default 7 pairs): the difference in
   seconds.
3. Read, write and compact while the server has a fault: the seconds until the action ends, or reports an error
   ("told"). The script counts acknowledged entries that are lost.
4. 64 runs by 16 processes write and compact; then again, while 20 % of the requests fail: entries lost.

The server is moto's S3 on this machine, so the times have no delay of a network.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2]))

from cache_files import build_entries
from common import machine

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache, Entry
from pytest_autotune.cache.stores.segments import SegmentStore
from tests import object_storage
from tests.entries import entry

PAIRS = int(sys.argv[1]) if len(sys.argv) > 1 else 7
URL = f"s3://{object_storage.BUCKET}"
SEGMENTS = 20
FAULTS = ["500", "503", "403", "reset", "hang", "truncated", "lost"]


def store(name: str, keep: Path | None = None) -> SegmentStore:
    """Return the store of a name; ``keep`` is the folder of its local copy."""
    return SegmentStore(replace(Location.parse(f"{URL}/{name}/", Path()), local_copy=keep))


def add(to: SegmentStore, entries: Iterable[Entry]) -> None:
    """Add entries to a store."""
    to.check_writable()
    with to.open_for_update() as opened:
        opened.write(Cache((*opened.cache.entries, *entries)))


def print_reading(label: str, cache: Cache, started: float, proxy: object_storage.Proxy) -> None:
    """Print the row of a cache that was just read."""
    seconds = time.perf_counter() - started
    assert len(cache.entries) == 10_000
    print(f"| {label} | {seconds:.2f} | {len(proxy.requests)} |")


def measure_reading(proxy: object_storage.Proxy, folder: Path) -> None:
    """Print how long 10,000 entries take to read."""
    entries = build_entries(10_000)
    for number in range(SEGMENTS):
        add(store("many", folder / "writer"), entries[number::SEGMENTS])
    files = {suffix: str(folder / f"cache.{suffix}") for suffix in ("pb", "textproto")}
    for path in files.values():
        with stores.open_store(path).open_for_update() as opened:
            opened.write(Cache(entries))
    print("| 10,000 entries | s | requests |\n| --- | --- | --- |")

    for suffix, path in files.items():
        proxy.requests.clear()
        started = time.perf_counter()
        cache = stores.read_cache(path)
        print_reading(f"file, .{suffix}", cache, started, proxy)
    for segments in (f"{2 * SEGMENTS} segments, 2 devices", "compacted, 2 devices"):
        for state in ("cold", "warm"):
            proxy.requests.clear()
            started = time.perf_counter()
            cache = store("many", folder / "mirror").read()
            print_reading(f"store, {segments}: {state}", cache, started, proxy)
        store("many").compact()
    size = sum(file.stat().st_size for file in (folder / "mirror").rglob("*.pb"))
    print(f"\n{size / 1e6:.2f} MB of segments before the compaction")


def measure_start(folder: Path) -> None:
    """Print how much later pytest starts with a warm store than with a file."""
    suite = folder / "suite"
    suite.mkdir()
    (suite / "test_one.py").write_text("def test_one(): pass\n")
    store("many", suite / ".pytest_cache/d/autotune").read()
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-ppytest_autotune.plugin"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    differences = []
    for pair in range(PAIRS + 1):
        times_s = []
        for load in (folder / "cache.pb", f"{URL}/many/"):
            started = time.perf_counter()
            run = [*command, f"--autotune-load={load}"]
            subprocess.run(run, cwd=suite, env=environment, check=True, stdout=subprocess.DEVNULL)
            times_s.append(time.perf_counter() - started)
        # The first pair compiles modules and fills caches.
        if pair > 0:
            differences.append(times_s[1] - times_s[0])
    low, middle, high = min(differences), statistics.median(differences), max(differences)
    print(f"\nA run starts {middle:+.2f} s later from a warm mirror ({low:+.2f} to {high:+.2f}, {PAIRS} pairs)")


def measure_faults(proxy: object_storage.Proxy) -> None:
    """Print how long each action takes while the server has a fault."""
    print(f"\n| s until it is done or told | {' | '.join(FAULTS)} |\n|{' --- |' * (len(FAULTS) + 1)}")
    lost = 0
    for action, operations in (("read", "LIST GET"), ("write", "PUT"), ("compact", "LIST GET PUT DELETE")):
        for operation in operations.split():
            cells = []
            for fault in FAULTS:
                name = f"{action}-{operation}-{fault}"
                for m in range(2):
                    add(store(name), [entry(m)])
                acknowledged = {entry(0), entry(1)}
                subject = store(name)
                if action == "write":
                    subject.check_writable()
                proxy.faults = {operation: fault}
                started = time.perf_counter()
                try:
                    if action == "read":
                        subject.read()
                    elif action == "write":
                        with subject.open_for_update() as opened:
                            opened.write(Cache((*opened.cache.entries, entry(2))))
                        acknowledged.add(entry(2))
                    else:
                        subject.compact()
                    remark = ""
                except CacheError:
                    remark = " told"
                cells.append(f"{time.perf_counter() - started:.1f}{remark}")
                proxy.faults = {}
                lost += len(acknowledged - set(store(name).read().entries))
            print(f"| {action}: {operation} | {' | '.join(cells)} |")
    print(f"\n{lost} acknowledged entries lost")


def run(number: int) -> tuple[set[Entry], int]:
    """Write entries six times, as one process of the fleet. Return the acknowledged entries, and the refused steps."""
    chance, acknowledged, refused = random.Random(number), set[Entry](), 0
    for _ in range(6):
        subject = store("fleet", Path(os.environ["MIRRORS"]) / str(number % 8))
        new_entries = {entry(chance.randrange(400)) for _ in range(10)}
        try:
            add(subject, new_entries)
            acknowledged |= new_entries
            if chance.random() < 0.15:
                subject.compact()
        except CacheError:
            refused += 1
    return acknowledged, refused


def measure_fleet(proxy: object_storage.Proxy, folder: Path) -> None:
    """Print how many entries 64 runs lose, without faults and with failing requests."""
    os.environ["MIRRORS"] = str(folder / "mirrors")
    chance = random.Random(1)
    for noise in (0.0, 0.2):
        operations = ("LIST", "GET", "PUT", "DELETE")
        failures = ["500", "503", "reset", "truncated", "lost"]
        # The fault of each request, empty for none.
        draws = []
        for _ in range(20_000):
            has_fault = chance.random() < noise
            draws.append(chance.choice(failures) if has_fault else "")
        proxy.faults = {operation: draws[number::4] for number, operation in enumerate(operations)}
        started = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(16) as pool:
            results = pool.map(run, range(64), chunksize=1)
        seconds = time.perf_counter() - started
        proxy.faults = {}
        acknowledged = set().union(*(entries for entries, _ in results))
        lost = len(acknowledged - set(store("fleet").read().entries))
        refused = sum(refused_count for _, refused_count in results)
        print(
            f"\n64 runs by 16 processes, {noise:.0%} of the requests fail: {seconds:.0f} s, {len(acknowledged)} "
            f"entries acknowledged, {lost} lost, {refused} of 384 steps refused with a line"
        )


def main() -> None:
    print(machine(), "\n")
    folder = Path(tempfile.mkdtemp())
    try:
        with object_storage.moto() as server:
            proxy = object_storage.Proxy(server)
            os.environ |= proxy.environment
            measure_reading(proxy, folder)
            measure_start(folder)
            measure_faults(proxy)
            measure_fleet(proxy, folder)
            proxy.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
