"""What is compiled ahead: for which device, of which kernels, in which order."""

from __future__ import annotations

import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from pytest_autotune.cache.model import Device
from pytest_autotune.devices.visible import only_type
from pytest_autotune.run.compiled_ahead import Ahead, Compiled, CompiledAhead, Why, summed_up
from pytest_autotune.run.encoding import ProcessFacts
from pytest_autotune.run.events import Event
from pytest_autotune.tuners.protocol import Suite
from pytest_autotune.tuners.shared.reach import reached
from pytest_autotune.tuners.triton.ahead import CompilingChildren
from pytest_autotune.tuners.triton.ahead_plan import Plan
from pytest_autotune.tuners.triton.compilations import Compilations
from pytest_autotune.tuners.triton.constants import NoText
from pytest_autotune.tuners.triton.dummies import dummy_of
from pytest_autotune.tuners.triton.internals.compile_calls import seeing_work
from pytest_autotune.tuners.triton.specialisation_text import parsed

H200, H100 = Device("NVIDIA H200", "sm_90", 132), Device("NVIDIA H100 80GB HBM3", "sm_90", 132)


@pytest.mark.parametrize(
    ("models", "visible", "found"),
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
def test_the_device_is_seen_where_all_gpus_are_of_one_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, models: list[str], visible: str | None, found: Device | None
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    for number, model in enumerate(models):
        (tmp_path / str(number)).write_text(f"Model: \t\t {model}\nIRQ:   \t\t 0\n")

    assert only_type([H100, H200], f"{tmp_path}/*") == found


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


def test_kernels_are_reached_by_name_in_the_order_of_the_tests() -> None:
    def is_kernel(value: object) -> bool:
        return type(value) is Kernel

    assert reached([(uses_a_registry,), (calls_second,), (uses_a_layer,)], is_kernel) == [third, second, first]
    assert reached([(endless, partial(print, fourth), (first,), None, "x")], is_kernel) == [fourth, first]
    assert reached([], is_kernel) == []


def test_an_object_that_answers_for_another_one_is_asked_nothing() -> None:
    class Proxy:
        def __getattribute__(self, name: str) -> Any:
            pytest.fail(f"asked for {name}")

    class Other:
        @property
        def __dict__(self) -> Any:
            pytest.fail("asked for its attributes")

    # From Python 3.12 the last has attributes, but no dictionary of them.
    assert reached([(Proxy(), Other(), TypeVar("T"))], lambda value: False) == []


def test_dummies_are_specialised_as_the_text_says() -> None:
    aligned, pointer, number, odd, real, yes = map(dummy_of, parsed("*fp16:16 *bf16 i32:16 i64 fp32 u1").parts)

    assert (aligned.data_ptr(), pointer.data_ptr() % 16) == (0, 1)
    assert (str(aligned.dtype), str(pointer.dtype)) == ("torch.float16", "torch.bfloat16")
    assert number % 16 == 0
    assert odd % 16 != 0
    assert odd > 2**32
    assert (real, yes) == (0.5, True)


@pytest.mark.parametrize("text", ["*unknown", "*", "nvtmadesc", "(_)"])
def test_what_no_argument_can_be_made_of_is_refused(text: str) -> None:
    with pytest.raises(NoText):
        list(map(dummy_of, parsed(text).parts))


def test_what_several_processes_compiled_and_asked_for_is_counted_once() -> None:
    one = CompiledAhead(known=3, compiled=(("a", 1.0), ("b", 2.0)), asked=("a", "c"), waited_s=0.25, begun_s=0.5)
    other = CompiledAhead(known=2, compiled=(("c", 4.0),), asked=("a",), waited_s=0.25, begun_s=0.7)

    summed = Ahead(3, {}, 3, 7.0, 2, 0.5, 4.5, 0.5)
    assert summed_up([one, other]) == summed_up([other, one]) == summed
    assert summed_up([]) == Ahead()
    waited = CompiledAhead(compiled=(("a", 1.0),), asked=("a",), waited_s=9.0)
    assert summed_up([waited]).saved_seconds == 0


@pytest.mark.parametrize("others", [True, False])
def test_a_worker_without_children_waits_for_those_of_others(tmp_path: Path, others: bool) -> None:
    index = SimpleNamespace(tuners=lambda: frozenset({"triton"}))
    run: Any = SimpleNamespace(index=index, ahead=CompiledAhead(), note=pytest.fail)
    compilations = Compilations(lambda source, kernel: None)
    compiling = CompilingChildren(run, compilations, object)

    compiling.start(Suite((), False, 0, tmp_path, 1.0, others=others))

    assert (compilations.turns is not None) == others
    if compilations.turns is not None:
        with compilations.turns("asked", pytest.fail):
            pass
    compiling.stop()
    assert compilations.turns is None
    assert (run.ahead.asked == ("asked",)) == others
    assert bool(run.ahead.skipped) == (not others)


def test_nobody_waits_while_a_process_reads_what_it_needs_to_know_before_it_compiles(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    index = SimpleNamespace(tuners=lambda: frozenset({"triton"}))
    run: Any = SimpleNamespace(index=index, ahead=CompiledAhead(), note=pytest.fail)
    compilations = Compilations(lambda source, kernel: None)
    compiling = CompilingChildren(run, compilations, object)
    compiling.start(Suite((), False, 0, tmp_path, 1.0, others=True))
    locked_then: list[bool] = []
    monkeypatch.setattr(
        "pytest_autotune.tuners.triton.internals.without_gpu.read_triton",
        lambda: locked_then.append(any(tmp_path.iterdir())),
    )

    assert compilations.turns is not None
    with compilations.turns("asked", pytest.fail):
        assert any(tmp_path.iterdir())
    compiling.stop()

    assert locked_then == [False]


def test_nothing_is_compiled_ahead_where_tritons_own_files_are_read_for_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that is forked meanwhile waits for what it imports until it is killed, and a test waits for that one."""
    may_end = threading.Event()
    monkeypatch.setattr(
        "pytest_autotune.tuners.triton.internals.without_gpu.read_compiler", lambda arch: may_end.wait(30)
    )
    monkeypatch.setattr("pytest_autotune.tuners.triton.ahead_plan.MOST_READING_S", 0.01)
    monkeypatch.setattr(Plan, "_jobs", lambda self, index, device: [lambda: None])
    monkeypatch.setattr("pytest_autotune.tuners.triton.internals.without_gpu.compile_only", lambda *args: None)
    run: Any = SimpleNamespace(index=SimpleNamespace(devices=lambda tuner: frozenset({H200})))
    told: list[tuple[str, str]] = []
    suite = Suite((), False, 2, tmp_path, 1.0)

    plan = Plan(
        run, object, suite, Compilations(lambda *of: None), H200, lambda *words: told.append(words), str(tmp_path)
    )
    jobs = plan.jobs()
    may_end.set()

    assert jobs == []
    assert told == [("note", "TimeoutError: Triton has not read its own files in 0.01 s")]


def test_why_tests_compiled_something_themselves_is_told_apart() -> None:
    one = CompiledAhead(
        compiled=(("a", 1.0),),
        found=("first",),
        itself=(("first", 1.5, True), ("plain", 2.0, False), ("searched", 0.5, True)),
    )
    other = CompiledAhead(itself=(("plain", 1.0, False),))
    busy = CompiledAhead(known=1, itself=(("known", 1.0, True),))

    summed = summed_up([one, other])

    assert summed.by_tests == {Why.FIRST: Compiled(1, 1.5), Why.PLAIN: Compiled(2, 3.0), Why.OTHER: Compiled(1, 0.5)}
    assert summed_up([busy]).by_tests == {Why.FIRST: Compiled(1, 1.0)}
    assert list(summed.by_tests) == list(summed_up([other, one]).by_tests)


def test_what_a_process_reports_of_it_crosses_as_text() -> None:
    told = CompiledAhead(2, (("stale", 1),), (("a", 1.5),), ("b",), ("failed",), 0.5, ("c",), (("d", 2.0, False),), 1.0)

    assert ProcessFacts.of(Event.decode(ProcessFacts(ahead=told).event.encode())).ahead == told


def test_a_source_that_cannot_be_watched_is_compiled_all_the_same() -> None:
    class Slots:
        __slots__ = ()

        def make_ir(self) -> str:
            return "code"

    with seeing_work(Slots()) as work:
        assert Slots().make_ir() == "code"
    assert work == []
