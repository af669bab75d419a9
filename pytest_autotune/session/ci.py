"""What GitHub is given: a summary of the step, and where tests are in the repository."""

from __future__ import annotations

import os
import posixpath
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_autotune.report import ci_log, markdown
from pytest_autotune.report.summary import Place, Summary

#: Variables with the folder of the checkout: GitHub's, GitLab's.
_CHECKOUT = ("GITHUB_WORKSPACE", "CI_PROJECT_DIR")


def is_on_github(wanted: str) -> bool:
    """Whether GitHub Actions, or what understands the same commands, runs this process.

    :param wanted: ``"off"`` where it is not to be told anything.
    """
    return wanted != "off" and os.environ.get("GITHUB_ACTIONS") == "true"


def add_step_summary(summary: Summary) -> Summary:
    """Add the summary, as Markdown, to that of the step.

    :returns: the summary, with a note where that could not be written.
    """
    path = os.environ.get("GITHUB_STEP_SUMMARY", "")
    if not path or not (summary.rows or summary.loaded or summary.dump or summary.failures):
        return summary
    try:
        with open(path, "a", encoding="utf-8") as file:
            file.write(markdown.fitting(summary, ci_log.SUMMARY_BYTES - file.tell()))
    except OSError as error:
        note = f"the step summary could not be written: {error.strerror or error} (GITHUB_STEP_SUMMARY)"
        return replace(summary, notes=(*summary.notes, note))
    return summary


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
