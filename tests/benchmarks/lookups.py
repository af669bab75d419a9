"""Measure the time of a lookup in this checkout and, in turns with it, in other checkouts.

    python tests/benchmarks/lookups.py [CHECKOUT ...]

Each of seven rounds runs a small suite once with each checkout on the path. The table has a column for each checkout,
with medians in microseconds of processor time:

1. A cache hit of Triton under the interpreter: a kernel's first launch, from the question to the session until the
   launch. The time of a second launch, whose choice Triton has in memory, is subtracted.
2. A question to the index of the loaded entries.
3. A call of ``tune()`` that has its choice.

The interpreter stands in for the GPU, so the times of compiling and loading the chosen kernel are missing.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

from common import REPOSITORY, machine, median, pytest_seconds, table

ROUNDS = 7
SUITE = '''
import time
import torch, triton, triton.language as tl
from pytest_autotune import product, tune
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Device, Entry, Problem, Value

PARTS, PART_SIZE = 4, 100

@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (16, 32, 64)], key=["n"])
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, at, mask=at < n)

def measure_us(action):
    """Call the action with the numbers of four parts, and return the lowest time of a call, averaged over a part."""
    times_us = []
    for part in range(PARTS):
        started = time.process_time()
        for number in range(part * PART_SIZE, (part + 1) * PART_SIZE):
            action(number)
        times_us.append((time.process_time() - started) / PART_SIZE * 1e6)
    return min(times_us)

def test_a_hit_of_triton():
    x = torch.zeros(64)
    def launch(number):
        kernel[(1,)](x, number)
    launch(PARTS * PART_SIZE)
    first_us = measure_us(launch)
    print(f"\\nhit: {first_us - measure_us(launch)}")

def build_entries():
    for number in range(PARTS * PART_SIZE):
        names = {"M": number, "N": 64, "K": 128, "EVEN_K": True, "a_ptr.dtype": "fp16", "b_ptr.dtype": "fp16"}
        key = tuple(Value(name, value) for name, value in names.items())
        yield Entry(Problem("triton", "lib.ops.kernel", key, Device("NVIDIA H200", "sm_90", 132)))

def test_a_question_to_the_index():
    index = EntryIndex.from_caches([Cache(tuple(build_entries()))])
    problems = [entry.problem for entry in build_entries()]
    def look_up(number):
        index.list_same_key(problems[number])
    look_up(0)
    print(f"\\nindex: {measure_us(look_up)}")

def test_a_call_that_has_its_choice():
    space = product(BLOCK_M=[32, 64, 128], BLOCK_N=[32, 64, 128], BLOCK_K=[32, 64], num_warps=[4, 8])
    key = {"m": 4096, "n": 4096, "k": 4096, "dtype": "fp16"}
    def run(config):
        pass
    def call(number):
        tune("gemm", key=key, space=space, run=run)
    call(0)
    print(f"\\ncall: {measure_us(call)}")
'''
LABELS = {
    "hit": "a hit of Triton's",
    "index": "a question to the index",
    "call": "a call of tune() that has its choice",
}


def main() -> None:
    checkouts = [REPOSITORY]
    for argument in sys.argv[1:]:
        checkouts.append(Path(argument).resolve())
    print(machine("torch", "triton"))
    times_us: dict[tuple[str, Path], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_lookups.py").write_text(SUITE)
        for _ in range(ROUNDS):
            for number, checkout in enumerate(checkouts):
                cache = f"{number}.textproto"
                environment = {"PYTHONPATH": str(checkout), "TRITON_INTERPRET": "1"}
                if not (folder / cache).exists():
                    pytest_seconds(folder, "-q", f"--autotune-dump={cache}", **environment)
                output = pytest_seconds(folder, "-q", "-s", f"--autotune-load={cache}", **environment)[1]
                for measurement, time_us in re.findall(r"^(\w+): ([\d.]+)$", output, re.MULTILINE):
                    times_us.setdefault((measurement, checkout), []).append(float(time_us))
    rows = []
    for measurement, label in LABELS.items():
        cells = [f"{median(times_us[measurement, checkout]):.1f}" for checkout in checkouts]
        rows.append((label, *cells))
    table((f"median of {ROUNDS} runs, us", *map(str, checkouts)), rows)


if __name__ == "__main__":
    main()
