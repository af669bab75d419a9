"""``--autotune-report=FOLDER/`` and ``pytest-autotune gate``: one verdict over the reports of many processes."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from pytest_autotune import devices
from pytest_autotune.cli.gate import find_unset_value
from pytest_autotune.cli.main import main
from pytest_autotune.modes import MODES, Option, verify
from pytest_autotune.plugin.values import READERS
from tests.conftest import Suite
from tests.reasons import too_many_misses

REPORTS = "--autotune-report=reports/"
OPS = """
import pytest

@pytest.mark.parametrize("m", range({count}))
def test_{name}(tune, m): tune("lib.{name}", M=m)
"""
SKIPPED = """
import pytest

@pytest.mark.parametrize("m", range(2))
def test_{name}(m): pytest.skip("no GPU")
"""
#: The suite's parts, each of which one process runs.
PARTS = ("test_a.py", "test_b.py", "test_c.py")


class Gate:
    """A suite of three files, whose processes load one cache, and the gate over their reports."""

    def __init__(self, suite: Suite, capsys: pytest.CaptureFixture[str]) -> None:
        self.suite = suite
        self._capsys = capsys

    def run_parts(self, *parts: str, **environment: str) -> None:
        """Run a process for each part. Its report is that of an earlier test, if that test ran the same part."""
        for part in parts or PARTS:
            self.suite.prepare("--autotune-load=cache.textproto", REPORTS, part, **environment)

    def judge(self, *options: str, caches: tuple[str, ...] = ("cache.textproto",)) -> int:
        """Return the exit status of the gate; its output is in ``lines``."""
        self._capsys.readouterr()
        status = main(["gate", *caches, "--reports=reports/", *options])
        captured = self._capsys.readouterr()
        self.lines = (captured.out + captured.err).splitlines()
        return status

    @property
    def reports(self) -> dict[Path, dict[str, Any]]:
        """The reports by their file."""
        return {path: json.loads(path.read_text()) for path in (self.suite.folder / "reports").glob("*.json")}

    def report_of(self, part: str) -> Path:
        """Return the file with the report of a part."""
        (path,) = [path for path, report in self.reports.items() if part in report["run"]["command"]]
        return path

    def edit_report(self, part: str, edit: Callable[[dict[str, Any]], object]) -> None:
        """Change the report of a part."""
        path = self.report_of(part)
        report = json.loads(path.read_text())
        edit(report)
        path.write_text(json.dumps(report))


@pytest.fixture
def gate(serial_suite: Suite, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Gate:
    for name in ("AUTOTUNE_RUN_ID", "GITHUB_RUN_ID", "GITHUB_RUN_ATTEMPT", "CI_PIPELINE_ID", "CI_JOB_ID"):
        monkeypatch.delenv(name, raising=False)
    files = {f"test_{name}": OPS.format(name=name, count=2) for name in "abc"}
    serial_suite.write(**files).prepare_dump()
    return Gate(serial_suite, capsys)


def test_a_report_has_the_ci_run_id_test_counts_and_cache_hash(gate: Gate) -> None:
    gate.run_parts(AUTOTUNE_RUN_ID="7", GITHUB_RUN_ATTEMPT="2", GITHUB_JOB="gpu")

    reports = list(gate.reports.values())
    assert len(reports) == 3
    assert len({report["loaded"][0]["digest"] for report in reports}) == 1
    for report in reports:
        assert report["finished"]
        assert report["tests"] == {"passed": 2, "failed": 0, "error": 0, "skipped": 0, "xfailed": 0, "xpassed": 0}
        assert {name: report["run"][name] for name in ("id", "attempt", "job")} == {
            "id": "7",
            "attempt": 2,
            "job": "gpu",
        }


def test_the_gate_command_fails_if_a_process_was_killed(gate: Gate) -> None:
    test = gate.suite.folder / "test_kill.py"
    test.write_text("import os, signal\ndef test_kill(): os.kill(os.getpid(), signal.SIGKILL)\n")
    gate.run_parts()
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("PYTEST_CURRENT_TEST", raising=False)
        arguments = ["-ppytest_autotune.plugin", "--autotune-load=cache.textproto", REPORTS, "test_kill.py"]
        patch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
        gate.suite.pytester.runpytest_subprocess(*arguments)

    assert [report["finished"] for report in gate.reports.values()].count(False) == 1
    assert gate.judge("--expect=4") == 1
    killed = gate.report_of("test_kill.py")
    assert json.loads(killed.read_text())["complete"] is False
    assert any("has not ended" in line and killed.name in line for line in gate.lines)


@pytest.mark.parametrize("options", [["--collect-only"], ["--fixtures"], ["--setup-plan"]])
def test_a_process_that_runs_no_tests_writes_no_report(gate: Gate, options: list[str]) -> None:
    gate.suite.load(REPORTS, *options)

    assert not gate.reports


def test_a_pytest_run_inside_a_test_writes_no_process_report(gate: Gate) -> None:
    gate.suite.load(REPORTS, PYTEST_CURRENT_TEST="test_outer.py::test_it (call)")

    assert not gate.reports


def test_the_xdist_workers_of_a_run_write_a_single_report(suite: Suite) -> None:
    suite.write().serial.prepare_dump()

    suite.load(REPORTS)

    (report,) = (suite.folder / "reports").glob("*.json")
    assert json.loads(report.read_text())["counts"]["hit"] == 4


def test_the_gate_command_passes_three_processes_without_misses(gate: Gate) -> None:
    gate.run_parts()

    assert gate.judge("--expect=3", "--fail-on-unused", "--junit=j.xml", "--markdown=g.md") == 0
    assert gate.lines[0] == "3 reports: 6 passed"
    assert gate.lines[-1] == "passed: within the limit of 0 misses"
    folder = gate.suite.folder
    (case,) = ElementTree.parse(folder / "j.xml").iter("testcase")
    assert (case.get("name"), len(case)) == ("gate", 0)
    assert "✅" in (folder / "g.md").read_text()


def test_gate_command_overwrites_its_junit_and_markdown_files(gate: Gate) -> None:
    gate.run_parts()
    for name in ("j.xml", "g.md"):
        (gate.suite.folder / name).touch()

    for _ in range(2):
        assert gate.judge("--junit=j.xml", "--markdown=g.md") == 0


@pytest.mark.parametrize("option", ["--junit=", "--markdown="])
@pytest.mark.parametrize("name", ["cache.textproto", "README.md", "junit.xml", "linked.md", "empty.textproto"])
def test_gate_command_overwrites_no_cache_and_no_user_file(gate: Gate, option: str, name: str) -> None:
    """The file is a cache of the gate, also through a link, or a file of the user. The gate writes nothing."""
    gate.run_parts()
    folder = gate.suite.folder
    (folder / "README.md").write_text("# My project\n")
    (folder / "junit.xml").write_text('<testsuites><testsuite name="pytest"></testsuite></testsuites>')
    (folder / "linked.md").symlink_to("cache.textproto")
    (folder / "empty.textproto").touch()
    texts = {path: path.read_bytes() for path in folder.iterdir() if path.is_file()}
    other = "--markdown=new.md" if option == "--junit=" else "--junit=new.xml"

    assert gate.judge(option + name, other, caches=("cache.textproto", "empty.textproto")) == 4
    (line,) = gate.lines
    assert (
        "is one of the caches to check, not a report" in line or "exists and is not a report of pytest-autotune" in line
    )
    assert {path: path.read_bytes() for path in folder.iterdir() if path.is_file()} == texts


def test_a_problem_that_two_processes_miss_counts_as_one_miss(gate: Gate) -> None:
    """Two processes ask for the same new problem."""
    for part in ("test_a.py", "test_b.py"):
        test = gate.suite.folder / part
        test.write_text(test.read_text() + "\ndef test_new(tune): tune('lib.new')\n")
    gate.run_parts()

    assert gate.judge("--junit=j.xml") == 1
    assert gate.lines[-1] == f"FAILED: {too_many_misses(1, '0')}"
    assert any(line.startswith("MISS ") and "lib.new" in line for line in gate.lines)
    update = "Re-run pytest with --autotune-load=cache.textproto --autotune-update=all to update the cache."
    assert update in gate.lines
    assert gate.judge("--max-misses=1") == 0
    assert gate.judge("--max-misses=10%") == 1
    assert gate.judge("--max-misses=off") == 0
    (case,) = ElementTree.parse(gate.suite.folder / "j.xml").iter("testcase")
    assert [child.tag for child in case] == ["failure"]


def test_gate_command_fails_if_a_problem_is_stale_in_one_process(gate: Gate) -> None:
    test = gate.suite.folder / "test_b.py"
    test.write_text(test.read_text() + "\ndef test_stale(tune): tune('lib.a', M=0, source='two')\n")
    gate.run_parts()

    assert gate.judge() == 1
    assert any(line.startswith("STALE ") and "lib.a (M=0)" in line for line in gate.lines)


def test_option_fail_on_unused_fails_if_no_process_used_an_entry(gate: Gate) -> None:
    (gate.suite.folder / "test_a.py").write_text(OPS.format(name="a", count=1))
    gate.run_parts()

    assert gate.judge("--expect=3") == 0
    assert gate.judge("--expect=3", "--fail-on-unused") == 1
    assert any(line.startswith("UNUSED ") and "lib.a (M=1)" in line for line in gate.lines)
    assert gate.judge("--fail-on-unused") == 4


def test_the_gate_command_checks_no_unused_entry_if_a_test_skips(gate: Gate) -> None:
    skipped = "import pytest\n@pytest.mark.skip\ndef test_skipped(): pass\n"
    (gate.suite.folder / "test_a.py").write_text(OPS.format(name="a", count=1) + skipped)
    gate.run_parts()

    assert gate.judge("--expect=3", "--fail-on-unused") == 0
    assert (
        f"reports/{gate.report_of('test_a.py').name}: not every test passed: "
        f"test_a.py::test_skipped was skipped" in gate.lines
    )
    assert any(line.startswith("unused autotune cache entries were not checked: ") for line in gate.lines)


def test_gate_fails_if_report_count_differs_from_option_expect(gate: Gate) -> None:
    gate.run_parts("test_a.py", "test_b.py")

    assert gate.judge("--expect=3") == 1
    assert "FAILED: found 2 reports, but --expect=3: some wrote none (did each job start and end?)" in gate.lines
    assert gate.judge("--expect=1") == 1
    line = "found 2 reports, but --expect=1: there are too many (remove old reports)"
    assert f"FAILED: {line}" in gate.lines


def test_gate_warns_if_two_reports_are_of_the_same_command(gate: Gate) -> None:
    """Without a run id, a report of an earlier run looks like a report of this run."""
    gate.run_parts("test_a.py", "test_b.py", "test_b.py")

    assert gate.judge() == 0
    (line,) = [line for line in gate.lines if "same command" in line]
    assert line.startswith("2 reports have the same command, so some may be of an earlier run: ")
    assert " test_b.py " in line
    assert line.endswith(" give all processes of one run the same AUTOTUNE_RUN_ID, and the next run another)")
    assert gate.judge("--expect=2") == 1
    assert line in gate.lines


#: A part whose test skips or asks.
SKIPS_OR_ASKS = """
import os, pytest

