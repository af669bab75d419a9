"""``--autotune-max-misses``: the verdict on a committed cache that no longer covers the suite."""

from __future__ import annotations

import os
import sys

import pytest

from tests.conftest import DISTRIBUTIONS, Suite
from tests.reasons import describe_changed, too_many_misses

NOT_JUDGED = "autotune cache misses were not checked"


@pytest.fixture
def outdated(serial_suite: Suite) -> Suite:
    """A suite with 8 hits, 8 misses and 4 stale problems."""
    return make_outdated(serial_suite)


def make_outdated(suite: Suite) -> Suite:
    test = "import pytest\n@pytest.mark.parametrize('m', range(20))\ndef test_op(tune, m): tune('lib.op', M={m}{more})"
    suite.write(test_op=test.format(m="m % 12", more="")).serial.prepare_dump()
    return suite.write(test_op=test.format(m="m", more=", source='two' if 8 <= m < 12 else 'one'"))


def verdict(result: pytest.RunResult) -> list[str]:
    """Return the line that pytest prints between exclamation marks."""
    return [line.strip("! ") for line in result.outlines if line.startswith("!")]


@pytest.mark.parametrize(
    ("limit", "message"),
    [
        ("0", too_many_misses(12, "0")),
        ("12", None),
        ("59.999999999999999%", too_many_misses(12, "59.999999999999999%", 20)),
        ("60%", None),
        ("60.0 %", None),
    ],
)
def test_a_miss_limit_of_60_percent_is_compared_without_rounding(
    outdated: Suite, limit: str, message: str | None
) -> None:
    result = outdated.load(f"--autotune-max-misses={limit}")

    assert result.ret == (1 if message else 0)
    assert verdict(result) == ([message] if message else [])
    result.assert_outcomes(passed=20)


INI_FORMS = {
    "pytest.ini": "[pytest]\nautotune_max_misses = {value}\n",
    "pyproject.toml": "[tool.pytest.ini_options]\nautotune_max_misses = {toml}\n",
}
NATIVE_FORMS = {
    "pytest.toml": "[pytest]\nautotune_max_misses = {toml}\n",
    "pyproject.toml": "[tool.pytest]\nautotune_max_misses = {toml}\n",
}


INI_FILES = [
    *INI_FORMS.items(),
    *(
        pytest.param(*form, marks=pytest.mark.skipif(pytest.version_tuple < (9,), reason="native TOML: pytest 9"))
        for form in NATIVE_FORMS.items()
    ),
]


@pytest.mark.parametrize(("name", "text"), INI_FILES)
@pytest.mark.parametrize(
    ("value", "message"),
    [
        (11, too_many_misses(12, "11")),
        ("10%", too_many_misses(12, "10%", 20)),
    ],
    ids=["count", "percentage"],
)
@pytest.mark.filterwarnings("error")
def test_a_limit_on_misses_works_in_every_kind_of_ini_file(
    outdated: Suite, name: str, text: str, value: int | str, message: str
) -> None:
    if name.endswith(".toml") and sys.version_info < (3, 11):
        pytest.importorskip("tomli")
    toml = f'"{value}"' if isinstance(value, str) else value
    (outdated.folder / name).write_text(text.format(value=value, toml=toml))

    result = outdated.load()

    assert result.ret == 1
    assert verdict(result) == [message]


def test_a_miss_limit_on_the_command_line_overrides_an_ini_limit(outdated: Suite) -> None:
    outdated.pytester.makeini("[pytest]\nautotune_max_misses = 0\n")

    assert outdated.load().ret == 1
    assert outdated.load("--autotune-max-misses=12").ret == 0
    assert outdated.load("--autotune-max-misses=off").ret == 0
    outdated.pytester.makeini("[pytest]\nautotune_max_misses = off\n")
    assert outdated.load().ret == 0


@pytest.mark.parametrize("option", ["--autotune-max-misses=", "--autotune-max-drift= "])
def test_an_empty_gate_option_is_an_error_that_suggests_off(outdated: Suite, option: str) -> None:
    """A variable of a CI script that is not set must not turn the gate off."""
    for run in (outdated.load, outdated.run):
        result = run(option)

        assert result.ret == pytest.ExitCode.USAGE_ERROR
        flag = option.partition("=")[0]
        result.stderr.fnmatch_lines(
            [f"ERROR: {flag}: the value is empty (is a variable unset[?]); use {flag}=off for no limit"]
        )


def refusal_of_empty_ini_limit(name: str) -> str:
    return f"ERROR: {name} (ini): the value is empty (is a variable unset[?]); use {name}=off for no limit"


