"""The first minute of the README, word by word."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.conftest import Suite, autotuners

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


FIRST_MINUTE = README.partition("## The first minute")[2].partition("\n## ")[0]
TESTS = re.findall(r"```python\n(.*?)```", FIRST_MINUTE, re.DOTALL)
SHOWN = re.findall(r"\$ pytest (.*?)(?=\n\n|```)", FIRST_MINUTE, re.DOTALL)


def test_the_first_minute_in_the_readme_lists_its_requirements() -> None:
    """The laptop has no GPU."""
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")

    for named in ("python3 -m venv", "numpy", "export TRITON_INTERPRET=1", "whl/cpu", "Linux", "Python 3.10"):
        assert named in FIRST_MINUTE
    extras = {name for extra in re.findall(r'"\.\[([a-z,]+)\]"', README) for name in extra.split(",")}
    assert extras == {"xdist"}
    assert [name for name in extras if f"\n{name} = [" not in pyproject] == []


def test_the_steps_for_a_suite_in_the_readme_work_as_written(serial_suite: Suite, section) -> None:
    steps = README.partition("## Your suite")[2].partition("**In CI**")[0]
    first, plain, update = re.findall(r"(?<![\w$])pytest( --[^\s`]+)?(?=`| *\n)", steps)[:3]
    (ini,) = re.findall(r"```toml\n(.*?)```", steps, re.DOTALL)
    serial_suite.write()
    (serial_suite.folder / "tests").mkdir()
    for file in serial_suite.folder.glob("*.py"):
        file.rename(serial_suite.folder / "tests" / file.name)

    assert serial_suite.run(first.strip()).ret == 0
    (serial_suite.folder / "pyproject.toml").write_text(textwrap.dedent(ini))
    assert plain == ""
    assert section(serial_suite.run()) == ["4 hits"]
    (serial_suite.folder / "tests" / "test_more.py").write_text("def test_more(tune): tune('lib.more')")
    assert section(serial_suite.run())[-1] == "Re-run with --autotune-update=all to update the cache."
    assert serial_suite.run(update.strip()).ret == 0
    assert section(serial_suite.run()) == ["5 hits"]


def shows(suite: Suite, shown: str) -> None:
    """Run a command as the README has it; each line that it shows comes."""

    def same(line: str) -> str:
        # A tuning that was quick saves nothing that is worth a word.
        return re.sub(r"[0-9.]+s\b", "?s", line).replace("; about ?s of tuning saved", "")

    command, *expected = shown.splitlines()
    for autotuner in autotuners():  # each run is to be the first one of its process
        autotuner.cache.clear()
    printed = {same(line) for line in suite.run(*command.split()).outlines}
    assert {same(line) for line in expected if line != "..."} <= printed


def test_the_first_commands_in_the_readme_print_the_shown_output(
    serial_suite: Suite, forget_choices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    test, _ = TESTS
    dump, load, stale, _ = SHOWN
    monkeypatch.setenv("COLUMNS", "80")
    file = serial_suite.folder / "test_join.py"
    file.write_text(test)

    shows(serial_suite, dump)
    shows(serial_suite, load)
    file.write_text(test.replace('(["".join(', '(("".join(').replace("n)])", "n)))"))
    shows(serial_suite, stale)


def test_the_triton_example_in_the_readme_is_added_to_the_cache(
    serial_suite: Suite, forget_choices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRITON_INTERPRET may also be set in the test's module."""
    pytest.importorskip("triton.runtime.interpreter")  # what a run is the first to import, it forgets
    pytest.importorskip("torch")
    (serial_suite.folder / "test_join.py").write_text(TESTS[0])
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    shows(serial_suite, SHOWN[0])
    (serial_suite.folder / "test_double.py").write_text(TESTS[1])
    shows(serial_suite, SHOWN[-1])

    # Triton reads the variable when it is imported.
    monkeypatch.setattr(serial_suite.pytester, "_method", "subprocess")
    monkeypatch.delenv("TRITON_INTERPRET")
    in_the_module = 'import os\nos.environ["TRITON_INTERPRET"] = "1"\n'
    (serial_suite.folder / "test_double.py").write_text(in_the_module + TESTS[1])
    serial_suite.dump("test_double.py").assert_outcomes(passed=1)


def test_without_the_plugin_ini_keys_only_warn_but_addopts_fail(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An option in ``PYTEST_ADDOPTS`` stops the run: after an uninstall, the ini form is the safe one."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    pytester.makepyfile("def test_pass(): pass")
    pytester.makeini("[pytest]\nautotune_load = cache.textproto")

    run = pytester.runpytest_subprocess()
    run.assert_outcomes(passed=1, warnings=1)
    run.stdout.fnmatch_lines("*Unknown config option: autotune_load*")

    monkeypatch.setenv("PYTEST_ADDOPTS", "--autotune-load=cache.textproto")
    run = pytester.runpytest_subprocess()
    assert run.ret == pytest.ExitCode.USAGE_ERROR
    run.stderr.fnmatch_lines("*unrecognized arguments: --autotune-load=cache.textproto*")
