"""A line of the terminal's summary. Reports that are files use the text of such lines, too."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_autotune.cache.wording import to_one_line


@dataclass(frozen=True)
class Line:
    """One line of the summary. Its text is made safe to print, because parts of it come from caches and libraries.

    :param text: the line, or the rest of the line behind ``word``.
    :param word: the first word; if there is one, only this word has the color.
    :param color: a markup name of pytest's terminal writer, such as ``"red"``; empty for no color.
    """

    text: str
    word: str = ""
    color: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "text", to_one_line(self.text))
