"""Finds the processor of a call, and returns its type as a :class:`Device`.

Adapters ask at a lookup, never at start-up. No question creates a CUDA context: initialising CUDA early would freeze
``CUDA_VISIBLE_DEVICES``, and break suites that fork. Without torch, NVIDIA's driver is asked if another library has
loaded it. It is never loaded or initialised here.
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
from types import ModuleType
from typing import Any, NamedTuple

from pytest_autotune.cache.model import Device

#: Triton's interpreter runs kernels as Python, so its choices hold for no other device.
INTERPRETER = Device("Triton interpreter", "interpreter")
#: The numbers of the CUDA driver API (``CUdevice_attribute`` in ``cuda.h``).
_MULTIPROCESSORS, _MAJOR, _MINOR = 16, 75, 76
_NAME_LENGTH = 256
#: The files of the drivers of NVIDIA and AMD, and of Windows under Linux.
_GPU_FILES = ("/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg")
#: Libraries, besides torch, that can create a CUDA context.
_CUDA_LIBRARIES = ("cupy", "pycuda", "numba.cuda", "cuda", "cutlass", "jaxlib", "warp", "tensorflow", "mxnet", "paddle")
#: The flags of a CPU with vector instructions, the widest first, and the name of the device's architecture.
_CPU_FLAGS = {"amx_tile": "amx", "avx512f": "avx512", "avx2": "avx2", "sve": "sve", "asimd": "neon"}
#: Returns the processors on which this process may run; None if the system has no such function. A test may replace
#: the function in ``os``.
_get_affinity: Any = getattr(os, "sched_getaffinity", None)


# The GPU of a call


def current_gpu() -> Device | None:
    """Return the type of the GPU on which this thread launches kernels now; None if it cannot have launched any.

    It is torch's current GPU if torch has initialised one, else the GPU of the thread's CUDA context.
    """
    cuda = torch_cuda()
    if cuda is not None:
        return _cuda_device(cuda.get_device_properties(cuda.current_device()))
    # GPUs of Intel.
    xpu: Any = getattr(imported_torch(), "xpu", None)
    if xpu is not None and xpu.is_available() and xpu.is_initialized():
        properties = xpu.get_device_properties(xpu.current_device())
        return Device(properties.name, "xpu", getattr(properties, "gpu_eu_count", 0))
    return context_gpu().device


def imported_torch() -> Any:
    """Return torch if the suite imported it, else None. A mock or stub of torch has no compiled module ``torch._C``."""
    torch = sys.modules.get("torch")
    if isinstance(torch, ModuleType) and isinstance(vars(torch).get("_C"), ModuleType):
        return torch
    return None


def torch_cuda() -> Any:
    """Return ``torch.cuda``, of CUDA or ROCm, if torch has initialised a GPU in this process; else None."""
    cuda: Any = getattr(imported_torch(), "cuda", None)
    if cuda is None or not cuda.is_initialized() or not cuda.is_available():
        return None
    return cuda


def cuda_is_initialised() -> bool:
    """Whether torch, or another library in this thread, has initialised CUDA or ROCm. Forked children cannot use it."""
    return torch_cuda() is not None or context_gpu().device is not None


def stream_is_capturing() -> bool:
    """Whether the launches of this thread become a part of a CUDA graph, so that none can be measured or loaded."""
    cuda = torch_cuda()
    return cuda is not None and bool(cuda.is_current_stream_capturing())


def current_gpu_uuid() -> str:
    """Return the UUID of the physical GPU, or MIG slice, that this thread launches on now; empty if unknown."""
    cuda = torch_cuda()
    if cuda is None:
        return context_gpu().uuid
    return str(getattr(cuda.get_device_properties(cuda.current_device()), "uuid", ""))


def torch_gpu(index: int) -> Device:
    """Return the type of the CUDA or ROCm device to which torch gives this index."""
    torch: Any = sys.modules["torch"]
    return _cuda_device(torch.cuda.get_device_properties(index))


def _cuda_device(properties: Any) -> Device:
    """Return the type of a device of CUDA or ROCm, from torch's properties."""
    arch = f"sm_{properties.major}{properties.minor}"
    rocm_arch = getattr(properties, "gcnArchName", "")
    if rocm_arch.startswith("gfx"):
        # The suffixes ("gfx942:sramecc+:xnack-") are settings of a machine, not of a type.
        arch = rocm_arch.split(":")[0]
    return Device(properties.name, arch, properties.multi_processor_count)


