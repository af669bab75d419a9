"""The GPU of the current CUDA context, with a stand-in for NVIDIA's driver."""

from __future__ import annotations

import ctypes
import sys
import uuid
from typing import Any

import pytest

from pytest_autotune import devices as device
from pytest_autotune.cache.model import Device
from pytest_autotune.devices import context_gpu

UUID = uuid.UUID("8d8a2ae5-0b7c-4c9f-9d3d-0123456789ab")


class Driver:
    """Answers like libcuda, through the pointers that it is given."""

    def __init__(self, context: int = 1, error: str = "") -> None:
        self._context = context
        self._error = error

    def __getattr__(self, name: str) -> Any:
        def function(*args: Any) -> int:
            if name == self._error:
                return 3  # CUDA_ERROR_NOT_INITIALIZED
            getattr(self, f"_{name}")(*args)
            return 0

        return function

    def _cuCtxGetCurrent(self, context: Any) -> None:
        ctypes.cast(context, ctypes.POINTER(ctypes.c_void_p)).contents.value = self._context

    def _cuCtxGetDevice(self, gpu: Any) -> None:
        ctypes.cast(gpu, ctypes.POINTER(ctypes.c_int)).contents.value = 1

    def _cuInit(self, flags: int) -> None:
        assert flags == 0

    def _cuDeviceGet(self, gpu: Any, number: int) -> None:
        assert number == 0
        ctypes.cast(gpu, ctypes.POINTER(ctypes.c_int)).contents.value = 1

    def _cuDeviceGetName(self, name: Any, length: int, gpu: Any) -> None:
        assert gpu.value == 1
        name.value = b"NVIDIA H200"

    def _cuDeviceGetUuid_v2(self, id_bytes: Any, gpu: Any) -> None:
        ctypes.memmove(id_bytes, UUID.bytes, 16)

    def _cuDeviceGetAttribute(self, number: Any, attribute: int, gpu: Any) -> None:
        value = {16: 132, 75: 9, 76: 0}[attribute]
        ctypes.cast(number, ctypes.POINTER(ctypes.c_int)).contents.value = value


def test_the_driver_describes_the_gpu_of_a_context_as_torch_does() -> None:
    assert context_gpu(Driver()) == (Device("NVIDIA H200", "sm_90", 132), str(UUID))


@pytest.mark.parametrize(
    "driver",
    [Driver(context=0), *(Driver(error=name) for name in ("cuCtxGetCurrent", "cuCtxGetDevice", "cuDeviceGetName"))],
    ids=["no context", "cuCtxGetCurrent fails", "cuCtxGetDevice fails", "cuDeviceGetName fails"],
)
def test_without_a_cuda_context_or_on_errors_no_gpu_is_found(driver: Driver) -> None:
    assert context_gpu(driver) == (None, "")


def test_finding_the_current_gpu_never_loads_the_cuda_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    modes: list[int] = []

    def load(name: str, mode: int) -> Any:
        modes.append(mode)
        raise OSError

    monkeypatch.setattr(ctypes, "CDLL", load)
    monkeypatch.setattr(device, "_CUDA_LIBRARIES", ("no_such_library",))
    assert context_gpu() == (None, "")
    assert modes == []  # no library that could have made a context

    monkeypatch.setattr(device, "_CUDA_LIBRARIES", ("pytest",))
    assert context_gpu() == (None, "")
    assert modes[0] & 4  # RTLD_NOLOAD


def test_without_torch_the_gpu_is_read_from_the_cuda_context(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "_find_loaded_driver", Driver)
    monkeypatch.setitem(sys.modules, "torch", None)

    assert device.current_gpu() == Device("NVIDIA H200", "sm_90", 132)
    assert device.current_gpu_uuid() == str(UUID)