def test_shard(tune):
    if os.environ.get("SHARD") == "1":
        pytest.skip("the server does not answer")
    tune("lib.a", M=int(os.environ["SHARD"]))
"""


@pytest.mark.parametrize("variables", [{}, {"GITHUB_RUN_ID": "7", "GITHUB_RUN_ATTEMPT": "1"}], ids=["no CI", "CI"])
@pytest.mark.parametrize("shards", ["0 0", "1 1", "1 0"], ids=["lookups", "no lookup", "lookups after a flaky skip"])
def test_a_repeated_process_does_not_count_as_a_missing_process(
    gate: Gate, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], shards: str
) -> None:
    """The job of one part starts its command twice, and the job of another part is lost."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    gate.suite.write(test_shard=SKIPS_OR_ASKS)
    gate.run_parts("test_a.py", **variables)
    for shard in shards.split():
        gate.run_parts("test_shard.py", SHARD=shard, **variables)

    assert gate.judge("--expect=3") == 1
    (line,) = [line for line in gate.lines if "may be of one process" in line]
    assert line.startswith("FAILED: reports/")
    assert main(["prune", "cache.textproto", "--reports=reports/", "--expect=3"]) == 4
    assert gate.suite.cache.read_text().count("entries {") == 6


@pytest.mark.parametrize("shards", ["0 2", "0 0"], ids=["two shards", "two jobs of a matrix"])
@pytest.mark.parametrize("folders", [("1", "2"), (".", ".")], ids=["two folders", "one folder"])
def test_shards_that_a_variable_selects_need_folders_of_their_own(
    gate: Gate, folders: tuple[str, str], shards: str
) -> None:
    gate.suite.write(test_shard=SKIPS_OR_ASKS)
    for shard, folder in zip(shards.split(), folders, strict=True):
        addopts = f"--autotune-report=reports/{folder}/"
        gate.suite.load("test_shard.py", SHARD=shard, PYTEST_ADDOPTS=addopts)

    assert gate.judge("--expect=2", "--max-misses=off") == int(folders == (".", "."))