@pytest.mark.parametrize("name", ["autotune_max_misses", "autotune_max_drift"])
def test_an_empty_limit_in_option_override_ini_is_a_usage_error(outdated: Suite, name: str) -> None:
    for run in (outdated.load, outdated.run):
        result = run("-o", f"{name}=")

        assert result.ret == pytest.ExitCode.USAGE_ERROR
        result.stderr.fnmatch_lines([refusal_of_empty_ini_limit(name)])


@pytest.mark.parametrize(("file_name", "text"), INI_FILES)
def test_an_empty_limit_in_an_ini_file_is_a_usage_error(outdated: Suite, file_name: str, text: str) -> None:
    if file_name.endswith(".toml") and sys.version_info < (3, 11):
        pytest.importorskip("tomli")
    (outdated.folder / file_name).write_text(text.format(value="", toml='""'))

    result = outdated.load()

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([refusal_of_empty_ini_limit("autotune_max_misses")])


@pytest.mark.parametrize("args", [["-q"], ["-qq"], ["--no-summary"], ["-qq", "--no-summary"], ["-x", "-qq"]])
def test_a_failed_gate_lists_its_misses_in_quiet_runs(outdated: Suite, section, args: list[str]) -> None:
    """Quiet runs use -q, -qq or --no-summary."""
    if "--no-summary" in args and pytest.version_tuple < (9, 2):
        pytest.skip("no plugin writes anything there")
    result = outdated.load("--autotune-max-misses=10", *args)
    lines = section(result)

    assert result.ret == 1
    assert [line.split()[0] for line in lines[:2]] == ["MISS", "STALE"]
    assert "8 misses, M = 12 … 19" in lines[0]
    assert f"4 stale, M = 8, 9, 10, 11; {describe_changed('source')}" in lines[1]
    assert len([line for line in lines if line.startswith("MISS")]) == 1, "not twice"


def test_the_gate_prints_its_verdict_if_option_x_stops_the_run(outdated: Suite) -> None:
    (outdated.folder / "test_zz.py").write_text("def test_fails(): assert 0")

    result = outdated.load("--autotune-max-misses=10", "-x")

    assert verdict(result) == [f"stopping after 1 failures; {too_many_misses(12, '10')}"]


def test_a_failed_gate_keeps_the_exit_status_of_a_failed_run(outdated: Suite) -> None:
    (outdated.folder / "test_fails.py").write_text("def test_fails(): assert 0")
    (outdated.folder / "test_empty.py").write_text("")

    assert outdated.load("--autotune-max-misses=0").ret == pytest.ExitCode.TESTS_FAILED
    empty = outdated.load("--autotune-max-misses=0", "test_empty.py")
    assert empty.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert outdated.load("--autotune-max-misses=0", "nothing.py").ret == pytest.ExitCode.USAGE_ERROR


#: Changes the exit status as pytest-custom-exit-code does, by the status that pytest gives to the hook.
SUPPRESSES_NO_TESTS = """
import pytest

@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session, exitstatus):
    if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED:
        session.exitstatus = pytest.ExitCode.OK
"""


@pytest.mark.parametrize("conftest", ["", SUPPRESSES_NO_TESTS], ids=["plain", "suppressed"])
def test_the_gate_fails_a_run_that_collects_no_tests(suite: Suite, conftest: str) -> None:
    """All files are skipped while pytest collects them. Status 5 must not hide the gate."""
    suite.write().serial.prepare_dump()
    for test in suite.folder.glob("test_*.py"):
        test.write_text("import pytest\npytest.skip('no GPU', allow_module_level=True)\n")
    with (suite.folder / "conftest.py").open("a") as file:
        file.write(conftest)

    result = suite.load("--autotune-max-misses=0")

    assert result.ret == pytest.ExitCode.TESTS_FAILED
    result.stdout.fnmatch_lines(["!* loaded, but no test used any *!*"])
    without_gate = pytest.ExitCode.OK if conftest else pytest.ExitCode.NO_TESTS_COLLECTED
    assert suite.load().ret == without_gate


def test_the_gate_counts_the_same_misses_with_and_without_xdist(suite: Suite) -> None:
    result = make_outdated(suite).load("--autotune-max-misses=10")

    assert result.ret == 1
    assert verdict(result) == [too_many_misses(12, "10")]
    result.stdout.fnmatch_lines(["8 hits, 8 misses, 4 stale; 12 tuned*"])


