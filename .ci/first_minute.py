"""Run the README's first minute with a built wheel, in an environment that holds nothing else.

    python .ci/first_minute.py dist

It makes a virtual environment, installs the one wheel of the folder, and lets ``pytest --help`` list the options. Then
it runs each command of the part without a GPU and compares the printed lines with those that the README shows. The
dependencies come from the package index. The exit status is 1 where something differs, or where all of it takes longer
than ``LIMIT_S``.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

README = Path(__file__).parent.parent / "README.md"
LIMIT_S = 120
#: The README's edit of the function: its cache is stale afterwards.
EDIT = [('(["".join(', '(("".join('), ("n)])", "n)))")]


class Mismatch(Exception):
    """A command did not print what the README shows."""


def read_first_minute() -> tuple[str, list[list[str]]]:
    """Return the test that the README shows, and its commands, each with the lines below it."""
    section = README.read_text(encoding="utf-8").partition("## The first minute")[2].partition("**With Triton**")[0]
    (test,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    shown = re.findall(r"^\$ (pytest .*?)(?=\n\n|\n```)", section, re.MULTILINE | re.DOTALL)
    return test, [lines.splitlines() for lines in shown]


def without_times(line: str) -> str:
    """Return a line with each duration replaced: durations differ from machine to machine."""
    # A tuning that took no time saves nothing, and then the summary does not mention it.
    return re.sub(r"\b[0-9.]+s\b", "?s", line).replace("; about ?s of tuning saved", "")


def run(command: list[str], folder: Path, statuses: tuple[int, ...] = (0,)) -> str:
    """Run a command of the new environment and return its output.

    :raises Mismatch: for another exit status.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHONPATH"))}
    environment |= {"PATH": f"{folder / 'venv' / 'bin'}{os.pathsep}{os.environ['PATH']}", "COLUMNS": "80"}
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY", "VIRTUAL_ENV"):
        environment.pop(name, None)
    print("$", *command, flush=True)
    done = subprocess.run(
        command, cwd=folder / "suite", env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode not in statuses:
        raise Mismatch(f"{' '.join(command)}: exit status {done.returncode}\n{done.stdout}")
    return done.stdout


def compare(shown: list[str], folder: Path) -> None:
    """Run a command of the README, and compare what it prints.

    :raises Mismatch: where a line is missing.
    """
    command, *lines = shown
    output = run(command.split(), folder, statuses=(0, 1))
    printed = {without_times(line) for line in output.splitlines()}
    for line in lines:
        if line != "..." and without_times(line) not in printed:
            raise Mismatch(f"{command}: the README shows a line that did not come: {line}\n{output}")


def check(wheel: Path, folder: Path) -> None:
    """Install the wheel and run the first minute.

    :raises Mismatch: where the README shows something else.
    """
    suite = folder / "suite"
    suite.mkdir()
    subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)
    run(["pip", "install", "--quiet", str(wheel)], folder)
    options = set(re.findall(r"--autotune-[a-z]+(?:-[a-z]+)*", README.read_text(encoding="utf-8")))
    missing = options - set(re.findall(r"--autotune-[a-z-]+", run(["pytest", "--help"], folder)))
    if missing:
        raise Mismatch(f"pytest --help does not list {', '.join(sorted(missing))}")
    run(["pytest-autotune", "--help"], folder)

    test, commands = read_first_minute()
    dump, load, stale = commands
    (suite / "test_join.py").write_text(test, encoding="utf-8")
    compare(dump, folder)
    compare(load, folder)
    for old, new in EDIT:
        test = test.replace(old, new)
    (suite / "test_join.py").write_text(test, encoding="utf-8")
    compare(stale, folder)


def main(arguments: list[str]) -> int:
    """Check the wheel in the folder that the command line names."""
    started = time.monotonic()
    (wheel,) = Path(arguments[0]).resolve().glob("*.whl")
    with tempfile.TemporaryDirectory() as folder:
        try:
            check(wheel, Path(folder))
        except Mismatch as error:
            print(error, file=sys.stderr)
            return 1
    seconds = time.monotonic() - started
    print(f"{wheel.name}: installed, and the README's first minute ran, in {seconds:.0f} s")
    if seconds > LIMIT_S:
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
