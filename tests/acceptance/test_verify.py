"""Verify races loaded choices again. The summary names slower choices, a gate limits them, and a dump replaces them."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conftest import Suite

SUITE = """
import pytest

@pytest.mark.parametrize("m", [16, 32, 64])
def test_matmul(tune, m):
    tune("lib.matmul", M=m, N=8)

def test_softmax(tune):
    tune("lib.softmax", N=8, times={"x": 3.0, "y": 2.0})
"""
#: Since the dump, candidate b has become faster than a; x and y are as they were.
NOW = {"TOY_TIMES": "a=10.0 b=9.0 x=3.0 y=2.0"}
ROW = "SLOWER test_lib.py::test_matmul[{m}] - toy:lib.matmul (M={m}, N=8): the choice takes 10 us, "
ROW += "1.11 times as long as config=b, which takes "


def test_verify_shows_old_and_new_time_of_each_slower_choice(serial_suite: Suite, section: Any) -> None:
    serial_suite.write(test_lib=SUITE).prepare_dump()

    result = serial_suite.load("--autotune-verify", **NOW)

    lines = section(result)
    assert result.ret == 0
    result.stdout.fnmatch_lines(["autotune: load cache.textproto (4 entries), verify all"])
    assert sorted(lines[:3]) == [f"{ROW.format(m=m)}9 us +-0 us" for m in (16, 32, 64)]
    assert lines[3].startswith("4 hits")
    assert lines[4].startswith("verify all: 4 choices raced")
    assert lines[4].endswith(": 3 slower than another candidate")
    options = "--autotune-load=cache.textproto --autotune-update=all --autotune-verify=all"
    assert lines[-1] == f"Re-run with {options} to replace slower choices."


def test_printed_options_to_replace_choices_work_before_a_path(serial_suite: Suite, section: Any) -> None:
    serial_suite.write(test_lib=SUITE).prepare_dump()

    hint = section(serial_suite.load("--autotune-verify=all", "test_lib.py", **NOW))[-1]

    options = hint.removeprefix("Re-run with ").removesuffix(" to replace slower choices.").split()
    result = serial_suite.run(*options, "test_lib.py", **NOW)
    assert result.ret == 0
    assert "3 changed" in section(result)[-2]


def test_verify_measures_each_choice_once_despite_many_tests(suite: Suite) -> None:
    """The number of launches does not grow with the number of workers and tests."""
    test_text = 'def test(tune):\n    tune("lib.k", N=1)\n    tune("lib.k", N=1)\n'
    suite.write(**{f"test_{number}": test_text for number in range(3)}).serial.prepare_dump()

    suite.load("--autotune-verify", "--autotune-update", **NOW)

    assert 'text: "b"' in suite.cache.read_text()
    assert len(suite.tunings) < 600  # launches: two races of a pair come to some 500


def test_the_json_report_has_faster_candidates_and_gpu_time(serial_suite: Suite) -> None:
    serial_suite.write(test_lib=SUITE).prepare_dump()

    report = serial_suite.report("--autotune-load=cache.textproto", "--autotune-verify=all", **NOW)

    verify = report["verify"]
    assert (verify["share"], verify["raced"], verify["slower"], verify["not_raced"]) == ("all", 4, 3, [])
    assert 0 < verify["device_seconds"] <= verify["seconds"] + 0.01
    assert verify["gate"] == {"limit": "", "failed": "", "skipped": ""}
    verdicts = {row["kernel"]: row["verdict"] for row in report["lookups"]}
    assert verdicts["lib.softmax"]["slower"] == 0
    assert verdicts["lib.matmul"]["slower"] == pytest.approx(0.111)
    assert (verdicts["lib.matmul"]["faster"], verdicts["lib.matmul"]["faster_us"]) == ("config=b", 9.0)
    assert report["counts"]["tuned"] == 0


@pytest.mark.parametrize(("limit", "fails"), [("3", False), ("75%", False), ("2", True), ("74%", True), ("0", True)])
def test_gate_on_slower_choices_fails_if_verify_finds_too_many(serial_suite: Suite, limit: str, fails: bool) -> None:
    serial_suite.write(test_lib=SUITE).prepare_dump()

    result = serial_suite.load("--autotune-verify", f"--autotune-max-drift={limit}", **NOW)

    assert result.ret == fails
    if fails:
        count = "3 of 4" if "%" in limit else "3"
        compared = f"{count}, at most {limit} allowed"
        result.stdout.fnmatch_lines([f"!* too many autotune choices are slower than another candidate: {compared} !*"])


@pytest.mark.parametrize("update", [["--autotune-dump=cache.textproto"], ["--autotune-update"]])
def test_verify_with_an_update_replaces_only_slower_choices(serial_suite: Suite, update: list[str]) -> None:
    """The next verification changes nothing."""
    serial_suite.write(test_lib=SUITE).prepare_dump()
    before = serial_suite.cache.read_text()
    entries = before.split("entries {")

    serial_suite.load("--autotune-verify", *update, **NOW)

    after = serial_suite.cache.read_text().split("entries {")
    changed = [number for number, (old, new) in enumerate(zip(entries, after, strict=True)) if old != new]
    assert len(changed) == 3
    assert all('text: "b"' in after[number] and "time_us: 9" in after[number] for number in changed)
    again = serial_suite.cache.read_text()
    assert serial_suite.load("--autotune-verify", *update, "--autotune-max-drift=0", **NOW).ret == 0
    assert serial_suite.cache.read_text() == again


def test_three_verify_parts_together_measure_each_choice_once(serial_suite: Suite) -> None:
    serial_suite.write(test_lib=SUITE).prepare_dump()

    raced = []
    for part in ("1/3", "2/3", "3/3"):
        report = serial_suite.report("--autotune-load=cache.textproto", f"--autotune-verify={part}")
        raced += [(row["kernel"], str(row["key"])) for row in report["lookups"] if row["verdict"]]
        assert report["verify"]["share"] == part

    assert len(raced) == len(set(raced)) == 4


def test_gate_on_slower_choices_fails_if_0_seconds_are_left(serial_suite: Suite, section: Any) -> None:
    """There was no time for a race. The summary counts the choices that were not raced and gives the reason."""
    serial_suite.write(test_lib=SUITE).prepare_dump()

    result = serial_suite.load("--autotune-verify", "-oautotune_verify_seconds=0", "--autotune-max-drift=0")

    lines = section(result)
    assert lines[1].startswith("verify all: 0 choices raced")
    assert lines[2:] == ["4 choices of toy not raced: the time for races was over (raise autotune_verify_seconds)"]
    assert result.ret == 1
    result.stdout.fnmatch_lines(
        ["!* none of 4 choices was raced: the time for races was over (raise autotune_verify_seconds) !*"]
    )


def test_verify_compares_only_hits_and_tunes_the_other_problems(serial_suite: Suite) -> None:
    serial_suite.write(test_lib='def test(tune, source="one"): tune("lib.k", source=source, N=1)\n').prepare_dump()
    serial_suite.write(test_lib='def test(tune): tune("lib.k", source="two", N=1); tune("lib.k", N=2)\n')

    report = serial_suite.report("--autotune-load=cache.textproto", "--autotune-verify")

    assert report["verify"]["raced"] == 0
    assert report["counts"]["tuned"] == 2


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (
            ["--autotune-verify=most"],
            "--autotune-verify: expected all, *, not 'most' (before a path, write --autotune-verify=all)",
        ),
        (["--autotune-max-drift=0"], "--autotune-max-drift: this run races no choices (add --autotune-verify)"),
        (["--autotune-verify", "--autotune-max-drift=x"], "--autotune-max-drift: expected a count such as 0*"),
        (
            ["--autotune-sweep=1", "--autotune-verify"],
            "--autotune-verify: --autotune-sweep neither loads nor dumps a cache*",
        ),
    ],
)
def test_verify_with_a_wrong_value_or_option_is_a_usage_error(
    serial_suite: Suite, args: list[str], message: str
) -> None:
    serial_suite.write(test_lib=SUITE)

    result = serial_suite.run(*args)

    assert result.ret == 4
    result.stderr.fnmatch_lines([f"ERROR: {message}"])


@pytest.mark.parametrize("options", [[], ["--autotune-max-drift=0"], ["--autotune-dump=cache.textproto"]])
def test_option_verify_without_a_loaded_cache_is_a_usage_error(serial_suite: Suite, options: list[str]) -> None:
    result = serial_suite.write(test_lib=SUITE).run("--autotune-verify", *options)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.assert_outcomes()
    result.stderr.fnmatch_lines(
        ["ERROR: --autotune-verify: no cache is loaded, so there is no choice to race (add --autotune-load=PATH; *"]
    )


def test_an_empty_load_option_skips_verify_in_addopts(serial_suite: Suite, section) -> None:
    """The empty --autotune-load= loads nothing on purpose. The summary says that there was no choice to race."""
    ini = "[pytest]\naddopts = --autotune-verify=1/7\nautotune_max_drift = 0\nautotune_load = none.textproto\n"
    serial_suite.write(test_lib=SUITE).pytester.makeini(ini)

    result = serial_suite.dump("--autotune-load=")

    assert result.ret == 0
    lines = section(result)
    assert lines[-2].startswith("verify 1/7: no cache was loaded, so no choice was raced (add --autotune-load=PATH)")
    assert lines[-1] == "the speed of the autotune choices was not checked: no cache was loaded"


def test_verify_also_measures_choices_that_only_a_marker_loads(serial_suite: Suite) -> None:
    serial_suite.write(test_lib=SUITE).prepare_dump()
    marker = "pytestmark = pytest.mark.autotune_cache(load='cache.textproto')\n"
    (serial_suite.folder / "test_lib.py").write_text(SUITE + marker)

    result = serial_suite.run("--autotune-verify")

    assert result.ret == 0
    result.stdout.fnmatch_lines(["verify all: 4 choices raced*"])


def test_gate_on_slower_choices_fails_if_no_test_used_an_entry(serial_suite: Suite) -> None:
    serial_suite.write().prepare_dump()
    (serial_suite.folder / "test_lib.py").write_text("def test_nothing(): pass")

    result = serial_suite.load("--autotune-verify=all", "--autotune-max-drift=0")

    assert result.ret == 1
    result.stdout.fnmatch_lines(["!* 4 entries were loaded, but no test used any !*"])


def test_gate_on_slower_choices_fails_if_all_selected_tests_skip(serial_suite: Suite) -> None:
    """A machine that has lost its GPU skips all tests of its shard."""
    serial_suite.write().prepare_dump()
    skipping = "import pytest\n@pytest.mark.skip\ndef test_a(): pass\ndef test_b(): pass\n"
    (serial_suite.folder / "test_lib.py").write_text(skipping)

    result = serial_suite.load("--autotune-verify", "--autotune-max-drift=0", "-k", "test_a")

    assert result.ret == 1
    result.stdout.fnmatch_lines(["!* no test called an autotuned kernel, and no test passed (1 skipped*"])


def test_gate_on_slower_choices_fails_if_a_whole_run_has_no_hit(serial_suite: Suite) -> None:
    """The loaded choices fit no problem of the suite. A part of the suite may lack hits, so its drift is not judged."""
    serial_suite.write(test_lib='def test_a(tune): tune("lib.k", N=1)\n').prepare_dump()
    serial_suite.write(test_lib='def test_a(tune): tune("lib.k", N=2)\n')
    gate = ["--autotune-verify", "--autotune-max-drift=0", "--junitxml=junit.xml"]

    whole = serial_suite.load(*gate)
    assert whole.ret == 1
    whole.stdout.fnmatch_lines(
        ["!* 1 entry was loaded, but none fits this run, so no choice was raced (run --autotune-update) !*"]
    )

    part = serial_suite.load(*gate, "-k", "test_a")
    assert part.ret == 0
    part.stdout.fnmatch_lines(["the speed of the autotune choices was not checked: no choice was raced"])
    assert 'skipped="1"' in (serial_suite.folder / "junit.xml").read_text()


def test_gate_on_slower_choices_fails_if_a_tuner_is_excluded(serial_suite: Suite) -> None:
    """The failure names the option, and names it once if a gate on misses is set, too."""
    serial_suite.write().prepare_dump()
    tune_call = "autotune_cache.tune('a', key={'n': 1}, space=[1, 2], run=str)"
    (serial_suite.folder / "test_more.py").write_text(f"def test_a(autotune_cache): {tune_call}\n")
    serial_suite.load("--autotune-update")
    limit = ["--autotune-verify=all", "--autotune-tuners=function", "--autotune-max-drift=99"]
    message = (
        "!* loaded entries were not used: --autotune-tuners=function leaves out toy (name it "
        "there, or add it to autotune_ignore) !*"
    )

    for options in ([], ["--autotune-max-misses=0"]):  # said once
        result = serial_suite.load(*limit, *options)
        assert result.ret == 1
        result.stdout.fnmatch_lines([message])
        assert result.stdout.str().count("leaves out toy") == 1


def test_gate_on_slower_choices_fails_if_the_cache_is_empty(serial_suite: Suite) -> None:
    serial_suite.write().cache.write_text("format_version: 1\n")

    result = serial_suite.load("--autotune-verify=all", "--autotune-max-drift=0")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(
        ["!* the loaded cache is empty, so no choice was raced (fill it with --autotune-update) !*"]
    )


def test_a_verify_update_copies_no_choice_from_a_markers_cache(serial_suite: Suite) -> None:
    test_text = 'def test(tune): assert tune("lib.op", M=1) == "a"\n'
    marked_test = (
        '@pytest.mark.autotune_cache(load="own.textproto")\ndef test_own(tune): assert tune("lib.op", M=1) == "b"\n'
    )
    serial_suite.write(test_op=test_text).prepare_dump()
    before = serial_suite.cache.read_text()
    (serial_suite.folder / "own.textproto").write_text(before.replace('text: "a"', 'text: "b"'))
    serial_suite.write(test_op=f"import pytest\n{test_text}{marked_test}")

    result = serial_suite.load("--autotune-update", "--autotune-verify")

    result.assert_outcomes(passed=2)
    assert serial_suite.cache.read_text() == before
