"""Measure the time that the plugin adds to 2,000 tests that tune nothing, with two xdist workers.

    python tests/benchmarks/traffic.py

Each of seven rounds runs the suite three times: without the plugin, with a load and a dump, and again without the
plugin. The table has medians in seconds. Its last row compares the two runs without the plugin: an added time below
this difference means nothing.
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
        options = ["-q", "-pxdist", "-n2"]
        environment = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        plugin = ["-ppytest_autotune.plugin", "--autotune-load=empty.textproto", "--autotune-dump=out.textproto"]
        without, repeated, with_plugin = [], [], []
        for _ in range(PAIRS):
            without.append(pytest_seconds(folder, *options, **environment)[0])
            with_plugin.append(pytest_seconds(folder, *options, *plugin, **environment)[0])
            repeated.append(pytest_seconds(folder, *options, **environment)[0])
    added = [seconds - base for seconds, base in zip(with_plugin, without, strict=True)]
    noise = [seconds - base for seconds, base in zip(repeated, without, strict=True)]
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