def test_the_gate_tells_two_projects_of_one_repository_apart(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    (gate.suite.folder / ".git").mkdir()
    for name in ("a", "b"):
        project = gate.suite.folder / "packages" / name
        project.mkdir(parents=True)
        (project / "pytest.ini").write_text("[pytest]\n")
        for file in ("conftest.py", f"test_{name}.py"):
            shutil.copy(gate.suite.folder / file, project)
        monkeypatch.chdir(project)
        gate.suite.run(f"--autotune-load={gate.suite.cache}", f"--autotune-report={gate.suite.folder}/reports/")
    monkeypatch.chdir(gate.suite.folder)

    assert gate.judge("--expect=2", "--max-misses=off") == 0, gate.lines


def test_a_copy_of_a_report_does_not_count_as_a_missing_process(gate: Gate) -> None:
    gate.run_parts("test_a.py", "test_b.py")
    report = gate.report_of("test_b.py")
    copied_report = report.parent / "copied" / report.name
    copied_report.parent.mkdir()
    copied_report.write_bytes(report.read_bytes())

    assert gate.judge("--expect=3") == 1
    (line,) = [line for line in gate.lines if "may be of one process" in line]
    assert f"reports/copied/{report.name}" in line


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"format_version": 2}', '{"format_version": 1, "finished": true}'])
def test_the_gate_command_fails_for_a_damaged_report(gate: Gate, text: str) -> None:
    gate.run_parts()
    path = gate.report_of("test_b.py")
    path.write_text(text)

    assert gate.judge("--expect=3") == 1
    assert any(line.startswith(f"FAILED: reports/{path.name}: ") for line in gate.lines)


def test_the_gate_command_fails_if_no_report_is_readable(gate: Gate) -> None:
    gate.run_parts("test_a.py")
    gate.report_of("test_a.py").write_text("{}")

    assert gate.judge("--expect=1") == 1
    assert any("were not checked: no report can be read" in line for line in gate.lines)


def test_the_gate_command_fails_for_a_damaged_record_in_a_report(gate: Gate) -> None:
    gate.run_parts()

    gate.edit_report("test_b.py", lambda report: report["process"]["lookups"][0][1].pop("kind"))

    assert gate.judge("--expect=3") == 1


@pytest.mark.parametrize(
    "damage",
    [
        {"took_no_part": None},
        {"only_skips": 1},
        {"not_passed_reason": None},
        {"process": {"is_update": None}},
        {"process": {"is_interrupted": "no"}},
        {"process": {"on_miss": None}},
        {"run": {"attempt": "two"}},
        {"run": {"id": 7}},
        {"run": {"job": None}},
        {"run": {"unknown": ""}},
    ],
    ids=str,
)
def test_gate_command_fails_for_a_report_field_of_a_wrong_type(gate: Gate, damage: dict[str, Any]) -> None:
    """A null, for example, must not become a text or false: the report would then say something else."""
    gate.run_parts("test_a.py", "test_b.py")

    def edit(report: dict[str, Any]) -> None:
        for name, value in damage.items():
            if isinstance(value, dict):
                report[name].update(value)
            else:
                report[name] = value

    gate.edit_report("test_b.py", edit)

    assert gate.judge("--expect=2") == 1
    assert any(line.startswith("FAILED: reports/") and "is damaged (TypeError: " in line for line in gate.lines)


