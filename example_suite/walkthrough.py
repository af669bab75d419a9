"""The main job on this folder, step by step: dump, load, a stale cache, and its update.

Works on a temporary copy and changes nothing here. Shows each command and pytest's own
output, and exits with status 1 as soon as a step did not do what it should.
"""

from __future__ import annotations

import difflib
import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
CACHE = "cache.textproto"
REPORT = "report.json"
LOAD = f"--autotune-load={CACHE}"
DUMP = f"--autotune-dump={CACHE}"
UPDATE = "--autotune-update"
NO_MISSES = "--autotune-max-misses=0"


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="autotune-example-") as folder:
        suite = Path(folder) / HERE.name
        shutil.copytree(HERE, suite, ignore=shutil.ignore_patterns("__pycache__", ".*", HERE.name))
        try:
            walk(suite)
        except StepError as error:
            print(f"\nwalkthrough: {error}", file=sys.stderr)
            return 1
    print("\nwalkthrough: every step did what it should")
    return 0


def walk(suite: Path) -> None:
    say(f"A copy of {HERE.name}/. The report lets this script check what each step did.")
    print(f"$ cd {suite}\n$ export PYTEST_ADDOPTS=--autotune-report={REPORT}")

    say("1. Tune every kernel, and write down what was chosen.")
    first = run_pytest(suite, DUMP)
    expect("the first dump tunes something", first["tuned"] > 0)

    say("2. Load it: nothing is tuned.")
    counts = run_pytest(suite, LOAD, NO_MISSES)
    expect("the load tunes nothing and finds every problem", counts["tuned"] == 0 and counts["hit"] == first["tuned"])

    say("3. The suite moves on: a comment in one kernel, a changed statement in another, one more shape in a test.")
    edit(suite / "example_kernels/add.py", "    offsets =", "    # One block of each vector.\n", before=True)
    edit(
        suite / "example_kernels/softmax.py",
        "    numerator = tl.exp(x - tl.max(x, axis=1)[:, None])\n",
        "    numerator = tl.exp2((x - tl.max(x, axis=1)[:, None]) * 1.4426950408889634)\n",
    )
    edit(suite / "tests/test_matmul.py", "DTYPES = [", "SHAPES.append((48, 80, 32))\n", before=True)
    say("The cache is stale. In CI this run fails; the comment costs nothing.")
    stale = run_pytest(suite, LOAD, NO_MISSES, status=1)
    expect("what was not touched is a hit", 0 < stale["hit"] < first["tuned"])
    expect("softmax is stale", stale["hit"] + stale["stale"] == first["tuned"])
    expect("the new shape is a miss", stale["miss"] > 0)
    expect("exactly what is stale or missing was tuned", stale["tuned"] == stale["stale"] + stale["miss"])

    say("4. Load and dump the same file: keep the hits, tune the rest.")
    updated = run_pytest(suite, LOAD, UPDATE)
    expect("the update tunes exactly that", updated["tuned"] == stale["tuned"] and updated["hit"] == stale["hit"])

    say("5. Now the cache covers the suite again.")
    counts = run_pytest(suite, LOAD, NO_MISSES)
    expect("the load tunes nothing", counts["tuned"] == 0 and counts["hit"] == updated["tuned"] + updated["hit"])


class StepError(Exception):
    """A step did not do what it should."""


def say(text: str) -> None:
    print(f"\n# {text}", flush=True)


def run_pytest(suite: Path, *options: str, status: int = 0) -> dict[str, int]:
    """Run pytest in the copy.

    :param status: the exit status that this step is about.
    :returns: the counts of the JSON report.
    """
    print(f"$ pytest {shlex.join(options)}", flush=True)
    environment = {**os.environ, "PYTEST_ADDOPTS": f"--autotune-report={REPORT}"}
    command = [sys.executable, "-m", "pytest", *options]
    found = subprocess.run(command, cwd=suite, env=environment, check=False).returncode
    print(f"$ echo $?\n{found}", flush=True)
    expect(f"exit status {status}, not {found}", found == status)
    report: dict[str, Any] = json.loads((suite / REPORT).read_text(encoding="utf-8"))
    (suite / REPORT).unlink()
    counts: dict[str, int] = report["counts"]
    return counts


def expect(what: str, holds: bool) -> None:
    if not holds:
        raise StepError(f"expected: {what}")


def edit(file: Path, old: str, new: str, before: bool = False) -> None:
    """Replace text that stands once in a file, or put text before it, and show the difference.

    :param before: keep ``old`` behind ``new``.
    """
    text = file.read_text(encoding="utf-8")
    expect(f"{file.name} has the line to edit once", text.count(old) == 1)
    edited = text.replace(old, new + old if before else new)
    file.write_text(edited, encoding="utf-8")
    changed = difflib.unified_diff(text.splitlines(), edited.splitlines(), file.name, file.name, n=0, lineterm="")
    print("\n".join(line for line in changed if not line.startswith(("@@", "---"))), flush=True)


if __name__ == "__main__":
    sys.exit(main())
