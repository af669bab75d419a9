"""What a call runs on, as one identity per type of processor.

Asked for at a lookup, never at start-up, and never the cause of a CUDA context:
initialising CUDA early freezes ``CUDA_VISIBLE_DEVICES`` and breaks suites that fork.
"""

from __future__ import annotations

import os
import subprocess
import sys
from functools import lru_cache
from typing import Any

from pytest_autotune.cache.model import Device
from pytest_autotune.devices import cuda_driver

#: Triton's interpreter runs kernels as Python: no choice made there holds elsewhere.
INTERPRETER = Device("Triton interpreter", "interpreter")


def current_gpu() -> Device | None:
    """The type of the GPU that this thread launches on now.

    It is torch's current one where torch has initialised a GPU, else that of the
    thread's CUDA context, whichever library made it. None where there is neither:
    then nothing can have been launched.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return _cuda_device(torch.cuda.get_device_properties(torch.cuda.current_device()))
    xpu: Any = getattr(torch, "xpu", None)
    if xpu is not None and xpu.is_available() and xpu.is_initialized():
        properties = xpu.get_device_properties(xpu.current_device())
        return Device(properties.name, "xpu", getattr(properties, "gpu_eu_count", 0))
    gpu = cuda_driver.context_gpu()
    return None if gpu is None else Device(gpu.name, f"sm_{gpu.major}{gpu.minor}", gpu.multiprocessors)


def _cuda_device(properties: Any) -> Device:
    # ROCm's feature suffixes ("gfx942:sramecc+:xnack-") are settings of a machine, not a type.
    hip_arch = getattr(properties, "gcnArchName", "")
    arch = hip_arch.split(":")[0] if hip_arch.startswith("gfx") else f"sm_{properties.major}{properties.minor}"
    return Device(properties.name, arch, properties.multi_processor_count)


def current_gpu_uuid() -> str:
    """The UUID of the physical GPU, or MIG slice, that this thread launches on now; empty if unknown."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available() and torch.cuda.is_initialized():
        return str(getattr(torch.cuda.get_device_properties(torch.cuda.current_device()), "uuid", ""))
    gpu = cuda_driver.context_gpu()
    return "" if gpu is None else gpu.uuid


def stream_is_capturing() -> bool:
    """Whether what this thread launches now becomes part of a CUDA graph, so that nothing can be measured or loaded."""
    torch: Any = sys.modules.get("torch")
    return bool(torch and torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing())


def visible_nvidia_gpus() -> list[str]:
    """What ``CUDA_VISIBLE_DEVICES`` may name now, one word for each GPU; asks the driver and makes no context."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [word.strip() for word in visible.split(",") if word.strip()]
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return []
    return [str(number) for number in range(sum(line.startswith("GPU ") for line in listed.splitlines()))]


def gpu(index: int) -> Device:
    """The type of the CUDA or ROCm device that torch knows by this index."""
    torch: Any = sys.modules["torch"]
    return _cuda_device(torch.cuda.get_device_properties(index))


@lru_cache
def cpu(threads: int = 0) -> Device:
    """This CPU: its widest vector instructions and how many threads may run, not its model.

    :param threads: how many threads the tuner uses, where it knows.
    """
    if not threads:
        threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            flags = next((line for line in file if line.startswith(("flags", "Features"))), "")
    except OSError:
        flags = ""
    words = set(flags.partition(":")[2].split())
    for flag, name in (("amx_tile", "amx"), ("avx512f", "avx512"), ("avx2", "avx2"), ("sve", "sve"), ("asimd", "neon")):
        if flag in words:
            return Device("CPU", name, threads)
    return Device("CPU", os.uname().machine if hasattr(os, "uname") else "unknown", threads)
