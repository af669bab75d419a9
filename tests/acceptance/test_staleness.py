"""The reasons of misses, stale entries and mismatches, and the options that decide what follows."""

from __future__ import annotations

import json

import pytest

from tests.conftest import Suite
from tests.reasons import too_many_misses

#: A test that asks the toy tuner for ``lib.op`` with what a test wants to change.
ASK = "def test_op(tune): assert tune('lib.op', {}) in 'abc'"


def ask(arguments: str) -> str:
    return ASK.format(arguments)


def rows(lines: list[str]) -> list[str]:
    """The lines of a section that tell of a problem."""
    return [line for line in lines if line.split(" ")[0] in ("MISS", "STALE", "MISMATCH", "UNCACHEABLE")]


GONE = ", and the choice config=a is no longer a candidate"
CHANGES = [
    pytest.param("M=1", "M=1, source='two'", "stale", ["source"], "", id="source"),
    pytest.param("M=1", "M=1, times={'a': 1.0, 'c': 9.0}", "stale", ["search"], "", id="search"),
    pytest.param("M=1", "M=1, times={'b': 1.0, 'c': 9.0}", "stale", ["search"], GONE, id="choice gone"),
    pytest.param("M=1", "M=1, times={'b': 1.0}, source='two'", "stale", ["search", "source"], GONE, id="all"),
    pytest.param("M=1, N=2", "M=8, N=2", "miss", [], "no entry; the nearest entry has M 1 instead of 8", id="one part"),
    pytest.param("M=1", "M=True", "miss", [], "no entry; the nearest entry has M 1 instead of True", id="type"),
    pytest.param("M=1", "tuner='other'", "miss", [], "no entry", id="another tuner"),
]


@pytest.mark.parametrize(("before", "now", "outcome", "changed", "reason"), CHANGES)
def test_the_row_of_a_miss_or_stale_problem_names_what_changed(
    serial_suite: Suite, section, before: str, now: str, outcome: str, changed: list[str], reason: str
) -> None:
    serial_suite.write(test_op=ask(before)).prepare_dump()
    serial_suite.write(test_op=ask(now))

    result = serial_suite.load("--autotune-report=report.json")

    assert len(serial_suite.tunings) == 1
    (row,) = json.loads((serial_suite.folder / "report.json").read_text())["lookups"]
    assert (row["outcome"], row["changed"]) == (outcome, changed)
    assert row["reason"].endswith(reason)
    (line,) = rows(section(result))
    assert line.startswith(f"{outcome.upper()} test_op.py::test_op - ")
    assert line.endswith(f": {row['reason']}")


def test_on_a_new_gpu_the_summary_names_the_old_and_the_new_gpu(suite: Suite) -> None:
    suite.write(test_op=ask("M=1")).serial.prepare_dump(TOY_DEVICE="Old GPU")

    result = suite.load(TOY_DEVICE="New GPU")

    result.stdout.fnmatch_lines(
        [
            "MISMATCH test_op.py::test_op - toy:lib.op (M=1): tuned on Old GPU (toy, *), but "
            "this run is on New GPU (toy, *)"
        ]
    )
    assert suite.tunings == ["lib.op [('M', 1)]"]


def test_misses_on_a_new_gpu_are_one_row_unless_a_run_is_verbose(suite: Suite, section) -> None:
    suite.write().serial.prepare_dump(TOY_DEVICE="Old GPU")
    suite.pytester.makepyfile(test_more="def test_more(tune): tune('lib.more')")

    shown_rows = rows(section(suite.load(TOY_DEVICE="New GPU")))

    assert len(shown_rows) == 1
    assert shown_rows[0].startswith("MISMATCH 5 problems of toy: no entries for New GPU (toy, 4 multiprocessors)")
    assert "Old GPU (toy, 4 multiprocessors)" in shown_rows[0]
    assert len(rows(section(suite.load("-v", TOY_DEVICE="New GPU")))) == 5


def test_misses_of_a_tuner_without_entries_are_one_summary_row(serial_suite: Suite, section) -> None:
    serial_suite.write(test_op=ask("tuner='other'")).prepare_dump()
    serial_suite.write()

    assert rows(section(serial_suite.load()))[0].startswith("MISS 4 problems of toy: no entries for Toy GPU (toy, 4")