def jax_device(device: Any) -> Device:
    """Return the type of one of JAX's devices."""
    arch = str(getattr(device, "compute_capability", "") or "").split(":")[0]
    if re.fullmatch(r"\d+\.\d+", arch):
        arch = f"sm_{arch.replace('.', '')}"
    return Device(str(device.device_kind), arch, int(getattr(device, "core_count", 0) or 0))


# NVIDIA's driver


class ContextGpu(NamedTuple):
    """The GPU of a CUDA context.

    :param device: its type; None if the thread has no context.
    :param uuid: the UUID of the GPU or its MIG slice, as torch spells it; empty if the thread has no context.
    """

    device: Device | None = None
    uuid: str = ""


def context_gpu(driver: Any = None) -> ContextGpu:
    """Return the GPU of this thread's CUDA context; an empty :class:`ContextGpu` if there is none.

    :param driver: NVIDIA's driver; None for the driver that this process has loaded.
    """
    driver = driver or _find_loaded_driver()
    if driver is None:
        return ContextGpu()
    context = ctypes.c_void_p()
    try:
        _check(driver.cuCtxGetCurrent(ctypes.byref(context)))
        if not context:
            # The thread has no context.
            return ContextGpu()
        return _read_context_gpu(driver)
    except _DriverError:
        # For example, the driver is not initialised.
        return ContextGpu()


class _DriverError(Exception):
    """A function of NVIDIA's driver has failed."""


def _check(status: int) -> None:
    """Raise an error unless a function of the driver has succeeded.

    :param status: the function's result: 0 if it succeeded, else the number of an error.
    """
    if status:
        raise _DriverError(status)


def _read_context_gpu(driver: Any) -> ContextGpu:
    """Return the GPU of this thread's CUDA context, which exists.

    :raises _DriverError: if a function of the driver fails.
    """
    gpu = ctypes.c_int()
    _check(driver.cuCtxGetDevice(ctypes.byref(gpu)))
    name = ctypes.create_string_buffer(_NAME_LENGTH)
    _check(driver.cuDeviceGetName(name, _NAME_LENGTH, gpu))
    uuid_bytes = (ctypes.c_ubyte * 16)()
    # Only the newer function gives a MIG slice its own UUID. The older gives the UUID of the whole GPU.
    get_uuid = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    _check(get_uuid(ctypes.byref(uuid_bytes), gpu))
    major, minor = _read_attribute(driver, gpu, _MAJOR), _read_attribute(driver, gpu, _MINOR)
    multiprocessors = _read_attribute(driver, gpu, _MULTIPROCESSORS)
    device = Device(name.value.decode(errors="replace"), f"sm_{major}{minor}", multiprocessors)
    return ContextGpu(device, str(uuid.UUID(bytes=bytes(uuid_bytes))))


def _read_attribute(driver: Any, gpu: ctypes.c_int, attribute: int) -> int:
    """Return an attribute of a GPU.

    :param attribute: its number in the driver's API, such as ``_MULTIPROCESSORS``.
    :raises _DriverError: if the driver does not know it.
    """
    number = ctypes.c_int()
    _check(driver.cuDeviceGetAttribute(ctypes.byref(number), attribute, gpu))
    return number.value


def _find_loaded_driver() -> Any:
    """Return NVIDIA's driver if this process has loaded it; else None."""
    # Every call of a tuner comes here, and the loader needs 30 us to find that a library is not loaded.
    if not any(name in sys.modules for name in _CUDA_LIBRARIES):
        return None
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError):
        # The driver is not loaded, or the system has no such libraries.
        return None


# This machine


def cpu(threads: int = 0) -> Device:
    """Return the type of this CPU: its widest vector instructions and its threads, not its model.

    :param threads: the number of threads that the tuner uses; 0 for all threads that may run now.
    """
    return _build_cpu(threads or _count_threads())


@lru_cache
def _build_cpu(threads: int) -> Device:
    return Device("CPU", find_cpu_arch(), threads)


