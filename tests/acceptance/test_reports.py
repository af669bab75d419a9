"""The JSON report and the properties of junit.xml."""

from __future__ import annotations

import json
from typing import Any
from xml.etree import ElementTree

import pytest

from tests.conftest import Suite
from tests.reasons import too_many_misses

#: The documented schema: a key -> the type of its value, or what it holds.
OUTCOMES = ["hit", "miss", "stale", "mismatch"]
OTHERS = ["tuned", "failed", "unrecorded", "fallback", "unused", "uncacheable", "untracked"]
COUNTS = dict.fromkeys([*OUTCOMES, *OTHERS], int)
CANDIDATE = {"params": dict, "time_us": float}
LOOKUP = {
    "outcome": str,
    "tuner": str,
    "kernel": str,
    "key": dict,
    "device": str,
    "label": str,
    "reason": str,
    "tests": list,
    "failed": bool,
    "unrecorded": str,
    "tuning_seconds": float,
    "choice": CANDIDATE,
    "candidates": [CANDIDATE],
}
SCHEMA = {
    "format_version": int,
    "complete": bool,
    "counts": COUNTS,
    "tuning_seconds": float,
    "saved_seconds": float,
    "devices": [{"name": str, "arch": str, "multiprocessors": int}],
    "dump": {"path": str, "added": int, "changed": int, "unchanged": int, "removed": int},
    "lookups": [LOOKUP],
    "unused": [{"tuner": str, "kernel": str, "key": dict}],
}


def check(value: Any, expected: Any, where: str = "report") -> None:
    """Assert that a value has the documented form; it may have more keys."""
    if isinstance(expected, dict):
        assert isinstance(value, dict), where
        assert not expected.keys() - value.keys(), where
        for name, form in expected.items():
            check(value[name], form, f"{where}.{name}")
    elif isinstance(expected, list):
        assert isinstance(value, list), where
        assert value, f"{where} is to be tested with something in it"
        for number, item in enumerate(value):
            check(item, expected[0], f"{where}[{number}]")
    elif expected is float:
        assert type(value) in (int, float), where
    else:
        assert type(value) is expected, where


@pytest.fixture
def changed(suite: Suite) -> Suite:
    """A suite with a hit, a miss, a stale problem, a mismatch and an unused entry."""
    test = "import pytest\n@pytest.mark.parametrize('m', [1, 2])\ndef test_op(tune, m): tune('lib.op', M=m, label=None)"
    suite.write(test_op=test, test_far="def test_far(tune): tune('lib.far')").serial.prepare_dump(
        "test_far.py", TOY_DEVICE="Far GPU"
    )
    suite.serial.dump("test_op.py")
    suite.pytester.makepyfile(test_stale="def test_stale(tune): tune('lib.stale')")
    suite.serial.dump("test_stale.py")
    suite.pytester.makepyfile(
        test_op=test.replace("[1, 2]", "[1, 3, 3]"),
        test_stale="def test_stale(tune): tune('lib.stale', source='two')",
    )
    return suite


def test_a_json_report_fits_its_schema_and_agrees_with_junit_xml(changed: Suite) -> None:
    """The counts agree with the rows and with the properties in junit.xml."""
    options = ["--autotune-dump=new.textproto", "--junitxml=junit.xml"]
    report = changed.report("--autotune-load=cache.textproto", *options)

    tuned = [row for row in report["lookups"] if row["tuned"]]
    check({**report, "lookups": tuned}, SCHEMA)
    assert report["format_version"] == 1
    assert report["complete"] is True
    once = dict.fromkeys([*OUTCOMES, "unused"], 1)
    assert report["counts"] == dict.fromkeys(COUNTS, 0) | once | {"tuned": 3}
    outcomes = [row["outcome"] for row in report["lookups"]]
    assert all(report["counts"][outcome] == outcomes.count(outcome) for outcome in set(outcomes))
    assert len(report["unused"]) == report["counts"]["unused"]
    assert report["unused"][0]["key"] == {"M": 2, "label": None}
    assert report["tuning_seconds"] == pytest.approx(sum(row["tuning_seconds"] for row in tuned), abs=1e-3)
    assert report["dump"]["path"] == "new.textproto"
    # An entry of another device, and an unused one, were in the loaded file and not in this new one.
    assert report["dump"]["added"] == 4
    properties = ElementTree.parse(changed.folder / "junit.xml").iterfind("testsuite/properties/property")
    counts = {f"autotune_{name}": str(count) for name, count in report["counts"].items()}
    assert {element.get("name"): element.get("value") for element in properties} == counts


