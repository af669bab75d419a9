"""Searches that come to nothing that can be recorded are reported as that, and no update is promised for them."""

from __future__ import annotations

import pytest

from tests.conftest import Suite

#: The search of lib.bad ends with an error of its kernel; the test expects that.
RAISES = """
import pytest

def gone():
    raise RuntimeError("the device is gone\\nand more")

def test_op(tune):
    tune("lib.op", M={m})

def test_bad(tune):
    with pytest.raises(RuntimeError):
        tune("lib.bad", during=gone)
"""
#: The plugin stands back, and the tuner tunes by itself.
STOOD_BACK = """
from pytest_autotune.adapters import Tuning

def test_op(tune, monkeypatch):
    def no_thread(*args):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(Tuning, "record", no_thread)
    assert tune("lib.op") == "a"
"""
#: An error of an adapter before it can ask.
NEVER_ASKED = "def test_op(tune): tune('lib.op', M=object())"
#: Every candidate fails, and will again.
CANNOT = """
import time

def test_op(tune):
    tune("lib.op")

def test_cannot(session, tune):
    from pytest_autotune.adapters import Device, Problem, Versions
    from toytuner_autotune import ToyQuestion
    tune("lib.op")  # which has the toy hooked
    problem = Problem("toy", "lib.cannot", (), Device("Toy GPU", "toy", 4))
    with session.tuning(ToyQuestion(problem, (), Versions(()), {})) as tuning:
        if not tuning.is_expected_to_fail:
            tuning.record_failure([f"too large for {object()} at {time.time_ns()}"])
"""
#: A hand-written tuning of each source; ``FAILS`` has those that lack something now, as a compiler, or memory.
TUNED_BY_HAND = """
import os, pytest
from pytest_autotune import InvalidConfiguration, Measuring, TuningError, tune

def run(config):
    return float(config)

def lacking(config):
    raise {"compiler": InvalidConfiguration("no nvcc"), "memory": MemoryError("taken")}[os.environ["LACKS"]]

@pytest.mark.parametrize("source", os.environ["SOURCES"].split())
def test_op(source, monkeypatch):
    if source in os.environ.get("FAILS", "").split():
        monkeypatch.setitem(globals(), "run", lacking)
    try:
        tune("lib.op", space=[1, 2], run=run, source=source, strict=False, device="cpu",
             measuring=Measuring(clock=lambda call: call()))
    except TuningError:
        assert run is lacking
"""
#: A loaded choice is tried, and can no longer be used; nor can any other candidate.
REJECTED = """
def test_op(session, tune):
    from pytest_autotune.adapters import Candidate, Device, Problem, Value, Versions
    from toytuner_autotune import ToyQuestion
    tune("lib.other")  # which has the toy hooked
    a = Candidate(params=(Value("config", "a"),))
    problem = Problem("toy", "lib.op", (), Device("Toy GPU", "toy", 4))
    with session.tuning(ToyQuestion(problem, (), Versions(()), {"a": a})) as tuning:
        if tuning.entry is not None and {rejects}:
            tuning.reject("it does not compile")
        if tuning.entry is None and {rejects}:
            tuning.record_failure(["it does not compile"])
        elif tuning.entry is None:
            tuning.record(Candidate(params=(Value("config", "a"),), time_us=1.0))
"""
LEFT = "; toy tuned by itself, and nothing was saved"


@pytest.mark.parametrize("ends", ["raise RuntimeError('no')", "pytest.skip('no')", "pytest.xfail('no')", "exit(2)"])
def test_a_tuning_that_raises_is_not_saved_and_passes_the_gate(serial_suite: Suite, section, ends: str) -> None:
    """The summary has an UNRECORDED row and a hint. A gate on misses passes."""
    serial_suite.write(test_lib="def test_op(tune): tune('lib.op', M=1)").prepare_dump()
    raises = RAISES.format(m=1).replace('raise RuntimeError("the device is gone\\nand more")', ends)
    serial_suite.write(test_lib=raises.replace("RuntimeError)", "SystemExit)") if "exit" in ends else raises)

    result = serial_suite.load("--autotune-max-misses=0")

    assert result.ret == 0
    assert section(result)[0].startswith("UNRECORDED test_lib.py::test_bad - toy:lib.bad: ")
    assert section(result)[1:] == [
        "1 hit; 1 not saved",
        "An update does not help for unrecorded problems: first repair the test or kernel with the error that each "
        "row names.",
    ]
    quiet = serial_suite.load("-q", "--autotune-max-misses=0")
    quiet.stdout.fnmatch_lines(["* that each row names (shown without -q)."])


