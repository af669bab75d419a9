"""What a store at a URL costs and keeps: ``python tests/benchmarks/stores.py [pairs]``; S3 is moto's server.

1. Reading 10,000 entries: cold, warm, and from a file; with the requests that it takes.
2. How much later a run starts that loads them from a warm mirror than from a file, in pairs.
3. What each fault costs who reads, writes and compacts, and that nothing acknowledged is lost.
4. 64 runs by 16 processes, with compactions, through a network that loses answers: entries lost.
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
    return SegmentStore(replace(Location.parse(f"{URL}/{name}/", Path()), local_copy=keep))


def add(to: SegmentStore, entries: Iterable[Entry]) -> None:
    to.check_writable()
    with to.open_for_update() as opened:
        opened.write(Cache((*opened.cache.entries, *entries)))


def reading(proxy: object_storage.Proxy, folder: Path) -> None:
    entries = build_entries(10_000)
    for number in range(SEGMENTS):
        add(store("many", folder / "writer"), entries[number::SEGMENTS])
    files = {suffix: str(folder / f"cache.{suffix}") for suffix in ("pb", "textproto")}
    for path in files.values():
        with stores.open_store(path).open_for_update() as opened:
            opened.write(Cache(entries))
    print("| 10,000 entries | s | requests |\n| --- | --- | --- |")

    def row(what: str, action: object) -> None:
        proxy.requests.clear()
        started = time.perf_counter()
        found = action()  # type: ignore[operator]
        assert len(found.entries) == 10_000
        print(f"| {what} | {time.perf_counter() - started:.2f} | {len(proxy.requests)} |")

    for suffix, path in files.items():
        row(f"file, .{suffix}", lambda path=path: stores.read_cache(path))
    for segments in (f"{2 * SEGMENTS} segments, 2 devices", "compacted, 2 devices"):
        row(f"store, {segments}: cold", lambda: store("many", folder / "mirror").read())
        row(f"store, {segments}: warm", lambda: store("many", folder / "mirror").read())
        store("many").compact()
    size = sum(file.stat().st_size for file in (folder / "mirror").rglob("*.pb"))
    print(f"\n{size / 1e6:.2f} MB of segments before the compaction")


def starting(folder: Path) -> None:
    suite = folder / "suite"
    suite.mkdir()
    (suite / "test_one.py").write_text("def test_one(): pass\n")
    store("many", suite / ".pytest_cache/d/autotune").read()
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-ppytest_autotune.plugin"]
    environment = os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTHONPATH": str(Path(__file__).parents[2])}
    differences = []
    for pair in range(PAIRS + 1):
        took = []
        for load in (folder / "cache.pb", f"{URL}/many/"):
            started = time.perf_counter()
            run = [*command, f"--autotune-load={load}"]
            subprocess.run(run, cwd=suite, env=environment, check=True, stdout=subprocess.DEVNULL)
            took.append(time.perf_counter() - started)
        if pair:  # the first one warms up
            differences.append(took[1] - took[0])
    low, middle, high = min(differences), statistics.median(differences), max(differences)
    print(f"\nA run starts {middle:+.2f} s later from a warm mirror ({low:+.2f} to {high:+.2f}, {PAIRS} pairs)")


def faults(proxy: object_storage.Proxy) -> None:
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
                    how = ""
                except CacheError:
                    how = " told"
                cells.append(f"{time.perf_counter() - started:.1f}{how}")
                proxy.faults = {}
                lost += len(acknowledged - set(store(name).read().entries))
            print(f"| {action}: {operation} | {' | '.join(cells)} |")
    print(f"\n{lost} acknowledged entries lost")


def run(number: int) -> tuple[set[Entry], int]:
    chance, acknowledged, refused = random.Random(number), set[Entry](), 0
    for _ in range(6):
        subject = store("fleet", Path(os.environ["MIRRORS"]) / str(number % 8))
        mine = {entry(chance.randrange(400)) for _ in range(10)}
        try:
            add(subject, mine)
            acknowledged |= mine
            if chance.random() < 0.15:
                subject.compact()
        except CacheError:
            refused += 1
    return acknowledged, refused


def fleet(proxy: object_storage.Proxy, folder: Path) -> None:
    os.environ["MIRRORS"] = str(folder / "mirrors")
    chance = random.Random(1)
    for noise in (0.0, 0.2):
        operations = ("LIST", "GET", "PUT", "DELETE")
        some = ["500", "503", "reset", "truncated", "lost"]
        draw = [chance.choice(some) if chance.random() < noise else "" for _ in range(20_000)]
        proxy.faults = {operation: draw[number::4] for number, operation in enumerate(operations)}
        started = time.perf_counter()
        with multiprocessing.get_context("spawn").Pool(16) as pool:
            results = pool.map(run, range(64), chunksize=1)
        took = time.perf_counter() - started
        proxy.faults = {}
        acknowledged = set().union(*(found for found, _ in results))
        lost = len(acknowledged - set(store("fleet").read().entries))
        refused = sum(number for _, number in results)
        print(
            f"\n64 runs by 16 processes, {noise:.0%} of the requests fail: {took:.0f} s, {len(acknowledged)} "
            f"entries acknowledged, {lost} lost, {refused} of 384 steps refused with a line"
        )


def main() -> None:
    print(machine(), "\n")
    folder = Path(tempfile.mkdtemp())
    try:
        with object_storage.moto() as server:
            proxy = object_storage.Proxy(server)
            os.environ |= proxy.environment
            reading(proxy, folder)
            starting(folder)
            faults(proxy)
            fleet(proxy, folder)
            proxy.close()
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