def test_the_json_report_describes_a_miss_and_the_gate_verdict(changed: Suite) -> None:
    """A lookup has its problem, reason, tests, choice and candidates."""
    report = changed.report("--autotune-load=cache.textproto", "--autotune-max-misses=2")

    (miss,) = (row for row in report["lookups"] if row["outcome"] == "miss")
    assert miss["tuner"] == "toy"
    assert miss["kernel"] == "lib.op"
    assert miss["key"] == {"M": 3, "label": None}
    assert miss["device"] == report["devices"][0]["id"]
    assert miss["reason"] == "no entry; the nearest entry has M 2 instead of 3"
    assert miss["tests"][0].startswith("test_op.py::test_op[3")
    assert miss["choice"] == {"params": {"config": "a"}, "time_us": 10.0}
    assert [candidate["params"]["config"] for candidate in miss["candidates"]] == ["a", "b"]
    assert report["gate"]["failed"] == too_many_misses(3, "2")
    assert report["gate"]["limit"] == "2"
    assert report["dump"] is None


def test_a_report_of_a_run_without_a_load_lists_tuned_problems(suite: Suite) -> None:
    report = suite.write().report()

    assert report["counts"]["tuned"] == len(suite.tunings) == 4
    assert {row["outcome"] for row in report["lookups"]} == {None}


def test_two_report_options_write_two_files_into_new_folders(serial_suite: Suite) -> None:
    serial_suite.write().run("--autotune-report=a.json", "--autotune-report=out/deep/b.json")

    first = (serial_suite.folder / "a.json").read_text()
    assert first == (serial_suite.folder / "out" / "deep" / "b.json").read_text()
    assert json.loads(first)["counts"]["tuned"] == 4


def test_a_report_path_in_the_ini_is_relative_to_the_ini_file(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial_suite.write().pytester.makeini("[pytest]\nautotune_report = out.json\n")
    below = serial_suite.folder / "below"
    below.mkdir()
    monkeypatch.chdir(below)

    assert serial_suite.run("..").ret == 0
    assert (serial_suite.folder / "out.json").exists()


UNWRITABLE = """
import os, pytest
@pytest.fixture(autouse=True, scope="session")
def in_the_way():
    os.makedirs("report.json", exist_ok=True)
"""


@pytest.mark.parametrize("gate", [[], ["--autotune-max-misses=0"]])
@pytest.mark.parametrize("args", [[], ["-q"], ["-qq"]])
def test_a_report_that_cannot_be_written_fails_the_run(serial_suite: Suite, args: list[str], gate: list[str]) -> None:
    """The summary has a single line about the report. The line of a failed gate has both failures."""
    serial_suite.write(test_op="def test_op(tune): tune('lib.op')").prepare_dump()
    serial_suite.write(test_op="def test_op(tune): tune('lib.op', M=1)")
    conftest = serial_suite.folder / "conftest.py"
    conftest.write_text(conftest.read_text() + UNWRITABLE)

    result = serial_suite.load("--autotune-report=report.json", *args, *gate)

    assert result.ret == 1
    message = "--autotune-report: report.json: is not a file (name another file)"
    assert result.outlines.count(f"ERROR {message}") == 1
    (whole,) = [line for line in result.outlines if line.startswith("!")]
    assert message in whole
    assert ("at most 0 allowed" in whole) == bool(gate)
    result.stdout.no_fnmatch_line("*Traceback*")


def test_a_report_overwrites_no_cache_that_the_same_run_wrote(serial_suite: Suite) -> None:
    marked = "import pytest\n@pytest.mark.autotune_cache(load='own.json')\ndef test_op(tune): tune('lib.op')"
    suite = serial_suite.write(test_op=marked)

    result = suite.run("--autotune-update", "--autotune-report=own.json")

    assert result.ret == 1
    assert '"kernel": "lib.op"' in (suite.folder / "own.json").read_text()
    assert any("own.json: exists and is not a report" in line for line in result.outlines)


def test_without_options_junit_xml_does_not_mention_the_plugin(serial_suite: Suite) -> None:
    serial_suite.write().run("--junitxml=junit.xml")

    assert "autotune" not in (serial_suite.folder / "junit.xml").read_text()