def test_a_long_error_is_cut_in_its_row_but_not_in_the_report(serial_suite: Suite, section) -> None:
    """The error of a comparison shows the values of tensors."""
    values = "0.123456 " * 100
    serial_suite.write(test_lib=RAISES.format(m=1).replace("the device is gone", values))

    report = serial_suite.report("--autotune-dump=cache.textproto")

    (problem,) = [problem for problem in report["lookups"] if problem["unrecorded"]]
    assert problem["unrecorded"] == f"RuntimeError: {values.strip()}"
    (row,) = [line for line in section(serial_suite.dump()) if line.startswith("UNRECORDED")]
    error = row.partition("(M=1): " if "(M=1)" in row else "lib.bad: ")[2]
    assert error.endswith(" …")
    assert len(error) <= 152


def test_an_unsaved_tuning_is_listed_even_if_an_entry_exists(serial_suite: Suite, section) -> None:
    both = RAISES.format(m=1).replace('"lib.bad"', "\"lib.op\", M=1, source='other'")

    dumped = serial_suite.write(test_lib=both).dump()
    loaded = serial_suite.load("--autotune-max-misses=0")

    row = "UNRECORDED test_lib.py::test_bad - toy:lib.op (M=1): RuntimeError: the device is gone"
    assert (section(dumped)[0], section(loaded)[0], loaded.ret) == (row, row, 0)


def test_an_update_is_suggested_only_for_misses_it_would_save(serial_suite: Suite, section) -> None:
    serial_suite.write(test_lib="def test_op(tune): tune('lib.op', M=1)").prepare_dump()
    serial_suite.write(test_lib=RAISES.format(m=2))

    hints = section(serial_suite.load("-k", "op or bad"))[-2:]

    assert hints[0].startswith("Re-run with --autotune-load=cache.textproto --autotune-update=all to update the cache")
    assert hints[1].startswith("An update does not help for unrecorded problems")


def test_a_tuning_that_fails_once_and_then_works_is_saved(serial_suite: Suite) -> None:
    again = RAISES.format(m=1) + "\ndef test_good(tune): tune('lib.bad')\n"

    report = serial_suite.write(test_lib=again).report("--autotune-dump=cache.textproto")

    assert (report["counts"]["tuned"], report["counts"]["unrecorded"]) == (2, 0)


def test_updates_and_quiet_runs_count_the_unsaved_tunings(serial_suite: Suite, section) -> None:
    serial_suite.write(test_lib="def test_op(tune): tune('lib.op', M=1)").prepare_dump()
    serial_suite.write(test_lib=RAISES.format(m=1))

    updated, short = serial_suite.load("--autotune-update"), serial_suite.run("--autotune-dump=new.textproto", "-q")

    assert section(updated)[1] == "1 hit; 1 not saved; cache.textproto is unchanged (1 entry)"
    assert ", 1 not saved; 1 entry written" in section(short)[0]


@pytest.mark.parametrize(
    ("module", "lines"),
    [
        (
            STOOD_BACK,
            [
                "UNRECORDED test_lib.py::test_op - toy:lib.op: RuntimeError: can't start new thread",
                f"toy: internal error in choose(): RuntimeError: can't start new thread{LEFT}",
                "1 not saved",
            ],
        ),
        (NEVER_ASKED, ["toy: internal error in choose(): *", "the cache was not used: the plugin could not hook toy"]),
    ],
    ids=["after the search", "before the lookup"],
)
def test_after_adapter_errors_a_dump_says_that_nothing_was_saved(
    serial_suite: Suite, module: str, lines: list[str]
) -> None:
    """The summary does not say that nothing was tuned."""
    result = serial_suite.write(test_lib=module).dump()

    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        [*lines, "no tuning could be saved, so cache.textproto was not written"], consecutive=True
    )
    result.stdout.no_fnmatch_line("no kernel was tuned*")


