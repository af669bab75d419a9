"""What the installed plugin adds to a run that asks nothing of it.

python tests/benchmarks/startup.py
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

from common import machine, median, pytest_seconds, table

PAIRS = 25


def main() -> None:
    print(machine())
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # As where it is installed: modules are compiled once, whatever this machine says about that.
        compiled = {"PYTHONDONTWRITEBYTECODE": "", "PYTHONPYCACHEPREFIX": str(folder / "compiled")}
        autoload = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **compiled}
        (folder / "test_one.py").write_text("def test_one(): pass\n")
        pytest_seconds(folder, "--co", "-q", "-ppytest_autotune.plugin", **autoload)
        with_plugin, without = [], []
        for _ in range(PAIRS):
            without.append(pytest_seconds(folder, "--co", "-q", **autoload)[0])
            with_plugin.append(pytest_seconds(folder, "--co", "-q", "-ppytest_autotune.plugin", **autoload)[0])
        added = [one - other for one, other in zip(with_plugin, without, strict=True)]
        rows = [
            ("without the plugin", f"{median(without) * 1000:.1f} ms"),
            ("with it, no option", f"{median(with_plugin) * 1000:.1f} ms"),
            (f"added (median of {PAIRS} pairs)", f"{median(added) * 1000:.1f} ms"),
        ]
        program = (
            "import sys, pytest; pytest.main(['--co', '-q', '-ppytest_autotune.plugin']); "
            "heavy = ('torch', 'triton', 'google.protobuf', 'yaml', 'filelock', 'wrapt'); "
            "print([module for module in heavy if module in sys.modules])"
        )
        found = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=True)
        rows.append(("heavy modules imported", found.stdout.splitlines()[-1]))
    table(("`pytest --co` of one test", "time"), rows)


if __name__ == "__main__":
    main()
