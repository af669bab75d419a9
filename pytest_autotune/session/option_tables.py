"""Writes the tables of options in the documentation: ``python -m pytest_autotune.session.option_tables FILE ...``.

A table stands between two comments, ``<!-- options: COLUMN COLUMN ... -->`` and ``<!-- /options -->``.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

from pytest_autotune.session.options import OPTIONS, SWITCH, Option

_TABLE = re.compile(r"(?<=<!-- options: )(?P<columns>[\w ]+)( -->\n).*?(?=<!-- /options -->)", re.DOTALL)


def _flag(option: Option) -> str:
    if not option.has_flag:
        return ""
    if option.kind is SWITCH:
        return f"`{option.flag}`"
    return f"`{option.flag}[={option.metavar}]`" if option.kind.alone else f"`{option.flag}={option.metavar}`"


def _ini(option: Option) -> str:
    if not option.has_ini:
        return ""
    label = option.kind.label
    return f"`{option.ini}`: {label}" if label else f"`{option.ini}`"


_COLUMNS: dict[str, Callable[[Option], str]] = {
    "option": _flag,
    "ini": _ini,
    "default": lambda option: option.default,
    "meaning": lambda option: option.meaning,
}


def written(page: str) -> str:
    """A page of the documentation with its tables as they should be.

    :raises KeyError: for a column that is not there.
    """
    return _TABLE.sub(lambda found: f"{found['columns']}{found[2]}{_table(found['columns'].split())}", page)


def _table(columns: list[str]) -> str:
    rows = [columns, ["---"] * len(columns)]
    rows += [[_COLUMNS[column](option).replace("|", "\\|") for column in columns] for option in OPTIONS]
    return "".join(f"| {' | '.join(row)} |".replace("|  |", "| |") + "\n" for row in rows)


if __name__ == "__main__":
    for path in map(Path, sys.argv[1:]):
        path.write_text(written(path.read_text(encoding="utf-8")), encoding="utf-8")
