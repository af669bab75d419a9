"""Writes the result of a run to the terminal, the user's report files, JUnit's report and GitHub's step summary.

The renderers in :mod:`pytest_autotune.report` make the texts; the functions here know pytest and the file system.
"""

from __future__ import annotations

import json
import os
import posixpath
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.wording import to_one_line
from pytest_autotune.plugin.values import CacheArgument, Options
from pytest_autotune.report import FILES, ci_log, describe_obstacle, markdown
from pytest_autotune.report.json_report import build_unfinished_mapping, to_json
from pytest_autotune.report.summary import Line, render_section
from pytest_autotune.run.ci_run import CiRun, find_first_variable, read_ci_run
from pytest_autotune.run.result import RunResult, SourceLocation

#: Environment variables that name the commit: of GitHub, GitLab, Azure and Jenkins.
_COMMIT_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA", "BUILD_SOURCEVERSION", "GIT_COMMIT")
#: Environment variables with the URL of the job's page: of GitLab, Jenkins and Azure.
_JOB_VARIABLES = ("CI_JOB_URL", "BUILD_URL", "BUILD_BUILDURI")
#: The class of the test case that is added to JUnit's report.
_JUNIT_CLASS = "autotune_cache"


def prepare_reports(options: Options) -> None:
    """Make the folders of the reports, and check that each report can be written and replaces only an older report.

    This takes place before any test runs, so that a wrong path does not cost a whole run.

    :raises pytest.UsageError: for the first report that cannot be written.
    """
    caches = list(options.load)
    if options.dump is not None:
        caches.append(options.dump)
    for report in options.report:
        error = _prepare_report(report, caches)
        if error:
            raise pytest.UsageError(f"{report.named_by}: {report.typed}: {error}")


def _prepare_report(report: CacheArgument, caches: Sequence[CacheArgument]) -> str:
    """Make the folder of a report; return why the report cannot be written, or an empty text if it can.

    :param caches: the caches of this run, which no report may replace.
    """
    if report.location.url:
        return "is a URL, but a report must be a file (name a path)"
    suffix = report.location.path.suffix
    if suffix not in FILES and not report.location.is_folder_path:
        return f"unknown kind of report (use a name that ends in {', '.join(FILES)}, or a folder with a / at the end)"
    if any(report.is_same_as(cache) for cache in caches):
        return "is a cache of this run, not a report (name another file)"
    try:
        path = Path(report.location.resolved)
        if report.location.is_folder_path:
            path.mkdir(parents=True, exist_ok=True)
            if not os.access(path, os.W_OK):
                return "is read-only (name another folder)"
            return ""
        path.parent.mkdir(parents=True, exist_ok=True)
        return describe_obstacle(path, FILES[suffix].beginning)
    except CacheError as error:
        return error.event
    except OSError as error:
        return f"cannot be written: {error.strerror}"


class FolderReports:
    """The reports of this process in folders that many processes share: a JSON file with a name of its own in each.

    A file says that the process has not ended, until the end of the run replaces it. So a killed process can be seen. A
    process that runs inside a test of another process writes none.

    :param process_id: see :class:`~pytest_autotune.run.ci_run.CiRun`. The files are named after it.
    """

    def __init__(self, reports: Sequence[CacheArgument], config: pytest.Config, process_id: str) -> None:
        self._config = config
        self._process_id = process_id
        self._name = f"{process_id[:12]}.json"
        self._reports: list[CacheArgument] = []
        # Pytest sets the variable for each test, and child processes inherit it.
        if "PYTEST_CURRENT_TEST" not in os.environ:
            self._reports = [report for report in reports if report.location.is_folder_path]

    def begin(self) -> None:
        """Write that this process has begun, unless it only lists tests or fixtures.

        :raises pytest.UsageError: if a file cannot be written.
        """
        lists_only = ("collectonly", "setupplan", "showfixtures", "show_fixtures_per_test")
        if any(self._config.getoption(name, False) for name in lists_only):
            return
        ci_run = find_ci_run(self._config, self._process_id)
        text = json.dumps(build_unfinished_mapping(ci_run), indent=1) + "\n"
        for report in self._reports:
            try:
                self._write(report, text)
            except OSError as error:
                problem = f"cannot be written: {error.strerror or error}"
                raise pytest.UsageError(f"{report.named_by}: {report.typed}: {problem}") from None

    def end(self, result: RunResult) -> RunResult:
        """Replace the files; return the result, with an error for each file that could not be written."""
        for report in self._reports:
            try:
                self._write(report, to_json(result))
            except OSError as error:
                problem = f"{report.named_by}: {report.typed}: cannot be written: {error.strerror or error}"
                result = replace(result, errors=(*result.errors, problem))
        return result

    def _write(self, report: CacheArgument, text: str) -> None:
        """Replace a file as a whole, so that no reader sees a part of it."""
        folder = Path(report.location.resolved)
        folder.mkdir(parents=True, exist_ok=True)
        temporary = folder / f".{self._name}.tmp"
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, folder / self._name)


