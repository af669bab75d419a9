"""The first minute of the README, word by word."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


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