def test_a_gate_on_selected_tests_counts_only_their_misses(outdated: Suite) -> None:
    assert outdated.load("--autotune-max-misses=0", "-k", "test_op and 0").ret == 1
    assert outdated.load("--autotune-max-misses=0", "test_op.py::test_op[3]").ret == 0


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (["--autotune-load="], "no cache was loaded"),
        (["--autotune-dump=new.textproto"], "no cache was loaded"),
        (["--autotune-load=cache.textproto", "--autotune-dump=./cache.textproto"], "this run updates the cache*"),
    ],
)
def test_if_the_gate_is_skipped_one_line_gives_the_reason(
    outdated: Suite, section, options: list[str], why: str
) -> None:
    result = outdated.run("-oautotune_max_misses=0", *options, "-q")

    assert result.ret == 0
    assert len([line for line in section(result) if line.startswith(NOT_JUDGED)]) == 1
    result.stdout.fnmatch_lines([f"{NOT_JUDGED}: {why}"])


LOAD = "--autotune-load=cache.textproto"


@pytest.mark.parametrize(
    ("ini", "options", "writer"),
    [
        ("", [LOAD, "--autotune-update"], "--autotune-update"),
        ("addopts = --autotune-update=new", [LOAD], "--autotune-update=new"),
        ("autotune_dump = cache.textproto", [LOAD], "autotune_dump (ini)"),
        ("autotune_dump = new.textproto", [], "autotune_dump (ini)"),
        ("", ["--autotune-dump=new.textproto"], "--autotune-dump"),
    ],
)
@pytest.mark.parametrize("gate", ["--autotune-max-misses=0", "--autotune-fail-on-unused"])
def test_a_gate_option_with_an_update_is_a_usage_error(
    outdated: Suite, gate: str, ini: str, options: list[str], writer: str
) -> None:
    outdated.pytester.makeini(f"[pytest]\n{ini}\n")

    result = outdated.run(gate, *options)

    assert result.ret == pytest.ExitCode.USAGE_ERROR
    flag = gate.partition("=")[0]
    message = f"ERROR: {flag}: {writer} writes the cache, so there is nothing to check (leave one of the two out)"
    result.stderr.fnmatch_lines([message])


@pytest.mark.parametrize("option", ["--autotune-on-miss=first", "--autotune-on-stale=error"])
def test_a_typed_update_option_overrides_on_miss_in_addopts(outdated: Suite, option: str) -> None:
    """The same holds with xdist's workers, which cannot see what the user typed."""
    outdated.pytester.makeini(f"[pytest]\naddopts = {option}\n")
    assert outdated.load("--autotune-update", option).ret == pytest.ExitCode.USAGE_ERROR

    outdated.distribution = DISTRIBUTIONS["n2"]
    assert outdated.load("--autotune-update").ret == 0
    assert outdated.load("--autotune-max-misses=0").ret == 0
    outdated.pytester.makeini(f"[pytest]\naddopts = {option} --autotune-update\n")
    assert outdated.load().ret == pytest.ExitCode.USAGE_ERROR


def test_a_typed_update_option_turns_off_a_gate_in_addopts(outdated: Suite) -> None:
    outdated.pytester.makeini(f"[pytest]\naddopts = {LOAD} --autotune-max-misses=0\n")

    result = outdated.run("--autotune-update")

    assert result.ret == 0
    result.stdout.fnmatch_lines([f"{NOT_JUDGED}: this run updates the cache*"])


def test_a_dump_to_another_file_does_not_turn_off_the_gate(outdated: Suite) -> None:
    assert outdated.load("--autotune-max-misses=0", "--autotune-dump=other.textproto").ret == 1


def test_a_run_interrupted_by_pytest_exit_skips_the_gate(outdated: Suite) -> None:
    (outdated.folder / "test_zz.py").write_text("import pytest\ndef test_stop(): pytest.exit('enough')")

    result = outdated.load("--autotune-max-misses=0")

    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.fnmatch_lines([f"{NOT_JUDGED}: the run was interrupted"])


def test_the_gate_passes_selected_tests_that_call_no_kernel(serial_suite: Suite, section) -> None:
    serial_suite.write().prepare_dump()
    (serial_suite.folder / "test_lib.py").write_text("def test_nothing(): pass")

    for args in ([], ["-q"]):
        result = serial_suite.load("--autotune-max-misses=0", "test_lib.py", *args)

        assert result.ret == 0
        lines = section(result)[:1]
        assert lines == ["no test called an autotuned kernel; 4 loaded entries not used"]


UNCACHEABLE = """
from pytest_autotune.cache.model import Device, Problem

def test_uncacheable(session):
    problem = Problem("toy", "lib.lists", (), Device("Toy GPU", "toy", 4))
    for _ in range(2):
        session.report_uncacheable(problem, "M is a list, which has no stable form")
"""


