"""``--autotune-on-miss=first`` and ``=nearest``: neither tuned nor failed, and counted as what it is."""

from __future__ import annotations

import pytest

from tests.conftest import Suite
from tests.reasons import describe_changed

OP = """
import pytest
TIMES = {{"slow": 9.0, "fast": 3.0, "middle": 6.0}}
@pytest.mark.parametrize("m", [{ms}])
def test_op(tune, m):
    times = {{"slow": 9.0, "fast": 9.5, "middle": 6.0}} if m == 64 else TIMES
    assert tune("lib.op", M=m, times=times{more}) == {wanted}
"""


@pytest.fixture
def loaded_suite(serial_suite: Suite) -> Suite:
    return with_entries(serial_suite)


def with_entries(suite: Suite) -> Suite:
    """A suite with entries for M=16, where fast is the fastest, and M=64, where middle is."""
    suite.write(
        test_op=OP.format(ms="16, 64", more="", wanted="('middle' if m == 64 else 'fast')")
    ).serial.prepare_dump()
    return suite


def test_with_on_miss_first_all_but_hits_use_the_first_candidate(suite: Suite, section) -> None:
    loaded_suite = with_entries(suite)
    loaded_suite.write(
        test_op=OP.format(
            ms="16, 32, 64", more=", source='two' if m == 16 else 'one'", wanted="('middle' if m == 64 else 'slow')"
        )
    )
    before = loaded_suite.cache.read_bytes()

    result = loaded_suite.load("--autotune-on-miss=first")

    result.assert_outcomes(passed=3)
    assert loaded_suite.tunings == []
    assert section(result) == [
        "MISS test_op.py::test_op[32] - toy:lib.op (M=32): no entry; the nearest entry has M 16 instead of 32; "
        "the first candidate was used",
        f"STALE test_op.py::test_op[16] - toy:lib.op (M=16): {describe_changed('source')}; "
        "the first candidate was used",
        "1 hit, 1 miss, 1 stale; 2 used a fallback choice",
        "Re-run with --autotune-load=cache.textproto --autotune-update=all to update the cache.",
    ]
    assert loaded_suite.cache.read_bytes() == before


def test_option_on_miss_nearest_uses_choice_of_the_nearest_size(loaded_suite: Suite) -> None:
    loaded_suite.write(test_op=OP.format(ms="20, 63", more="", wanted="('middle' if m == 63 else 'fast')"))

    report = loaded_suite.report("--autotune-load=cache.textproto", "--autotune-on-miss=nearest")

    assert loaded_suite.tunings == []
    assert report["counts"]["miss"] == report["counts"]["fallback"] == 2
    assert [(row["fallback"], row["tuned"], row["choice"]) for row in report["lookups"]] == [
        ("nearest", False, {"params": {"config": "fast"}}),
        ("nearest", False, {"params": {"config": "middle"}}),
    ]


@pytest.mark.parametrize("word", ["first", "nearest"])
def test_the_gate_counts_misses_despite_on_miss_first_or_nearest(loaded_suite: Suite, section, word: str) -> None:
    loaded_suite.write(test_op=OP.format(ms="16, 20, 64", more="", wanted="tune('lib.op', M=m, times=times)"))

    result = loaded_suite.load(f"--autotune-on-miss={word}", "--autotune-max-misses=0")

    assert result.ret == 1
    assert section(result)[-2].startswith("2 hits, 1 miss; 1 used a fallback choice")


def test_on_miss_nearest_uses_first_candidate_for_a_new_kernel(serial_suite: Suite) -> None:
    serial_suite.write(test_op=OP.format(ms="16", more="", wanted="'fast'")).prepare_dump()
    serial_suite.write(test_new="def test_new(tune): assert tune('lib.new') == 'a'", test_op="")

    report = serial_suite.report("--autotune-load=cache.textproto", "--autotune-on-miss=nearest")

    assert [row["fallback"] for row in report["lookups"]] == ["first"]
    assert report["counts"]["tuned"] == 0


def test_option_on_miss_first_without_a_cache_tunes_nothing(serial_suite: Suite, section) -> None:
    serial_suite.write(test_op=OP.format(ms="16", more="", wanted="'slow'"))

    result = serial_suite.run("--autotune-on-miss=first")

    result.assert_outcomes(passed=1)
    assert serial_suite.tunings == []
    assert section(result)[-1] == "0 hits, 1 miss; 1 used a fallback choice"
    result.stdout.fnmatch_lines(["autotune: on miss first"])


def test_option_on_miss_nearest_without_a_load_is_a_usage_error(serial_suite: Suite) -> None:
    result = serial_suite.write().run("--autotune-on-miss=nearest")

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --autotune-on-miss: no cache is loaded*"])


def test_dump_without_a_load_tunes_despite_option_on_miss_first(serial_suite: Suite) -> None:
    serial_suite.write(test_op=OP.format(ms="16", more="", wanted="'fast'"))

    serial_suite.dump("--autotune-on-miss=first").assert_outcomes(passed=1)

    assert len(serial_suite.tunings) == 1


def test_entry_used_only_for_another_size_is_reported_unused(serial_suite: Suite, section) -> None:
    serial_suite.write(test_op=OP.format(ms="16", more="", wanted="'fast'")).prepare_dump()
    serial_suite.write(test_op=OP.format(ms="20", more="", wanted="'fast'"))

    lines = section(serial_suite.load("--autotune-on-miss=nearest"))

    assert "UNUSED toy:lib.op (M=16): no test used this entry" in lines
