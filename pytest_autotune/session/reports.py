"""Where the summary of a run goes: the terminal, the reports that the user names, and JUnit's."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_autotune.report import terminal
from pytest_autotune.report.faces import face_of, junit_properties
from pytest_autotune.report.summary import Summary
from pytest_autotune.session.paths import CacheArgument


def check(reports: Sequence[CacheArgument]) -> None:
    """See, before any test runs, that reports can be written.

    :raises pytest.UsageError: for the first one that cannot.
    """
    for report in reports:
        path, found = Path(report.location), 0
        try:
            found = path.stat().st_mode
        except (FileNotFoundError, NotADirectoryError):
            pass
        except OSError as error:
            raise pytest.UsageError(f"{report.given}: {report.typed}: cannot be written: {error.strerror}") from None
        if stat.S_ISDIR(found):
            raise pytest.UsageError(f"{report.given}: {report.typed}: is a directory (name a file)")
        if found and not stat.S_ISREG(found):  # a pipe without a reader would keep the run from ending
            raise pytest.UsageError(f"{report.given}: {report.typed}: is not a file")
        folder = next(folder for folder in path.parents if os.path.lexists(folder))
        if not folder.is_dir():
            raise pytest.UsageError(f"{report.given}: {report.typed}: cannot be written: {folder} is not a folder")


def write(reports: Sequence[CacheArgument], summary: Summary) -> Summary:
    """Write the reports.

    :returns: the summary, with an error for each report that could not be written.
    """
    for report in reports:
        path = Path(report.location)
        face = face_of(path)
        assert face is not None, "the options refuse other suffixes"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(face.text(summary), encoding="utf-8")
        except OSError as error:
            problem = f"{report.given}: {report.typed}: cannot be written: {error.strerror or error}"
            summary = replace(summary, errors=(*summary.errors, problem))
    return summary


def add_junit_properties(summary: Summary, config: pytest.Config) -> None:
    """Add the counts to JUnit's report, where the run writes one."""
    try:
        from _pytest.junitxml import xml_key
    except ImportError:
        return
    junit = config.stash.get(xml_key, None)
    if junit is not None:
        for name, value in junit_properties(summary).items():
            junit.add_global_property(name, value)


def show(summary: Summary, terminalreporter: pytest.TerminalReporter, verbosity: int) -> None:
    """Write the section of the terminal."""
    lines = terminal.section(summary, verbosity)
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
