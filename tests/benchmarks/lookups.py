"""What a lookup costs in this checkout and, in turns with it, in others.

    python tests/benchmarks/lookups.py [CHECKOUT ...]

A hit of Triton's, from the question to the launch: under the interpreter, less what a launch with its choice in memory
takes. A question to the index of the loaded entries. A call of ``tune()`` that has its choice.
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

PARTS, OF_EACH = 4, 100

@triton.autotune(configs=[triton.Config({"BLOCK": block}) for block in (16, 32, 64)], key=["n"])
@triton.jit
def kernel(x, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    tl.store(x + at, at, mask=at < n)

def told(what, action):
    """The lowest time of a part, in microseconds on the processor."""
    took = []
    for part in range(PARTS):
        started = time.process_time()
        for number in range(part * OF_EACH, (part + 1) * OF_EACH):
            action(number)
        took.append((time.process_time() - started) / OF_EACH * 1e6)
    return min(took)

def test_a_hit_of_triton():
    x = torch.zeros(64)
    launch = lambda number: kernel[(1,)](x, number)
    launch(PARTS * OF_EACH)
    first = told("first", launch)
    print(f"\\nhit: {first - told('again', launch)}")

def entries():
    for number in range(PARTS * OF_EACH):
        names = {"M": number, "N": 64, "K": 128, "EVEN_K": True, "a_ptr.dtype": "fp16", "b_ptr.dtype": "fp16"}
        key = tuple(Value(name, value) for name, value in names.items())
        yield Entry(Problem("triton", "lib.ops.kernel", key, Device("NVIDIA H200", "sm_90", 132)))

def test_a_question_to_the_index():
    index, asked = EntryIndex.from_caches([Cache(tuple(entries()))]), [entry.problem for entry in entries()]
    index.list_same_key(asked[0])
    print(f"\\nindex: {told('index', lambda number: index.list_same_key(asked[number]))}")

def test_a_call_that_has_its_choice():
    space = product(BLOCK_M=[32, 64, 128], BLOCK_N=[32, 64, 128], BLOCK_K=[32, 64], num_warps=[4, 8])
    key = {"m": 4096, "n": 4096, "k": 4096, "dtype": "fp16"}
    call = lambda number: tune("gemm", key=key, space=space, run=lambda config: None)
    call(0)
    print(f"\\ncall: {told('call', call)}")
'''
WORDS = {
    "hit": "a hit of Triton's",
    "index": "a question to the index",
    "call": "a call of tune() that has its choice",
}


def main() -> None:
    checkouts = [REPOSITORY, *(Path(one).resolve() for one in sys.argv[1:])]
    print(machine("torch", "triton"))
    found: dict[tuple[str, Path], list[float]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_lookups.py").write_text(SUITE)
        for _ in range(ROUNDS):
            for number, checkout in enumerate(checkouts):
                cache, environment = f"{number}.textproto", {"PYTHONPATH": str(checkout), "TRITON_INTERPRET": "1"}
                if not (folder / cache).exists():
                    pytest_seconds(folder, "-q", f"--autotune-dump={cache}", **environment)
                printed = pytest_seconds(folder, "-q", "-s", f"--autotune-load={cache}", **environment)[1]
                for what, us in re.findall(r"^(\w+): ([\d.]+)$", printed, re.MULTILINE):
                    found.setdefault((what, checkout), []).append(float(us))
    rows = [(words, *(f"{median(found[what, one]):.1f}" for one in checkouts)) for what, words in WORDS.items()]
    table((f"median of {ROUNDS} runs, us", *map(str, checkouts)), rows)


if __name__ == "__main__":
    main()
