"""A launch of a kernel that has its choice, with the plugin's hook and without it, in one process.

    python tests/benchmarks/launch.py

On a GPU it launches a real kernel. Elsewhere the compiled kernel is stood in for
by a function that does nothing, so that what is left is Triton's own path.
"""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from common import machine, median, table
from triton.runtime import autotuner as autotuner_module

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache
from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.triton.adapter import Adapter
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.locks import Locks

PAIRS = 41
LAUNCHES = 1000


def make_kernel(gpu: bool) -> Any:
    @triton.autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
    @triton.jit
    def copy(x, y, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

    if not gpu:

        class Nothing:
            def run(self, *args: Any, **kwargs: Any) -> None:
                return None

        copy._do_bench = lambda kernel_call, quantiles: [1.0, 1.0, 1.0]
        copy.fn = Nothing()
        copy.fn.fn = copy.base_fn
    return copy


def main() -> None:
    gpu = torch.cuda.is_available()
    print(machine("torch", "triton"))
    x = torch.zeros(1000, device="cuda" if gpu else "cpu")
    y = torch.empty_like(x)

    def launch_us(kernel: Any) -> float:
        launcher = kernel[(8,)]
        started = time.perf_counter()
        for _ in range(LAUNCHES):
            launcher(x, y, 1000)
        if gpu:
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / LAUNCHES * 1e6

    adapter = Adapter()
    run = Session(Policy(is_dumping=True), EntryIndex.from_caches([Cache()]), Coordinator(Locks(1.0)), pytest.fail)
    stock, hooked = make_kernel(gpu), make_kernel(gpu)
    if not gpu:
        import pytest_autotune.tuners.triton.choosing as ours
        from pytest_autotune.devices import INTERPRETER

        ours.find_target_device = lambda: INTERPRETER
    launch_us(stock)
    adapter.hook(autotuner_module, run)
    launch_us(hooked)
    adapter.unhook()
    without, with_hook = [], []
    for _ in range(PAIRS):
        without.append(launch_us(stock))
        adapter.hook(autotuner_module, run)
        with_hook.append(launch_us(hooked))
        adapter.unhook()
    again = [launch_us(stock) for _ in range(PAIRS)]
    added = [one - other for one, other in zip(with_hook, without, strict=True)]
    noise = [abs(one - other) for one, other in zip(again, without, strict=True)]
    table(
        (f"launch, median of {PAIRS} x {LAUNCHES}", "us"),
        [
            ("Triton alone", f"{median(without):.2f}"),
            ("with the hook, choice in memory", f"{median(with_hook):.2f}"),
            ("difference, median of pairs", f"{median(added):+.2f}"),
            ("difference of two runs of Triton alone", f"{median(noise):.2f}"),
        ],
    )


if __name__ == "__main__":
    main()
