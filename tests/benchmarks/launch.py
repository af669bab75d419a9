"""Measure a launch of a Triton kernel whose choice is in memory, with and without the plugin's hook.

    python tests/benchmarks/launch.py

One process launches two copies of a kernel in turns: one autotuner without the hook, then one with it, 41 times 1,000
launches each. At the end it times the autotuner without the hook once more: the last row is the noise. All figures are
microseconds of wall time for one launch.

With a GPU the script launches a real kernel. Without a GPU the compiled kernel is a function that does nothing, so the
figure is the time of Triton's Python code.
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


class EmptyKernel:
    """A compiled kernel whose launch does nothing."""

    def __init__(self, python_function: Any) -> None:
        #: Triton reads the kernel's Python function from here.
        self.fn = python_function

    def run(self, *args: Any, **kwargs: Any) -> None:
        """Launch nothing."""


def return_equal_times(kernel_call: Any, quantiles: Any) -> list[float]:
    """Return the same benchmark for every candidate, in milliseconds."""
    return [1.0, 1.0, 1.0]


def build_kernel(has_gpu: bool) -> Any:
    """Return a new autotuned kernel; without a GPU, its launch and its benchmark do nothing."""

    @triton.autotune(configs=[triton.Config({"BLOCK": 128}), triton.Config({"BLOCK": 256})], key=["n"])
    @triton.jit
    def copy(x, y, n, BLOCK: tl.constexpr):
        offsets = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        tl.store(y + offsets, tl.load(x + offsets, mask=offsets < n), mask=offsets < n)

    if not has_gpu:
        copy._do_bench = return_equal_times
        copy.fn = EmptyKernel(copy.base_fn)
    return copy


def measure_launch_us(kernel: Any, x: torch.Tensor, y: torch.Tensor) -> float:
    """Return the microseconds of one launch, averaged over 1,000 launches."""
    launcher = kernel[(8,)]
    started = time.perf_counter()
    for _ in range(LAUNCHES):
        launcher(x, y, 1000)
    if x.is_cuda:
        torch.cuda.synchronize()
    return (time.perf_counter() - started) / LAUNCHES * 1e6


def use_interpreter_device() -> None:
    """Let the plugin take the interpreter for the device of a call, because there is no GPU to ask."""
    from pytest_autotune.devices import INTERPRETER
    from pytest_autotune.tuners.triton import choosing

    def find_interpreter() -> Any:
        return INTERPRETER

    choosing.find_target_device = find_interpreter


def main() -> None:
    has_gpu = torch.cuda.is_available()
    print(machine("torch", "triton"))
    x = torch.zeros(1000, device="cuda" if has_gpu else "cpu")
    y = torch.empty_like(x)
    adapter = Adapter()
    session = Session(Policy(is_dumping=True), EntryIndex.from_caches([Cache()]), Coordinator(Locks(1.0)), pytest.fail)
    stock, hooked = build_kernel(has_gpu), build_kernel(has_gpu)
    if not has_gpu:
        use_interpreter_device()
    # Each kernel is tuned before its launches are timed.
    measure_launch_us(stock, x, y)
    adapter.hook(autotuner_module, session)
    measure_launch_us(hooked, x, y)
    adapter.unhook()
    without, with_hook = [], []
    for _ in range(PAIRS):
        without.append(measure_launch_us(stock, x, y))
        adapter.hook(autotuner_module, session)
        with_hook.append(measure_launch_us(hooked, x, y))
        adapter.unhook()
    repeated = [measure_launch_us(stock, x, y) for _ in range(PAIRS)]
    added = [launch_us - base_us for launch_us, base_us in zip(with_hook, without, strict=True)]
    noise = [abs(launch_us - base_us) for launch_us, base_us in zip(repeated, without, strict=True)]
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
