"""The verdict of ``pytest-autotune gate`` over 12 processes, and of one process that runs the same tests.

    python tests/benchmarks/process_gate.py [--faults=TEXT]

Three suites have four files each. A process runs each file, with the toy tuner of tests/toy_tuner, and writes a report.
The script plants a fault in some of them. A row says how many processes failed by themselves, the verdict of the gate,
and the verdict of one process, if one process can have the fault. The exit status is 1 if a verdict is not the expected
one, or if the two disagree.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from common import REPOSITORY, machine, table

SUITES = ("attention", "norm", "matmul")
FILES = tuple(f"{suite}/test_{suite}_{number}.py" for suite in SUITES for number in range(4))
FIRST, SECOND = FILES[0], FILES[5]
CONFTEST = f"""
import os
import sys

import pytest

sys.path.insert(0, {str(REPOSITORY / "tests/toy_tuner")!r})
import toytuner


@pytest.fixture
def tune():
    return toytuner.tune
"""
TEST = """
import os
import pytest

@pytest.mark.parametrize("size", [64, 128])
def test_op(tune, size):
    tune("lib.{kernel}", size=size)
"""
NEW_PROBLEM = "def test_new(tune): tune('lib.new', size=1)\n"
STALE = "def test_stale(tune): tune('lib.op_0', size=64, source='two')\n"
OTHER_GPU = """
@pytest.fixture(autouse=True)
def other_gpu(monkeypatch): monkeypatch.setenv("TOY_DEVICE", "Other GPU")
"""
KILLED = "def test_killed(): os._exit(137)\n"
SKIPPED = """
@pytest.fixture(autouse=True)
def machine(): pytest.skip("no GPU")
"""
NO_KERNEL = "def test_nothing(): pass\n"
RUN_ID = {"AUTOTUNE_RUN_ID": "today", "GITHUB_RUN_ATTEMPT": "1"}


@dataclass(frozen=True)
class Fault:
    """A fault that is planted in some files.

    :param added: text that is added to files, by file.
    :param replaced: the whole text of files, by file.
    :param environment: of the processes of these files, or of all if no file changes.
    :param has_one_process: one process can have the fault.
    """

    name: str
    is_red: bool
    added: Mapping[str, str] = field(default_factory=dict)
    replaced: Mapping[str, str] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    has_one_process: bool = True

    @property
    def files(self) -> list[str]:
        """The files whose processes have the fault."""
        changed = [*self.added, *self.replaced]
        return changed or ([FIRST] if self.environment else [])


TWO_DEVICES = Fault("two devices, both in the cache", False, added=dict.fromkeys(FILES[8:], OTHER_GPU))
MISSING_REPORT = Fault("a missing report", True, has_one_process=False)
OTHER_BYTES = Fault("a report of other bytes of the cache", True, has_one_process=False)
RETRIED = Fault("a shard that failed and was repeated", False, has_one_process=False)
FAULTS = (
    Fault("none", False),
    Fault("a miss", True, added={FIRST: NEW_PROBLEM}),
    Fault("the same miss in two shards", True, added={FIRST: NEW_PROBLEM, SECOND: NEW_PROBLEM}),
    Fault("a stale problem", True, added={FIRST: STALE}),
    Fault("one problem with two outcomes in two shards", True, added={SECOND: STALE}),
    Fault("unused entries", True, replaced={FIRST: TEST.format(kernel="op_0").replace(", 128", "")}),
    Fault("a mismatch", True, added={FIRST: OTHER_GPU}),
    TWO_DEVICES,
    Fault("a tuner that cannot be hooked", True, environment={"TOY_UNKNOWN": "1"}),
    Fault("a kernel that is tuned untracked", True, environment={"TOY_UNSEEN": "lib.hidden"}),
    Fault("a killed process", True, added={FIRST: KILLED}),
    MISSING_REPORT,
    Fault("a report of yesterday", True, environment={"AUTOTUNE_RUN_ID": "yesterday"}, has_one_process=False),
    OTHER_BYTES,
    RETRIED,
    Fault("a lost GPU in one shard", False, added={FIRST: SKIPPED}),
    Fault("a lost GPU in all", True, added=dict.fromkeys(FILES, SKIPPED)),
    Fault("no test asks for a kernel", True, replaced=dict.fromkeys(FILES, NO_KERNEL)),
)


class Workplace:
    """The three suites in a folder, with their cache."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.reports = folder / "reports"
        (folder / "conftest.py").write_text(CONFTEST)
        (folder / "pytest.ini").write_text("[pytest]\naddopts = -p pytest_autotune.plugin -q -p no:cacheprovider\n")
        self.write_files()
        self.run("-m", "pytest", "--autotune-dump=cache.textproto")
        self.one_device = (folder / "cache.textproto").read_bytes()
        self._add_to_files(TWO_DEVICES)
        self.run("-m", "pytest", "--autotune-dump=two.textproto")
        self.two_devices = (folder / "two.textproto").read_bytes()
        self.write_files()
        self.run_processes(FILES, RUN_ID)
        shutil.move(self.reports, folder / "good_reports")

    def write_files(self) -> None:
        """Write all files without a fault."""
        for number, file in enumerate(FILES):
            path = self.folder / file
            path.parent.mkdir(exist_ok=True)
            path.write_text(TEST.format(kernel=f"op_{number}"))

    def _add_to_files(self, fault: Fault) -> None:
        for file, text in fault.added.items():
            with (self.folder / file).open("a") as stream:
                stream.write(text)

    def use_cache(self, data: bytes) -> None:
        """Write the bytes of the cache."""
        (self.folder / "cache.textproto").write_bytes(data)

    def run(self, *arguments: str, environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run Python in the folder."""
        variables = {name: value for name, value in os.environ.items() if not name.startswith(("GITHUB_", "CI_"))}
        variables.pop("PYTEST_CURRENT_TEST", None)
        variables |= {"PYTHONPATH": str(REPOSITORY), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
        variables |= {"TOY_LOG": str(self.folder / "tunings.log"), **(environment or {})}
        command = [sys.executable, *arguments]
        return subprocess.run(command, cwd=self.folder, env=variables, capture_output=True, text=True, check=False)

    def run_processes(self, files: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run a process for each file, and return how many of them failed."""
        failed_count = 0
        options = ["--autotune-load=cache.textproto", "--autotune-max-misses=0", "--autotune-report=reports/"]
        for file in files:
            if self.run("-m", "pytest", *options, file, environment=environment).returncode:
                failed_count += 1
        return failed_count

    def run_one_process(self, environment: Mapping[str, str]) -> int:
        """Run all files in one process, and return its exit status."""
        gates = ["--autotune-max-misses=0", "--autotune-fail-on-unused"]
        return self.run("-m", "pytest", "--autotune-load=cache.textproto", *gates, environment=environment).returncode

    def judge(self) -> tuple[int, str]:
        """Return the exit status of the gate, and its last line."""
        options = ["--reports=reports/", f"--expect={len(FILES)}", "--fail-on-unused"]
        environment = {"AUTOTUNE_RUN_ID": "today"}
        done = self.run("-m", "pytest_autotune.cli", "gate", "cache.textproto", *options, environment=environment)
        return done.returncode, (done.stdout + done.stderr).splitlines()[-1]

    def plant(self, fault: Fault) -> int:
        """Leave the reports of 12 processes of which some have a fault; return how many processes failed."""
        self.write_files()
        self._add_to_files(fault)
        for file, text in fault.replaced.items():
            (self.folder / file).write_text(text)
        shutil.rmtree(self.reports, ignore_errors=True)
        if fault is TWO_DEVICES:
            self.use_cache(self.two_devices)
            return self.run_processes(FILES, RUN_ID)
        self.use_cache(self.one_device)
        shutil.copytree(self.folder / "good_reports", self.reports)
        if fault is RETRIED:
            return self._repeat_first_process()
        rerun = [FIRST] if fault in (MISSING_REPORT, OTHER_BYTES) else fault.files
        for file in rerun:
            self._report_of(file).unlink()
        if fault is MISSING_REPORT:
            return 0
        if fault is OTHER_BYTES:
            self.use_cache(self.one_device + b"\n")
        failed_count = self.run_processes(rerun, {**RUN_ID, **fault.environment})
        self.use_cache(self.one_device)
        return failed_count

    def _repeat_first_process(self) -> int:
        """Let the first process fail in the first attempt, and pass in the second; return how many failed."""
        self._report_of(FIRST).unlink()
        path = self.folder / FIRST
        text = path.read_text()
        path.write_text(text + NEW_PROBLEM)
        failed_count = self.run_processes([FIRST], RUN_ID)
        path.write_text(text)
        return failed_count + self.run_processes([FIRST], {**RUN_ID, "GITHUB_RUN_ATTEMPT": "2"})

    def _report_of(self, file: str) -> Path:
        """Return the report of the process that ran a file."""
        (path,) = [path for path in self.reports.glob("*.json") if file in path.read_text()]
        return path


@dataclass(frozen=True)
class Verdicts:
    """The verdicts on one fault.

    :param one_process_status: None if one process cannot have the fault.
    """

    fault: Fault
    failed_count: int
    gate_status: int
    gate_line: str
    one_process_status: int | None

    @property
    def is_right(self) -> bool:
        """Whether the gate has the expected verdict, and one process agrees."""
        if self.gate_status not in (0, 1) or bool(self.gate_status) != self.fault.is_red:
            return False
        return self.one_process_status is None or bool(self.one_process_status) == self.fault.is_red

    @property
    def row(self) -> tuple[str, ...]:
        """The row of the table."""
        one_process = "-"
        if self.one_process_status is not None:
            one_process = _describe(self.one_process_status)
        sign = "" if self.is_right else " WRONG"
        failed = f"{self.failed_count} of {len(FILES)}"
        return self.fault.name, failed, _describe(self.gate_status) + sign, one_process, self.gate_line


def _describe(status: int) -> str:
    return "red" if status else "green"


def judge_faults(workplace: Workplace, faults: Sequence[Fault]) -> Iterator[Verdicts]:
    """Plant each fault, and yield its verdicts."""
    for fault in faults:
        failed_count = workplace.plant(fault)
        status, line = workplace.judge()
        one_process_status = None
        if fault.has_one_process:
            one_process_status = workplace.run_one_process({**RUN_ID, **fault.environment})
        yield Verdicts(fault, failed_count, status, line, one_process_status)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", default="", help="only the faults whose name contains this")
    options = parser.parse_args()
    print(machine())
    faults = [fault for fault in FAULTS if options.faults in fault.name]
    wrong: list[str] = []
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for verdicts in judge_faults(Workplace(Path(folder)), faults):
            rows.append(verdicts.row)
            if not verdicts.is_right:
                wrong.append(verdicts.fault.name)
    table(("fault", "processes that failed", "gate", "one process", "last line of the gate"), rows)
    print(f"\n{len(faults)} faults, {len(wrong)} with a wrong verdict{': ' * bool(wrong)}{', '.join(wrong)}")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
