"""How commands print: aligned columns, colour where it is wanted, and foreign text made safe."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache

import click

from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.model import Candidate, Entry, Problem

_GAP = "  "

#: Text of a cache as a part of a line; a file repeats its texts.
safe = lru_cache(maxsize=100_000)(one_line)


def print_lines(lines: Iterable[str]) -> None:
    """Print lines at once: a call for each would take longer than all the rest."""
    text = "\n".join(lines)
    if text:
        click.echo(text)


def columns(rows: Sequence[Sequence[str]], right: frozenset[int] = frozenset()) -> Iterator[str]:
    """The rows with aligned columns.

    Not a library's table: rich takes 50 s for 100,000 rows.

    :param right: the numbers of the columns that are aligned to the right.
    """
    if not rows:
        return
    widths = [max(map(_width, column)) for column in zip(*rows, strict=True)]
    ascii_form = _GAP.join(
        f"{{:{'>' if number in right else '<'}{width}}}" for number, width in enumerate(widths)
    ).format
    for row in rows:
        if all(map(str.isascii, row)):
            yield ascii_form(*row).rstrip()
        else:
            padded = [
                " " * (width - _width(cell)) + cell if number in right else cell + " " * (width - _width(cell))
                for number, (cell, width) in enumerate(zip(row, widths, strict=True))
            ]
            yield _GAP.join(padded).rstrip()


def _width(text: str) -> int:
    if text.isascii():
        return len(text)
    wide = sum(unicodedata.east_asian_width(char) in "WF" for char in text if not unicodedata.combining(char))
    return sum(not unicodedata.combining(char) for char in text) + wide


def heading(text: str) -> str:
    """A line above a table."""
    return click.style(text, bold=True)


def problem_text(problem: Problem) -> str:
    """A problem without its device, for a row."""
    return safe(str(problem))


def on_device(problem: Problem) -> str:
    """A problem with its device."""
    return f"{problem_text(problem)} on {safe(problem.device.name)}"


def candidate_text(candidate: Candidate) -> str:
    """A candidate as a cell of a table, where nothing may be known of it."""
    return safe(candidate.words or "-")


def choice_text(entry: Entry, winner: Candidate | None) -> str:
    """What an entry makes its tuner do."""
    if winner is not None:
        return candidate_text(winner) + (f" (failed: {safe(winner.failed)})" if winner.failed else "")
    if entry.candidates:
        return "every candidate failed"
    return f"{len(entry.native)} bytes of the tuner" if entry.native else "nothing"


def time_text(candidate: Candidate | None) -> str:
    """A measured time, in microseconds; empty where none is known."""
    if candidate is None or candidate.time_us is None:
        return ""
    return f"{candidate.time_us:.0f} us" if abs(candidate.time_us) >= 1000 else f"{candidate.time_us:.4g} us"
