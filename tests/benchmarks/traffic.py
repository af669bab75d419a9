"""What the plugin adds to 2,000 tests that tune nothing, with two workers.

python tests/benchmarks/traffic.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path

from common import machine, median, pytest_seconds, table

PAIRS = 7
SUITE = "import pytest\n@pytest.mark.parametrize('i', range(2000))\ndef test_nothing(i): pass\n"


def main() -> None:
    print(machine("pytest-xdist"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "test_many.py").write_text(SUITE)
        (folder / "empty.textproto").write_text("format_version: 1\n")
        common = ["-q", "-pxdist", "-n2"]
        autoload = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        plugin = ["-ppytest_autotune.plugin", "--autotune-load=empty.textproto", "--autotune-dump=out.textproto"]
        without, again, with_plugin = [], [], []
        for _ in range(PAIRS):
            without.append(pytest_seconds(folder, *common, **autoload)[0])
            with_plugin.append(pytest_seconds(folder, *common, *plugin, **autoload)[0])
            again.append(pytest_seconds(folder, *common, **autoload)[0])
    added = [one - other for one, other in zip(with_plugin, without, strict=True)]
    noise = [one - other for one, other in zip(again, without, strict=True)]
    table(
        ("2,000 tests, -n 2", "seconds"),
        [
            ("without the plugin", f"{median(without):.2f}"),
            ("load and dump", f"{median(with_plugin):.2f}"),
            (f"added, median of {PAIRS} pairs", f"{median(added):+.2f}"),
            ("difference of two runs without it: median (min to max)",
             f"{median(noise):+.2f} ({min(noise):+.2f} to {max(noise):+.2f})"),
        ],
    )  # fmt: skip


if __name__ == "__main__":
    main()
