"""Bringing a cache up to date by one flag, by new entries alone, and a verdict on entries that are unused."""

from __future__ import annotations

import pytest

from tests.conftest import Suite
from tests.reasons import describe_changed

OPS = "import pytest\n@pytest.mark.parametrize('m', [{ms}])\ndef test_op(tune, m): tune('lib.op', M=m{more})\n"
STALE = "def test_stale(tune): tune('lib.stale', source='{source}')"


@pytest.fixture
def outdated(serial_suite: Suite) -> Suite:
    """A suite with one hit, one stale problem and one miss, and its cache."""
    serial_suite.write(test_op=OPS.format(ms="1", more=""), test_stale=STALE.format(source="one")).dump()
    return serial_suite.write(test_op=OPS.format(ms="1, 2", more=""), test_stale=STALE.format(source="two"))


def test_one_flag_writes_into_the_cache_that_is_loaded(outdated: Suite, section) -> None:
    outdated.pytester.makeini("[pytest]\nautotune_load = cache.textproto\n")
    assert section(outdated.run())[-1] == "Re-run with --autotune-update to update the cache."

    outdated.run("--autotune-update").assert_outcomes(passed=3)

    assert len(outdated.tunings) == 2
    assert section(outdated.run()) == ["3 hits"]


def test_an_update_tunes_whatever_the_ini_file_says_of_misses(outdated: Suite, section) -> None:
    outdated.pytester.makeini(
        "[pytest]\nautotune_load = cache.textproto\nautotune_dump = other.textproto\nautotune_on_miss = error\n"
        "autotune_on_stale = use\n"
    )

    result = outdated.run("--autotune-update")

    assert result.ret == 0
    assert len(outdated.tunings) == 2
    assert not (outdated.folder / "other.textproto").exists()
    assert section(outdated.load("--autotune-dump=")) == ["3 hits"]


def test_of_several_caches_the_last_one_is_updated(outdated: Suite) -> None:
    before = outdated.cache.read_bytes()

    outdated.load("--autotune-load=own.textproto", "--autotune-update")

    assert outdated.cache.read_bytes() == before
    assert (outdated.folder / "own.textproto").read_text().count("entries {") == 3


@pytest.mark.parametrize("flag", ["--autotune-update", "--autotune-update=new"])
@pytest.mark.parametrize(
    ("args", "problem"),
    [
        ([], "{flag}: nothing is loaded, so there is nothing to update (add --autotune-load=PATH)"),
        (["--autotune-load=cache.textproto", "--autotune-dump=other.pb"], "--autotune-dump: {beside}"),
        (["--autotune-load=cache.textproto", "--autotune-on-miss=nearest"], "--autotune-on-miss: {beside}"),
    ],
)
def test_an_update_that_makes_no_sense_is_refused_in_one_line(
    serial_suite: Suite, flag: str, args: list[str], problem: str
) -> None:
    result = serial_suite.write().run(flag, *args)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    beside = f"{flag} tunes, and writes into what is loaded (leave one of the two out)"
    result.stderr.fnmatch_lines([f"ERROR: {problem.format(flag=flag, beside=beside)}"])


def test_new_only_adds_what_is_missing_and_leaves_stale_entries_to_the_byte(outdated: Suite, section) -> None:
    before = outdated.cache.read_text()

    lines = section(outdated.load("--autotune-update=new"))

    after = outdated.cache.read_text()
    added = [line for line in after.splitlines() if line not in before.splitlines()]
    assert added[0] == '  key { name: "M" int: 2 }'
    assert [line for line in before.splitlines() if line not in after.splitlines()] == []
    assert after.count("entries {") == 3
    assert lines[-2].endswith("3 entries written to cache.textproto: 1 added, 2 unchanged; 1 stale left as they were")
    assert lines[-1] == "Re-run with --autotune-load=cache.textproto --autotune-update to update the cache."
    assert section(outdated.load())[-2].startswith("2 hits, 1 stale")


def test_new_only_is_told_in_the_report_and_writes_nothing_where_nothing_is_new(outdated: Suite) -> None:
    outdated.load("--autotune-update=new")
    before = outdated.cache.read_bytes()

    report = outdated.report("--autotune-load=cache.textproto", "--autotune-update=new")

    assert report["dump"]["new_only"] is True
    assert report["counts"]["stale"] == 1
    assert outdated.cache.read_bytes() == before


@pytest.fixture
def shrunk(serial_suite: Suite) -> Suite:
    """A suite that leaves one of its two entries unused."""
    serial_suite.write(test_op=OPS.format(ms="1, 2", more="")).dump()
    return serial_suite.write(test_op=OPS.format(ms="1", more=""))


UNUSED = "1 entry was loaded and not asked for (--autotune-fail-on-unused)"


@pytest.mark.parametrize("args", [["--autotune-fail-on-unused"], ["--autotune-fail-on-unused", "-qq"]])
def test_a_complete_run_that_leaves_entries_unused_fails_and_names_them(
    shrunk: Suite, section, args: list[str]
) -> None:
    result = shrunk.load(*args)

    assert result.ret == 1
    assert section(result)[0] == "UNUSED toy:lib.op (M=2): not requested by any test"
    result.stdout.fnmatch_lines([f"*!!! {UNUSED} !!!*"])


