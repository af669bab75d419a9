"""The first minute of the README, word by word."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

import pytest

from tests.conftest import Suite, autotuners

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_the_first_minute_names_all_that_a_laptop_without_a_gpu_needs() -> None:
    first_minute = README.partition("## The first minute")[2].partition("\n## ")[0]
    pyproject = (Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8")

    for named in ("python3 -m venv", "numpy", '"numpy<2.4"', "export TRITON_INTERPRET=1", "Linux", "Python 3.10"):
        assert named in first_minute
    extras = {name for extra in re.findall(r'"\.\[([a-z,]+)\]"', README) for name in extra.split(",")}
    assert extras == {"xdist", "torch", "triton"}
    assert [name for name in extras if f"\n{name} = [" not in pyproject] == []


def test_a_suite_can_do_what_the_readme_says_of_it(serial_suite: Suite, section) -> None:
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
    assert section(serial_suite.run())[-1] == "Re-run with --autotune-update to update the cache."
    assert serial_suite.run(update.strip()).ret == 0
    assert section(serial_suite.run()) == ["5 hits"]


def test_the_first_minute_shows_what_the_readme_shows(
    serial_suite: Suite, forget_choices: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton.runtime.interpreter")  # what a run is the first to import, it forgets
    pytest.importorskip("torch")
    (test,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    shown = re.findall(
        r"```\n\$ pytest (test_double.*?)```", README.replace("\n\n$ pytest", "\n```\n```\n$ pytest"), re.DOTALL
    )
    dump, load, stale = (example.splitlines() for example in shown)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TRITON_INTERPRET", "1")

    def same(line: str) -> str:
        # A tuning that was quick saves nothing that is worth a word.
        return re.sub(r"[0-9.]+s\b", "?s", line).removesuffix("; about ?s of tuning saved")

    def shows(command: str, *wanted: str) -> None:
        for found in autotuners():  # each run is to be the first one of its process
            found.cache.clear()
        printed = {same(line) for line in serial_suite.run(*command.split()).outlines}
        assert {same(line) for line in wanted if line != "..."} <= printed

    file = serial_suite.folder / "test_double.py"
    file.write_text(test)
    with monkeypatch.context() as in_a_process_of_its_own:
        in_a_process_of_its_own.setattr(serial_suite.pytester, "_method", "subprocess")
        shows(*dump)
    shows(*load)
    file.write_text(test.replace("2 * tl.load(x + at, mask=at < n)", "tl.load(x + at, mask=at < n) * 2"))
    shows(*stale)
