"""What the CI system that runs this process is given: lines of the log for it to read, and a summary of the step."""

from __future__ import annotations

import os
import posixpath
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_autotune.report import ci_log, markdown
from pytest_autotune.report.summary import Place, Summary
from pytest_autotune.report.terminal import Line
from pytest_autotune.session import reports

#: Variables with the folder of the checkout: GitHub's, GitLab's.
_CHECKOUT = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")


class NoSystem:
    """Nothing reads the log but people."""

    def publish(self, summary: Summary) -> Summary:
        """Write what does not belong into the log.

        :returns: the summary, with a note where that could not be written.
        """
        return summary

    def show(self, summary: Summary, terminalreporter: pytest.TerminalReporter, lines: Sequence[Line]) -> None:
        """Write the section of the terminal, and around it the lines for the system."""
        reports.show(lines, terminalreporter)


class GitHub(NoSystem):
    """GitHub Actions, and those that understand the same commands.

    :param step_summary: the file for Markdown; empty where there is none.
    """

    def __init__(self, step_summary: str) -> None:
        self._step_summary = step_summary

    def publish(self, summary: Summary) -> Summary:
        if not self._step_summary or not (summary.rows or summary.loaded or summary.dump or summary.failures):
            return summary
        try:
            with open(self._step_summary, "a", encoding="utf-8") as file:
                file.write(markdown.fitting(summary, ci_log.SUMMARY_BYTES - file.tell()))
        except OSError as error:
            note = f"the step summary could not be written: {error.strerror or error} (GITHUB_STEP_SUMMARY)"
            return replace(summary, notes=(*summary.notes, note))
        return summary

    def show(self, summary: Summary, terminalreporter: pytest.TerminalReporter, lines: Sequence[Line]) -> None:
        reports.show(lines, terminalreporter)
        for line in ci_log.github_annotations(summary):
            terminalreporter.write_line(line)


class GitLab(NoSystem):
    """GitLab CI."""

    def show(self, summary: Summary, terminalreporter: pytest.TerminalReporter, lines: Sequence[Line]) -> None:
        if not lines:
            return
        is_folded = not (summary.misses or summary.failures)
        begin, end = ci_log.gitlab_section(int(time.time()), is_folded)
        terminalreporter.write_line(begin)
        reports.show(lines, terminalreporter)
        terminalreporter.write_line(end)


def system(wanted: str) -> NoSystem:
    """The CI system that runs this process.

    :param wanted: ``"off"`` for none, whatever the environment says.
    """
    if wanted != "off" and os.environ.get("GITHUB_ACTIONS") == "true":
        return GitHub(os.environ.get("GITHUB_STEP_SUMMARY", ""))
    if wanted != "off" and os.environ.get("GITLAB_CI") == "true":
        return GitLab()
    return NoSystem()


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