def test_the_ini_file_may_ask_for_it_and_the_report_has_the_verdict(shrunk: Suite) -> None:
    shrunk.pytester.makeini("[pytest]\nautotune_fail_on_unused = true\n")

    gate = shrunk.report("--autotune-load=cache.textproto")["gate"]

    assert gate == {"limit": "", "fail_on_unused": True, "failed": UNUSED, "skipped": ""}
    assert shrunk.run().ret == pytest.ExitCode.USAGE_ERROR, "a lost ini line must not switch it off"


@pytest.mark.parametrize(
    ("args", "why"),
    [
        (["test_op.py"], "unused autotune cache entries not judged: only test_op.py was asked for"),
        (["-k", "op"], "unused autotune cache entries not judged: -k selects tests"),
        (
            ["--autotune-update"],
            "autotune cache unused entries not judged: this run updates the cache that it loads",
        ),
        (
            ["--autotune-update", "-oautotune_max_misses=0"],
            "autotune cache misses and unused entries not judged: this run updates the cache that it loads",
        ),
    ],
)
def test_what_cannot_be_judged_passes_and_says_so(shrunk: Suite, section, args: list[str], why: str) -> None:
    result = shrunk.load("-oautotune_fail_on_unused=true", *args)

    assert result.ret == 0
    assert why in section(result)


def test_misses_and_unused_entries_are_two_verdicts_in_one_line(shrunk: Suite) -> None:
    shrunk.write(test_op=OPS.format(ms="1, 3", more=""))

    result = shrunk.load("--autotune-fail-on-unused", "--autotune-max-misses=0")

    result.stdout.fnmatch_lines([f"*maximum allowed autotune cache misses exceeded: 1 > 0; {UNUSED}*"])


MARKED = """
@pytest.mark.autotune_cache(load="own.textproto")
def test_marked(tune): assert tune('lib.op', M=1) == "b"
"""


def test_what_the_cache_of_a_single_test_chooses_replaces_nothing(serial_suite: Suite) -> None:
    serial_suite.write(test_op=OPS.format(ms="1", more="")).dump()
    before = serial_suite.cache.read_text()
    (serial_suite.folder / "own.textproto").write_text(before.replace('text: "a"', 'text: "b"'))
    serial_suite.write(test_op=OPS.format(ms="1", more="") + MARKED)

    result = serial_suite.load("--autotune-update")

    result.assert_outcomes(passed=2)
    assert serial_suite.cache.read_text() == before


BEHIND = """
def test_op(tune): tune("lib.op", source="two")
def test_new(tune): tune("lib.new", times={"a": 2.0, "b": 1.0})
"""


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (["--autotune-on-miss=first"], "2 used a fallback; cache.textproto is left as it was (1 entry)"),
        (["--autotune-on-miss=error"], "; cache.textproto is left as it was (1 entry)"),
        (["--autotune-on-stale=use"], "; 2 entries written to cache.textproto: 1 added, 1 unchanged"),
    ],
)
def test_a_dump_that_covers_less_than_it_could_is_not_called_up_to_date(
    serial_suite: Suite, section, args: list[str], told: str
) -> None:
    serial_suite.write(test_lib="def test_op(tune): tune('lib.op')").dump()
    serial_suite.write(test_lib=BEHIND)

    lines = section(serial_suite.load("--autotune-dump=cache.textproto", *args))

    assert lines[-2].endswith(told)
    assert lines[-1] == "Re-run with --autotune-load=cache.textproto --autotune-update to update the cache."
    if "use" in args[0]:
        reason = describe_changed("source")
        assert f"STALE test_lib.py::test_op - toy:lib.op: {reason}; the stale choice was used" in lines


def test_a_loaded_entry_of_a_problem_that_was_asked_for_is_not_called_left_out_for_want_of_a_test(
    serial_suite: Suite, section
) -> None:
    serial_suite.write(test_lib="def test_op(tune): tune('lib.op')").dump()
    serial_suite.write(test_lib=BEHIND)

    lines = section(serial_suite.load("--autotune-dump=new.textproto", "--autotune-on-stale=use"))

    assert not [line for line in lines if "no test asked for" in line]
    assert lines[-1].endswith("--autotune-dump=new.textproto --autotune-on-stale=tune to update the cache.")


@pytest.mark.parametrize(
    ("args", "ini", "told"),
    [
        (["--autotune-tuners=triton"], "", "--autotune-tuners=triton left it out"),
        ([], "autotune_ignore = toy:*", "autotune_ignore (ini) left it out"),
    ],
)
def test_what_an_option_leaves_to_its_tuner_is_not_said_not_to_have_been_called(
    serial_suite: Suite, section, args: list[str], ini: str, told: str
) -> None:
    serial_suite.write().pytester.makeini(f"[pytest]\n{ini}\n")

    assert section(serial_suite.dump(*args))[0].startswith(f"no lookups: no autotuned kernel was called, or {told}")


def test_an_error_on_each_miss_is_said_not_to_be_judged_where_nothing_is_loaded(serial_suite: Suite, section) -> None:
    result = serial_suite.write().dump("--autotune-on-miss=error")

    assert result.ret == 0
    assert section(result)[-1] == "autotune cache misses not judged: nothing was loaded"
