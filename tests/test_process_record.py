"""The facts of a process on their way through its JSON report into the joint result of many processes."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from pytest_autotune.cache.model import Device, Entry, Problem, Value, Versions
from pytest_autotune.report.json_report import to_json
from pytest_autotune.report.process_reports import join_processes, read_process_report
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Lookup, Outcome, Policy
from pytest_autotune.run.process_record import decode_record
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.settle import InitialCaches
from pytest_autotune.workers.events import Event

ENTRY = Entry(Problem("toy", "lib.op", (Value("M", 16),), Device("Toy GPU", "toy", 4)))
#: Each field has a value that is not its default.
COLLECTED = Collected(
    lookups=(Lookup(ENTRY.identity, Outcome.MISS, reason="no entry", test="t.py::test", process="gw0"),),
    recovered_lookups=(Lookup(ENTRY.identity, Outcome.MISS),),
    other_lookups=(Lookup(ENTRY.identity, Outcome.HIT),),
    mode_events=(Event("raced", ENTRY.identity, test="t.py::test", data={"slower": 0.1}),),
    crashed_workers=("gw1",),
    incomplete_reason="-k selects a part of the tests",
    not_passed_reason="t.py::test was skipped",
    has_only_skips=True,
    is_only_skipped=True,
    chosen_tests="-k selects tests",
    is_interrupted=True,
    early_end="2 of 3 tests did not run",
    test_counts={"passed": 6, "failed": 5, "error": 4, "skipped": 3, "xfailed": 2, "xpassed": 1},
    notes=("a note",),
    untracked=("toy:lib.untracked",),
    unhooked=(("toy", "it is too old"),),
    missing_packages=(("triton", "triton"),),
    versions={"toy": Versions.parse("toy 1.0")},
    imported_kernels=("toy:lib.op",),
    unavailable=("no GPU is visible",),
    has_visible_gpu=False,
    hypothesis_tests=("t.py::test_drawn",),
    disabled_tests=("t.py::test_disabled",),
    missing_caches=("gone.pb",),
    test_cache_entries={"own.pb": (ENTRY,)},
    ignored_test_files=("test_ignored.py",),
    deselected_count=7,
    has_replaced_paths=True,
)
#: The fields that a report need not have: only the process itself needs them, to write its caches and to find the
#: reasons that the report has as texts.
NOT_IN_A_REPORT = {
    "recovered_lookups",
    "other_lookups",
    "is_only_skipped",
    "chosen_tests",
    "unavailable",
    "missing_caches",
    "test_cache_entries",
    "ignored_test_files",
    "deselected_count",
    "has_replaced_paths",
}
#: The fields that describe a single process. The joint result has another reason to be incomplete, or none.
OF_A_SINGLE_PROCESS = {"incomplete_reason", "not_passed_reason", "has_only_skips", "is_interrupted", "early_end"}
NAMES = [field.name for field in fields(Collected)]


@pytest.mark.parametrize("name", NAMES)
def test_every_field_of_the_sample_has_a_non_default_value(name: str) -> None:
    assert getattr(COLLECTED, name) != getattr(Collected(), name)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_IN_A_REPORT])
def test_the_json_report_has_every_field_that_the_gate_reads(name: str) -> None:
    record = decode_record(json.loads(to_json(RunResult(collected=COLLECTED))))

    assert getattr(record.collected, name) == getattr(COLLECTED, name)


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NOT_IN_A_REPORT | OF_A_SINGLE_PROCESS])
def test_the_gate_of_one_process_keeps_all_fields_of_its_report(name: str) -> None:
    record = decode_record(json.loads(to_json(RunResult(collected=COLLECTED))))
    expected = COLLECTED
    if name == "lookups":
        # The name of a process begins with the path of its report.
        expected = replace(COLLECTED, lookups=(replace(COLLECTED.lookups[0], process="a.json/gw0"),))

    joint = join_processes({"a.json": record}, InitialCaches())

    assert getattr(joint.collected, name) == getattr(expected, name)


@pytest.mark.parametrize(("on_miss", "joint_on_miss"), [("first", "first"), ("error", "tune")])
def test_the_gate_assumes_on_miss_tune_if_the_reports_disagree(on_miss: str, joint_on_miss: str) -> None:
    records = {}
    for name, value in (("a.json", "first"), ("b.json", on_miss)):
        result = RunResult(request=RunRequest(policy=Policy(on_miss=value)))
        records[name] = decode_record(json.loads(to_json(result)))

    assert join_processes(records, InitialCaches()).request.policy.on_miss == joint_on_miss


def test_an_unreadable_process_report_has_an_error_text(tmp_path: Path) -> None:
    report = read_process_report(tmp_path)

    assert (report.path, report.record) == (str(tmp_path), None)
    assert report.error == "cannot be read: Is a directory"