def test_entry_with_only_failed_candidates_is_a_hit_when_loaded(serial_suite: Suite, section) -> None:
    """The dump counts it separately and keeps a text without addresses of memory."""
    dumped = serial_suite.write(test_lib=CANNOT).dump("--autotune-report=report.json")

    assert section(dumped)[-1].startswith("1 problem tuned")
    assert section(dumped)[-1].endswith(", 1 failed in every candidate; 2 entries written to cache.textproto: 2 added")
    report = serial_suite.report("--autotune-load=cache.textproto")
    assert (report["counts"]["hit"], report["counts"]["tuned"], report["counts"]["failed"]) == (2, 0, 0)
    before = serial_suite.cache.read_bytes()
    serial_suite.dump()
    assert b"too large for <object object at 0x...>" in before
    assert serial_suite.cache.read_bytes() == before


def test_a_problem_without_a_usable_candidate_counts_as_tuned(serial_suite: Suite) -> None:
    """For example, Inductor measures whether to fuse two kernels, and the answer may be no."""
    answer = CANNOT.replace("record_failure([", "record(None, [Candidate(failed=").replace('ns()}"])', 'ns()}")])')
    answer = answer.replace("import Device", "import Candidate, Device")

    report = serial_suite.write(test_lib=answer).report("--autotune-dump=cache.textproto")

    assert (report["counts"]["tuned"], report["counts"]["failed"]) == (2, 0)


def test_after_an_adapter_error_no_entry_is_reported_as_unused(serial_suite: Suite) -> None:
    """The failed call may have used any of the tuner's entries."""
    serial_suite.write(test_lib="def test(tune): tune('lib.op', M=1); tune('lib.op', M=2)").prepare_dump()
    serial_suite.write(test_lib="def test(tune): tune('lib.op', M=1); tune('lib.op', M=object())")

    assert serial_suite.report("--autotune-load=cache.textproto")["unused"] == []


def test_a_temporary_failure_of_tuning_replaces_no_saved_choice(serial_suite: Suite) -> None:
    """The loaded file has another code's entry, so its choice was not tried."""
    serial_suite.write(test_lib=TUNED_BY_HAND)
    serial_suite.run("--autotune-dump=old.textproto", SOURCES="one")
    serial_suite.dump(SOURCES="two")
    before = serial_suite.cache.read_bytes()

    for load in ([], ["--autotune-load=old.textproto"]):
        failed = serial_suite.dump(*load, SOURCES="two", FAILS="two", LACKS="compiler")

        failed.assert_outcomes(passed=1)
        assert serial_suite.cache.read_bytes() == before
    report = serial_suite.report("--autotune-load=cache.textproto", SOURCES="two")
    assert (report["counts"]["hit"], report["counts"]["tuned"]) == (1, 0)


@pytest.mark.parametrize("lacks", ["compiler", "memory"])
def test_a_tuning_that_fails_does_not_change_the_dumped_file(serial_suite: Suite, lacks: str) -> None:
    """Another search of the same run succeeds. The file stays as it was."""
    serial_suite.write(test_lib=TUNED_BY_HAND)
    serial_suite.dump(SOURCES="one two")
    before = serial_suite.cache.read_bytes()

    serial_suite.dump(SOURCES="one two", FAILS="two", LACKS=lacks)

    assert serial_suite.cache.read_bytes() == before


def test_an_update_replaces_a_choice_that_no_longer_compiles(serial_suite: Suite) -> None:
    serial_suite.write(test_lib=REJECTED.replace("{rejects}", "False")).prepare_dump()
    serial_suite.write(test_lib=REJECTED.replace("{rejects}", "True")).load("--autotune-update")

    report = serial_suite.report("--autotune-load=cache.textproto")

    assert "it does not compile" in serial_suite.cache.read_text()
    assert [row["outcome"] for row in report["lookups"]] == ["hit", "hit"]


def test_keep_candidates_adds_candidates_to_existing_entries(serial_suite: Suite) -> None:
    serial_suite.write().prepare_dump()
    before = serial_suite.cache.read_text()

    serial_suite.dump("-oautotune_keep_candidates=true")
    text = serial_suite.cache.read_text()
    serial_suite.dump("-oautotune_keep_candidates=true")

    assert (before.count("candidates {"), text.count("candidates {")) == (0, 8)
    assert before.count("choice {") == text.count("choice {")
    assert "generation" not in text
    assert serial_suite.cache.read_text() == text
