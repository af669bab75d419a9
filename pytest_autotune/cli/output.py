"""Functions that several commands use: exit statuses, tables, and entries as words.

All text of a cache passes ``safe`` before it is printed, because a cache file may come from a stranger.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

import click

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry, Problem, Value
from pytest_autotune.cache.wording import join_nonempty, to_one_line
from pytest_autotune.report.naming import describe_choice, describe_time

#: Exit status: nothing is wrong.
OK = 0
#: Exit status: the command found a defect (``check``), a difference (``diff --exit-code``) or a conflict (git).
FOUND = 1
#: Exit status, as pytest's own: the arguments make no sense, or a file cannot be read or written.
FAILED = 4
#: Exit status: Ctrl-C, as shells report it.
INTERRUPTED = 130

#: A path that shells can complete. The code that reads the file reports whether it can be read.
PATH = click.Path(readable=False)
#: Makes text of a cache safe to print within a line.
safe = to_one_line


def matches(wanted: str | None, *names: str) -> bool:
    """Whether an option selects any of some names.

    :param wanted: a glob, or a part of a name; None selects all.
    """
    if wanted is None:
        return True
    is_glob = not {"*", "?", "["}.isdisjoint(wanted)
    for name in names:
        if is_glob:
            # A glob for a kernel's name also selects it with its tuner's name in front.
            is_match = fnmatchcase(name, wanted) or fnmatchcase(name, f"*:{wanted}")
        else:
            is_match = wanted in name
        if is_match:
            return True
    return False


def print_lines(lines: Iterable[str], err: bool = False) -> None:
    """Print lines with a single call: one call for each line would take longer than the rest of a command."""
    text = "\n".join(lines)
    if text:
        click.echo(text, err=err)


def format_table(title: str, rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """Yield a title and the lines of a table with aligned columns; all text is made safe.

    :param right: the indices of the columns that are aligned to the right.
    """
    yield safe(title)
    safe_rows = [list(map(safe, row)) for row in rows]
    columns = zip(*safe_rows, strict=True)
    widths = [max(map(len, column)) for column in columns]
    for row in safe_rows:
        # The empty first cell indents the row below the title.
        cells = [""]
        for index, cell in enumerate(row):
            if index in right:
                cells.append(cell.rjust(widths[index]))
            else:
                cells.append(cell.ljust(widths[index]))
        yield "  ".join(cells).rstrip()


def describe_on_device(problem: Problem) -> str:
    """Return a line with a problem and its device."""
    return f"  {safe(str(problem))} on {safe(problem.device.name)}"


@dataclass(frozen=True)
class KeyComparison:
    """The keys of several problems, for a table with a column for each part of the key that differs.

    :param values_by_name: for each problem, the values of its key by name.
    :param differing_names: the names of the values that are not equal in all keys.
    :param shared_values: the values that are equal in all keys; empty for a single problem.
    """

    values_by_name: list[dict[str, Value]]
    differing_names: list[str]
    shared_values: list[Value]


def compare_keys(problems: Sequence[Problem]) -> KeyComparison:
    """Compare the keys of some problems.

    The key of a single problem shares nothing: a table with one row still shows the whole key in its columns.
    """
    keys = []
    # The values of this dictionary mean nothing. It is used because it keeps the order of the names, unlike a set.
    names: dict[str, None] = {}
    for problem in problems:
        key = {value.name: value for value in problem.key}
        keys.append(key)
        names.update(dict.fromkeys(key))
    differing_names: list[str] = []
    shared_values: list[Value] = []
    for name in names:
        # A key without this part has the value None here.
        distinct_values = {key.get(name) for key in keys}
        if len(keys) > 1 and len(distinct_values) == 1:
            shared_values.append(keys[0][name])
        else:
            differing_names.append(name)
    return KeyComparison(keys, differing_names, shared_values)


def describe_choice_and_time(entry: Entry) -> str:
    """Return the choice of an entry with its time, as a part of a line."""
    return safe(join_nonempty(", ", describe_choice(entry), describe_time(entry)))


def find_first_difference(text: str, other: str) -> int:
    """Return the number, from 1, of the first line in which two different texts differ.

    If one text has all lines of the other, this is the number of its first further line.
    """
    lines, other_lines = text.split("\n"), other.split("\n")
    for number, (line, other_line) in enumerate(zip(lines, other_lines, strict=False), 1):
        if line != other_line:
            return number
    return min(len(lines), len(other_lines)) + 1


def with_warning(cache: Cache) -> Cache:
    """Return a cache, and warn of fields that this version does not know."""
    if cache.lossy:
        print_lines([safe(str(CacheError(*cache.lossy)))], err=True)
    return cache


def refuse_lossy(cache: Cache) -> Cache:
    """Return a cache that a command may write again.

    :raises CacheError: if the cache has fields that this version does not know and would lose.
    """
    if cache.lossy:
        raise CacheError(*cache.lossy)
    return cache
