"""Where the summary of a run goes: the terminal, the reports that the user names, JUnit's, and GitHub."""

from __future__ import annotations

import html
import os
import posixpath
import shlex
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.report import ci_log, markdown, terminal
from pytest_autotune.report.renderers import renderer_of
from pytest_autotune.run.result import Place, Result
from pytest_autotune.session.values import CacheArgument, Options

#: Variables with the folder of the checkout: GitHub's, GitLab's.
_CHECKOUT = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")
#: Those with the commit, and with a page of the job: GitHub's, GitLab's, Azure's, Jenkins's.
_COMMIT = ("GITHUB_SHA", "CI_COMMIT_SHA", "BUILD_SOURCEVERSION", "GIT_COMMIT")
_GITHUB = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
_JOB = ("CI_JOB_URL", "BUILD_URL", "BUILD_BUILDURI")
#: Characters of a file by which a report is known.
_BEGINNING = 2000
#: The class of the test cases that are added to JUnit's report.
_JUNIT_CLASS = "autotune_cache"


def check(options: Options) -> None:
    """See, before any test runs, that reports can be written, and that none replaces anything but a report.

    :raises pytest.UsageError: for the first one that cannot.
    """
    for report in options.report:
        if problem := _problem(report, options):
            raise pytest.UsageError(f"{report.given}: {report.typed}: {problem}")


def _problem(report: CacheArgument, options: Options) -> str:
    """Why a report is not to be written; empty where it may be."""
    caches = [*options.load, *([options.dump] if options.dump is not None else [])]
    if any(report.is_same_as(cache) for cache in caches):
        return "is a cache of this run (name another file)"
    path = report.location.path
    try:
        found = path.stat().st_mode
        if stat.S_ISDIR(found):
            return "is a directory (name a file)"
        if not stat.S_ISREG(found):  # a pipe without a reader would keep the run from ending
            return "is not a file"
        if not _may_be_replaced(path):
            return "is there and is no report of pytest-autotune (name another file, or remove it)"
    except (FileNotFoundError, NotADirectoryError):
        folder = next(folder for folder in path.parents if os.path.lexists(folder))
        return "" if folder.is_dir() else f"cannot be written: {folder} is not a folder"
    except OSError as error:
        return f"cannot be written: {error.strerror}"
    return ""


def _may_be_replaced(path: Path) -> bool:
    """Whether a file is a report that an earlier run wrote, or is empty."""
    with path.open(encoding="utf-8", errors="replace") as file:
        beginning = file.read(_BEGINNING)
    renderer = renderer_of(path)
    assert renderer is not None, "the options refuse other suffixes"
    return not beginning.strip() or renderer.begins(beginning)


def write(reports: Sequence[CacheArgument], result: Result) -> Result:
    """Write the reports.

    :returns: the result, with an error for each report that could not be written.
    """
    for report in reports:
        path = report.location.path
        renderer = renderer_of(path)
        assert renderer is not None, "the options refuse other suffixes"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(renderer.text(result), encoding="utf-8")
        except OSError as error:
            problem = f"{report.given}: {report.typed}: cannot be written: {error.strerror or error}"
            result = replace(result, errors=(*result.errors, problem))
    return result


def about(config: pytest.Config) -> tuple[tuple[str, str], ...]:
    """When, where and by which command a run ran, as far as CI systems say it; for people, and in no cache."""
    given, now = os.environ.get, time.time()
    with suppress(ValueError):
        now = int(given("SOURCE_DATE_EPOCH", ""))  # who builds reproducibly
    on_github = "/".join([*(given(name, "") for name in _GITHUB), "actions/runs", given("GITHUB_RUN_ID", "")])
    facts = (
        ("Date", time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(now))),
        ("Commit", next(filter(None, map(given, _COMMIT)), "")),
        ("Job", on_github if given("GITHUB_RUN_ID") else next(filter(None, map(given, _JOB)), "")),
        ("Command", shlex.join(["pytest", *map(str, config.invocation_params.args)])),
    )
    return tuple((word, text) for word, text in facts if text)


