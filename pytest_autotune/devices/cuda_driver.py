"""What NVIDIA's driver says of a GPU, without torch.

It is asked where a library has loaded it, and never loaded or initialised: an early ``cuInit`` freezes
``CUDA_VISIBLE_DEVICES`` and breaks suites that fork.
The numbers are those of the CUDA driver API (``CUdevice_attribute`` in ``cuda.h``).
"""

from __future__ import annotations

import ctypes
import os
import sys
import uuid
from dataclasses import dataclass
from typing import Any

_ATTRIBUTES = {"multiprocessors": 16, "major": 75, "minor": 76}
_NAME_LENGTH = 256
#: Libraries, other than torch, through which a process may have come to a CUDA context.
_LIBRARIES = ("cupy", "pycuda", "numba.cuda", "cuda", "cutlass", "jaxlib", "warp", "tensorflow", "mxnet", "paddle")


@dataclass(frozen=True)
class CudaGpu:
    """What the driver says of one GPU.

    :param uuid: as torch spells it, ``"8d8a2ae5-…"``; of a MIG slice where it is one.
    """

    name: str
    major: int
    minor: int
    multiprocessors: int
    uuid: str


def context_gpu(driver: Any = None) -> CudaGpu | None:
    """The GPU of this thread's context; None where there is no driver, no context, or an error.

    :param driver: the loaded ``libcuda``, if not this process's own.
    """
    driver = driver or _loaded_driver()
    if driver is None:
        return None
    context, gpu = ctypes.c_void_p(), ctypes.c_int()
    if driver.cuCtxGetCurrent(ctypes.byref(context)) or not context or driver.cuCtxGetDevice(ctypes.byref(gpu)):
        return None
    return _described(driver, gpu)


def _described(driver: Any, gpu: ctypes.c_int) -> CudaGpu | None:
    name = ctypes.create_string_buffer(_NAME_LENGTH)
    own_uuid = _uuid(driver, gpu)
    if driver.cuDeviceGetName(name, _NAME_LENGTH, gpu) or not own_uuid:
        return None
    numbers: dict[str, int] = {}
    for attribute, number_of in _ATTRIBUTES.items():
        number = ctypes.c_int()
        if driver.cuDeviceGetAttribute(ctypes.byref(number), number_of, gpu):
            return None
        numbers[attribute] = number.value
    return CudaGpu(name.value.decode(errors="replace"), uuid=own_uuid, **numbers)


def _uuid(driver: Any, gpu: ctypes.c_int) -> str:
    id_bytes = (ctypes.c_ubyte * 16)()
    ask = getattr(driver, "cuDeviceGetUuid_v2", None) or driver.cuDeviceGetUuid
    return "" if ask(ctypes.byref(id_bytes), gpu) else str(uuid.UUID(bytes=bytes(id_bytes)))


def _loaded_driver() -> Any:
    # Asking the loader takes 30 us where the answer is no, and every call of a tuner asks.
    if not any(name in sys.modules for name in _LIBRARIES):
        return None
    try:
        return ctypes.CDLL("libcuda.so.1", mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    except (OSError, AttributeError):  # not loaded, or a system without such libraries
        return None
