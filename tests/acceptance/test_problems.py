"""A run lists the problems of production that no test covers, with the test whose problem is the nearest."""

from __future__ import annotations

import json
from typing import Any

from tests.conftest import Suite

SUITE = """
import pytest

@pytest.mark.parametrize("m", [16, 4096])
def test_matmul(tune, m):
    tune("lib.matmul", M=m, N=8)
"""


def write(suite: Suite, *asked: tuple[str, dict[str, Any]]) -> Suite:
    suite.write(test_lib=SUITE)
    device = ["Toy GPU", "toy", 4]
    lines = [{"tuner": "toy", "kernel": kernel, "key": key, "device": device, "used": "first"} for kernel, key in asked]
    (suite.folder / "misses.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return suite


def test_problems_used_in_production_but_by_no_test_are_listed(suite: Suite, section: Any) -> None:
    """The most frequent problem comes first. Each row names the test with the nearest problem."""
    write(
        suite,
        ("lib.matmul", {"M": 16, "N": 8}),
        ("lib.matmul", {"N": 8, "M": 20}),
        ("lib.matmul", {"M": 300, "N": 8}),
        ("lib.matmul", {"M": 300, "N": 8}),
        ("lib.other", {"M": 16}),
    )

    result = suite.dump("--autotune-problems=misses.jsonl", "--autotune-report=report.json")

    result.assert_outcomes(passed=2)
    lines = section(result)
    asked, first = "used in production", "UNCOVERED test_lib.py::test_matmul"
    assert lines[:3] == [
        f"{first}[4096] - toy:lib.matmul (M=300, N=8): {asked} 2 times, but by no test; the nearest test has M=4096",
        f"{first}[16] - toy:lib.matmul (M=20, N=8): {asked}, but by no test; the nearest test has M=16",
        f"UNCOVERED toy:lib.other (M=16): {asked}, but by no test; no test calls this kernel at all",
    ]
    assert "4 problems used in production: 3 not covered by the tests" in lines
    report = json.loads((suite.folder / "report.json").read_text())
    assert [row["nearest_test"] for row in report["uncovered"]] == [
        "test_lib.py::test_matmul[4096]",
        "test_lib.py::test_matmul[16]",
        "",
    ]


def test_the_summary_says_if_tests_cover_all_production_problems(serial_suite: Suite, section: Any) -> None:
    """After an incomplete run, the line gives the reason why the run was not complete."""
    suite = write(serial_suite, ("lib.matmul", {"M": 16, "N": 8}))

    assert "1 problem used in production, all covered by the tests" in section(
        suite.run("--autotune-problems=misses.jsonl")
    )

    partly = section(suite.run("--autotune-problems=misses.jsonl", "-k4096"))
    assert (
        "1 problem used in production: 1 not covered by the tests (tests that did not run may cover more: -k "
        "selects a part of the tests)" in partly
    )


def test_a_truncated_line_in_the_production_log_is_skipped(serial_suite: Suite, section: Any) -> None:
    suite = write(serial_suite, ("lib.matmul", {"M": 16, "N": 8}))
    file = suite.folder / "misses.jsonl"
    whole = file.read_text()
    file.write_text(f"{whole}{whole[:20]}\n{whole[:30]}{whole}{whole}")

    lines = section(suite.run("--autotune-problems=misses.jsonl"))

    assert "1 problem used in production, all covered by the tests" in lines
    assert "misses.jsonl:2: the line was cut off by a kill or a full disk (2 lines ignored)" in lines


def test_an_invalid_or_missing_production_log_fails_the_run(serial_suite: Suite) -> None:
    suite = write(serial_suite)
    (suite.folder / "misses.jsonl").write_text('{"tuner": "toy"}\n')

    (suite.folder / "odd.jsonl").write_text(
        f'{{"tuner": "toy", "kernel": "lib.matmul", "key": {{"M": {"9" * 4000}, "N": [1, "##vso[x]"]}}}}\n'
        '{"tuner": "toy", "kernel": "::error::x", "key": {"a\\n": 1, "a ": "x", "M": NaN}}\n'
    )
    suite.run("--autotune-problems=odd.jsonl").stdout.no_fnmatch_line("*##vso*")

    for file, message in (
        ("misses.jsonl", "misses.jsonl:1: is not a line that pytest_autotune.use(report=PATH) wrote"),
        ("none.jsonl", "none.jsonl: no such file in /*"),
        ("s3://bucket/x", "s3://bucket/x: no such file in /*"),
    ):
        result = suite.run(f"--autotune-problems={file}")
        assert result.ret == 1
        result.stdout.fnmatch_lines([f"!* --autotune-problems: {message} !*"])

    suite.run("--autotune-dump=cache.textproto", "-k", "4096")
    both = suite.run("--autotune-problems=none.jsonl", "--autotune-load=cache.textproto", "--autotune-max-misses=0")
    both.stdout.fnmatch_lines(["!* at most 0 allowed (*); *-problems: none.jsonl: no such file in /* !*"])
