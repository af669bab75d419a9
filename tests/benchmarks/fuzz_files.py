"""Damaged files of every format: ``python tests/benchmarks/fuzz_files.py --files 100000 [--seed N]``.

Each comes to a cache that can be written again, or to one line of error; anything else is printed with the seed and
number that make it again, and the exit status is 1.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Candidate, Device, Digest, Entry, Problem, Value, Versions

H200 = Device("NVIDIA H200", "sm_90", 132)
CACHE = Cache(
    (
        Entry(
            Problem("triton", "lib.ops.matmul", (Value("M", 1024), Value("a.dtype", "fp16", "dtype")), H200),
            (Value("source", "5f2c91d0a7b3", "digest"),),
            Candidate(params=(Value("BLOCK", 64), Value("fast", True)), time_us=10.4),
            tuning_seconds=5.3,
            versions=Versions.parse("triton 3.6.0, torch 2.11.0"),
            compiled=("*fp16:16 i32", "*fp16 i32"),
            digests=(Digest("5f2c91d0a7b3", ("matmul 13c2", "EPS 81cc")),),
        ),
        Entry(
            Problem("inductor.template", "mm", (Value("hint", None, "none"), Value("alpha", -0.0)), Device("CPU", "x")),
            candidates=(Candidate("extern", time_us=12.0, label="aten"), Candidate(failed='no "x"\n\u202e')),
        ),
        Entry(Problem("xla", "hlo", (), H200), native=bytes(range(256)), label="fusion(größe, 名前)"),
    )
)
PIECES = b""" " ' \\ { } < > [ ] # : , ; - 0 1e999 nan true 99999999999999999999 \\400 \\ud800 &a *a !!str <<<<<<< null
    kernle \xff \xe2\x80\xa8 \x00 \x1b[31m key label entries format_version""".split()
PIECES += [b"\n", b"\r\n", b" ", b"\t"]


def damaged(data: bytes, chance: random.Random) -> bytes:
    """The data with one to four places cut out, doubled, moved, overwritten or with something put in."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        stop = min(len(data), start + chance.choice([0, 1, 1, 2, 8, 64]))
        piece = chance.choice([b"", chance.choice(PIECES), chance.randbytes(2), data[start:stop] * 2])
        other = chance.randrange(len(data) + 1)
        piece = data[other : other + 40] if chance.random() < 0.1 else piece
        data = data[:start] + piece + data[stop:]
    return data


def problem(data: bytes, format: Format) -> str:
    """What is wrong with how this file is read; empty where nothing is."""
    try:
        encode(decode(data, format, "cache"), format)
    except CacheError as error:
        line = str(error)
        return "" if line.startswith("cache") and line.isprintable() and len(line) < 1000 else f"the line {line!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    found: Counter[str] = Counter()
    slowest = 0.0
    whole = {format: encode(CACHE, format) for format in Format}
    for number in range(options.files):
        chance = random.Random(f"{options.seed}/{number}")
        format = list(Format)[number % len(Format)]
        data = damaged(whole[format], chance)
        started = time.perf_counter()
        wrong = problem(data, format)
        slowest = max(slowest, time.perf_counter() - started)
        found[format.value.name] += 1
        if wrong:
            found["wrong"] += 1
            print(f"--seed {options.seed}, file {number}, {format.value.name}: {wrong}")
    counts = ", ".join(f"{count} {name}" for name, count in found.items())
    print(f"{options.files} damaged files ({counts}); the slowest took {slowest * 1e3:.0f} ms; {found['wrong']} wrong")
    return 1 if found["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
