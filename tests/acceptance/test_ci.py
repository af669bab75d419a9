"""On a CI system: annotations, a step summary, and a test case that fails with the gate."""

from __future__ import annotations

from xml.etree import ElementTree

import pytest

from tests.conftest import Suite
from tests.reasons import describe_changed, too_many_misses

GITHUB = {"GITHUB_ACTIONS": "true"}
GATE = "--autotune-max-misses=0"


@pytest.fixture
def outdated(suite: Suite) -> Suite:
    """A suite with a hit and a stale problem, whose test begins in line 5 of a file in a folder."""
    return make_outdated(suite)


@pytest.fixture
def serial_outdated(serial_suite: Suite) -> Suite:
    return make_outdated(serial_suite)


def make_outdated(suite: Suite) -> Suite:
    hit = "def test_hit(tune):\n    tune('lib.op', M=1)\n\n\n"
    test = f"{hit}def test_stale(tune):\n    tune('lib.op', M=2, source='{{}}')\n"
    suite.serial.write(**{"tests/test_op": test.format("one")}).dump()
    return suite.write(**{"tests/test_op": test.format("two")})


def annotations(result: pytest.RunResult) -> list[str]:
    return [line for line in result.outlines if line.startswith("::")]


def test_a_miss_that_the_gate_allows_is_a_github_warning(serial_outdated: Suite) -> None:
    for verbosity in ("-q", "-v"):
        (line,) = annotations(serial_outdated.load("--autotune-max-misses=1", verbosity, **GITHUB))
        assert line.startswith("::warning file=tests/test_op.py,line=5,")


def test_annotation_paths_are_relative_to_the_repository_root(serial_outdated: Suite) -> None:
    folder = serial_outdated.folder
    (line,) = annotations(serial_outdated.load(**GITHUB, GITHUB_WORKSPACE=str(folder.parent)))
    assert line.startswith(f"::warning file={folder.name}/tests/test_op.py,line=5,")


@pytest.mark.parametrize(
    ("args", "environment"),
    [
        ([], {}),
        (["-oautotune_ci=off"], GITHUB),
        ([], {"GITHUB_ACTIONS": "false"}),
    ],
)
def test_a_run_outside_github_actions_writes_no_annotations(
    serial_outdated: Suite, args: list[str], environment: dict[str, str]
) -> None:
    """The setting autotune_ci=off has the same effect on a CI system."""
    step_summary = serial_outdated.folder / "step.md"
    result = serial_outdated.load(*args, **environment, GITHUB_STEP_SUMMARY=str(step_summary))

    assert annotations(result) == []
    assert not step_summary.exists()


def test_a_run_without_plugin_options_writes_no_step_summary(serial_suite: Suite) -> None:
    step_summary = serial_suite.folder / "step.md"
    serial_suite.write(test_plain="def test_plain(): pass").run(**GITHUB, GITHUB_STEP_SUMMARY=str(step_summary))
    assert not step_summary.exists()


def test_an_unwritable_github_step_summary_is_only_a_note(serial_outdated: Suite) -> None:
    result = serial_outdated.load(**GITHUB, GITHUB_STEP_SUMMARY=str(serial_outdated.folder))

    assert result.ret == 0
    result.stdout.fnmatch_lines(
        ["GitHub's step summary could not be written: Is a directory (see GITHUB_STEP_SUMMARY)"]
    )


def cases(suite: Suite) -> dict[str, ElementTree.Element]:
    """The test cases of the run itself in JUnit's report, by name; the counts agree with what is there."""
    (suites,) = ElementTree.parse(suite.folder / "junit.xml").iter("testsuite")
    for count, tag in (("failures", "failure"), ("skipped", "skipped")):
        assert suites.get(count) == str(len(list(suites.iter(tag))))
    assert suites.get("tests") == str(len(list(suites.iter("testcase"))))
    return {case.get("name", ""): case for case in suites.iter("testcase") if case.get("classname") == "autotune_cache"}


def test_a_failed_gate_is_in_annotations_step_summary_and_junit(outdated: Suite) -> None:
    """The step summary keeps the text of earlier steps. The failed case of junit.xml has the rows and the command."""
    step_summary = outdated.folder / "step.md"
    step_summary.write_text("another step\n")

    result = outdated.load(GATE, "--junitxml=junit.xml", **GITHUB, GITHUB_STEP_SUMMARY=str(step_summary))

    verdict, stale = annotations(result)
    assert verdict.startswith(f"::error title=autotune cache::{too_many_misses(1, '0')}%0A")
    assert stale == (
        "::error file=tests/test_op.py,line=5,title=autotune cache%3A stale::"
        f"STALE toy:lib.op (M=2): {describe_changed('source')}"
    )
    written = step_summary.read_text()
    assert written.startswith("another step\n")
    row = f"| STALE | `tests/test_op.py::test_stale` | `toy:lib.op (M=2)` | `{describe_changed('source')}` |"
    assert row in written
    assert result.ret == 1
    failure = cases(outdated)["gate"].find("failure")
    assert failure is not None
    assert failure.get("message") == too_many_misses(1, "0")
    row, *_, command = (failure.text or "").splitlines()
    assert row == f"STALE tests/test_op.py::test_stale - toy:lib.op (M=2): {describe_changed('source')}"
    assert command == "Re-run with --autotune-load=cache.textproto --autotune-update=all to update the cache."


def test_junit_xml_has_a_passed_case_if_the_gate_passes(serial_outdated: Suite) -> None:
    """Without a gate, junit.xml has no case."""
    serial_outdated.load("--autotune-max-misses=1", "--junitxml=junit.xml")
    assert list(cases(serial_outdated)["gate"]) == []

    serial_outdated.load("--junitxml=junit.xml")
    assert cases(serial_outdated) == {}


def test_in_a_dump_junit_xml_has_the_gate_as_a_skipped_case(serial_outdated: Suite) -> None:
    serial_outdated.dump("-oautotune_max_misses=0", "--junitxml=junit.xml")

    skipped = cases(serial_outdated)["gate"].find("skipped")
    assert skipped is not None
    assert skipped.get("message") == "autotune cache misses were not checked: no cache was loaded"


def test_misses_fail_the_gate_even_if_option_x_stops_the_run(outdated: Suite) -> None:
    later = "".join(f"def test_{number}(): pass\n" for number in range(9))
    test = f"def test_stale(tune):\n    tune('lib.op', M=2, source='two')\n    assert False\n{later}"
    result = outdated.write(**{"tests/test_op": test}).load(GATE, "-x", "--junitxml=junit.xml")

    result.stdout.fnmatch_lines(["*stopping after 1 failures*"])
    assert cases(outdated)["gate"].find("failure") is not None


def test_an_unwritable_report_is_a_failed_case_in_junit_xml(serial_suite: Suite) -> None:
    in_the_way = "import os, pytest\n@pytest.fixture(autouse=True)\ndef made(): os.makedirs('report.json')\n"
    serial_suite.write(test_op=f"{in_the_way}def test_op(tune): tune('lib.op')")

    assert serial_suite.run("--autotune-report=report.json", "--junitxml=junit.xml").ret == 1

    failure = cases(serial_suite)["gate"].find("failure")
    assert failure is not None
    assert failure.get("message") == "--autotune-report: report.json: is not a file (name another file)"
