"""What a run came to, shown by renderers. One that writes a file is a module here and a row of :data:`FILES`."""

from __future__ import annotations

import re
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from pytest_autotune.run.result import RunResult


class FileRenderer(NamedTuple):
    """A renderer that is a file: a function of a module here, from a result to the whole file.

    :param beginning: how each of them begins, as a regular expression: nothing else may be replaced by one.
    """

    beginning: str
    module: str
    function: str

    def begins(self, text: str) -> bool:
        """Whether the beginning of a file is that of such a report."""
        return re.match(self.beginning, text) is not None

    def text(self, result: RunResult) -> str:
        """The whole file."""
        text: str = getattr(import_module(f"{__name__}.{self.module}"), self.function)(result)
        return text


#: Every renderer that is a file, by the suffix of its files.
FILES = {
    ".html": FileRenderer(r"(?s)<!doctype html>.*<title>Autotune report</title>", "html", "to_html"),
    ".md": FileRenderer(r"# Autotune cache\n", "markdown", "to_markdown"),
    ".json": FileRenderer(r'\s*\{\s*"format_version":\s*\d+,\s*"complete":', "json_report", "to_json"),
}