def count_usable_cores(cgroups: Path = Path("/sys/fs/cgroup"), membership: Path = Path("/proc/self/cgroup")) -> int:
    """Return the number of cores whose time this process may use, at least 1.

    A container can often run on all cores of a machine, but gets only a part of their time. A control group of Linux
    (version 2) is a folder whose file ``cpu.max`` has this quota: ``200000 100000`` allows 200 ms in each 100 ms, which
    is two cores. Groups lie inside each other, and the quotas of all groups around the process count.

    :param cgroups: the folder of control groups. Inside a container, it is usually the folder of the container's group.
    :param membership: the file that names the process's own group: ``0::/system.slice/tests.service``.
    """
    cores = _count_threads()
    innermost_group = cgroups
    with suppress(OSError, ValueError):
        for line in membership.read_text(encoding="utf-8").splitlines():
            if line.startswith("0::/"):
                innermost_group = cgroups / line.removeprefix("0::/")
    for group in (innermost_group, *innermost_group.parents):
        # A group without a quota has `max` in the place of a time, and the outermost group has no file.
        with suppress(OSError, ValueError, ZeroDivisionError):
            time_us, period_us = (group / "cpu.max").read_text(encoding="ascii").split()
            cores = min(cores, int(time_us) // int(period_us))
        if group == cgroups:
            break
    return max(cores, 1)


def _count_threads() -> int:
    """Return the number of threads of this process that may run at once."""
    if _get_affinity is not None:
        return len(_get_affinity(0))
    return os.cpu_count() or 1


@lru_cache
def find_cpu_arch() -> str:
    """Return the name of the widest vector instructions of this CPU, or ``os.uname().machine`` if they are unknown.

    The first call reads ``/proc/cpuinfo``. Later calls return the same name, also while a test mocks ``open()``.
    """
    flags = _read_cpu_flags()
    for flag, arch in _CPU_FLAGS.items():
        if flag in flags:
            return arch
    if hasattr(os, "uname"):
        return os.uname().machine
    return "unknown"


def _read_cpu_flags() -> set[str]:
    """Return the flags of this CPU, such as ``avx2``; empty if the system does not list them."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            for line in file:
                if line.startswith(("flags", "Features")):
                    return set(line.partition(":")[2].split())
    except OSError:
        pass
    return set()


def visible_nvidia_gpus() -> list[str]:
    """Return the visible GPUs, each as ``CUDA_VISIBLE_DEVICES`` names it: by its index, ``"0"``, or its UUID.

    No CUDA context is created.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = []
        for part in visible.split(","):
            name = part.strip()
            if name.startswith("-"):
                # CUDA hides this GPU and all GPUs after it: "0,-1,1" is "0".
                break
            if name:
                names.append(name)
        return names
    try:
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, timeout=60, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        # There is no driver, or it has no GPU.
        return []
    # The line of a GPU: "GPU 0: NVIDIA H200 (UUID: GPU-...)". The lines of its MIG slices are indented.
    gpu_count = sum(line.startswith("GPU ") for line in listed.splitlines())
    return [str(index) for index in range(gpu_count)]


def has_visible_gpu() -> bool:
    """Whether this process can see a GPU.

    It is called only after the tests, because ``torch.cuda.is_available()`` may initialise the driver.
    """
    torch: Any = sys.modules.get("torch")
    if torch is not None:
        # Torch knows best whether it can use a GPU.
        xpu = getattr(torch, "xpu", None)
        return bool(torch.cuda.is_available() or (xpu is not None and xpu.is_available()))
    if os.environ.get("CUDA_VISIBLE_DEVICES") in ("", "-1"):
        # These values hide all GPUs.
        return False
    # Without torch, the files of the drivers show whether the machine has a GPU.
    return any(glob.glob(files) for files in _GPU_FILES)


def find_only_type(
    devices: Collection[Device], information: str = "/proc/driver/nvidia/gpus/*/information"
) -> Device | None:
    """Return the device that is the type of all GPUs of this machine; None if the driver's files do not tell the type.

    Only the names are compared, because the files of NVIDIA's driver say nothing else about the type.

    :param devices: the types to choose from.
    :param information: a glob of the files in which NVIDIA's driver describes the GPUs, with a line such as
        ``Model: NVIDIA H200``.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None and (not visible or visible.strip().startswith(("-", "MIG", "NoDev"))):
        # No GPU is visible, or only a MIG slice, which the files of the driver do not describe.
        return None
    names: set[str] = set()
    for path in glob.glob(information):
        # A container may hide the content of the files.
        with suppress(OSError):
            text = Path(path).read_text(errors="replace")
            names.update(re.findall(r"^Model:\s*(.+?)\s*$", text, re.MULTILINE))
    devices_of_that_name = [device for device in devices if names == {device.name}]
    if len(devices_of_that_name) != 1:
        # The GPUs have several models, or several devices have the name of the only model.
        return None
    return devices_of_that_name[0]
