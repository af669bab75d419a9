"""What is made of values, once for all that are equal."""

from __future__ import annotations

import math

import pytest

from pytest_autotune.cache import shared_values
from pytest_autotune.cache.model import Scalar, Value
from pytest_autotune.cache.shared_values import Identities, OncePerValue
from tests.entries import A100, entry

SCALARS: list[Scalar] = [True, 1, 1.0, "1", 0.0, -0.0, None, math.nan]


@pytest.mark.parametrize("objects", [0, 1, 20_000])
def test_equal_values_share_what_is_made_and_others_do_not(monkeypatch: pytest.MonkeyPatch, objects: int) -> None:
    monkeypatch.setattr(shared_values, "_MOST_OBJECTS", objects)
    made: list[Value] = []
    once = OncePerValue(lambda value: made.append(value) or len(made))

    first = once.each(tuple(Value("M", scalar) for scalar in SCALARS))
    again = once.each(tuple(Value("M", float(str(s)) if type(s) is float else s) for s in SCALARS))

    assert first == again == list(range(1, len(SCALARS) + 1))
    assert once.each((Value("N", 1), Value("M", 1, "size"))) == [len(SCALARS) + 1, len(SCALARS) + 2]


def test_a_value_that_is_gone_is_not_taken_for_another_one() -> None:
    once = OncePerValue(lambda value: f"{value}")

    assert [once.each((Value("M", number),)) for number in range(1000)] == [[f"M={n}"] for n in range(1000)]


def test_values_of_other_types_are_other_problems() -> None:
    identify = Identities()

    assert len({identify(entry(value)) for value in SCALARS}) == len(SCALARS)
    assert identify(entry(1)) == identify(entry(1, block=64))
    assert len({identify(entry(1)), identify(entry(1, device=A100)), identify(entry(1, source="t"))}) == 3


def test_entries_of_more_values_than_are_numbered_are_told_apart_all_the_same() -> None:
    identify = Identities(most=3)
    several = [entry(number) for number in range(5)]

    assert len({identify(one) for one in several}) == 5
    assert [identify(one) for one in several] == [identify(entry(number)) for number in range(5)]
