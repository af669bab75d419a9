"""Rows of a run, many of one kernel as one."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import Cache, Device, Entry, Identity, Problem, Value
from pytest_autotune.report.findings import list_findings
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome, Policy
from pytest_autotune.run.rows import ProblemRow, build_rows
from tests.results import result

GPU = Device("GPU", "arch", 1)


def build_misses(
    kernel: str = "relu", entries: list[dict[str, Any]] | None = None, **axes: list[Any]
) -> tuple[ProblemRow, ...]:
    def problem(key: dict[str, Any]) -> Problem:
        return Problem("toy", kernel, tuple(Value(name, value) for name, value in key.items()), GPU)

    keys = [dict(zip(axes, values, strict=True)) for values in zip(*axes.values(), strict=True)]
    index = EntryIndex.from_caches([Cache(tuple(Entry(problem(key)) for key in entries or []))])
    lookups = [Lookup(Identity(problem(key), ()), Outcome.MISS, NO_ENTRY) for key in keys]
    return build_rows(lookups, index, Policy(), MergeResult(Cache()))


def describe_findings(*rows: ProblemRow, **fields: Any) -> list[str]:
    return [f"{finding.word} {finding}" for finding in list_findings(result(rows=rows, **fields))]


def test_misses_of_many_sizes_are_one_line_with_a_range() -> None:
    assert describe_findings(*build_misses(entries=[{"n": 100, "m": 8}], n=[*range(101, 115)], m=[8] * 14)) == [
        "MISS toy:relu (m=8): 14 misses, n = 101 … 114; the nearest entry has n 100"
    ]


def test_three_misses_of_one_kernel_get_separate_lines() -> None:
    assert len(describe_findings(*build_misses(n=[1, 2, 3]))) == 3


def test_joined_misses_show_values_that_vary_together_as_tuples() -> None:
    """Parts that vary independently have a list each. Parts that vary together are listed as tuples."""
    dtypes = ["fp16", "fp32", "bf16", "fp16"]
    few = build_misses(n=[64, 1, 64, 1], a=dtypes, b=dtypes)
    assert describe_findings(*few) == ["MISS toy:relu: 4 misses, n = 1, 64; a, b = bf16, fp16, fp32; no entry"]
    (many,) = describe_findings(*build_misses(m=[*range(9)], n=[*range(9)]))
    assert many == (
        "MISS toy:relu: 9 misses, (m, n) = (0, 0), (1, 1), (2, 2), (3, 3), (4, 4), (5, 5) and 3 more; no entry"
    )


def test_joined_misses_put_values_with_commas_in_parentheses() -> None:
    (row,) = describe_findings(*build_misses(inputs=["f32[1, 2], f32[2]", "f32[3, 2], f32[2]", "(1, 2)", "f32[5]"]))
    assert "4 misses, inputs = (1, 2), (f32[1, 2], f32[2]), (f32[3, 2], f32[2]), f32[5]; " in row


def test_joined_misses_name_the_key_that_differs_from_entries() -> None:
    assert describe_findings(*build_misses(entries=[{"n": 100}, {"n": 900}], n=[101, 102, 901, 902])) == [
        "MISS toy:relu: 4 misses, n = 101, 102, 901, 902; the nearest entries differ in n"
    ]


def test_misses_of_two_kernels_or_reasons_get_separate_lines() -> None:
    near = build_misses(
        entries=[{"n": 100, "m": 1}], n=[101, 102, 103, 104, 100, 100, 100, 100], m=[1, 1, 1, 1, 5, 6, 7, 8]
    )
    other = build_misses("gelu", n=[1, 2, 3, 4])

    findings = list_findings(result(rows=(*near, *other)))
    assert sorted((finding.problem, finding.problem_count) for finding in findings) == [
        ("toy:gelu", 4), ("toy:relu (m=1)", 4), ("toy:relu (n=100)", 4),
    ]  # fmt: skip


def test_unused_entries_of_a_kernel_are_joined_by_reason() -> None:
    """Either no test requested the problem, or a test requested it with other code or candidates."""
    entries = tuple(Entry(row.problem) for row in build_misses(n=[1, 2, 3, 4, 5]))
    (requested,) = build_misses(n=[5])

    assert describe_findings(replace(requested, outcome=Outcome.HIT), unused_entries=entries) == [
        "UNUSED toy:relu: 4 unused, n = 1, 2, 3, 4; no test used this entry",
        "UNUSED toy:relu (n=5): tests used this problem only with other code or candidates",
    ]


def test_a_line_of_joined_misses_counts_tests_and_problems() -> None:
    rows = [replace(row, tests=(f"t::{number // 2}",)) for number, row in enumerate(build_misses(n=[1, 2, 3, 4]))]

    (finding,) = list_findings(result(rows=tuple(rows)))

    assert (finding.test, finding.other_test_count, finding.problem_count) == ("t::0", 1, 4)


def test_misses_of_hypothesis_tests_are_marked_as_random_inputs() -> None:
    rows = tuple(replace(row, tests=("t::test",)) for row in build_misses(n=[1, 2, 3, 4]))
    fields = {"hypothesis_tests": ("t::test",)}

    assert describe_findings(*rows, **fields)[0].endswith("no entry; Hypothesis draws other values in each run")
    assert all(
        line.endswith("; Hypothesis draws other values in each run") for line in describe_findings(*rows[:2], **fields)
    )