def test_misses_get_one_row_each_if_the_gpu_has_at_least_one_hit(serial_suite: Suite, section) -> None:
    serial_suite.write().prepare_dump(TOY_DEVICE="Old GPU")
    serial_suite.dump("-k", "softmax", TOY_DEVICE="New GPU")

    assert len(rows(section(serial_suite.load(TOY_DEVICE="New GPU")))) == 3


def test_entries_of_an_old_library_version_are_hits_with_a_hint(suite: Suite, section) -> None:
    suite.write().serial.prepare_dump(TOY_ENVIRONMENT="toy 0.9.3, cuda 11")

    result = suite.load("--autotune-max-misses=0")

    assert result.ret == 0
    line_start = "4 hits were tuned with toy 0.9.3, but this run has toy 1.0"
    assert any(line.startswith(line_start) for line in section(result))
    assert suite.tunings == []


def test_entries_of_an_old_patch_version_are_hits_without_a_hint(serial_suite: Suite, section) -> None:
    serial_suite.write(test_op=ask("environment='toy 1.0.3, cuda 11'")).prepare_dump()
    serial_suite.write(test_op=ask("environment='toy 1.0.4, cuda 12'"))

    assert section(serial_suite.load()) == ["1 hit"]


STALE = ask("M=1, times={'a': 5.0, 'b': 1.0}, source='two'").replace("in 'abc'", "== 'CHOSEN'")


@pytest.mark.parametrize(("on_stale", "chosen"), [("tune", "b"), ("use", "a"), (None, "b")])
def test_the_gate_counts_stale_problems_even_with_on_stale_use(
    suite: Suite, section, on_stale: str | None, chosen: str
) -> None:
    suite.write(test_op=ask("M=1")).serial.prepare_dump()
    suite.write(test_op=STALE.replace("CHOSEN", chosen))

    result = suite.load("--autotune-max-misses=0", *([f"--autotune-on-stale={on_stale}"] if on_stale else []))

    result.assert_outcomes(passed=1)
    assert result.ret == 1, "the gate counts a stale choice that is used, too"
    assert len(suite.tunings) == (on_stale != "use")
    assert rows(section(result))[0].startswith("STALE")


def test_option_on_stale_use_retunes_if_the_candidate_is_gone(serial_suite: Suite) -> None:
    serial_suite.write(test_op=ask("M=1")).prepare_dump()
    serial_suite.write(test_op=ask("M=1, times={'c': 1.0}"))

    assert serial_suite.load("--autotune-on-stale=use").ret == 0
    assert len(serial_suite.tunings) == 1


def test_option_on_stale_error_fails_only_tests_of_stale_entries(suite: Suite) -> None:
    suite.write(test_op=ask("M=1")).serial.prepare_dump()
    suite.write(test_op=STALE, test_new="def test_new(tune): tune('lib.new')")

    result = suite.load("--autotune-on-stale=error")

    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["autotune: STALE toy:lib.op (M=1): *"])
    assert suite.tunings == ["lib.new []"]


SWALLOW = """
import threading
import json

import pytest

def call(tune):
    KIND

@pytest.fixture
def in_setup(tune):
    call(tune)

@pytest.fixture
def in_teardown(tune):
    yield
    call(tune)

def test_setup(in_setup): pass
def test_call(tune): call(tune)
def test_teardown(in_teardown): pass
def test_after(): pass
"""
KINDS = {
    "raised": "tune('lib.op', M=2)",
    "except Exception": """
    try: tune('lib.op', M=2)
    except Exception: pass
""",
    "except BaseException": """
    try: tune('lib.op', M=2)
    except BaseException: pass
""",
    "thread": """
    def quietly():
        try: tune('lib.op', M=2)
        except BaseException: pass
    thread = threading.Thread(target=quietly)
    thread.start()
    thread.join()
""",
    "xfail": "tune('lib.op', M=2)",
}


