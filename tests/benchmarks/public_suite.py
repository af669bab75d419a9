"""Any suite, unmodified: what a dump and a load with workers take beside a plain serial run.

    python tests/benchmarks/public_suite.py [OPTION...] FOLDER PYTEST_ARGUMENT...
    python tests/benchmarks/public_suite.py --logs=/tmp/mamba ../mamba tests/ops/triton/test_ssd.py

The suite is collected once, so that no run is the first to read its files from the disk. Then a dump with workers, a
plain serial run without the plugin and a load of the dump's file with workers, each with empty caches of Triton, of
Inductor and of FlagGems. Last come workers that run no test at all, without the plugin: what starting them takes, with
the suite's imports in the controller and then in them, which nothing that is done to a test makes shorter. The last two
are left out where no time is left for them. Where the time ends before the plain run does, what it took by then is a
bound, and the ratios say so. Tests that fail are counted and nothing else is made of them; the ids of those that fail
in one run and not in another are printed. Candidates and kernels compiled are counted, too; of the plain run only the
kernels are known.
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

#: Of the seconds given: what the dump may take at most.
SHARE = 0.4
#: With fewer seconds left, there is no load, and no run of no test.
LOAD_S = 20.0
OPTIONS = ("-q", "-rfE", "--tb=short", "-p", "no:cacheprovider")


@dataclass(frozen=True)
class Run:
    """One pytest process: how long it took, and what it told."""

    name: str
    seconds: float
    output: str
    stopped: bool
    code: int
    kernels: int
    report: dict[str, Any] = field(default_factory=dict)

    @property
    def tests(self) -> str:
        """The counts of pytest's last line, ``24 passed, 1 failed``."""
        lines = [line for line in self.output.splitlines() if re.search(r"\d+ (passed|failed|skipped|error)", line)]
        found = re.findall(r"\d+ (?:passed|failed|skipped|errors?)", lines[-1]) if lines else []
        return ", ".join(found) or f"ended with {self.code}"

    @property
    def failed(self) -> set[str]:
        return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", self.output, re.MULTILINE))

    @property
    def wall(self) -> str:
        return f"> {self.seconds:.1f} s" if self.stopped else f"{self.seconds:.1f} s"

    def row(self, plain: Run | None) -> tuple[object, ...]:
        counts, rows = self.report.get("counts", {}), self.report.get("lookups", [])
        candidates = sum(len(row["candidates"]) for row in rows if row["tuned"])
        outcomes = [f"{counts[name]} {name}" for name in ("hit", "miss", "stale", "mismatch") if counts.get(name)]
        spent = f"{self.report['tuning_seconds']:.1f} s" if self.report else ""
        problems = f"{counts['tuned']} tuned" if counts else ""
        ratio = "" if plain is None or self is plain or self.stopped else f"{self.seconds / plain.seconds:.2f}"
        bound = "< " if ratio and plain is not None and plain.stopped else ""
        told = ", ".join([*outcomes, problems]) if counts else ""
        return self.name, self.wall, bound + ratio, self.tests, told, candidates or "", self.kernels, spent


def main() -> None:
    parser = argparse.ArgumentParser(usage=__doc__, allow_abbrev=False)
    parser.add_argument("-n", "--workers", default="4", help="of the dump and the load")
    parser.add_argument("--plain-workers", default="0", help="of the plain run; 0 is serial")
    parser.add_argument("--seconds", type=float, default=570.0, help="for everything together")
    parser.add_argument("--logs", type=Path, help="a folder for what the runs print, the report and the cache")
    parser.add_argument("folder", type=Path)
    parser.add_argument("args", nargs=argparse.REMAINDER)
    options = parser.parse_args()
    until = time.monotonic() + options.seconds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("ended from outside"))  # a run that goes on is ended, too
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
    """A suite, where its runs keep their compile caches, and where they leave what they print."""

    folder: Path
    args: list[str]
    place: Path
    logs: Path

    def run(self, name: str, options: list[str], seconds: float) -> Run:
        """One run; it is interrupted after so many seconds.

        :raises SystemExit: when the tests could not even be collected.
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
            "FLAGGEMS_CACHE_DIR": str(compiled / "flaggems"),  # its database of choices would answer a plain run
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


def _stop(process: subprocess.Popen[bytes]) -> int:
    """Interrupt a run that this script has started, and end it if that does not."""
    process.send_signal(signal.SIGINT)
    try:
        return process.wait(15)
    except subprocess.TimeoutExpired:
        _end(process)
        return process.wait()


def _end(process: subprocess.Popen[bytes]) -> None:
    """End what is left of a run, its workers included: nothing of it may go on beside what is measured next."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


if __name__ == "__main__":
    main()
