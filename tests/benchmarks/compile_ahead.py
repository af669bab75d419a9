"""A load with an empty compile cache, with and without compiling ahead, and with a full one.

    python tests/benchmarks/compile_ahead.py [--rounds=2] [--workers=0,4] NAME=FOLDER[:PYTEST_ARGUMENT,...] ...
    python tests/benchmarks/compile_ahead.py example=example_suite liger=../liger:test/transformers/test_rms_norm.py

For each suite: a dump, which also adds to the cache what its choices are compiled for; then, in turns, a load without
compiling ahead, one with it, and one with what the other two have compiled. Every arm has a compile cache of its own,
of Triton and of Inductor, and every load is a process of its own. The best of the rounds is shown, one table at the
end. Suites may have initialised CUDA before their first test, so ``--on=always`` is compared unless told otherwise.
``--cache=NAME=FILE`` spares a suite the dump: it is loaded, and what it does not say yet is added to a copy.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import tempfile
from pathlib import Path

from common import machine, pytest_seconds, table

ARMS = ("off", "on", "full")


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__)
    parser.add_argument("suites", nargs="+")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--workers", default="0,4")
    parser.add_argument("--dump-workers", default="4")
    parser.add_argument("--on", default="always", choices=("on", "always"))
    parser.add_argument("--cache", action="append", default=[])
    options = parser.parse_args()
    print(machine("torch", "triton", "pytest-xdist"), flush=True)
    dumped = dict(cache.split("=", 1) for cache in options.cache)
    rows: list[tuple[object, ...]] = []
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        for suite in options.suites:
            title, _, rest = suite.partition("=")
            folder, _, arguments = rest.partition(":")
            args = [one for one in arguments.split(",") if one]
            cache = _cache(place / title, dumped.get(title), Path(folder), args, options.dump_workers)
            for workers in options.workers.split(","):
                row = _row(place / title, cache, Path(folder), args, workers, options.rounds, options.on)
                rows.append((title, "serial" if workers == "0" else f"-n {workers}", *row))
                print(rows[-1], flush=True)
    head = ("suite", "workers", "tests", "cold, off", "cold, on", "full", "on / full", "on / off", "ahead", "file")
    table(head, rows)


def _environment(place: Path) -> dict[str, str]:
    return {"TRITON_CACHE_DIR": str(place / "triton"), "TORCHINDUCTOR_CACHE_DIR": str(place / "inductor")}


def _cache(place: Path, given: str | None, folder: Path, args: list[str], workers: str) -> Path:
    """A cache that says what its choices were compiled for."""
    place.mkdir()
    cache = place / "cache.textproto"
    if given:
        shutil.copy(given, cache)
        if "compiled: " in cache.read_text():
            return cache
    options = [f"--autotune-dump={cache}", *([f"--autotune-load={cache}"] if given else []), f"-n{workers}"]
    seconds, _ = pytest_seconds(folder, "-q", *args, *options, **_environment(place / "dump"))
    print(f"{place.name}: dump {seconds:.1f} s", flush=True)
    return cache


def _row(
    place: Path, cache: Path, folder: Path, args: list[str], workers: str, rounds: int, on: str
) -> tuple[object, ...]:
    seconds: dict[str, list[float]] = {arm: [] for arm in ARMS}
    told: dict[str, object] = {}
    tests = ""
    for number in range(rounds):
        order = ("off", "on") if number % 2 else ("on", "off")
        for arm in (*order, "full"):
            compiled = place / f"{workers}-{number}-{'on' if arm == 'full' else arm}"
            report = place / "report.json"
            report.unlink(missing_ok=True)
            options = [f"--autotune-load={cache}", f"--autotune-report={report}", f"-n{workers}"]
            options.append(f"--autotune-compile-ahead={'off' if arm == 'off' else on}")
            took, output = pytest_seconds(folder, "-q", *args, *options, **_environment(compiled))
            seconds[arm].append(took)
            if arm == "on":
                told = json.loads(report.read_text())["compiled_ahead"]
            tests = next((word for word in output.splitlines() if " passed" in word), tests)
            print(f"{place.name} -n{workers} {arm}: {took:.1f} s", flush=True)
    off, on, full = (min(seconds[arm]) for arm in ARMS)
    text = cache.read_text()
    added = sum(len(line) + 1 for line in text.splitlines() if line.startswith("  compiled: "))
    done = f"{told.get('kernels')} kernels in {told.get('seconds')} s, {told.get('used')} asked for"
    ahead = told.get("skipped") or done
    return (
        tests.split(" in ")[0],
        f"{off:.1f} s",
        f"{on:.1f} s",
        f"{full:.1f} s",
        f"{on / full:.2f}",
        f"{on / off:.2f}",
        ahead,
        f"+{added / (len(text) - added):.1%}",
    )


if __name__ == "__main__":
    sys.exit(main())
