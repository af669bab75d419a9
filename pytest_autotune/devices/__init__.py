"""What a call runs on, as one identity per type of processor.

Asked for at a lookup, never at start-up, and never the cause of a CUDA context:
initialising CUDA early freezes ``CUDA_VISIBLE_DEVICES`` and breaks suites that fork.
Without torch, NVIDIA's driver is asked where a library has loaded it, and never loaded or initialised.
"""

from __future__ import annotations

import ctypes
import glob
import os
import re
import subprocess
import sys
import uuid
from collections.abc import Collection
from contextlib import suppress
from functools import lru_cache
from pathlib import Path
from typing import Any

from pytest_autotune.cache.model import Device

#: Triton's interpreter runs kernels as Python: no choice made there holds elsewhere.
INTERPRETER = Device("Triton interpreter", "interpreter")
#: The numbers of the CUDA driver API (``CUdevice_attribute`` in ``cuda.h``).
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
_NAME_LENGTH = 256
#: The files of the drivers of NVIDIA and AMD, and of Windows under Linux.
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")
#: Libraries, other than torch, through which a process may have come to a CUDA context.
_LIBRARIES = ("cupy", "pycuda", "numba.cuda", "cuda", "cutlass", "jaxlib", "warp", "tensorflow", "mxnet", "paddle")


def current_gpu() -> Device | None:
    """The type of the GPU that this thread launches on now; None where nothing can have been launched.

    It is torch's current one where torch has initialised a GPU, else that of the CUDA context of the thread.
    """
    if (cuda := torch_cuda()) is not None:
        return _cuda_device(cuda.get_device_properties(cuda.current_device()))
    xpu: Any = getattr(sys.modules.get("torch"), "xpu", None)
    if xpu is not None and xpu.is_available() and xpu.is_initialized():
        properties = xpu.get_device_properties(xpu.current_device())
        return Device(properties.name, "xpu", getattr(properties, "gpu_eu_count", 0))
    return context_gpu()[0]


def torch_cuda() -> Any:
    """``torch.cuda``, of CUDA or ROCm, where torch has initialised a GPU in this process; None elsewhere."""
    cuda: Any = getattr(sys.modules.get("torch"), "cuda", None)
    return cuda if cuda is not None and cuda.is_initialized() and cuda.is_available() else None


def cuda_is_initialised() -> bool:
    """Whether torch, or another library in this thread, has initialised CUDA or ROCm: forked children cannot use it."""
    return torch_cuda() is not None or context_gpu()[0] is not None


def of_jax(on: Any) -> Device:
    """The type of one of JAX's devices."""
    arch = str(getattr(on, "compute_capability", "") or "").split(":")[0]
    if re.fullmatch(r"\d+\.\d+", arch):
        arch = f"sm_{arch.replace('.', '')}"
    return Device(str(on.device_kind), arch, int(getattr(on, "core_count", 0) or 0))


def _cuda_device(properties: Any) -> Device:
    # ROCm's feature suffixes ("gfx942:sramecc+:xnack-") are settings of a machine, not a type.
    hip_arch = getattr(properties, "gcnArchName", "")
    arch = hip_arch.split(":")[0] if hip_arch.startswith("gfx") else f"sm_{properties.major}{properties.minor}"
    return Device(properties.name, arch, properties.multi_processor_count)


def current_gpu_uuid() -> str:
    """The UUID of the physical GPU, or MIG slice, that this thread launches on now; empty if unknown."""
    if (cuda := torch_cuda()) is not None:
        return str(getattr(cuda.get_device_properties(cuda.current_device()), "uuid", ""))
    return context_gpu()[1]


def context_gpu(driver: Any = None) -> tuple[Device | None, str]:
    """The GPU of this thread's CUDA context, and its (or its MIG slice's) UUID as torch spells it; or nothing."""
    driver = driver or _loaded_driver()
    context, gpu, name = ctypes.c_void_p(), ctypes.c_int(), ctypes.create_string_buffer(_NAME_LENGTH)
    if driver is None or driver.cuCtxGetCurrent(ctypes.byref(context)) or not context:
        return None, ""
    id_bytes, numbers = (ctypes.c_ubyte * 16)(), [ctypes.c_int() for _ in range(3)]
    ask_uuid = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    if (
        driver.cuCtxGetDevice(ctypes.byref(gpu))
        or driver.cuDeviceGetName(name, _NAME_LENGTH, gpu)
        or ask_uuid(ctypes.byref(id_bytes), gpu)
        or any(
            driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, gpu)
            for number, attribute in zip(numbers, (_MULTIPROCESSORS, _MAJOR, _MINOR), strict=True)
        )
    ):
        return None, ""
    multiprocessors, major, minor = (number.value for number in numbers)
    device = Device(name.value.decode(errors="replace"), f"sm_{major}{minor}", multiprocessors)
    return device, str(uuid.UUID(bytes=bytes(id_bytes)))


def _loaded_driver() -> Any:
    # Asking the loader takes 30 us where the answer is no, and every call of a tuner asks.
    if not any(name in sys.modules for name in _LIBRARIES):
        return None
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError):  # not loaded, or a system without such libraries
        return None


def stream_is_capturing() -> bool:
    """Whether what this thread launches now becomes part of a CUDA graph, so that nothing can be measured or loaded."""
    cuda = torch_cuda()
    return cuda is not None and bool(cuda.is_current_stream_capturing())


def gpu(index: int) -> Device:
    """The type of the CUDA or ROCm device that torch knows by this index."""
    torch: Any = sys.modules["torch"]
    return _cuda_device(torch.cuda.get_device_properties(index))


@lru_cache
def cpu(threads: int = 0) -> Device:
    """This CPU: its widest vector instructions and how many threads may run, or the tuner uses; not its model."""
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


def has_visible_gpu() -> bool:
    """Whether this process can see a GPU. To be asked after the tests: torch may initialise its driver."""
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        xpu = getattr(torch, "xpu", None)
        return bool(torch.cuda.is_available() or (xpu is not None and xpu.is_available()))
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        return False
    return any(glob.glob(files) for files in _GPU_FILES)


def only_type(known: Collection[Device], shown: str = "/proc/driver/nvidia/gpus/*/information") -> Device | None:
    """The device that all GPUs of this machine are, as NVIDIA's driver shows them, if it is one of these."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible or visible.strip().startswith(("-", "MIG", "NoDev"))):
        return None
    models = set()
    for path in glob.glob(shown):
        with suppress(OSError):
            models |= set(re.findall(r"^Model:\s*(.+?)\s*$", Path(path).read_text(errors="replace"), re.MULTILINE))
    found = [device for device in known if models == {device.name}]
    return found[0] if len(found) == 1 else None
