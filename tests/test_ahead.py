"""Compiling ahead: the device, the kernels and their order."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import pytest

from pytest_autotune.cache.model import Device
from pytest_autotune.devices import find_only_type
from pytest_autotune.modes.compile_ahead import COMPILED, CompileAhead
from pytest_autotune.tuners.triton.ahead import list_reached
from pytest_autotune.workers.events import Event
from tests.results import result

H200, H100 = Device("NVIDIA H200", "sm_90", 132), Device("NVIDIA H100 80GB HBM3", "sm_90", 132)


@pytest.mark.parametrize(
    ("models", "visible", "expected"),
    [
        (["NVIDIA H200"], None, H200),
        (["NVIDIA H200", "NVIDIA H200"], "1", H200),
        (["NVIDIA H200", "NVIDIA H100 80GB HBM3"], None, None),
        (["NVIDIA A100"], None, None),
        (["NVIDIA H200"], "", None),
        (["NVIDIA H200"], "-1", None),
        (["NVIDIA H200"], "MIG-8d8a2ae5", None),
        ([], None, None),
    ],
)
def test_the_gpu_type_is_known_only_if_all_visible_gpus_share_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: list[str], visible: str | None, expected: Device | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for number, model in enumerate(models):
        (tmp_path / str(number)).write_text(f"Model: \t\t {model}\nIRQ:   \t\t 0\n")

    assert find_only_type([H100, H200], f"{tmp_path}/*") == expected


class Kernel:
    def __init__(self, fn: Any) -> None:
        self.fn = fn


def inner() -> None:
    pass


first, second, third, fourth = (Kernel(inner) for _ in range(4))
REGISTRY = {"by name": third}


def calls_second() -> None:
    second.fn()


class Layer:
    def forward(self) -> None:
        calls_second()

    @staticmethod
    def backward() -> None:
        first.fn()


layer = Layer()


def uses_a_registry() -> None:
    REGISTRY["by name"].fn()


def uses_a_layer() -> None:
    def later() -> None:
        layer.forward()

    later()


def endless() -> None:
    endless()


def test_kernels_that_tests_use_are_listed_in_test_order() -> None:
    def kernels(*tests: tuple[object, ...]) -> list[object]:
        return [kernel for kernel in list_reached(tests) if type(kernel) is Kernel]

    assert kernels((uses_a_registry,), (calls_second,), (uses_a_layer,)) == [third, second, first]
    assert kernels((endless, partial(print, fourth)), ((first,), None, "x")) == [fourth, first]
    assert kernels() == []


def test_searching_for_kernels_reads_no_attribute_of_a_proxy() -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            pytest.fail(f"asked for {name}")

    class Other:
        @property
        def __dict__(self) -> Any:
            pytest.fail("asked for its attributes")

    # From Python 3.12 the last has attributes, but no dictionary of them.
    assert list(list_reached([(Proxy(), Other(), TypeVar("T"))]))


def test_report_sums_up_kernels_that_processes_compiled_early() -> None:
    data = [
        {"kernels": 2, "seconds": 1.25, "failed": 1, "reason": "ValueError: no"},
        {"kernels": 1, "seconds": 0.5, "failed": 0, "reason": ""},
        {"a damaged": "line"},
    ]

    section = CompileAhead().build_section(result(mode_events=tuple(Event(COMPILED, data=part) for part in data)))

    assert section.data["compiled_ahead"] == {"kernels": 3, "seconds": 1.75, "failed": 1, "reason": "ValueError: no"}
