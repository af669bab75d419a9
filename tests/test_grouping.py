"""Many rows of one kernel as one."""

from __future__ import annotations

from typing import Any

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Device, Entry, Problem, Value
from pytest_autotune.report.grouping import Group, groups
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome
from pytest_autotune.run.nearest import Nearest
from pytest_autotune.run.rows import Row, rows_of

GPU = Device("GPU", "arch", 1)


def misses(kernel: str = "relu", entries: list[dict[str, Any]] | None = None, **axes: list[Any]) -> tuple[Row, ...]:
    def problem(key: dict[str, Any]) -> Problem:
        return Problem("toy", kernel, tuple(Value(name, value) for name, value in key.items()), GPU)

    keys = [dict(zip(axes, values, strict=True)) for values in zip(*axes.values(), strict=True)]
    index = EntryIndex.of([Cache(tuple(Entry(problem(key)) for key in entries or []))])
    return rows_of([Lookup(problem(key), (), Outcome.MISS, NO_ENTRY) for key in keys], Nearest([index], {}).find)


def said(group: Group) -> tuple[list[str], tuple[str, ...], str]:
    return [str(value) for value in group.common], group.spans, group.reason


def test_rows_that_differ_in_a_number_are_one_with_the_span_of_it() -> None:
    (group,) = groups(misses(entries=[{"n": 100, "m": 8}], n=[*range(101, 115)], m=[8] * 14))

    assert len(group.rows) == 14
    assert said(group) == (["m=8"], ("n = 101 … 114",), "the nearest has n 100")


def test_few_rows_stay_as_they_are() -> None:
    assert [len(group.rows) for group in groups(misses(n=[1, 2, 3]))] == [1, 1, 1]


def test_few_values_and_words_are_listed() -> None:
    (group,) = groups(misses(n=[64, 1, 64, 1], t=["fp16", "fp32", "bf16", "fp8"]))

    assert said(group) == ([], ("n = 1, 64", "t = bf16, fp16, fp32, … (4 values)"), "no entry")


def test_nearest_entries_that_differ_are_told_as_that() -> None:
    (group,) = groups(misses(entries=[{"n": 100}, {"n": 900}], n=[101, 102, 901, 902]))

    assert said(group)[1:] == (("n = 101 … 902",), "the nearest differ in n")


def test_other_kernels_outcomes_and_reasons_stay_apart() -> None:
    near = misses(entries=[{"n": 100, "m": 1}], n=[101, 102, 103, 104, 100, 100, 100, 100], m=[1, 1, 1, 1, 5, 6, 7, 8])
    other = misses("gelu", n=[1, 2, 3, 4])

    assert sorted((group.rows[0].problem.kernel, len(group.rows)) for group in groups([*near, *other])) == [
        ("gelu", 4), ("relu", 4), ("relu", 4),
    ]  # fmt: skip
