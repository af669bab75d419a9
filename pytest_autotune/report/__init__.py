"""Renderers: each shows the result of a run in one form. None of them knows pytest.

The renderers of report files are the modules in :data:`FILES`. The terminal's section, the annotations of a CI job and
the gate have modules, too.
"""

from __future__ import annotations

import re
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_autotune.run.result import RunResult

#: The number of characters at the beginning of a file that tell whether the file is a report.
_BEGINNING_CHARACTERS = 2000


class FileRenderer(NamedTuple):
    """A renderer of a report file. Its module is imported when a report is written.

    :param beginning: a regular expression for the beginning of such a report. A report replaces no other file.
    :param module: the name of a module of this package.
    :param function: the name of a function of that module: it takes a result and returns the text of the file.
    """

    beginning: str
    module: str
    function: str

    def render(self, result: RunResult) -> str:
        """Return the text of the report."""
        module = import_module(f"{__name__}.{self.module}")
        text: str = getattr(module, self.function)(result)
        return text


#: All renderers of report files, by the suffix of their files.
FILES = {
    ".html": FileRenderer(r"(?s)<!doctype html>.*<title>Autotune report</title>", "html", "to_html"),
    ".md": FileRenderer(r"# Autotune cache\n", "markdown", "to_markdown"),
    ".json": FileRenderer(r'\s*\{\s*"format_version":\s*\d+,\s*"complete":', "json_report", "to_json"),
}


def describe_obstacle(path: Path, pattern: str) -> str:
    """Return why a report must not be written to a path; empty for no file, an empty file and an earlier report.

    :param pattern: a regular expression for the beginning of such a report.
    """
    # A pipe without a reader would keep the run from ending.
    if path.exists() and not path.is_file():
        return "is not a file (name another file)"
    with suppress(FileNotFoundError), path.open(encoding="utf-8", errors="replace") as file:
        beginning = file.read(_BEGINNING_CHARACTERS)
        if beginning.strip() and not re.match(pattern, beginning):
            return "exists and is not a report of pytest-autotune (name another file, or remove it)"
    return ""
