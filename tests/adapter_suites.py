"""Suites for the adapters of CuTe DSL and cuTile. Each run is a process of its own.

They run over stand-ins with the real signatures (tests/toy_cutlass, tests/toy_cutile). With ``REAL_LIBRARIES=1``, as in
``make test-adapters``, they run over the installed wheels, which compile for an H200 on a machine without a GPU.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from tests.forked_workers import ForkedPytest

TESTS = Path(__file__).parent
IS_REAL = bool(os.environ.get("REAL_LIBRARIES"))


class AdapterSuite:
    """A copy of a suite of tests/data.

    :param name: the folder of the suite.
    :param stand_in: the folder of tests that has the stand-in of its library.
    """

    def __init__(self, folder: Path, name: str, stand_in: str) -> None:
        self.folder = folder / name
        shutil.copytree(TESTS / "data" / name, self.folder)
        shutil.copy(TESTS / "data/suite.ini", self.folder / "pytest.ini")
        self._path = [str(self.folder), str(TESTS.parent)]
        if not IS_REAL:
            self.library = self.folder / "stand_in"
            shutil.copytree(TESTS / stand_in, self.library)
            self._path.insert(0, str(self.library))

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run pytest, and return its exit status and output."""
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(self._path), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        options = ["-ppytest_autotune.plugin", "-pno:cacheprovider", *arguments]
        with tempfile.TemporaryFile("w+") as output:
            if IS_REAL:
                command = [sys.executable, "-m", "pytest", *options]
                done = subprocess.run(command, cwd=self.folder, env=environment, stdout=output, stderr=output)
                status = done.returncode
            else:
                status = ForkedPytest(options, self.folder, environment, output.fileno()).wait(300)
            output.seek(0)
            return subprocess.CompletedProcess(options, status, output.read(), "")

    def report(self, *arguments: str) -> dict[str, Any]:
        """Run pytest, and return the JSON report, with the output under ``output``."""
        done = self.run(*arguments, "--autotune-report=report.json")
        report: dict[str, Any] = json.loads((self.folder / "report.json").read_text())
        report["output"] = done.stdout + done.stderr
        report["status"] = done.returncode
        return report

    def edit(self, file: str, old: str, new: str) -> None:
        """Replace a text of a file."""
        path = self.folder / file
        text = path.read_text()
        assert old in text
        path.write_text(text.replace(old, new))


def counts_of(report: dict[str, Any]) -> dict[str, int]:
    """Return the counts of a report that are not zero."""
    return {name: count for name, count in report["counts"].items() if count}
