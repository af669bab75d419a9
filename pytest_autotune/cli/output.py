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
from pytest_autotune.cache.stores.store import UpdateOutcome
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
    """Whether an option such as ``--device`` selects a thing with these names, for example the id and the name.

    :param wanted: the value of the option: a glob, or a part of a name; None selects all.
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

    :param rows: the cells of each row. All rows have the same number of cells.
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

    Example: the keys ``M=16, N=8`` and ``M=32, N=8`` differ in ``M`` and share the value ``N=8``.

    :param values_by_name: for each problem, a mapping: name of a part -> its value.
    :param differing_names: the names of the parts that are not equal in all keys.
    :param shared_values: the values that are equal in all keys; empty for a single problem.
    """

    values_by_name: list[dict[str, Value]]
    differing_names: list[str]
    shared_values: list[Value]


def compare_keys(problems: Sequence[Problem]) -> KeyComparison:
    """Compare the keys of some problems.

    The key of a single problem shares nothing: a table with one row still shows the whole key in its columns.
    """
    values_by_name: list[dict[str, Value]] = []
    all_names: list[str] = []
    for problem in problems:
        value_by_name = {value.name: value for value in problem.key}
        values_by_name.append(value_by_name)
        all_names += value_by_name
    differing_names: list[str] = []
    shared_values: list[Value] = []
    # Each name once, in the order of the keys. A dictionary keeps this order, unlike a set.
    for name in dict.fromkeys(all_names):
        # A key without this part has the value None here.
        distinct_values = {value_by_name.get(name) for value_by_name in values_by_name}
        if len(problems) > 1 and len(distinct_values) == 1:
            shared_values.append(values_by_name[0][name])
        else:
            differing_names.append(name)
    return KeyComparison(values_by_name, differing_names, shared_values)


def describe_choice_and_time(entry: Entry) -> str:
    """Return the choice of an entry with its time, as a part of a line."""
    return safe(join_nonempty(", ", describe_choice(entry), describe_time(entry)))


def find_first_difference(text: str, expected_text: str) -> int:
    """Return the number, from 1, of the first line in which two different texts differ.

    If the longer text only has more lines at its end, the result is the number of the first of these lines: 3 for
    ``"a\\nb"`` and ``"a\\nb\\nc"``.
    """
    lines = text.split("\n")
    expected_lines = expected_text.split("\n")
    # zip ends with the shorter text.
    for line_number, (line, expected_line) in enumerate(zip(lines, expected_lines, strict=False), 1):
        if line != expected_line:
            return line_number
    return min(len(lines), len(expected_lines)) + 1


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


def refuse_file_beside(path: str, updated: UpdateOutcome) -> None:
    """Let a command fail if it could not replace a cache, and wrote the entries into another file beside it.

    A script would go on with the old cache otherwise.

    :param path: the cache, as the user named it.
    :raises CacheError: if another file was written. It names the file, and how to go on with it.
    """
    if updated.is_refused:
        raise CacheError(path, updated.beside, updated.remedy)