@pytest.mark.parametrize("kind", KINDS)
def test_on_miss_error_fails_the_run_even_if_a_test_catches_it(serial_suite: Suite, kind: str) -> None:
    serial_suite.write(test_op=ask("M=1")).prepare_dump()
    text = SWALLOW.replace("KIND", KINDS[kind])
    # A failure that a test expects is one of its own making, not a cache's.
    serial_suite.write(test_op="import pytest\npytestmark = pytest.mark.xfail\n" + text if kind == "xfail" else text)

    result = serial_suite.load("--autotune-on-miss=error", "-rA")

    passed = {"xpassed": 2} if kind == "xfail" else {"passed": 2}
    result.assert_outcomes(failed=1, errors=2, **passed)
    assert result.ret == 1
    line = "autotune: MISS toy:lib.op (M=2): no entry; the nearest entry has M 1 instead of 2"
    assert result.outlines.count(line) >= 3
    assert serial_suite.tunings == []
    result.stdout.no_fnmatch_line("*Traceback*")


def test_with_on_miss_set_to_error_unusable_problems_fail_tests(suite: Suite) -> None:
    far = suite.write(test_op=ask("")).folder / "far.textproto"
    suite.serial.run(f"--autotune-dump={far}", TOY_DEVICE="Far GPU")
    far.write_text(far.read_text().replace("lib.op", "lib.far"))
    suite.serial.dump()
    suite.write(
        test_op=ask("source='two'"),
        test_mismatch="def test(tune): tune('lib.far')",
        test_uncacheable="""
            from pytest_autotune.cache.model import Device, Problem
            def test(session):
                session.report_uncacheable(Problem("toy", "lib.x", (), Device("Toy GPU", "toy", 4)), "M is a list")
        """,
    )

    result = suite.load("--autotune-load=far.textproto", "--autotune-on-miss=error")

    result.assert_outcomes(failed=3)
    for word in "STALE", "MISMATCH", "UNCACHEABLE":
        result.stdout.fnmatch_lines([f"autotune: {word} *"])
    assert suite.tunings == []


AS_SHOWN = "New GPU (toy, 4 multiprocessors) = Old GPU (toy, 4 multiprocessors)"


@pytest.mark.parametrize("alias", ["New GPU = Old GPU", AS_SHOWN])
def test_with_a_device_alias_entries_of_the_old_gpu_are_hits(suite: Suite, section, alias: str) -> None:
    suite.write().serial.prepare_dump(TOY_DEVICE="Old GPU")
    suite.pytester.makeini(f"[pytest]\nautotune_device_alias =\n    {alias}\n")

    result = suite.load("--autotune-max-misses=0", TOY_DEVICE="New GPU")

    assert result.ret == 0
    assert suite.tunings == []
    served = (
        "New GPU (toy, 4 multiprocessors) used the entries of Old GPU (toy, 4 multiprocessors), as "
        "autotune_device_alias (ini) says"
    )
    assert section(result) == [served, "4 hits"]


def test_a_device_alias_works_between_two_gpus_of_the_same_name(suite: Suite, section) -> None:
    suite.write().serial.prepare_dump()
    suite.pytester.makeini("[pytest]\nautotune_device_alias = Toy GPU = Toy GPU\n")

    served = (
        "Toy GPU (toy, 7 multiprocessors) used the entries of Toy GPU (toy, 4 multiprocessors), as "
        "autotune_device_alias (ini) says"
    )
    assert section(suite.load(TOY_MULTIPROCESSORS="7")) == [served, "4 hits"]


def test_kernels_in_autotune_ignore_get_no_entry_and_no_row(suite: Suite, section) -> None:
    suite.pytester.makeini("[pytest]\nautotune_ignore =\n    toy:lib.soft*\n    other:*\n")

    suite.write().prepare_dump()
    assert sorted(set(suite.tunings)) == [f"lib.matmul [('M', {m}), ('N', 8)]" for m in (16, 32, 64)]

    assert section(suite.load("--autotune-max-misses=0")) == ["3 hits"]


def test_a_problem_stale_in_one_test_and_hit_in_another_is_stale(suite: Suite) -> None:
    suite.write(test_op=ask("M=1")).serial.prepare_dump()
    asking = "".join(
        f"\ndef test_{number}(tune): tune('lib.op', M=1, source='{source}')"
        for number, source in enumerate(["one", "two", "one", "two", "two", "one"])
    )
    suite.write(test_op=asking)

    report = suite.report("--autotune-load=cache.textproto", "--autotune-max-misses=0")

    assert report["counts"]["stale"] == 1
    assert report["counts"]["hit"] == 0
    assert [row["outcome"] for row in report["lookups"]] == ["stale"]
    assert report["gate"]["failed"] == too_many_misses(1, "0")