@pytest.mark.parametrize(
    ("usual_id", "other_id", "error", "judged_id", "judged_errors"),
    [
        (
            "today",
            "yesterday",
            "is a report of CI run yesterday, not of CI run today (remove old reports)",
            "tomorrow",
            [
                f"is a report of CI run {run_id}, not of CI run tomorrow (remove old reports)"
                for run_id in ("today", "today", "yesterday")
            ],
        ),
        (
            "",
            "2",
            "is a report of CI run 2, but other reports are of a run without an id (remove old reports; or set "
            "AUTOTUNE_RUN_ID=2 for the other processes, for example in their container)",
            "2",
            [
                "is a report of a run without an id, not of CI run 2 (remove old reports; or set AUTOTUNE_RUN_ID=2 for "
                "the process, for example in its container)"
            ]
            * 2,
        ),
    ],
)
def test_gate_command_fails_if_reports_have_different_ci_run_ids(
    gate: Gate,
    monkeypatch: pytest.MonkeyPatch,
    usual_id: str,
    other_id: str,
    error: str,
    judged_id: str,
    judged_errors: list[str],
) -> None:
    """The run of the most reports is judged, unless ``AUTOTUNE_RUN_ID`` names the run. An empty id is no id."""
    gate.run_parts("test_a.py", "test_b.py", AUTOTUNE_RUN_ID=usual_id)
    gate.run_parts("test_c.py", AUTOTUNE_RUN_ID=other_id)

    assert gate.judge("--expect=3") == 1
    assert f"FAILED: reports/{gate.report_of('test_c.py').name}: {error}" in gate.lines
    monkeypatch.setenv("AUTOTUNE_RUN_ID", judged_id)
    assert gate.judge("--expect=3") == 1
    errors = [line.partition(".json: ")[2] for line in gate.lines if "is a report of" in line]
    assert sorted(errors) == judged_errors


def test_gate_fails_if_a_process_loaded_a_cache_not_passed_to_it(gate: Gate) -> None:
    (gate.suite.folder / "other.textproto").write_bytes(gate.suite.cache.read_bytes() + b"\n")
    gate.suite.load(REPORTS, "--autotune-load=other.textproto")

    assert gate.judge("--expect=1") == 1
    errors = [line for line in gate.lines if line.startswith("FAILED: ")]
    (report,) = gate.reports
    assert errors == [
        f"FAILED: reports/{report.name}: the process loaded other.textproto, which this command does not check "
        "(add it to the command)"
    ]
    assert gate.judge("--expect=1", caches=("cache.textproto", "other.textproto")) == 0


def test_gate_command_fails_if_a_process_had_a_usage_error(gate: Gate) -> None:
    gate.suite.load(REPORTS, "nowhere.py")

    assert gate.judge("--expect=1") == 1
    assert gate.lines[-1].endswith(
        "the process has not ended: it was killed, pytest refused its arguments, or it is still running"
    )


def test_gate_command_fails_if_the_cache_changed_between_runs(gate: Gate) -> None:
    gate.run_parts("test_a.py", "test_b.py")
    gate.suite.cache.write_text(gate.suite.cache.read_text() + "\n")
    gate.run_parts("test_c.py")

    assert gate.judge("--expect=3") == 1
    errors = [line for line in gate.lines if line.startswith("FAILED: ")]
    assert len(errors) == 2
    assert all("loaded another version of cache.textproto than this command checks" in line for line in errors)
    assert all(line.endswith("(remove old reports, and use one commit for all jobs)") for line in errors)


def test_a_miss_is_not_compared_with_an_entry_added_afterwards(gate: Gate) -> None:
    (gate.suite.folder / "test_a.py").write_text(OPS.format(name="a", count=3))
    gate.run_parts("test_a.py")
    gate.suite.load("--autotune-update=all", "test_a.py")

    assert gate.judge("--expect=1") == 1
    (miss,) = [line for line in gate.lines if line.startswith("MISS ")]
    assert miss.endswith("toy:lib.a (M=2): no entry")


def test_gate_command_accepts_processes_with_different_caches(gate: Gate) -> None:
    (gate.suite.folder / "test_d.py").write_text(OPS.format(name="d", count=1))
    gate.suite.run("--autotune-dump=other.textproto", "test_d.py")
    gate.run_parts()
    gate.suite.run("--autotune-load=other.textproto", REPORTS, "test_d.py")

    assert gate.judge("--expect=4") == 1, "one process loaded a cache that is not named"
    assert gate.judge("--expect=4", "--fail-on-unused", caches=("cache.textproto", "other.textproto")) == 0
    gate.report_of("test_d.py").unlink()
    assert gate.judge("--expect=3", caches=("cache.textproto", "other.textproto")) == 1
    assert (
        "FAILED: other.textproto: no process loaded this version of the cache (use one commit for all jobs)"
        in gate.lines
    )


def test_a_ci_retry_replaces_the_report_of_the_failed_attempt(gate: Gate) -> None:
    test = gate.suite.folder / "test_b.py"
    good = test.read_text()
    test.write_text(good.replace("lib.b", "lib.new"))
    gate.run_parts(GITHUB_RUN_ID="7", GITHUB_RUN_ATTEMPT="1")
    assert gate.judge("--expect=3") == 1
    test.write_text(good)
    gate.run_parts("test_b.py", GITHUB_RUN_ID="7", GITHUB_RUN_ATTEMPT="2")

    assert gate.judge("--expect=3", "--fail-on-unused") == 0


