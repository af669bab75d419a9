"""What a hand-written tuner's choice belongs to: the source, and what its functions carry."""

from __future__ import annotations

from typing import Any

import pytest

import pytest_autotune
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.tuners.function.tuner import TUNER
from pytest_autotune.tuners.measuring.how import Measuring
from tests.test_function_tuner import a_run

#: A clock for kernels that return their own time in microseconds.
AS_TOLD = Measuring(clock=lambda call: float(call()))  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same on every machine, and after tests that used a GPU."""
    monkeypatch.setattr("pytest_autotune.device.current_gpu", lambda: None)


@pytest.fixture
def looked_up() -> Any:
    """The lookups of a run that sees what the process's tuner does."""
    run, lookups = a_run()
    layer = TUNER.attach(run)
    yield lookups
    TUNER.detach(layer)


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
