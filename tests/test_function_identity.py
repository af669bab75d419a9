"""What a hand-written tuner's choice belongs to: the source, and what its functions carry."""

from __future__ import annotations

import sys
from functools import partial
from typing import Any

import pytest

import pytest_autotune
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.tuners.function.sources import _read
from pytest_autotune.tuners.function.tuner import TUNER
from pytest_autotune.tuners.measuring.how import Measuring
from tests.test_function_tuner import a_run

#: A clock for kernels that return their own time in microseconds.
AS_TOLD = Measuring(clock=lambda call: float(call()))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every machine, and after tests that used a GPU."""
    monkeypatch.setattr("pytest_autotune.devices.current_gpu", lambda: None)


@pytest.fixture
def looked_up() -> Any:
    """The lookups of a run that sees what the process's tuner does."""
    run, lookups = a_run()
    layer = TUNER.attach(run)
    yield lookups
    TUNER.detach(layer)


def chosen(run: Any, key: Any = None, **options: Any) -> Any:
    return pytest_autotune.tune("k", key=key, space=[1, 2, 4], run=run, measuring=AS_TOLD, **options)


def fastest_at(best: int) -> Any:
    return lambda config: abs(config - best)


def distance(best: int, config: int, scale: int = 1) -> int:
    return abs(config - best) * scale


class Runner:
    def __init__(self, best: int) -> None:
        self.best = best
        self.runs = 0
        self.seen: list[int] = []

    def run(self, config: int) -> int:
        self.runs += 1
        self.seen.append(config)
        return abs(config - self.best)

    def __call__(self, config: int) -> int:
        return abs(config - self.best)


def closure(best: int) -> Any:
    def run(config: int) -> int:
        return abs(config - best)

    return run


def default(best: int) -> Any:
    return lambda config, best=best: abs(config - best)


@pytest.mark.parametrize(
    "make",
    [
        fastest_at,
        closure,
        default,
        lambda best: partial(distance, best),
        lambda best: partial(scaled, best=best),
        lambda best: Runner(best).run,
        Runner,
        lambda best: lambda config: fastest_at(best)(config),
        lambda best: closure((best,)[0]),
    ],
    ids=["lambda", "closure", "default", "partial", "keyword", "method", "callable", "nested", "tuple"],
)
def test_two_functions_of_one_text_get_the_choice_that_each_carries(looked_up: list[Lookup], make: Any) -> None:
    assert (chosen(make(1)), chosen(make(4)), chosen(make(1))) == (1, 4, 1)
    assert len(looked_up) == 2
    assert len({lookup.fingerprint for lookup in looked_up}) == 2


def scaled(config: int, best: int) -> int:
    return abs(config - best)


def test_functions_under_a_decorator_carry_what_they_close_over_and_not_the_call(looked_up: list[Lookup]) -> None:
    def make(best: int) -> Any:
        @pytest_autotune.tuned(space=[1, 2, 4], measuring=AS_TOLD)
        def kernel(scale: int, *, config: int) -> int:
            return abs(config - best) * scale

        return kernel

    assert (make(1)(1), make(4)(1), make(1)(2)) == (0, 0, 0)
    assert len(looked_up) == 2


SEEN: list[int] = []
CALLS = 0
FASTEST = 2


def counted(config: int) -> int:
    global CALLS
    CALLS += 1
    SEEN.append(config)
    return abs(config - FASTEST)


def test_what_the_kernel_itself_changes_makes_no_choice_stale(looked_up: list[Lookup]) -> None:
    runner, seen = Runner(2), []

    def appending(config: int) -> int:
        seen.append(config)
        return abs(config - 2)

    for run in (counted, runner.run, appending):
        _read.clear()
        chosen(run)
        _read.clear()
        chosen(run)

    assert len(looked_up) == 3
    assert [lookup.label.partition("not in the fingerprint: ")[2] for lookup in looked_up] == [
        "CALLS (changed by the kernel), SEEN (list)",
        "self.runs (changed by the kernel), self.seen (list)",
        "seen (list)",
    ]


def test_an_edited_constant_makes_the_choice_stale(looked_up: list[Lookup], monkeypatch: pytest.MonkeyPatch) -> None:
    chosen(counted)
    monkeypatch.setattr(sys.modules[__name__], "FASTEST", 4)
    _read.clear()

    assert chosen(counted) == 4
    assert len({lookup.fingerprint for lookup in looked_up}) == 2


def test_a_size_that_the_key_has_coarser_tells_no_problems_apart(looked_up: list[Lookup]) -> None:
    def asked(m: int) -> None:
        chosen(lambda config: abs(config * m - m), {"m": pytest_autotune.power_of_two(m)})

    asked(1000)
    asked(1020)

    assert len(looked_up) == 1


class Array:
    """As much of an array as tells what it is."""

    def __init__(self, dtype: str, *shape: int) -> None:
        self.dtype, self.shape = dtype, shape


def test_arrays_are_told_apart_by_dtype_and_not_by_their_sizes_or_contents(looked_up: list[Lookup]) -> None:
    for array in (Array("fp16", 8, 8), Array("fp16", 9, 8), Array("fp32", 8, 8)):
        chosen(lambda config, array=array: config * len(array.shape))

    assert len(looked_up) == 2
    assert all("not in the fingerprint" not in lookup.label for lookup in looked_up)


def test_two_functions_under_one_decorator_have_a_source_each(looked_up: list[Lookup]) -> None:
    decorate = pytest_autotune.tuned(space=[1, 2], kernel="k", measuring=AS_TOLD)

    @decorate
    def low(*, config: int) -> int:
        return config

    @decorate
    def high(*, config: int) -> int:
        return 10 - config

    assert (low(), high()) == (1, 8)
    assert len({lookup.fingerprint for lookup in looked_up}) == 2
