"""The device of a call, found without a new CUDA context."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from pytest_autotune import devices as device
from pytest_autotune.cache.model import Device
from pytest_autotune.devices import visible_nvidia_gpus
from pytest_autotune.plugin.options import OPTIONS
from pytest_autotune.plugin.values import READERS


class Cuda:
    """Stands in for ``torch.cuda`` with the devices of a machine."""

    def __init__(self, *properties: Any, current: int = 0, initialized: bool = True) -> None:
        self.properties = properties
        self.current = current
        self.initialized = initialized

    def is_available(self) -> bool:
        return bool(self.properties)

    def is_initialized(self) -> bool:
        return self.initialized

    def current_device(self) -> int:
        assert self.initialized, "asking would make a context"
        return self.current

    def get_device_properties(self, number: int) -> Any:
        assert self.initialized, "asking would make a context"
        return self.properties[number]


def nvidia(name: str = "NVIDIA H200", **other: Any) -> Any:
    return SimpleNamespace(**{"name": name, "major": 9, "minor": 0, "multi_processor_count": 132, **other})


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch):
    def torch(cuda: Cuda, **other: Any) -> None:
        torch = ModuleType("torch")
        vars(torch).update(other, cuda=cuda, _C=ModuleType("torch._C"))
        monkeypatch.setitem(sys.modules, "torch", torch)

    return torch


def test_an_nvidia_gpu_has_name_architecture_and_processor_count(torch) -> None:
    torch(Cuda(nvidia()))

    assert device.current_gpu() == Device("NVIDIA H200", "sm_90", 132)
    assert device.current_gpu().id == "nvidia-h200-sm90-132"


def test_with_two_gpus_the_device_is_the_current_gpu(torch) -> None:
    torch(Cuda(nvidia(), nvidia("NVIDIA A100-SXM4-80GB", major=8, multi_processor_count=108), current=1))

    assert device.current_gpu() == Device("NVIDIA A100-SXM4-80GB", "sm_80", 108)


def test_the_architecture_of_an_amd_gpu_has_no_feature_suffixes(torch) -> None:
    torch(Cuda(nvidia("AMD Instinct MI300X", gcnArchName="gfx942:sramecc+:xnack-", multi_processor_count=304)))

    assert device.current_gpu() == Device("AMD Instinct MI300X", "gfx942", 304)


def test_asking_for_the_device_does_not_initialize_cuda(torch) -> None:
    torch(Cuda(nvidia(), initialized=False))

    assert device.current_gpu() is None
    assert device.current_gpu_uuid() == ""


def test_an_intel_xpu_is_a_device_with_its_name_and_eu_count(torch) -> None:
    properties = SimpleNamespace(name="Intel(R) Data Center GPU Max 1550", gpu_eu_count=512)
    xpu = SimpleNamespace(
        is_available=lambda: True,
        is_initialized=lambda: True,
        current_device=lambda: 0,
        get_device_properties=lambda number: properties,
    )
    torch(Cuda(), xpu=xpu)

    assert device.current_gpu() == Device("Intel(R) Data Center GPU Max 1550", "xpu", 512)


def test_the_gpu_lock_is_named_by_the_uuid_of_the_current_gpu(torch) -> None:
    torch(Cuda(nvidia(uuid="GPU-a"), nvidia(uuid="GPU-b"), current=1))

    assert device.current_gpu_uuid() == "GPU-b"


def test_a_cpu_is_described_by_vector_extension_and_thread_count() -> None:
    cpu = device.cpu()

    assert cpu.name == "CPU"
    assert cpu.multiprocessors >= 1
    assert " " not in cpu.arch


@pytest.mark.parametrize(
    ("visible", "listed", "expected"),
    [
        ("4,6", None, ["4", "6"]),
        ("", None, []),
        ("-1", None, []),
        ("2,-1,3", None, ["2"]),
        (None, "GPU 0: NVIDIA H200 (UUID: GPU-a)\n  MIG 1g.18gb\nGPU 1: NVIDIA H200 (UUID: GPU-b)\n", ["0", "1"]),
        (None, None, []),
    ],
)
def test_visible_gpus_follow_cuda_visible_devices_or_nvidia_smi(monkeypatch, visible, listed, expected) -> None:
    def run(*args: Any, **kwargs: Any) -> Any:
        if listed is None:
            raise FileNotFoundError("nvidia-smi")
        return SimpleNamespace(stdout=listed)

    monkeypatch.setattr("subprocess.run", run)
    if visible is None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    else:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)

    assert visible_nvidia_gpus() == expected


def test_cpu_arch_does_not_depend_on_the_number_of_threads() -> None:
    assert device.cpu(1).multiprocessors == 1
    assert device.cpu(1).arch == device.cpu().arch


@pytest.mark.parametrize(
    ("device_to_show", "words"),
    [
        (Device("NVIDIA H200", "sm_90", 132), "NVIDIA H200 (sm_90, 132 multiprocessors)"),
        (Device("CPU", "avx512", 2), "CPU (avx512, 2 threads)"),
        (Device("CPU", "avx512", 1), "CPU (avx512, 1 thread)"),
        (Device("Triton interpreter", "interpreter"), "Triton interpreter (interpreter)"),
    ],
)
def test_a_device_is_shown_with_architecture_and_core_count(device_to_show: Device, words: str) -> None:
    assert str(device_to_show) == words


@pytest.mark.parametrize(
    "shown",
    [
        Device("NVIDIA H200", "sm_90", 132),
        Device("CPU", "avx512", 2),
        Device("CPU", "avx512", 1),
        Device("Triton interpreter", "interpreter"),
        Device("Intel Max 1550", "xpu"),
        Device("Intel(R) Arc(TM) (R)", "xpu"),
        Device("cuda", ""),
    ],
)
def test_option_device_alias_accepts_short_and_full_gpu_names(shown: Device) -> None:
    option = next(option for option in OPTIONS if option.name == "device_alias")

    for text in (shown.name, str(shown)):
        assert READERS[option.kind]([f"{text} = {text}"], option) == ((shown.name, shown.name),)


@pytest.mark.parametrize(
    ("quotas", "usable"),
    [
        ({"": "200000 100000"}, 2),
        ({"": "max 100000"}, 8),
        ({"": "50000 100000"}, 1),
        ({"": "9900000 100000"}, 8),
        ({"": "a damaged file"}, 8),
        ({}, 8),
        ({"slice/tests": "max 100000", "slice": "300000 100000"}, 3),
        ({"slice/tests": "200000 100000", "slice": "300000 100000"}, 2),
    ],
)
def test_number_of_usable_cores_respects_cpu_quotas_of_cgroups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quotas: dict[str, str], usable: int
) -> None:
    """The process is in the group ``slice/tests``. Inside a container, the group's path may lead nowhere."""
    monkeypatch.setattr("pytest_autotune.devices._count_threads", lambda: 8)
    membership = tmp_path / "cgroup"
    membership.write_text("12:cpu:/version1\n0::/slice/tests\n")
    groups = tmp_path / "groups"
    for group, quota in quotas.items():
        (groups / group).mkdir(parents=True, exist_ok=True)
        (groups / group / "cpu.max").write_text(quota)

    assert device.count_usable_cores(groups, membership) == usable
    if set(quotas) <= {""}:
        assert device.count_usable_cores(groups, tmp_path / "missing") == usable


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system pins no processes to processors")
def test_the_device_of_the_cpu_has_the_threads_of_now() -> None:
    """A fixture may pin one test to a single processor."""
    processors = os.sched_getaffinity(0)
    all_threads = device.cpu()
    try:
        os.sched_setaffinity(0, {min(processors)})
        assert device.cpu().multiprocessors == 1
    finally:
        os.sched_setaffinity(0, processors)
    assert device.cpu() == all_threads
