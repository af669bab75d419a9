"""Measure a dump and a load with workers, and a plain serial run, of any unmodified suite.

    python tests/benchmarks/public_suite.py [OPTION...] FOLDER PYTEST_ARGUMENT...
    python tests/benchmarks/public_suite.py --logs=/tmp/mamba ../mamba tests/ops/triton/test_ssd.py

The runs, each a new process with empty compile caches of Triton, Inductor and FlagGems:

1. A collection, so that no later run is the first to read the suite's files from the disk.
2. A dump with workers. It may take 40 % of the time.
3. A plain run without the plugin, serial unless ``--plain-workers`` says otherwise.
4. A load of the dumped file with workers.
5. Workers without the plugin that run no test: the time to start them and to import the suite.

The script leaves out the runs 4 and 5 if less than 20 s are left. If the time ends during the plain run, its time is a
lower bound, and ">" and "<" mark the bound and the ratios. "of plain" is the wall time divided by that of the plain
run. Failing tests do not stop the script: it prints the ids that fail in only one of plain and another run. The number
of kernels is that of compiled files; a plain run tells no candidates.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from common import machine, table

#: The share of the time that the dump may take at most.
SHARE = 0.4
#: With fewer seconds left, the load and the run without a test are left out.
LOAD_S = 20.0
OPTIONS = ("-q", "-rfE", "--tb=short", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Run:
    """The result of one pytest process.

    :param stopped: the run took too long and was interrupted.
    :param code: the exit status.
    :param kernels: the number of compiled kernels in its compile caches.
    :param report: the JSON report; empty for a run without the plugin.
    """

    name: str
    seconds: float
    output: str
    stopped: bool
    code: int
    kernels: int
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def tests(self) -> str:
        """The counts in pytest's last line: ``24 passed, 1 failed``."""
        lines = [line for line in self.output.splitlines() if re.search(r"\d+ (passed|failed|skipped|error)", line)]
        counts = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", lines[-1]) if lines else []
        return ", ".join(counts) or f"ended with {self.code}"

    @property
    def failed(self) -> set[str]:
        """The ids of the failing tests."""
        return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", self.output, re.MULTILINE))

    @property
    def wall(self) -> str:
        """The wall time in words; ``> 200.0 s`` for an interrupted run."""
        return f"> {self.seconds:.1f} s" if self.stopped else f"{self.seconds:.1f} s"

    def row(self, plain: Run | None) -> tuple[object, ...]:
        """Return the row of the table.

        :param plain: the plain run, to which the wall time is compared; None if it has not run yet.
        """
        return (self.name, self.wall, self._ratio_to(plain), self.tests, *self._describe_report())

    def _ratio_to(self, plain: Run | None) -> str:
        if plain is None or self is plain or self.stopped:
            return ""
        bound = "< " if plain.stopped else ""
        return f"{bound}{self.seconds / plain.seconds:.2f}"

    def _describe_report(self) -> tuple[object, ...]:
        """Return the cells for problems, candidates, kernels and the tunings."""
        if not self.report:
            return "", "", self.kernels, ""
        counts = self.report["counts"]
        outcomes = [f"{counts[name]} {name}" for name in ("hit", "miss", "stale", "mismatch") if counts.get(name)]
        candidate_count = 0
        for row in self.report["lookups"]:
            if row["tuned"]:
                candidate_count += len(row["candidates"])
        problems = ", ".join([*outcomes, f"{counts['tuned']} tuned"])
        return problems, candidate_count or "", self.kernels, f"{self.report['tuning_seconds']:.1f} s"


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__, allow_abbrev=False)
    parser.add_argument("-n", "--workers", default="4", help="the number of workers of the dump and the load")
    parser.add_argument("--plain-workers", default="0", help="the number of workers of the plain run; 0 is serial")
    parser.add_argument("--seconds", type=float, default=570.0, help="the time for all runs together")
    parser.add_argument(
        "--logs", type=Path, help="a folder for the output and the report of each run, and for the cache"
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    signal.signal(signal.SIGTERM, _exit_after_sigterm)
    print(machine("torch", "triton", "pytest-xdist"), flush=True)
    with tempfile.TemporaryDirectory() as name:
        logs = options.logs or Path(name) / "logs"
        logs.mkdir(parents=True, exist_ok=True)
        suite = Suite(options.folder, options.args, Path(name), logs)
        suite.run("collect", ["--collect-only"], options.seconds)
        cache, workers = logs / "cache.textproto", options.workers
        cache.unlink(missing_ok=True)
        dump = suite.run(f"dump, -n {workers}", [f"-n{workers}", f"--autotune-dump={cache}"], options.seconds * SHARE)
        title = "plain, serial" if options.plain_workers == "0" else f"plain, -n {options.plain_workers}"
        parallel = [] if options.plain_workers == "0" else [f"-n{options.plain_workers}"]
        plain = suite.run(title, ["-pno:autotune", *parallel], max(until - time.monotonic(), 1))
        runs = [plain, dump]
        if cache.exists() and until - time.monotonic() >= LOAD_S:
            loading = [f"-n{workers}", f"--autotune-load={cache}"]
            runs.append(suite.run(f"load, -n {workers}", loading, until - time.monotonic()))
        if until - time.monotonic() >= LOAD_S:
            nothing = ["-pno:autotune", f"-n{workers}", "-k", "no_test_has_this_name"]
            runs.append(suite.run(f"no test, -n {workers}", nothing, until - time.monotonic()))
    for run in (run for run in runs if run.report):
        for which, ids in (("only in", run.failed - plain.failed), ("not in", plain.failed - run.failed)):
            if ids:
                print(f"failed {which} {run.name}: {' '.join(sorted(ids)[:20])}")
    head = ("run", "wall", "of plain", "tests", "problems", "candidates", "kernels compiled", "the tunings")
    table(head, [run.row(plain) for run in runs])


@dataclass(frozen=True)
class Suite:
    """A suite.

    :param args: pytest's arguments for the suite.
    :param place: the folder for the compile caches of its runs.
    :param logs: the folder for the output of its runs.
    """

    folder: Path
    args: list[str]
    place: Path
    logs: Path

    def run(self, name: str, options: list[str], seconds: float) -> Run:
        """Run pytest on the suite, and interrupt the run after this many seconds.

        :raises SystemExit: if the collection fails.
        """
        title = re.sub(r"\W+", "-", name)
        report, log, compiled = self.logs / f"{title}.json", self.logs / f"{title}.log", self.place / title
        report.unlink(missing_ok=True)
        if any(option.startswith("--autotune-") for option in options):
            options = [*options, f"--autotune-report={report}"]
        environment = {
            **os.environ,
            "TRITON_CACHE_DIR": str(compiled / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(compiled / "inductor"),
            # FlagGems has a database of choices, from which it would answer the plain run.
            "FLAGGEMS_CACHE_DIR": str(compiled / "flaggems"),
        }
        command = [sys.executable, "-m", "pytest", *OPTIONS, *self.args, *options]
        began = time.perf_counter()
        with log.open("w") as file:
            process = subprocess.Popen(
                command, cwd=self.folder, env=environment, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
            )
            stopped = False
            try:
                code = process.wait(seconds)
            except subprocess.TimeoutExpired:
                stopped, code = True, _stop(process)
            finally:
                _end(process)
        run = Run(
            name,
            time.perf_counter() - began if not stopped else seconds,
            log.read_text(errors="replace"),
            stopped,
            code,
            len(list(compiled.rglob("*.cubin"))),
            json.loads(report.read_text()) if report.exists() else {},
        )
        if name == "collect":
            if code:
                sys.exit(f"{' '.join(command)} ended with {code}:\n{run.output[-4000:]}")
            print(f"collected: {run.output.strip().splitlines()[-1]}; {run.seconds:.1f} s", flush=True)
        else:
            print(*run.row(None), sep="; ", flush=True)
        return run


def _exit_after_sigterm(*arguments: object) -> None:
    """Exit with an exception, so that the pytest run ends, too."""
    sys.exit("ended from outside")


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Interrupt a run, and kill it if it does not end within 15 s. Return its exit status."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(15)
    except subprocess.TimeoutExpired:
        _end(process)
        return process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill the processes of a run that still live, workers included. They would disturb the next measurement."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
