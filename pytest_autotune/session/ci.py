"""What the CI system that runs this process is given: lines of the log for it to read, and a summary of the step."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_autotune.report import ci, markdown
from pytest_autotune.report.summary import Summary


class NoSystem:
    """Nothing reads the log but people."""

    def publish(self, summary: Summary) -> Summary:
        """Write what does not belong into the log.

        :returns: the summary, with a note where that could not be written.
        """
        return summary

    def show(self, summary: Summary, terminalreporter: pytest.TerminalReporter, section: Callable[[], None]) -> None:
        """Write the section of the terminal, and around it the lines for the system."""
        section()


class GitHub(NoSystem):
    """GitHub Actions, and those that understand the same commands.

    :param root: pytest's rootdir.
    :param environment: of this process.
    """

    def __init__(self, root: Path, environment: Mapping[str, str]) -> None:
        self._step_summary = environment.get("GITHUB_STEP_SUMMARY", "")
        repository = Path(environment.get("GITHUB_WORKSPACE") or root).resolve()
        folder = root.resolve().relative_to(repository) if root.resolve().is_relative_to(repository) else Path()
        self._folder = "/".join(folder.parts)

    def publish(self, summary: Summary) -> Summary:
        if not self._step_summary or not (summary.rows or summary.loaded or summary.dump or summary.failures):
            return summary
        try:
            with open(self._step_summary, "a", encoding="utf-8") as file:
                file.write(markdown.fitting(summary, ci.SUMMARY_BYTES - file.tell()))
        except OSError as error:
            note = f"the step summary could not be written: {error.strerror or error} (GITHUB_STEP_SUMMARY)"
            return replace(summary, notes=(*summary.notes, note))
        return summary

    def show(self, summary: Summary, terminalreporter: pytest.TerminalReporter, section: Callable[[], None]) -> None:
        section()
        for line in ci.github_annotations(summary, self._folder):
            terminalreporter.write_line(line)


class GitLab(NoSystem):
    """GitLab CI."""

    def show(self, summary: Summary, terminalreporter: pytest.TerminalReporter, section: Callable[[], None]) -> None:
        is_folded = not (summary.misses or summary.failures)
        begin, end = ci.gitlab_section(int(time.time()), is_folded)
        terminalreporter.write_line(begin)
        section()
        terminalreporter.write_line(end)


def system(wanted: str, root: Path) -> NoSystem:
    """The CI system that runs this process.

    :param wanted: ``"off"`` for none, whatever the environment says.
    :param root: pytest's rootdir.
    """
    if wanted != "off" and os.environ.get("GITHUB_ACTIONS") == "true":
        return GitHub(root, os.environ)
    if wanted != "off" and os.environ.get("GITLAB_CI") == "true":
        return GitLab()
    return NoSystem()
