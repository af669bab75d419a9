"""Tensors, streams and times for the tests of the adapter for CuTe DSL, with and without a GPU.

Without a GPU, CuTe compiles each kernel for an H200. Launches do nothing, and a time depends on the compiled code only.
Over the stand-in for CuTe, nothing is compiled either. Import it before cutlass.
"""

from __future__ import annotations

import functools
import hashlib
import os
import sys
from types import SimpleNamespace
from typing import Any

HAS_GPU = False
if "torch" in sys.modules or os.environ.get("WITH_GPU"):
    import torch

    HAS_GPU = torch.cuda.is_available()
if not HAS_GPU:
    os.environ.setdefault("CUTE_DSL_ARCH", "sm_90a")  # cutlass reads it when it is imported

import cutlass  # noqa: E402
import cutlass.testing as testing  # noqa: E402
from cutlass.cute.runtime import make_fake_compact_tensor  # noqa: E402

IS_STAND_IN = not hasattr(cutlass, "cutlass_dsl")
#: The times of all benchmarks in microseconds.
measured_us: list[float] = []
_launched_ms = [0.0]


class AbsentDriver:
    """The calls of the CUDA driver that CuTe's benchmark makes. All succeed and do nothing."""

    CUstream = int
    CUstream_flags = SimpleNamespace(CU_STREAM_DEFAULT=0)
    CUevent_flags = SimpleNamespace(CU_EVENT_DEFAULT=0)

    def cuEventElapsedTime(self, *events: object) -> tuple[int, float]:
        return 0, _launched_ms[0]

    def __getattr__(self, name: str) -> Any:
        return lambda *args: (0, 0)


def launch_nothing(compiled: Any, *args: Any, **kwargs: Any) -> None:
    if not hasattr(compiled, "absent_ms"):
        code = hashlib.sha256(str(compiled.ir_module).encode()).hexdigest()
        compiled.absent_ms = 0.02 + int(code[:4], 16) % 80 / 1e3
    _launched_ms[0] = compiled.absent_ms


if not HAS_GPU and not IS_STAND_IN:
    import cutlass.utils
    from cutlass.cutlass_dsl.cuda_jit_executor import CudaDialectJitCompiledFunction

    testing.cuda_driver = AbsentDriver()
    testing._cuda_success = lambda *args: None
    cutlass.utils.HardwareInfo = lambda: SimpleNamespace(get_l2_cache_size_in_bytes=lambda: 1 << 20)
    CudaDialectJitCompiledFunction.__call__ = launch_nothing


if not IS_STAND_IN:
    _benchmark = testing._benchmark_for_autotune

    @functools.wraps(_benchmark)
    def count_benchmark(*args: Any, **kwargs: Any) -> float:
        time_us = _benchmark(*args, **kwargs)
        measured_us.append(time_us)
        return time_us

    testing._benchmark_for_autotune = count_benchmark


def make_vector(size: int) -> Any:
    """Return a tensor of CuTe with so many numbers."""
    if HAS_GPU:
        from cutlass.cute.runtime import from_dlpack

        return from_dlpack(torch.rand(size, device="cuda"), assumed_align=32)
    return make_fake_compact_tensor(cutlass.Float32, (size,), assumed_align=32)


def make_array(*shape: int) -> Any:
    """Return an array of numbers on the GPU, or on the CPU if there is no GPU."""
    if HAS_GPU:
        return torch.rand(shape, device="cuda")
    import numpy

    return numpy.zeros(shape, dtype=numpy.float32)


def count_measured() -> int:
    """Return how many configurations were benchmarked."""
    if IS_STAND_IN:
        return len(testing.benchmarked)
    return len(measured_us)
