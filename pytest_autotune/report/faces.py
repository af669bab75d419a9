"""The faces that a summary shows in files, by their suffix.

The terminal's face is :mod:`pytest_autotune.report.terminal`: pytest has to colour it; what CI systems read from the
log is :mod:`pytest_autotune.report.ci`. To add a face that is a file: a module with a function from a summary to text,
and a row in :data:`FILES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from pytest_autotune.report import code_quality, html, json_report, junit, markdown
from pytest_autotune.report.summary import Summary


@dataclass(frozen=True)
class FileFace:
    """A face that is a file.

    :param name: what it is called.
    :param suffixes: of the names of such files.
    :param text: the whole file, of a summary.
    """

    name: str
    suffixes: tuple[str, ...]
    text: Callable[[Summary], str]


#: Every face that is a file. Of several suffixes that a name ends in, the first row's counts.
FILES = (
    FileFace("GitLab Code Quality", (".codequality.json",), code_quality.to_json),
    FileFace("JSON", (".json",), json_report.to_json),
    FileFace("HTML", (".html",), html.to_html),
    FileFace("Markdown", (".md",), markdown.to_markdown),
    FileFace("JUnit", (".xml",), junit.to_xml),
)

#: The suffixes that a report may have.
SUFFIXES = tuple(suffix for face in FILES for suffix in face.suffixes)


def face_of(path: PurePath) -> FileFace | None:
    """The face that a file of this name shows; None where there is none."""
    return next((face for face in FILES if path.name.endswith(face.suffixes)), None)
