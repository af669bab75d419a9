"""What the commands share: their exit statuses, how they print, and entries as words, with foreign text made safe."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

import click

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.model import Cache, Entry, Problem, Value
from pytest_autotune.report.naming import describe_choice, describe_time

#: Nothing is wrong.
OK = 0
#: What was looked for is there: a defect for ``check``, a difference with ``diff --exit-code``, a conflict of git.
FOUND = 1
#: Arguments that make no sense, an input that cannot be read, an output that cannot be written: as pytest's own.
FAILED = 4
#: Ctrl-C, as shells report it.
INTERRUPTED = 130

#: A path that shells complete; whether it can be read is for the one who reads it to say.
PATH = click.Path(readable=False)
#: Text of a cache as a part of a line.
safe = to_one_line


def matches(wanted: str | None, *names: str) -> bool:
    """Whether one of some names is meant by an option; None means all."""
    if wanted is None:
        return True
    if any(char in wanted for char in "*?["):
        return any(fnmatchcase(name, wanted) or fnmatchcase(name, f"*:{wanted}") for name in names)
    return any(wanted in name for name in names)


def print_lines(lines: Iterable[str], err: bool = False) -> None:
    """Print lines at once: a call for each would take longer than all the rest."""
    text = "\n".join(lines)
    if text:
        click.echo(text, err=err)


def table(title: str, rows: Sequence[Sequence[str]], right: Collection[int] = ()) -> Iterator[str]:
    """A title with lines of aligned columns below it, indented; foreign text in them is made safe.

    :param right: the numbers of the columns that are aligned to the right.
    """
    yield safe(title)
    rows = [[*map(safe, row)] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = [f"{{:{'>' if number in right else '<'}{width}}}" for number, width in enumerate(widths)]
    line = "  ".join(["", *aligned])
    yield from (line.format(*row).rstrip() for row in rows)


def on_device(problem: Problem) -> str:
    """A problem with its device, for a line of its own."""
    return f"  {safe(str(problem))} on {safe(problem.device.name)}"


def keys_of(problems: Sequence[Problem]) -> tuple[list[dict[str, Value]], list[str], list[Value]]:
    """The keys of some problems by name, the names in which they differ, and the values that all of several share."""
    keys = [{value.name: value for value in problem.key} for problem in problems]
    names = dict.fromkeys(name for key in keys for name in key)
    shared = [name for name in names if len(keys) > 1 and len({key.get(name) for key in keys}) == 1]
    return keys, [name for name in names if name not in shared], [keys[0][name] for name in shared]


def choice_and_time(entry: Entry) -> str:
    """Both, as a part of a line."""
    return safe(", ".join(filter(None, [describe_choice(entry), describe_time(entry)])))


def first_difference(text: str, other: str) -> int:
    """The number of the first line that is another."""
    pairs = zip(text.split("\n"), other.split("\n"), strict=False)
    return next((number for number, (one, two) in enumerate(pairs, 1) if one != two), 1)


def warned(cache: Cache) -> Cache:
    """The cache itself; warns of what could not be read of it."""
    if cache.lossy:
        print_lines([safe(str(CacheError(*cache.lossy)))], err=True)
    return cache


def whole(cache: Cache) -> Cache:
    """The cache itself; a :class:`CacheError` where it has fields that this version does not know, and would lose."""
    if cache.lossy:
        raise CacheError(*cache.lossy)
    return cache