def write_reports(reports: Sequence[CacheArgument], result: RunResult) -> RunResult:
    """Write the report files; return the result, with an error for each file that could not be written."""
    for report in reports:
        if report.location.is_folder_path:
            # FolderReports writes these reports.
            continue
        path = Path(report.location.resolved)
        file_kind = FILES[report.location.path.suffix]
        try:
            # Checked before the tests, too; a test may have written a file there.
            problem = describe_obstacle(path, file_kind.beginning)
            if not problem:
                path.write_text(file_kind.render(result), encoding="utf-8")
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
        if problem:
            result = replace(result, errors=(*result.errors, f"{report.named_by}: {report.typed}: {problem}"))
    return result


def list_run_facts(command: str) -> tuple[tuple[str, str], ...]:
    """Return date, commit, job and command of this run as (word, text), for reports. No cache file holds them.

    :param command: the command of the run, as the user typed it.
    """
    date_s = time.time()
    # A reproducible build sets this variable to the seconds of its date.
    with suppress(ValueError):
        date_s = int(os.environ.get("SOURCE_DATE_EPOCH", ""))
    facts = [("Date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(date_s)))]
    commit = find_first_variable(os.environ, _COMMIT_VARIABLES)
    if commit:
        facts.append(("Commit", commit))
    job = _find_job_url()
    if job:
        facts.append(("Job", job))
    facts.append(("Command", command))
    return tuple(facts)


def find_ci_run(config: pytest.Config, process_id: str) -> CiRun:
    """Return the CI run of this process, with its command."""
    command = shlex.join(["pytest", *map(str, config.invocation_params.args)])
    folder = config.invocation_params.dir
    # Two projects of one repository have a rootdir each. Only the path below the repository tells their folders apart.
    base = _find_repository(folder) or config.rootpath
    ci_run = read_ci_run(os.environ)
    return replace(ci_run, command=command, folder=os.path.relpath(folder, base), process_id=process_id)


def _find_repository(folder: Path) -> Path | None:
    """Return the top folder of the Git repository that has this folder; None if there is none."""
    for parent in (folder, *folder.parents):
        # In a worktree and in a submodule, .git is a file.
        if (parent / ".git").exists():
            return parent
    return None


def _find_job_url() -> str:
    """Return the URL of the CI job's page; empty if no CI system that we know runs this process."""
    environment = os.environ
    run_id = environment.get("GITHUB_RUN_ID", "")
    if not run_id:
        return find_first_variable(environment, _JOB_VARIABLES)
    server, repository = environment.get("GITHUB_SERVER_URL", ""), environment.get("GITHUB_REPOSITORY", "")
    return f"{server}/{repository}/actions/runs/{run_id}"


def add_to_junit(result: RunResult, config: pytest.Config) -> None:
    """Add the counts, and a test case for the gates, to JUnit's report if this run writes one."""
    log = _find_junit_plugin(config)
    if log is None:
        return
    for name, count in result.counts.items():
        log.add_global_property(f"autotune_{name}", count)
    report = _build_gate_report(result)
    if report is not None:
        # Only JUnit's plugin gets this report, so pytest does not count a test.
        log.pytest_runtest_logreport(report)


def _build_gate_report(result: RunResult) -> pytest.TestReport | None:
    """Return the report of the test case for the gates; None if the run has no gate and no failure.

    With ``--autotune-on-miss=error`` alone, the tests that ask are the test cases, unless the gate fails or is skipped.
    """
    if result.failures:
        summary = [line.word + line.text for line in render_section(result, verbosity=1)]
        failure = _JunitFailure("\n".join(summary))
        failure.reprcrash = SimpleNamespace(message=to_one_line("; ".join(result.failures)))
        return _build_junit_report("failed", failure)
    # The gate of --autotune-on-miss=error has no limit. If it judges nothing, it has a reason, as any other gate.
    skip_reasons = [gate.skip_reason for gate in result.gates if gate.skip_reason]
    if skip_reasons:
        # Pytest's form of a skip: path, line, reason.
        skip = (_JUNIT_CLASS, 0, to_one_line("; ".join(skip_reasons)))
        return _build_junit_report("skipped", skip)
    if any(gate.limit or gate.fail_on_unused for gate in result.gates):
        return _build_junit_report("passed", None)
    return None


def _find_junit_plugin(config: pytest.Config) -> Any:
    """Return pytest's plugin that writes JUnit's report; None if this run writes none."""
    for plugin in config.pluginmanager.get_plugins():
        if type(plugin).__name__ == "LogXML":
            return plugin
    return None


def _build_junit_report(outcome: Any, longrepr: Any) -> pytest.TestReport:
    """Return the report that pytest would make of a test case ``gate``."""
    location = (_JUNIT_CLASS, None, "gate")
    return pytest.TestReport(f"{_JUNIT_CLASS}::gate", location, {}, outcome, longrepr, "call")


class _JunitFailure(str):
    """The text of a failed test case in the JUnit report. Pytest's plugin reads its message from ``reprcrash``."""

    reprcrash: SimpleNamespace


def show_section(lines: Sequence[Line], terminalreporter: pytest.TerminalReporter) -> None:
    """Write the section ``autotune cache`` of the terminal's summary, if it has any lines."""
    if not lines:
        return
    terminalreporter.write_sep("=", "autotune cache")
    for line in lines:
        markup = {}
        if line.color:
            markup[line.color] = True
        if line.word:
            # Only the word has the color.
            terminalreporter.write(line.word, **markup)
            terminalreporter.write_line(line.text)
        else:
            terminalreporter.write_line(line.text, **markup)


def add_step_summary(result: RunResult) -> RunResult:
    """Append the result, as Markdown, to GitHub's step summary; return the result, with a note if that failed."""
    # GitHub shows the Markdown of this file on the page of the workflow run.
    path = os.environ.get("GITHUB_STEP_SUMMARY", "")
    has_content = bool(result.rows or result.loaded or result.dump or result.failures)
    if not path or not has_content:
        return result
    try:
        with open(path, "a", encoding="utf-8") as file:
            text = markdown.to_markdown(result)
            size_after = file.tell() + len(text.encode())
            # GitHub limits the size of the file, and other tools write to it, too.
            if size_after <= ci_log.SUMMARY_BYTES:
                file.write(text)
    except OSError as error:
        note = f"GitHub's step summary could not be written: {error.strerror or error} (see GITHUB_STEP_SUMMARY)"
        return replace(result, collected=replace(result.collected, notes=(*result.collected.notes, note)))
    return result


def locate_tests(locations: Mapping[str, tuple[str, int | None, str]], root: Path) -> dict[str, SourceLocation]:
    """Return the place of each test's definition by node id. Paths are relative to GitHub's checkout, else to ``root``.

    :param locations: pytest's location of each test: path, line from 0 (or None), name.
    :param root: pytest's rootdir.
    """
    root = root.resolve()
    checkout = Path(os.environ.get("GITHUB_WORKSPACE") or root).resolve()
    root_in_checkout = Path()
    if root.is_relative_to(checkout):
        root_in_checkout = root.relative_to(checkout)
    places = {}
    for test, (path, line_from_0, _) in sorted(locations.items()):
        # Line 0 says that the line is not known.
        line_from_1 = 0
        if line_from_0 is not None:
            line_from_1 = line_from_0 + 1
        path_in_checkout = posixpath.normpath((root_in_checkout / path).as_posix())
        places[test] = SourceLocation(path_in_checkout, line_from_1)
    return places