def test_an_uncacheable_problem_counts_as_a_miss_for_the_gate(suite: Suite, section) -> None:
    """A dump does not write the problem."""
    suite.write(test_op="def test_op(tune): tune('lib.op')", test_uncacheable=UNCACHEABLE)
    suite.dump()
    assert suite.cache.read_text().count("entries {") == 1

    result = suite.load("--autotune-max-misses=0")

    assert result.ret == 1
    assert verdict(result) == [too_many_misses(1, "0")]
    assert section(result)[0] == (
        "UNCACHEABLE test_uncacheable.py::test_uncacheable - toy:lib.lists: M is a list, which has no stable form"
    )
    result.stdout.fnmatch_lines(["1 hit, 1 uncacheable"])


def test_the_gate_fails_for_an_unpatchable_tuner_with_entries(suite: Suite, section) -> None:
    suite.write().serial.prepare_dump()

    result = suite.load("--autotune-max-misses=100%", TOY_UNKNOWN="1")

    assert result.ret == 1
    assert verdict(result) == [
        "loaded entries were not used: the plugin could not hook toy (a line above has the reason)"
    ]
    assert "toy tunes without the plugin: its tune() takes other arguments" in section(result)


ELDER = """
class Adapter:
    module = "toytuner"
    acts_without_entries = True
    def hook(self, module, run): raise RuntimeError("its tune() takes other arguments")
    def unhook(self): pass
"""


def test_an_error_inside_an_adapter_fails_the_gate(suite: Suite) -> None:
    """The error left a call uncounted. The test itself passes."""
    suite.write(test_op="def test_op(tune): tune('lib.op', M=1)").serial.prepare_dump()
    suite.write(test_op="def test_op(tune): tune('lib.op', M=1); tune('lib.op', M=object())")

    result = suite.load("--autotune-max-misses=0", "-q")

    result.assert_outcomes(passed=1)
    assert result.ret == 1
    result.stdout.fnmatch_lines(["toy: internal error in *", "!*the plugin could not hook toy*"])


def test_the_gate_passes_an_unpatchable_tuner_without_entries(serial_suite: Suite, section) -> None:
    serial_suite.write().prepare_dump()
    (serial_suite.folder / "elder.py").write_text(ELDER)
    (serial_suite.folder / "elder-1.dist-info").mkdir()
    points = "[pytest_autotune.tuners]\nelder = elder:Adapter\n"
    (serial_suite.folder / "elder-1.dist-info/entry_points.txt").write_text(points)

    result = serial_suite.load("--autotune-max-misses=0")

    assert result.ret == 0
    assert "elder tunes without the plugin: RuntimeError: its tune() takes other arguments" in section(result)


def test_a_tuning_that_bypassed_the_plugin_counts_as_a_miss(suite: Suite, section) -> None:
    suite.write().serial.prepare_dump()

    result = suite.load("--autotune-max-misses=0", TOY_UNSEEN="lib.hidden")

    assert verdict(result) == [too_many_misses(1, "0")]
    assert section(result)[0].startswith("UNTRACKED toy:lib.hidden")


def test_a_miss_of_a_forked_child_that_leaves_its_test_is_judged(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child of the test is a copy of pytest, which runs the other tests and ends its session."""
    forking = """
        import os

        def test_known(tune): tune("lib.known")

        def test_forking(tune):
            child = os.fork()
            if child == 0:
                tune("lib.unknown")
                raise SystemExit
            os.waitpid(child, 0)
    """
    serial_suite.write(test_forking=forking).prepare_dump("-k", "known")
    monkeypatch.setenv("TOY_LOG", str(serial_suite.log))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")

    # The child must not be a copy of the pytest that runs this test.
    result = serial_suite.pytester.runpytest_subprocess(
        "-ppytest_autotune.plugin", "--autotune-load=cache.textproto", "--autotune-max-misses=0"
    )

    assert result.ret == 1
    assert verdict(result)[-1:] == [too_many_misses(1, "0")]


def test_a_run_whose_test_leaves_a_mock_of_getpid_is_judged(
    serial_suite: Suite, monkeypatch: pytest.MonkeyPatch
) -> None:
    serial_suite.write().prepare_dump()
    monkeypatch.setattr("os.getpid", os.getpid)  # monkeypatch restores it after the test

    mocking = "import os\ndef test_mock(tune):\n    os.getpid = lambda: 7\n    tune('lib.unknown')"
    result = serial_suite.write(test_mock=mocking).load("--autotune-max-misses=0")

    assert verdict(result) == [too_many_misses(1, "0")]
