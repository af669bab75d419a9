"""The faces that a summary shows: in files by their suffix, and as properties of a JUnit report.

The terminal's face is :mod:`pytest_autotune.report.terminal`: pytest has to colour it. To add
a face that is a file: a module with a function from a summary to text, and a row in :data:`FILES`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath

from pytest_autotune.report import json_report
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


#: Every face that is a file.
FILES = (FileFace("JSON", (".json",), json_report.to_json),)

#: The suffixes that a report may have.
SUFFIXES = tuple(suffix for face in FILES for suffix in face.suffixes)


def face_of(path: PurePath) -> FileFace | None:
    """The face that a file of this name shows; None where there is none."""
    return next((face for face in FILES if path.suffix in face.suffixes), None)


def junit_properties(summary: Summary) -> dict[str, int]:
    """The properties of the whole suite in a JUnit report."""
    return {f"autotune_{name}": count for name, count in summary.counts.items()}