def test_a_ci_retry_passes_if_a_variable_selects_the_shard(gate: Gate) -> None:
    """The commands of the shards are equal. The folders of their reports stand only in ``PYTEST_ADDOPTS``."""
    for attempt, shard in ((1, 1), (1, 2), (2, 2), (3, 1)):
        addopts = f"--autotune-report=reports/{shard}/"
        gate.suite.load("test_a.py", PYTEST_ADDOPTS=addopts, GITHUB_RUN_ID="7", GITHUB_RUN_ATTEMPT=str(attempt))

    assert gate.judge("--expect=2") == 0, gate.lines


@pytest.mark.parametrize(("live_shards", "dead_shards"), [([1], [2]), ([1, 2], [3, 4])])
def test_a_ci_retry_of_dead_shards_keeps_the_misses_of_others(
    gate: Gate, live_shards: list[int], dead_shards: list[int]
) -> None:
    """CI repeats only the shards that died in attempt 1 before they could write a report."""
    gate.suite.write(test_new=OPS.format(name="new", count=1))
    for attempt, shards in ((1, live_shards), (2, dead_shards)):
        for shard in shards:
            test = "test_new.py" if shard == 1 else "test_a.py"
            addopts = f"--autotune-report=reports/{shard}/ {test}"
            gate.suite.load(PYTEST_ADDOPTS=addopts, GITHUB_RUN_ID="7", GITHUB_RUN_ATTEMPT=str(attempt))

    assert gate.judge() == 1
    assert [line for line in gate.lines if line.startswith("MISS ")], gate.lines


def test_a_retry_fails_the_gate_if_two_jobs_run_the_same_command(gate: Gate) -> None:
    """Shards that environment variables select have one command, so the gate cannot know which shard was repeated."""
    gate.run_parts("test_a.py", "test_a.py", GITHUB_RUN_ID="7", GITHUB_RUN_ATTEMPT="1")
    gate.run_parts("test_a.py", GITHUB_RUN_ID="7", GITHUB_RUN_ATTEMPT="2")

    assert gate.judge("--expect=2") == 1


def test_the_gate_command_fails_if_all_processes_skip_all_tests(gate: Gate) -> None:
    """A part that skips all its tests, as without a GPU, does not fail the gate alone."""
    (gate.suite.folder / "test_c.py").write_text(SKIPPED.format(name="c"))
    gate.run_parts()
    assert gate.judge("--expect=3") == 0
    for path in gate.reports:
        path.unlink()
    for name in "ab":
        (gate.suite.folder / f"test_{name}.py").write_text(SKIPPED.format(name=name))
    gate.run_parts()

    for options in ((), ("--max-misses=off", "--fail-on-unused")):
        assert gate.judge("--expect=3", *options) == 1
        assert gate.lines[-1] == "FAILED: no process called an autotuned kernel (6 skipped)"


def test_gate_command_fails_if_gpu_tests_skip_and_cpu_tests_run(gate: Gate) -> None:
    """The kernels of the CPU still ask, so that misses alone tell nothing of the lost GPU."""
    gate.suite.run("--autotune-load=cache.textproto", "--autotune-update", TOY_DEVICE="CPU")
    (gate.suite.folder / "test_c.py").write_text(SKIPPED.format(name="c"))
    gate.run_parts(TOY_DEVICE="CPU")

    assert gate.judge("--expect=3") == 1
    assert gate.lines[-1].startswith(
        "FAILED: the cache has entries for Toy GPU, but no test ran a kernel on such a GPU: "
    )


def test_gate_command_passes_on_one_gpu_type_of_a_two_gpu_cache(gate: Gate) -> None:
    gate.suite.run("--autotune-load=cache.textproto", "--autotune-update", TOY_DEVICE="Other GPU")
    (gate.suite.folder / "test_c.py").write_text(SKIPPED.format(name="c"))
    gate.run_parts()

    assert gate.judge("--expect=3") == 0


