"""The loop of a public repository's CI, before and after it adopts the plugin.

    python tests/benchmarks/adoption.py [--seconds=S] [--logs=FOLDER] NAME=FOLDER:FILE[,FILE...] ...
    python tests/benchmarks/adoption.py fla=../flash-linear-attention:tests/ops/test_hgrn.py,tests/ops/test_gla.py

The script runs the pytest commands that stand in the repository's workflow, one process after the other, three times.
Only the variable PYTEST_ADDOPTS differs:

- before: the variable switches the plugin off.
- record: ``--autotune-load=CACHE --autotune-update``, as a maintainer does once.
- after: ``--autotune-load=CACHE --autotune-max-misses=0``, as CI does from then on.

Each loop begins with empty compile caches and keeps them for all its processes. The last line of each suite is the
verdict of ``pytest-autotune gate`` over the reports of the third loop. A loop that takes longer than its seconds is
stopped; its time is then a lower bound and is printed with ``>``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import REPOSITORY, machine, table


@dataclass(frozen=True)
class Workflow:
    """How a repository's CI calls pytest.

    :param options: the options of its command line.
    :param environment: the variables that its workflow sets.
    :param is_split: the workflow starts a process for each test file.
    """

    options: tuple[str, ...]
    environment: dict[str, str] = field(default_factory=dict)
    is_split: bool = False


#: The commands as they stood in August 2026; docs/adopting.md names the files.
WORKFLOWS = {
    "fla": Workflow(("-s", "-v", "--exitfirst"), {"FLA_CI_ENV": "1", "FLA_DISABLE_BACKEND_DISPATCH": "1"}, True),
    "liger": Workflow(("--disable-warnings",)),
    "mamba": Workflow(("-v", "-s")),
}


@dataclass(frozen=True)
class Suite:
    """Test files of a checkout, and the workflow that runs them."""

    name: str
    folder: Path
    files: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> Suite:
        """Return the suite that ``NAME=FOLDER:FILE,FILE`` describes.

        :raises argparse.ArgumentTypeError: if the text has another form, or no workflow has the name.
        """
        match = re.fullmatch(r"(\w+)=([^:]+):(.+)", text)
        if match is None or match[1] not in WORKFLOWS:
            raise argparse.ArgumentTypeError(f"{text!r} is not NAME=FOLDER:FILE,FILE with a name of {list(WORKFLOWS)}")
        return cls(match[1], Path(match[2]).resolve(), tuple(match[3].split(",")))

    def list_commands(self) -> list[list[str]]:
        """Return the pytest commands of the workflow, each as its words."""
        workflow = WORKFLOWS[self.name]
        pytest = [sys.executable, "-m", "pytest", *workflow.options]
        if workflow.is_split:
            return [[*pytest, file] for file in self.files]
        return [[*pytest, *self.files]]


@dataclass(frozen=True)
class Loop:
    """The result of running a workflow's commands once.

    :param seconds: wall time of all processes together.
    :param tests: how many tests ended in each way, such as ``passed``.
    :param reports: the JSON report of each process that wrote one.
    """

    seconds: float
    is_stopped: bool
    statuses: list[int]
    tests: Counter[str]
    reports: list[dict[str, Any]]

    @property
    def wall_text(self) -> str:
        """The seconds; a loop that was stopped took longer than they say."""
        text = f"{self.seconds:.1f} s"
        return f"> {text}" if self.is_stopped else text

    @property
    def tests_text(self) -> str:
        """The counts of tests, and that a process failed."""
        text = ", ".join(f"{count} {word}" for word, count in sorted(self.tests.items()))
        return text if not any(self.statuses) else f"{text}; statuses {self.statuses}"

    def count(self, name: str) -> int:
        """Return the sum of a count over all reports; a process that was stopped has no counts."""
        return sum(report.get("counts", {}).get(name, 0) for report in self.reports)


def run_loop(suite: Suite, name: str, addopts: str, seconds: float, logs: Path) -> Loop:
    """Run the commands of a suite with empty compile caches, and stop after so many seconds."""
    reports = logs / f"{suite.name}-{name}-reports"
    reports.mkdir(parents=True)
    log = logs / f"{suite.name}-{name}.log"
    tests: Counter[str] = Counter()
    statuses = []
    began = time.perf_counter()
    is_stopped = False
    with tempfile.TemporaryDirectory() as compiled, log.open("w") as output:
        for command in suite.list_commands():
            options = addopts.format(reports=shlex.quote(f"{reports}/"))
            environment = {
                **os.environ,
                **WORKFLOWS[suite.name].environment,
                "PYTEST_ADDOPTS": options,
                "TRITON_CACHE_DIR": f"{compiled}/triton",
                "TORCHINDUCTOR_CACHE_DIR": f"{compiled}/inductor",
            }
            print(f"$ PYTEST_ADDOPTS='{options}' {shlex.join(command)}", file=output, flush=True)
            process = subprocess.Popen(
                command, cwd=suite.folder, env=environment, stdout=output, stderr=output, start_new_session=True
            )
            remaining = seconds - (time.perf_counter() - began)
            try:
                statuses.append(process.wait(max(remaining, 1)))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                is_stopped = True
                break
    for line in log.read_text(errors="replace").splitlines():
        if re.match(r"=+ .*\d+ (passed|failed|skipped|error).* in [\d.]+s", line):
            for count, word in re.findall(r"(\d+) (passed|failed|skipped|errors?)", line):
                tests[word] += int(count)
    return Loop(
        time.perf_counter() - began,
        is_stopped,
        statuses,
        tests,
        [json.loads(path.read_text()) for path in sorted(reports.glob("*.json"))],
    )


def judge(suite: Suite, cache: Path, logs: Path) -> str:
    """Return the verdict of the gate over the reports of the loop "after"."""
    reports = logs / f"{suite.name}-after-reports"
    command = [
        *(sys.executable, "-m", "pytest_autotune.cli", "gate", str(cache), f"--reports={reports}/"),
        *("--max-misses=0", f"--expect={len(suite.list_commands())}"),
    ]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY}:{os.environ.get('PYTHONPATH', '')}"}
    completed = subprocess.run(command, capture_output=True, text=True, env=environment)
    lines = (completed.stdout + completed.stderr).strip().splitlines()
    return f"status {completed.returncode}: {lines[-1] if lines else 'no output'}"


def main() -> None:
    """Run the three loops of each suite, and print their table and verdicts."""
    parser = argparse.ArgumentParser(usage=__doc__, allow_abbrev=False)
    parser.add_argument("--seconds", type=float, default=300.0, help="at most, for each loop")
    parser.add_argument("--logs", type=Path, help="a folder for the output of the runs, the reports and the caches")
    parser.add_argument("suites", nargs="+", type=Suite.parse, metavar="NAME=FOLDER:FILE,FILE")
    arguments = parser.parse_args()
    logs = arguments.logs or Path(tempfile.mkdtemp())
    logs.mkdir(parents=True, exist_ok=True)
    print(machine("torch", "triton"), flush=True)
    rows = []
    verdicts = []
    for suite in arguments.suites:
        cache = logs / f"{suite.name}.textproto"
        load = f"--autotune-load={shlex.quote(str(cache))}"
        cache.touch()
        before = run_loop(suite, "before", "-p no:autotune", arguments.seconds, logs)
        print(f"{suite.name}, before: {before.wall_text}; {before.tests_text}", flush=True)
        addopts = f"{load} --autotune-update --autotune-report={{reports}}"
        record = run_loop(suite, "record", addopts, arguments.seconds, logs)
        print(f"{suite.name}, record: {record.wall_text}; {record.tests_text}", flush=True)
        addopts = f"{load} --autotune-max-misses=0 --autotune-report={{reports}}"
        after = run_loop(suite, "after", addopts, arguments.seconds, logs)
        print(f"{suite.name}, after: {after.wall_text}; {after.tests_text}", flush=True)
        bound = "< " if before.is_stopped else ""
        rows.append(
            (
                suite.name,
                f"{len(suite.list_commands())}; {after.tests_text}",
                before.wall_text,
                record.wall_text,
                after.wall_text,
                f"{bound}{after.seconds / before.seconds:.2f}",
                f"{record.count('tuned')} tuned; {after.count('hit')} hits, {after.count('miss')} misses",
                f"{cache.stat().st_size / 1000:.0f} kB",
            )
        )
        verdicts.append(f"{suite.name}: {judge(suite, cache, logs)}")
    head = ("suite", "processes; tests", "before", "record, once", "after", "after / before", "problems", "cache")
    table(head, rows)
    print("\n".join(verdicts))


if __name__ == "__main__":
    main()
