"""The first minute of the README, word by word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.conftest import Suite

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


def test_the_first_minute_shows_what_the_readme_shows(tmp_path: Path) -> None:
    pytest.importorskip("triton")
    pytest.importorskip("torch")
    (test,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    shown = re.findall(
        r"```\n\$ pytest (test_double.*?)```", README.replace("\n\n$ pytest", "\n```\n```\n$ pytest"), re.DOTALL
    )
    file = tmp_path / "test_double.py"
    environment = {**os.environ, "TRITON_INTERPRET": "1", "COLUMNS": "80", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    environment.pop("PYTEST_ADDOPTS", None)

    def same(line: str) -> str:
        # A tuning that was quick saves nothing that is worth a word.
        return re.sub(r"[0-9.]+s\b", "?s", line).removesuffix("; about ?s of tuning saved")

    assert len(shown) == 3
    for number, example in enumerate(shown):
        file.write_text(
            test if number < 2 else test.replace("2 * tl.load(x + at, mask=at < n)", "tl.load(x + at, mask=at < n) * 2")
        )
        command, *wanted = example.splitlines()
        ran = subprocess.run(
            [sys.executable, "-m", "pytest", "-ppytest_autotune.plugin", *command.split()],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=120,
        )  # fmt: skip
        printed = [same(line) for line in ran.stdout.splitlines()]
        assert [line for line in wanted if line != "..." and same(line) not in printed] == [], ran.stdout
