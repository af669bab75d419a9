"""What compiles the kernels of a graph fastest in a run that loads: this process, its threads, or forked children.

    python tests/benchmarks/inductor_compiling.py [REPEATS]

Needs torch and Triton and no GPU: Inductor generates the code for an H200 that is not there, and Triton compiles it to
machine code. Sixteen kernels, one candidate each, as a hit leaves them; every turn with an empty compile cache. The
arms take turns, and the fastest of each counts, since other processes only ever make one slower. What children have
compiled, this process then takes from Triton's cache on disk, which is counted. Last, what holds Python's lock: of
compiling one after the other, the share in which Triton makes its own code of the kernel's, in Python. The rest are
passes written in C++, which let the lock go, and ptxas, a process.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from common import REPOSITORY, machine, table

sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests")]
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"


def main() -> None:
    repeats = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    print(machine("torch", "triton"), flush=True)
    with tempfile.TemporaryDirectory() as name:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(Path(name) / "inductor")
        os.environ["TRITON_CACHE_DIR"] = str(Path(name) / "triton")
        kernels = _kernels()
        cores = len(os.sched_getaffinity(0))
        arms: dict[str, Callable[[Sequence[Any]], None]] = {
            "one after the other": _compile,
            f"{cores} threads": lambda some: _in_threads(some, cores),
            f"{cores} forked children": lambda some: _in_children(some, cores),
        }
        seconds: dict[str, list[float]] = {arm: [] for arm in arms}
        for turn in range(repeats):
            for arm, compile in arms.items():
                os.environ["TRITON_CACHE_DIR"] = str(Path(name) / f"{turn} {arm}")
                began = time.perf_counter()
                compile(kernels)
                seconds[arm].append(time.perf_counter() - began)
        os.environ["TRITON_CACHE_DIR"] = str(Path(name) / "shares")
        python_s, all_s = _shares(kernels)
    first = min(seconds["one after the other"])
    rows = [[arm, f"{min(own):.2f} s", f"{min(own) / first:.2f}", f"{max(own):.2f} s"] for arm, own in seconds.items()]
    table([f"{len(kernels)} kernels", "fastest", "of one after the other", "slowest"], rows)
    print(f"\nin Python: {python_s:.2f} of {all_s:.2f} s ({python_s / all_s:.0%})")


def _kernels() -> list[Any]:
    import torch
    from absent_gpu import compiled, triton_heuristics

    functions: list[Callable[..., Any]] = [
        lambda x, y: torch.softmax(torch.relu(x + y), -1),
        lambda x, y: torch.nn.functional.layer_norm(x * y, x.shape[-1:]),
        lambda x, y: torch.nn.functional.gelu(x) + y,
        lambda x, y: (x - y).sum(0),
    ]
    found = []
    for number, function in enumerate(functions * 4):
        module = compiled(function, *[(512 * (number // 4 + 1), 1024)] * 2)
        found += [one for one in vars(module).values() if isinstance(one, triton_heuristics.CachingAutotuner)][:1]
    return [(one, one.compile_results[0].config) for one in found]


def _compile(kernels: Sequence[Any]) -> None:
    for autotuner, config in kernels:
        autotuner._precompile_config(config)


def _shares(kernels: Sequence[Any]) -> tuple[float, float]:
    """Seconds in Triton's Python, and in all of its compiler."""
    knobs = import_module("triton").knobs
    python_us, all_us = 0, 0

    def compiled(*, times: Any, **rest: Any) -> None:
        nonlocal python_us, all_us
        python_us += times.ir_initialization
        all_us += times.total

    before, knobs.compilation.listener = knobs.compilation.listener, compiled
    try:
        _compile(kernels)
    finally:
        knobs.compilation.listener = before
    return python_us / 1e6, all_us / 1e6


def _in_threads(kernels: Sequence[Any], number: int) -> None:
    from pytest_autotune.tuners.shared.compile_pool import CompilePool

    with CompilePool(number) as pool:
        for future in [pool.submit(_compile, [one]) for one in kernels]:
            future.result()


def _in_children(kernels: Sequence[Any], number: int) -> None:
    children = []
    for share in range(number):
        if (child := os.fork()) == 0:
            try:
                _compile(kernels[share::number])
            finally:
                os._exit(0)
        children.append(child)
    for child in children:
        os.waitpid(child, 0)
    _compile(kernels)


if __name__ == "__main__":
    main()
