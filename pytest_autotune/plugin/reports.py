"""Where the summary of a run goes: the terminal, the reports that the user names, JUnit's, and GitHub."""

from __future__ import annotations

import os
import posixpath
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.plugin.values import CacheArgument, Options
from pytest_autotune.report import FILES, ci_log, markdown, terminal
from pytest_autotune.run.result import RunResult, SourceLocation

#: Variables with the commit, and with a page of the job: GitHub's, GitLab's, Azure's, Jenkins's.
_COMMIT = ("GITHUB_SHA", "CI_COMMIT_SHA", "BUILD_SOURCEVERSION", "GIT_COMMIT")
_GITHUB = ("GITHUB_SERVER_URL", "GITHUB_REPOSITORY")
_JOB = ("CI_JOB_URL", "BUILD_URL", "BUILD_BUILDURI")
#: Characters of a file by which a report is known.
_BEGINNING = 2000
#: The class of the test case that is added to JUnit's report.
_JUNIT_CLASS = "autotune_cache"


def check(options: Options) -> None:
    """See, before any test runs, that reports can be written, and that none replaces anything but a report.

    :raises pytest.UsageError: for the first one that cannot.
    """
    caches = [*options.load, *([options.dump] if options.dump is not None else [])]
    for report in options.report:
        problem = ""
        if report.location.url:
            problem = "is a URL, and a report is a file (name a path)"
        elif report.location.path.suffix not in FILES:
            problem = f"unknown kind of report (use a name that ends in {', '.join(FILES)})"
        elif any(report.is_same_as(cache) for cache in caches):
            problem = "is a cache of this run (name another file)"
        else:
            try:
                path = Path(report.location.resolved)
                path.parent.mkdir(parents=True, exist_ok=True)
                problem = _in_the_way(path, report.location.path.suffix)
            except CacheError as error:
                problem = error.event
            except OSError as error:
                problem = f"cannot be written: {error.strerror}"
        if problem:
            raise pytest.UsageError(f"{report.given}: {report.typed}: {problem}")


def _in_the_way(path: Path, suffix: str) -> str:
    """What is where a report is to be, other than an earlier one; empty where nothing is."""
    if path.exists() and not path.is_file():  # a pipe without a reader would keep the run from ending
        return "is not a file"
    with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as file:
        beginning = file.read(_BEGINNING)
        if beginning.strip() and not FILES[suffix].begins(beginning):
            return "is there and is no report of pytest-autotune (name another file, or remove it)"
    return ""


def write(reports: Sequence[CacheArgument], result: RunResult) -> RunResult:
    """Write the reports; the result gets an error for each that could not be written."""
    for report in reports:
        path, suffix = Path(report.location.resolved), report.location.path.suffix
        try:
            problem = _in_the_way(path, suffix)  # again: a test may have put something there
            if not problem:
                path.write_text(FILES[suffix].text(result), encoding="utf-8")
        except OSError as error:
            problem = f"cannot be written: {error.strerror or error}"
        if problem:
            result = replace(result, errors=(*result.errors, f"{report.given}: {report.typed}: {problem}"))
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


def add_to_junit(result: RunResult, config: pytest.Config) -> None:
    """Add the counts, and a test case for the gates, to JUnit's report, where the run writes one."""
    log: Any = next((one for one in config.pluginmanager.get_plugins() if type(one).__name__ == "LogXML"), None)
    if log is None:
        return
    for name, count in result.counts.items():
        log.add_global_property(f"autotune_{name}", count)
    gates = [one for one in (result.gate, *result.gates_of_modes) if one.limit or one.fail_on_unused]
    if gates or result.failures:
        why: Any = None
        if result.failures:
            why = _Failure("\n".join(line.word + line.text for line in terminal.render_section(result, 1)))
            why.reprcrash = SimpleNamespace(message=to_one_line("; ".join(result.failures)))
        elif skipped := "; ".join(filter(None, (one.skipped for one in gates))):
            why = (_JUNIT_CLASS, 0, to_one_line(skipped))
        outcome: Any = "failed" if result.failures else "skipped" if why else "passed"
        # What pytest would report of a test; only JUnit's report is told of it.
        report = partial(pytest.TestReport, f"{_JUNIT_CLASS}::gate", (_JUNIT_CLASS, None, "gate"), {})
        log.pytest_runtest_logreport(report(outcome, why, "call"))
        log.pytest_runtest_logreport(report("passed", None, "teardown"))


class _Failure(str):
    """Why a case failed: a text, with the message as JUnit's report looks for it."""

    reprcrash: SimpleNamespace


def show(lines: Sequence[terminal.Line], terminalreporter: pytest.TerminalReporter) -> None:
    """Write the section of the terminal; nothing where it has no lines."""
    if not lines:
        return
    terminalreporter.write_sep("=", "autotune cache")
    for line in lines:
        markup = {line.color: True} if line.color else {}
        terminalreporter.write(line.word or line.text, **markup)
        terminalreporter.write_line(line.text if line.word else "")


def add_step_summary(result: RunResult) -> RunResult:
    """Add the result, as Markdown, to that of the step; the result gets a note where that cannot be written."""
    path = os.environ.get("GITHUB_STEP_SUMMARY", "")
    if not path or not (result.rows or result.loaded or result.dump or result.failures):
        return result
    try:
        with open(path, "a", encoding="utf-8") as file:
            text = markdown.to_markdown(result)
            file.write(text if file.tell() + len(text.encode()) <= ci_log.SUMMARY_BYTES else "")
    except OSError as error:
        note = f"the step summary could not be written: {error.strerror or error} (GITHUB_STEP_SUMMARY)"
        return replace(result, collected=replace(result.collected, notes=(*result.collected.notes, note)))
    return result


def places(locations: Mapping[str, tuple[str, int | None, str]], root: Path) -> dict[str, SourceLocation]:
    """Where tests are defined, by node id: relative to the checkout on GitHub, else to the rootdir."""
    root, checkout = root.resolve(), Path(os.environ.get("GITHUB_WORKSPACE") or root).resolve()
    folder = root.relative_to(checkout) if root.is_relative_to(checkout) else Path()
    return {
        test: SourceLocation(posixpath.normpath((folder / path).as_posix()), 0 if line is None else line + 1)
        for test, (path, line, _) in sorted(locations.items())
    }
