"""A mode is a file and a row of the registry: without both, the rest of the package does what it did."""

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


def without(mode: str, folder: Path) -> None:
    """Copy the package without a mode: its file, and its row."""
    copy = folder / "pytest_autotune"
    # With its bytecode, which fits copies too: three processes would compile the package each.
    shutil.copytree(PACKAGE, copy)
    (copy / "modes" / f"{mode}.py").unlink()
    registry = copy / "modes" / "__init__.py"
    text = registry.read_text(encoding="utf-8")
    calls = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    rows = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "ModeRow"]
    (row,) = (one for one in rows if isinstance(one.args[0], ast.Constant) and one.args[0].value == mode)
    assert row.end_lineno is not None
    lines = text.splitlines()
    registry.write_text("\n".join(lines[: row.lineno - 1] + lines[row.end_lineno :]) + "\n", encoding="utf-8")


@pytest.mark.parametrize("mode", MODES, ids=[mode.name for mode in MODES])
def test_without_a_mode_a_cache_is_dumped_and_loaded(mode: ModeRow, tmp_path: Path) -> None:
    without(mode.name, tmp_path)
    (tmp_path / "test_lib.py").write_text(
        "import toytuner\ndef test(): assert toytuner.tune('lib.op', M=1) == 'a'\n", encoding="utf-8"
    )

    def run(*args: str) -> subprocess.CompletedProcess[str]:
        path = os.pathsep.join([str(tmp_path), str(TOY)])
        command = [sys.executable, "-m", "pytest", "-ppytest_autotune.plugin", "-pno:cacheprovider", *args]
        environment = {**os.environ, "PYTHONPATH": path, "TOY_LOG": str(tmp_path / "log")}
        environment["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    assert "1 problem tuned" in run("--autotune-dump=cache.textproto").stdout
    assert "\n1 hit" in run("--autotune-load=cache.textproto").stdout
    told = run("--help").stdout
    assert "--autotune-load" in told
    assert not any(f"{name} " in told for option in mode.options for name in (option.flag, option.ini))
