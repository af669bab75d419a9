"""A mode is a file and a row of the registry: a copy of the package loses a mode, or has another, by these two."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import pytest_autotune
from pytest_autotune.modes import MODES, ModeRow

PACKAGE = Path(pytest_autotune.__file__).parent
TOY = Path(__file__).parent / "toy_tuner"


def copy_package(folder: Path) -> Path:
    copy = folder / "pytest_autotune"
    # With its bytecode, which fits copies too: three processes would compile the package each.
    shutil.copytree(PACKAGE, copy)
    return copy


def without(mode: str, folder: Path) -> None:
    """Copy the package without a mode: its file, and its row."""
    copy = copy_package(folder)
    (copy / "modes" / f"{mode}.py").unlink()
    registry = copy / "modes" / "__init__.py"
    text = registry.read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    rows = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "ModeRow"]
    (row,) = (
        mode_row for mode_row in rows if isinstance(mode_row.args[0], ast.Constant) and mode_row.args[0].value == mode
    )
    assert row.end_lineno is not None
    lines = text.splitlines()
    registry.write_text("\n".join(lines[: row.lineno - 1] + lines[row.end_lineno :]) + "\n", encoding="utf-8")


def run_in(folder: Path, *args: str) -> subprocess.CompletedProcess[str]:
    """Run pytest with the copy of the package in a folder."""
    path = os.pathsep.join([str(folder), str(TOY)])
    command = [sys.executable, "-m", "pytest", "-ppytest_autotune.plugin", "-pno:cacheprovider", *args]
    environment = {**os.environ, "PYTHONPATH": path, "TOY_LOG": str(folder / "log")}
    environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("mode", MODES, ids=[mode.name for mode in MODES])
def test_dump_and_load_work_if_a_feature_like_sweep_is_deleted(mode: ModeRow, tmp_path: Path) -> None:
    without(mode.name, tmp_path)
    (tmp_path / "test_lib.py").write_text(
        "import toytuner\ndef test(): assert toytuner.tune('lib.op', M=1) == 'a'\n", encoding="utf-8"
    )

    assert "1 problem tuned" in run_in(tmp_path, "--autotune-dump=cache.textproto").stdout
    assert "\n1 hit" in run_in(tmp_path, "--autotune-load=cache.textproto").stdout
    help_text = run_in(tmp_path, "--help").stdout
    assert "--autotune-load" in help_text
    assert not any(f"{name} " in help_text for option in mode.options for name in (option.flag, option.ini))


SWITCHED = """
from pytest_autotune.run.session import Mode
from pytest_autotune.run.result import Section

class Greeting(Mode):
    name = "greeting"

    def test_failed(self, test):
        return ["a test has failed"], []

    def build_section(self, result):
        return Section(self.name, self.typed_value, ("the mode says hello",))

def make(greeting):
    return Greeting()
"""
SWITCH_ROW = 'ModeRow("greeting", (Option("greeting", "switch", "Say hello", only="flag"),)),'


def test_a_new_feature_module_gets_its_own_pytest_option(tmp_path: Path) -> None:
    """A mode whose flag has no value acts in a run without other options."""
    modes = copy_package(tmp_path) / "modes"
    (modes / "greeting.py").write_text(SWITCHED, encoding="utf-8")
    registry = modes / "__init__.py"
    text = registry.read_text(encoding="utf-8")
    registry.write_text(text.replace("MODES = (\n", f"MODES = (\n    {SWITCH_ROW}\n"), encoding="utf-8")
    (tmp_path / "test_lib.py").write_text("def test(): assert False\n", encoding="utf-8")

    shown = run_in(tmp_path, "--autotune-greeting").stdout

    assert "the mode says hello" in shown
    assert "rerun: pytest --autotune-greeting test_lib.py::test\n" in shown
    assert "hello" not in run_in(tmp_path).stdout
