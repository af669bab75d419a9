"""A sweep runs every problem with a candidate of its seed; what fails names it, and how to run it again."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

from pytest_autotune.cache.model import Candidate, Device, Problem, Value
from pytest_autotune.modes.sweep import parse
from tests.conftest import Suite

SUITE = """
import pytest

@pytest.mark.parametrize("m", range(6))
def test_matmul(tune, m):
    assert tune("lib.matmul", M=m) in "ab"

def test_twice(tune):
    assert tune("lib.matmul", M=0) == tune("lib.matmul", M=0)

def test_wrong(tune):
    assert tune("lib.wrong", times={"right": 1.0, "wrong": 2.0}, N=1) == "right"
"""


def pick(seed: str, kernel: str, names: str, **key: int) -> str:
    """The candidate that a seed gives a problem of the toy tuner."""
    problem = Problem("toy", kernel, tuple(Value(*pair) for pair in key.items()), Device("Toy GPU", "toy", 4))
    candidates = [Candidate(params=(Value("config", name),)) for name in names.split()]
    return str(parse(seed).ordered(problem, candidates)[0].params[0].value)


def test_a_seed_picks_the_same_candidates_with_and_without_xdist(suite: Suite, section: Any) -> None:
    """The sweep measures nothing. For a failed test it prints the candidate and the command to run it again."""
    suite.write(test_lib=SUITE)
    seed = next(seed for seed in "0123456789" if pick(seed, "lib.wrong", "right wrong", N=1) == "wrong")

    result = suite.run(f"--autotune-sweep={seed}", "--autotune-report=report.json")

    report = json.loads((suite.folder / "report.json").read_text())
    choices = {(row["kernel"], *row["key"].values()): row["choice"]["params"]["config"] for row in report["lookups"]}
    expected = {("lib.matmul", m): pick(seed, "lib.matmul", "a b", M=m) for m in range(6)}
    assert choices == {**expected, ("lib.wrong", 1): "wrong"}
    assert set(expected.values()) == {"a", "b"}
    assert suite.tunings == []
    assert report["modes"]["sweep"]["seed"] == seed
    assert report["counts"]["tuned"] == report["counts"]["hit"] == 0
    result.stdout.fnmatch_lines(
        [
            "*-- autotune sweep --*",
            "toy:lib.wrong (N=1): config=wrong",
            f"rerun: pytest --autotune-sweep={seed} test_lib.py::test_wrong",
        ]
    )
    assert section(result) == [
        "FAILED test_lib.py::test_wrong - toy:lib.wrong (N=1): ran with config=wrong",
        f"7 problems ran with candidates of --autotune-sweep={seed}; 1 of them in failed tests",
    ]


def test_two_sweep_parts_run_both_candidates_of_each_problem(serial_suite: Suite) -> None:
    """This holds for every problem of the suite."""
    serial_suite.write(test_lib=SUITE)

    runs = [serial_suite.run(f"--autotune-sweep={part}/2", f"--autotune-report=r{part}.json") for part in (1, 2)]

    assert sorted(run.ret for run in runs) == [0, 1]
    ran: dict[str, set[str]] = {}
    for part in (1, 2):
        for row in json.loads((serial_suite.folder / f"r{part}.json").read_text())["lookups"]:
            ran.setdefault(f"{row['kernel']} {row['key']}", set()).add(row["choice"]["params"]["config"])
    assert all(len(configs) == 2 for configs in ran.values())
    assert len(ran) == 7


def test_a_test_that_fails_in_a_sweep_prints_its_candidates(serial_suite: Suite) -> None:
    """Another test requested the problem first and passed. For a failed test without a problem, the output says so."""
    serial_suite.write(
        test_lib="""
        def test_first(tune): tune("lib.k", N=1)
        def test_second(tune):
            tune("lib.k", N=1)
            assert not "reached"
        def test_without(): assert not "reached"
        """
    )

    result = serial_suite.run("--autotune-sweep=1")

    text = result.stdout.str()
    assert len(re.findall(r"^toy:lib.k \(N=1\): config=\w$", text, re.MULTILINE)) == 1
    assert "this test used no candidate of the sweep" in text
    assert text.count("rerun: ") == 2


def test_a_sweep_reports_a_candidate_that_does_not_compile(serial_suite: Suite, section: Any) -> None:
    serial_suite.write(
        test_lib="""
        import pytest
        @pytest.mark.parametrize("n", range(8))
        def test(tune, n):
            assert tune("lib.k", broken=("a",), N=n) == "b"
        """
    )

    report = serial_suite.report("--autotune-sweep=1")
    lines = section(serial_suite.run("--autotune-sweep=1"))

    refused = [row["candidate"] for row in report["modes"]["sweep"]["rows"]]
    assert 1 <= len(refused) < 8
    assert all(candidate == {"params": {"config": "a"}, "failed": "a does not compile"} for candidate in refused)
    assert sum(line.startswith("REFUSED toy:lib.k") for line in lines) == len(refused)


def test_a_sweep_whose_tests_were_all_skipped_passes_and_says_so(serial_suite: Suite, section: Any) -> None:
    """The sweep is no gate, so the run passes."""
    serial_suite.write(test_lib="import pytest\n@pytest.mark.skip\ndef test(tune): tune('lib.k')")

    result = serial_suite.run("--autotune-sweep=1/2")

    assert result.ret == 0
    assert section(result) == [
        "--autotune-sweep=1/2 tested no candidate: no test called an autotuned kernel (1 skipped)"
    ]


def test_a_sweep_in_2_parts_says_that_3_candidates_need_3_parts(serial_suite: Suite, section: Any) -> None:
    serial_suite.write(
        test_lib="""
        def test(tune):
            tune("lib.k", times={"a": 1.0, "b": 1.0, "c": 1.0})
        """
    )

    lines = section(serial_suite.run("--autotune-sweep=1/2"))

    assert lines == [
        "1 problem ran with candidates of --autotune-sweep=1/2",
        "1 problem has more than 2 candidates: to run all of them, use --autotune-sweep=1/3 to 3/3",
    ]


def test_a_sweep_ignores_the_ini_load_and_refuses_a_load_option(serial_suite: Suite) -> None:
    """A load, a dump or a limit on the command line is a usage error."""
    serial_suite.write(test_lib=SUITE)
    serial_suite.pytester.makeini("[pytest]\nautotune_load = none.pb\nautotune_max_misses = 0\n")

    assert serial_suite.run("--autotune-sweep=1/2", "-k", "matmul").ret == 0
    # "tune" is the default of other options, and a path here.
    for option in ("--autotune-load=c.pb", "--autotune-dump=c.pb", "--autotune-dump=tune", "--autotune-max-misses=0"):
        result = serial_suite.run("--autotune-sweep=1", option)
        assert result.ret == 4
        result.stderr.fnmatch_lines(
            [f"ERROR: {option.split('=')[0]}: --autotune-sweep neither loads nor dumps a cache*"]
        )


def test_the_rerun_command_of_a_sweep_repeats_the_failed_test(serial_suite: Suite) -> None:
    serial_suite.write(test_lib=SUITE)
    failed = next(run for part in (1, 2) if (run := serial_suite.run(f"--autotune-sweep={part}/2")).ret)
    [command] = [line.removeprefix("rerun: ") for line in failed.outlines if line.startswith("rerun: ")]

    again = serial_suite.run(*shlex.split(command)[1:])

    again.assert_outcomes(failed=1)
    again.stdout.fnmatch_lines(["toy:lib.wrong (N=1): config=wrong"])


def test_a_sweep_undoes_the_candidate_it_set_for_the_last_test(serial_suite: Suite) -> None:
    forgets = "def test(session): session.at_next_test(lambda: open('forgotten', 'w').close())"
    serial_suite.write(test_lib=forgets)

    serial_suite.run("--autotune-sweep=7")

    assert (serial_suite.folder / "forgotten").exists()