def add_to_junit(result: Result, config: pytest.Config) -> None:
    """Add the counts, and the test cases of the run itself, to JUnit's report, where the run writes one."""
    try:
        from _pytest.junitxml import xml_key
    except ImportError:
        return
    log = config.stash.get(xml_key, None)
    if log is None:
        return
    for name, count in result.counts.items():
        log.add_global_property(f"autotune_{name}", count)
    for name, failed, skipped in _junit_cases(result):
        for report in _as_reports(name, _Failure(one_line(failed), text_of(result)), one_line(skipped)):
            log.pytest_runtest_logreport(report)


def _junit_cases(result: Result) -> Iterator[tuple[str, str, str]]:
    """(name, why it failed, why it says nothing) of the gates where there are any, and of what could not be done."""
    gate = result.gate
    if gate.limit or gate.fail_on_unused or gate.failure:
        yield gate.name, gate.failure, gate.skipped
    yield from ((one.name, one.failure, one.skipped) for one in result.gates_of_modes if one.limit)
    # Named by their order: the words of an error would be another test case in each run.
    yield from ((f"error_{number}", error, "") for number, error in enumerate(result.errors, 1))


@dataclass(frozen=True)
class _Failure:
    """Why a case failed, as JUnit's report takes it: a message, and a text below."""

    message: str
    text: str

    @property
    def reprcrash(self) -> _Failure:
        return self

    def __str__(self) -> str:
        return self.text


def _as_reports(name: str, failed: _Failure, skipped: str) -> Iterator[pytest.TestReport]:
    """What pytest would report of a test; only JUnit's report is told of it."""
    nodeid, place = f"{_JUNIT_CLASS}::{name}", (_JUNIT_CLASS, None, name)
    why: Any = None
    outcome: Literal["passed", "failed", "skipped"] = "passed"
    if failed.message:
        outcome, why = "failed", failed
    elif skipped:
        outcome, why = "skipped", (_JUNIT_CLASS, 0, skipped)
    yield pytest.TestReport(nodeid, place, {}, outcome, why, "call")
    yield pytest.TestReport(nodeid, place, {}, "passed", None, "teardown")


def text_of(result: Result) -> str:
    """The section of the terminal as text, with all rows."""
    return "\n".join(line.word + line.text for line in terminal.section(result, 1))


def pytest_html_section(result: Result) -> str:
    """The section for the report of pytest-html: that of the terminal, with all rows."""
    style = "white-space: pre-wrap; overflow-wrap: anywhere"
    return f'<h2>autotune cache</h2><pre id="autotune-cache" style="{style}">{html.escape(text_of(result))}</pre>'


def show(lines: Sequence[terminal.Line], terminalreporter: pytest.TerminalReporter) -> None:
    """Write the section of the terminal; nothing where it has no lines."""
    if not lines:
        return
    terminalreporter.write_sep("=", "autotune cache")
    for line in lines:
        markup = {line.color: True} if line.color else {}
        if line.word:
            terminalreporter.write(line.word, **markup)
            terminalreporter.write_line(line.text)
        else:
            terminalreporter.write_line(line.text, **markup)


def add_step_summary(result: Result) -> Result:
    """Add the result, as Markdown, to that of the step.

    :returns: the result, with a note where that could not be written.
    """
    path = os.environ.get("GITHUB_STEP_SUMMARY", "")
    if not path or not (result.rows or result.loaded or result.dump or result.failures):
        return result
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(markdown.fitting(result, ci_log.SUMMARY_BYTES - file.tell()))
    except OSError as error:
        note = f"the step summary could not be written: {error.strerror or error} (GITHUB_STEP_SUMMARY)"
        return replace(result, notes=(*result.notes, note))
    return result


class Places:
    """Where tests are defined, as a CI system spells it: relative to the root of the repository.

    :param root: pytest's rootdir, to which a report's location is relative.
    """

    def __init__(self, root: Path) -> None:
        root = root.resolve()
        named = [Path(path).resolve() for name in _CHECKOUT if (path := os.environ.get(name))]
        found = [folder for folder in (root, *root.parents) if (folder / ".git").exists()]
        repository = next((folder for folder in [*named, *found] if root.is_relative_to(folder)), root)
        self._folder = root.relative_to(repository).as_posix()

    def of(self, report: pytest.TestReport) -> Place:
        """Where the test of a report is defined."""
        path, line, _ = report.location
        return Place(posixpath.normpath(f"{self._folder}/{path.replace(os.sep, '/')}"), 0 if line is None else line + 1)