def test_no_entry_is_unused_if_its_gpu_ran_only_some_tests(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    """The tests ran on the other GPU type, so they may ask for the entries in another run."""
    gate.suite.run("--autotune-load=cache.textproto", "--autotune-update", TOY_DEVICE="Other GPU")
    before = gate.suite.cache.read_bytes()
    gate.run_parts()
    test = gate.suite.folder / "test_a.py"
    gate.suite.load(REPORTS, f"{test}::test_a[0]", TOY_DEVICE="Other GPU")

    assert gate.judge("--expect=4", "--fail-on-unused") == 0, gate.lines
    assert main(["prune", "cache.textproto", "--reports=reports/", "--expect=4", "--exit-code"]) == 0
    assert gate.suite.cache.read_bytes() == before
    test.write_text(test.read_text().replace("range(2)", "range(1)"))
    (gate.suite.folder / "reports").rename("old")
    gate.run_parts()
    gate.suite.load(REPORTS, "test_a.py", TOY_DEVICE="Other GPU")
    assert gate.judge("--expect=4", "--fail-on-unused") == 1
    removed = [line for line in gate.lines if line.startswith("UNUSED ")]
    assert removed == ["UNUSED toy:lib.a (M=1): no test used this entry"] * 2


def test_unused_entries_are_not_checked_if_a_process_had_no_gpu(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tests of that process may need the entries that no other process looked up."""
    monkeypatch.setattr(devices, "has_visible_gpu", bool)
    for part in ("test_a.py", "test_b.py"):
        gate.suite.load(REPORTS, part)
    (gate.suite.folder / "test_c.py").write_text("def test_c(): pass\n")
    gate.suite.run("--autotune-load=cache.textproto?optional", REPORTS, "test_c.py")

    assert gate.judge("--expect=3", "--fail-on-unused") == 0
    report = gate.report_of("test_c.py")
    remedy = "if other processes run its tests, too, leave its report out"
    path = f"reports/{report.name}"
    reason = (
        f"unused autotune cache entries were not checked: {path}: did not use the cache: no GPU is visible ({remedy})"
    )
    assert any(reason in line for line in gate.lines), gate.lines
    assert gate.lines[-1].startswith("unjudged (exit status 0): unused autotune cache entries were not checked: ")


@pytest.mark.parametrize("query", ["", "?optional"])
def test_skipped_tests_fail_the_gate_unless_a_cache_is_optional(gate: Gate, query: str) -> None:
    """The verdict is the one of a single process."""
    gate.suite.run("--autotune-load=cache.textproto", "--autotune-update", TOY_DEVICE="CPU")
    (gate.suite.folder / "test_c.py").write_text(SKIPPED.format(name="c"))
    result = gate.suite.run(
        f"--autotune-load=cache.textproto{query}", "--autotune-max-misses=0", REPORTS, TOY_DEVICE="CPU"
    )

    assert result.ret == (0 if query else 1)
    assert gate.judge("--expect=1") == result.ret


def test_after_a_partial_run_the_gate_prints_the_prune_command(gate: Gate) -> None:
    """--autotune-update=prune drops nothing in a process that runs a part of the suite."""
    gate.run_parts("test_a.py")
    test = gate.suite.folder / "test_a.py"
    test.write_text(test.read_text().replace("range(2)", "range(1)"))
    (gate.suite.folder / "reports").rename("old")
    gate.run_parts("test_a.py")

    assert gate.judge("--expect=1", "--fail-on-unused") == 1
    command = "pytest-autotune prune cache.textproto --reports=reports/ --expect=1"
    assert any(line.startswith(f"Run {command} (") for line in gate.lines), gate.lines


def test_the_gate_command_fails_if_no_process_called_a_kernel(gate: Gate) -> None:
    for part in PARTS:
        (gate.suite.folder / part).write_text("def test_nothing(): pass\n")
    gate.run_parts()

    assert gate.judge("--expect=3") == 1
    assert gate.lines[-1] == "FAILED: no process called an autotuned kernel (3 passed)"


def test_gate_command_fails_if_a_tuner_ran_without_the_plugin(gate: Gate) -> None:
    gate.run_parts("test_a.py", "test_b.py")
    gate.run_parts("test_c.py", TOY_UNKNOWN="1")
    assert gate.judge("--expect=3") == 1
    assert (
        gate.lines[-1] == "FAILED: loaded entries were not used: the plugin could not hook toy (a "
        "line above has the reason)"
    )
    gate.report_of("test_c.py").unlink()

    gate.run_parts("test_c.py", TOY_UNSEEN="lib.hidden")

    assert gate.judge("--expect=3") == 1
    assert gate.lines[-1] == f"FAILED: {too_many_misses(1, '0')}"


def test_the_gate_command_fails_if_a_process_updated_the_cache(gate: Gate) -> None:
    gate.run_parts("test_a.py", "test_b.py")
    gate.suite.load(REPORTS, "--autotune-update=all", "test_c.py")

    assert gate.judge("--expect=3") == 1
    assert any("updated the cache that it loaded" in line for line in gate.lines)


@pytest.mark.parametrize("fails", [False, True])
def test_gate_command_fails_if_pytest_exit_ended_a_process(gate: Gate, fails: bool) -> None:
    test = gate.suite.folder / "test_c.py"
    end = f"\ndef test_end():\n    assert {not fails}\ndef test_exit(): pytest.exit('x', returncode=0)\n"
    test.write_text(test.read_text() + end + "def test_never(): pass\n")
    gate.run_parts()

    assert gate.judge("--expect=3") == 1
    path = gate.report_of("test_c.py").relative_to(gate.suite.folder)
    assert gate.lines[-1] == f"FAILED: {path}: 2 of 5 tests did not run"


def test_gate_command_passes_if_option_x_stopped_a_process_early(gate: Gate) -> None:
    test = gate.suite.folder / "test_c.py"
    test.write_text(test.read_text() + "\ndef test_fails(): assert 0\ndef test_never(): pass\n")
    gate.run_parts("test_a.py", "test_b.py")
    gate.suite.load(REPORTS, "test_c.py", "-x")

    assert gate.judge("--expect=3") == 0


def test_gate_command_fails_if_one_process_excludes_a_tuner(gate: Gate) -> None:
    """The process itself is red. The other processes name all tuners."""
    gate.run_parts("test_a.py", "test_b.py")
    gate.suite.load(REPORTS, "test_c.py", "--autotune-tuners=triton")

    assert gate.judge("--expect=3") == 1
    left_out = (
        "loaded entries were not used: --autotune-tuners=triton leaves out toy (name it there, or add it "
        "to autotune_ignore)"
    )
    path = gate.report_of("test_c.py").relative_to(gate.suite.folder)
    assert gate.lines[-1] == f"FAILED: {path}: {left_out}"
    assert gate.judge("--expect=3", "--max-misses=off") == 0
    gate.report_of("test_c.py").unlink()

    gate.suite.load(REPORTS, "test_c.py", "--autotune-tuners=triton", "-oautotune_ignore=toy:*")

    assert gate.judge("--expect=3") == 0


def test_gate_command_adds_up_slower_choices_of_all_processes(gate: Gate) -> None:
    gate.run_parts()
    assert gate.judge("--max-drift=0") == 1
    assert "--max-drift: no process ran with --autotune-verify" in gate.lines[-1]
    for path in gate.reports:
        path.unlink()
    for part in PARTS:
        gate.suite.load(REPORTS, "--autotune-verify=all", part, TOY_TIMES="a=30" if part == "test_a.py" else "")

    assert gate.judge("--expect=3", "--max-drift=2") == 0
    assert gate.judge("--expect=3", "--max-drift=1") == 1
    assert gate.lines[-1] == "FAILED: too many autotune choices are slower than another candidate: 2, at most 1 allowed"


def test_gate_command_lists_processes_without_option_verify(gate: Gate) -> None:
    gate.suite.load(REPORTS, "--autotune-verify=all", "test_a.py")
    gate.suite.load(REPORTS, "test_b.py")

    assert gate.judge("--expect=2", "--max-drift=0") == 0
    name = gate.report_of("test_b.py").name
    assert f"reports/{name}: ran without --autotune-verify, so its choices were not raced" in gate.lines
    assert "verify all: 2 choices raced" in gate.lines
    assert not any("does not support races" in line for line in gate.lines)
    gate.suite.load(REPORTS, "--autotune-verify=1/9", "test_c.py")
    assert gate.judge("--expect=3", "--max-drift=0") == 0
    assert "2 choices of toy not raced: no process reported a race" in gate.lines


@pytest.mark.parametrize(
    "edit",
    [
        lambda process: process["mode_events"][0]["data"].update(slower="much"),
        lambda process: process["mode_events"][0].pop("identity"),
        lambda process: process["modes"].update(verify="most"),
        lambda process: process["modes"].update(verify=["all"]),
    ],
    ids=["number", "problem", "part", "list"],
)
def test_gate_command_fails_if_verify_results_are_damaged(gate: Gate, edit: Callable[[dict[str, Any]], object]) -> None:
    gate.suite.load(REPORTS, "--autotune-verify=all", "test_a.py")
    gate.edit_report("test_a.py", lambda report: edit(report["process"]))

    assert gate.judge("--expect=1", "--max-drift=9") == 1
    path = f"reports/{gate.report_of('test_a.py').name}"
    assert any(line.startswith(f"FAILED: {path}: is ") and "damaged (" in line for line in gate.lines)


def test_the_gate_uses_the_default_of_an_option_a_report_lacks(gate: Gate, monkeypatch: pytest.MonkeyPatch) -> None:
    gate.suite.load(REPORTS, "--autotune-verify=all", "test_a.py")
    make = verify.make
    order = Option("verify_order", "word", "", "random|sorted", "random", only="ini")
    (row,) = [row for row in MODES if row.name == "verify"]

    def make_in_order(verify_order: str, **values: Any) -> Any:
        assert verify_order == "random"
        return make(**values)

    monkeypatch.setattr(verify, "make", make_in_order)
    monkeypatch.setattr("pytest_autotune.cli.gate.MODES", (row._replace(options=(*row.options, order)),))

    assert gate.judge("--expect=1", "--max-drift=9") == 0


@pytest.mark.parametrize("option", [option for row in MODES for option in row.options if option.kind != "paths"])
def test_gate_command_and_pytest_have_the_same_option_defaults(option: Option) -> None:
    assert find_unset_value(option) == READERS[option.kind](None, option)


def test_prune_with_reports_folder_requires_the_expect_option(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    (gate.suite.folder / "test_a.py").write_text(OPS.format(name="a", count=1))
    gate.run_parts()
    prune = ["prune", "cache.textproto", "--reports=reports/", "--dry-run", "--exit-code"]

    assert main(prune) == 4
    assert "a process may be missing (add --expect=N, the number of processes; see pytest-" in capsys.readouterr().err

    assert main([*prune, "--expect=3"]) == 1
    assert "1 entry would be dropped, 5 kept" in capsys.readouterr().out
    assert main([*prune, "--expect=4"]) == 4
    (gate.suite.folder / "test_c.py").write_text(SKIPPED.format(name="c"))
    gate.report_of("test_c.py").unlink()
    gate.run_parts("test_c.py")
    assert main([*prune, "--expect=3"]) == 0
    assert "test_c.py::test_c[0] was skipped, so its tests may need any entry" in capsys.readouterr().out
    gate.edit_report("test_b.py", lambda report: report.update(took_no_part="no GPU is visible"))
    assert main([*prune, "--expect=3"]) == 0
    assert "the process did not use the cache (no GPU is visible), so no entry was dropped" in capsys.readouterr().out
    gate.edit_report("test_c.py", lambda report: report.update(finished=False))
    assert main([*prune, "--expect=3", "--allow-skipped"]) == 4


def remove_tests_of_kernel(gate: Gate) -> None:
    """Remove the tests of lib.a. A test of another part still imports the kernel's module."""
    (gate.suite.folder / "lib.py").write_text("")
    (gate.suite.folder / "test_a.py").write_text("def test_a(): pass\n")
    test = gate.suite.folder / "test_b.py"
    test.write_text("import lib\n" + test.read_text())
    gate.run_parts()


def test_the_printed_prune_command_drops_the_unused_entries(gate: Gate, capsys: pytest.CaptureFixture[str]) -> None:
    remove_tests_of_kernel(gate)
    assert gate.judge("--expect=3", "--fail-on-unused") == 1
    unused = [line.split(": ")[0] for line in gate.lines if line.startswith("UNUSED ")]
    assert unused == ["UNUSED toy:lib.a (M=0)", "UNUSED toy:lib.a (M=1)"]
    (advice,) = [line for line in gate.lines if line.startswith("Run ")]
    command = "pytest-autotune prune cache.textproto --reports=reports/ --expect=3"
    folder = "(with the reports of this run in reports/)"
    assert advice == f"Run {command} {folder} to drop the unused entries, unless another suite uses them."
    parts = [f"--unused-in={path}" for path in (gate.suite.folder / "reports").glob("*.json")]
    assert main(["prune", "cache.textproto", "--together", "--dry-run", *parts]) == 0
    lines_together = capsys.readouterr().out.splitlines()

    assert main(command.split()[1:]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 entries dropped, 4 kept"
    assert lines[1:] == lines_together[1:]
    assert [f"UNUSED {line.split(' on ')[0].strip()}" for line in lines[1:]] == unused
    (gate.suite.folder / "reports").rename("old")
    gate.run_parts()
    assert gate.judge("--expect=3", "--fail-on-unused") == 0


@pytest.mark.parametrize("returncode", [None, 0])
def test_prune_keeps_all_entries_if_a_process_ended_early(
    gate: Gate, capsys: pytest.CaptureFixture[str], returncode: int | None
) -> None:
    remove_tests_of_kernel(gate)
    end = f"\ndef test_exit(): pytest.exit('x', returncode={returncode})\ndef test_never(): pass\n"
    test = gate.suite.folder / "test_c.py"
    test.write_text(test.read_text() + end)
    gate.report_of("test_c.py").unlink()
    gate.run_parts("test_c.py")
    parts = [f"--unused-in={path}" for path in (gate.suite.folder / "reports").glob("*.json")]
    capsys.readouterr()

    assert main(["prune", "cache.textproto", "--together", *parts]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "0 entries dropped, 6 kept"
    assert lines[1].endswith(", so its tests may need any entry, and no entry was dropped")
    assert main(["prune", "cache.textproto", "--reports=reports/", "--expect=3"]) == 4


def test_prune_keeps_entries_added_after_the_report_was_written(
    serial_suite: Suite, capsys: pytest.CaptureFixture[str]
) -> None:
    """The report of a process does not have the entries that only a marker loaded. Each of them may be a newer one."""
    test = """
import pytest

@pytest.mark.autotune_cache(load="own.textproto")
@pytest.mark.parametrize("m", range({count}))
def test_own(tune, m): tune("lib.own", M=m)
"""
    serial_suite.write(test_own=test.format(count=1)).run("--autotune-update")
    serial_suite.run("--autotune-report=r.json")
    serial_suite.write(test_own=test.format(count=2)).run("--autotune-update")
    own_cache = serial_suite.folder / "own.textproto"
    before = own_cache.read_bytes()
    capsys.readouterr()

    assert main(["prune", "own.textproto", "--together", "--unused-in=r.json", "--exit-code"]) == 0

    assert own_cache.read_bytes() == before
    assert capsys.readouterr().out.splitlines() == [
        "0 entries dropped, 2 kept",
        "1 unused entry stays: the tests of r.json may use this cache, but did not all load this entry (run them "
        "again with --autotune-load=own.textproto, or leave out a report whose tests need no entry of this cache)",
    ]


@pytest.mark.parametrize(
    ("options", "mark"),
    [
        (["--autotune-tuners=triton"], ""),
        (["-oautotune_ignore=toy:lib.op"], ""),
        ([], "import pytest\npytestmark = pytest.mark.autotune_cache(enabled=False)\n"),
    ],
    ids=["tuners", "ignore", "marker"],
)
def test_entries_of_kernels_excluded_by_an_option_are_not_unused(gate: Gate, options: list[str], mark: str) -> None:
    """A process whose tests call a kernel without asking says nothing about the kernel's entries."""
    for number, name in enumerate("ab"):
        (gate.suite.folder / f"test_{name}.py").write_text(f"def test_{name}(tune): tune('lib.op', M={number})\n")
    gate.suite.dump("test_a.py", "test_b.py")
    test = gate.suite.folder / "test_b.py"
    test.write_text(mark + test.read_text())
    gate.run_parts("test_a.py")
    gate.suite.load(REPORTS, "test_b.py", *options)
    before = gate.suite.cache.read_bytes()

    gate.judge("--expect=2", "--fail-on-unused")
    assert not any("UNUSED" in line for line in gate.lines)
    assert main(["prune", "cache.textproto", "--reports=reports/", "--expect=2", "--exit-code"]) == 0
    assert gate.suite.cache.read_bytes() == before


@pytest.mark.parametrize("options", [["--max-misses="], ["--max-misses=x"], ["--expect=0"], ["--max-drift= "]])
def test_invalid_limits_of_the_gate_command_are_usage_errors(gate: Gate, options: list[str]) -> None:
    gate.run_parts("test_a.py")

    assert gate.judge(*options) == 4
    assert len(gate.lines) == 1


def test_gate_without_cache_or_reports_folder_is_a_usage_error(gate: Gate) -> None:
    assert gate.judge() == 4
    (gate.suite.folder / "reports").mkdir()
    assert gate.judge(caches=("gone.textproto",)) == 4
    assert gate.judge() == 1, "a folder without reports"
