"""Measure the time that the installed plugin adds to a pytest run without any of its options.

    python tests/benchmarks/startup.py

The script runs ``pytest --co`` on a suite of one test, 25 times without the plugin and 25 times with it, in turns. The
table has the medians in milliseconds: each side, and the difference within a pair. Its last row lists the heavy
libraries that the plugin imported. Other processes on the machine disturb the differences by some milliseconds.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, median, pytest_seconds, table

PAIRS = 25
LIST_HEAVY_MODULES = """
import sys, pytest
pytest.main(['--co', '-q', '-ppytest_autotune.plugin'])
heavy = ('torch', 'triton', 'google.protobuf', 'yaml', 'filelock', 'wrapt')
print([module for module in heavy if module in sys.modules])
"""


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # As in an installation, Python compiles each module once, even if this machine's settings forbid it.
        bytecode = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **bytecode}
        (folder / "test_one.py").write_text("def test_one(): pass\n")
        # The first run compiles the modules.
        pytest_seconds(folder, "--co", "-q", "-ppytest_autotune.plugin", **environment)
        with_plugin, without = [], []
        for _ in range(PAIRS):
            without.append(pytest_seconds(folder, "--co", "-q", **environment)[0])
            with_plugin.append(pytest_seconds(folder, "--co", "-q", "-ppytest_autotune.plugin", **environment)[0])
        added = [seconds - base for seconds, base in zip(with_plugin, without, strict=True)]
        rows = [
            ("without the plugin", f"{median(without) * 1000:.1f} ms"),
            ("with it, no option", f"{median(with_plugin) * 1000:.1f} ms"),
            (f"added (median of {PAIRS} pairs)", f"{median(added) * 1000:.1f} ms"),
        ]
        command = [sys.executable, "-c", LIST_HEAVY_MODULES]
        listing = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True)
        rows.append(("heavy modules imported", listing.stdout.splitlines()[-1]))
    table(("`pytest --co` of one test", "time"), rows)


if __name__ == "__main__":
    main()
