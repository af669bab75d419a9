"""Read damaged cache files of every format, and check that no damage causes a traceback.

    python tests/benchmarks/fuzz_files.py [--files 10000] [--seed 1]

The script damages a small cache file in one to four places, and reads it. The result must be a cache that can be
written again, or one line of error. For any other result, the script prints the seed and the number that reproduce the
file, and exits with status 1. The last line has the count of files by format, and the slowest file in milliseconds.
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


def damage(data: bytes, chance: random.Random) -> bytes:
    """Return the data with one to four damaged places: bytes are removed, doubled, moved, overwritten or inserted."""
    for _ in range(chance.randint(1, 4)):
        start = chance.randrange(len(data) + 1)
        stop = min(len(data), start + chance.choice([0, 1, 1, 2, 8, 64]))
        piece = chance.choice([b"", chance.choice(PIECES), chance.randbytes(2), data[start:stop] * 2])
        copy_start = chance.randrange(len(data) + 1)
        if chance.random() < 0.1:
            piece = data[copy_start : copy_start + 40]
        data = data[:start] + piece + data[stop:]
    return data


def find_defect(data: bytes, format: Format) -> str:
    """Return the defect of reading this file; empty if the result is a cache or a line of error."""
    try:
        encode(decode(data, format, "cache"), format)
    except CacheError as error:
        line = str(error)
        if line.startswith("cache") and line.isprintable() and len(line) < 1000:
            return ""
        return f"the line {line!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--files", type=int, default=10_000)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    counts: Counter[str] = Counter()
    defect_count = 0
    slowest_s = 0.0
    undamaged = {format: encode(CACHE, format) for format in Format}
    for number in range(options.files):
        chance = random.Random(f"{options.seed}/{number}")
        format = list(Format)[number % len(Format)]
        data = damage(undamaged[format], chance)
        started = time.perf_counter()
        defect = find_defect(data, format)
        slowest_s = max(slowest_s, time.perf_counter() - started)
        counts[format.value.name] += 1
        if defect:
            defect_count += 1
            print(f"--seed {options.seed}, file {number}, {format.value.name}: {defect}")
    by_format = ", ".join(f"{count} {name}" for name, count in counts.items())
    print(
        f"{options.files} damaged files ({by_format}); the slowest took {slowest_s * 1e3:.0f} ms; {defect_count} wrong"
    )
    return 1 if defect_count else 0


if __name__ == "__main__":
    sys.exit(main())
