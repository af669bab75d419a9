"""``pytest-autotune check``: whether caches are whole, as they are written, and can be of use here.

It reads files and nothing else: no GPU, no library that tunes.
"""

from __future__ import annotations

import re
from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

import click

from pytest_autotune.cache import stores
from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, decode, encode, format_of
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Entry, Value
from pytest_autotune.cli.arguments import PATH
from pytest_autotune.cli.kernel_sources import Sources
from pytest_autotune.cli.output import print_lines, problem_text, safe
from pytest_autotune.cli.status import FOUND, OK
from pytest_autotune.tuners import TUNERS, third_party_tuners

#: Of each kind of defect so many are shown one by one.
_SHOWN = 10
_ENTRY = re.compile(rb"^entries\b", re.MULTILINE)
_RESULT = re.compile(rb"^(?:  (?:choice|candidates|native|label|tuning_seconds|environment)\b|\})", re.MULTILINE)


@dataclass(frozen=True)
class Defect:
    """Something in a cache that someone should mend.

    :param where: ``path`` or ``path:line``.
    :param what: in words, with what to do.
    :param kind: defects of one kind are counted together.
    """

    where: str
    what: str
    kind: str = ""


@click.command("check", short_help="whether caches are valid, sorted and of use here; exit status 1 if not")
@click.argument("files", metavar="FILE...", nargs=-1, required=True, type=PATH)
@click.option("--fix", is_flag=True, help="Write again what is only not sorted, laid out otherwise, or there twice.")
@click.option(
    "--tuner",
    "tuners",
    metavar="NAME",
    multiple=True,
    help="A tuner whose adapter is not installed here, and where the cache is used it is. Repeatable.",
)
@click.option("--root", metavar="FOLDER", type=PATH, default=".", help="Where the packages of the kernels are.")
def command(files: tuple[str, ...], fix: bool, tuners: tuple[str, ...], root: str) -> int:
    """Report what is wrong with each cache FILE, as FILE:LINE: what.

    Wrong is: what cannot be read; entries that are not sorted or there twice, as after a merge by hand; and entries
    that can never be a hit here: without a result, of a tuner that has no adapter, of a kernel that its module does
    not have. No GPU is needed, and nothing of the caches or kernels is run.
    """
    known = {*TUNERS, *tuners, *(one.name for one in third_party_tuners())}
    sources = Sources(Path(root))
    lines: list[str] = []
    bad = entries = 0
    for path in files:
        defects, found = _checked(path, fix, known, sources)
        bad += bool(defects)
        entries += found
        lines += _shown(defects)
    lines.append(
        f"{counted(len(files), 'cache')}, {counted(entries, 'entry')}: " + (f"{bad} to mend" if bad else "fine")
    )
    print_lines(lines)
    return FOUND if bad else OK


def _shown(defects: Sequence[Defect]) -> Iterator[str]:
    of_kind: dict[str, int] = {}
    for defect in defects:
        of_kind[defect.kind] = number = of_kind.get(defect.kind, 0) + 1
        if not defect.kind or number <= _SHOWN:
            yield f"{safe(defect.where)}: {defect.what}"
    for kind, number in of_kind.items():
        if kind and number > _SHOWN:
            yield f"{safe(defects[0].where.split(':')[0])}: {number - _SHOWN} more {kind}"


def _checked(path: str, fix: bool, known: set[str], sources: Sources) -> tuple[list[Defect], int]:
    """What is wrong with one cache, and how many entries it has."""
    try:
        if Location.of(path, Path()).is_folder:
            return _folder(path, known, sources)
        data = stores.file_bytes(path)
        format = format_of(Path(path), path)
        cache = decode(data, format, path)
    except CacheError as error:
        return [_of_error(error, path)], 0
    positions = _Positions(path, data if format is Format.TEXT else b"")
    defects = []
    if cache.lossy:
        defects.append(_of_error(CacheError(*cache.lossy), path))
    else:
        disorder = list(_disorder(positions, cache.entries, format, data, encode(cache, format)))
        if disorder and fix:
            stores.update(path, lambda now: cache)
            positions = _Positions(path, stores.file_bytes(path) if format is Format.TEXT else b"")
            cache = stores.read(path)
        else:
            defects += disorder
    if not defects:
        defects += _useless(positions, cache.entries, known, sources)
    return defects, len(cache.entries)


def _of_error(error: CacheError, path: str) -> Defect:
    remedy = f" ({error.remedy})" if error.remedy else ""
    return Defect(_line_of(error, path), safe(f"{error.found}{remedy}"))


def _line_of(error: CacheError, path: str) -> str:
    """Where a file is not as it must be; of an entry of a text file, its line."""
    entry = re.match(r"entries\[(\d+)\]", error.found)
    if entry is None or error.where != path or format_of(Path(path)) is not Format.TEXT:
        return error.where
    return _Positions(path, stores.file_bytes(path))[int(entry[1])]


def _folder(path: str, known: set[str], sources: Sources) -> tuple[list[Defect], int]:
    cache = stores.read(path)
    positions = _Positions(path, b"")
    return list(_useless(positions, cache.entries, known, sources)), len(cache.entries)


class _Positions:
    """Where the entries of a file stand: the line of each where it is text, else only the file."""

    def __init__(self, path: str, text: bytes) -> None:
        self._path = path
        self._lines: list[int] = []
        if text:
            ends = list(accumulate(map(len, text.split(b"\n")), lambda end, length: end + length + 1, initial=0))
            self._lines = [bisect(ends, match.start()) for match in _ENTRY.finditer(text)]

    def __len__(self) -> int:
        return len(self._lines)

    def line(self, index: int) -> int:
        return self._lines[index]

    def __getitem__(self, index: int) -> str:
        return f"{self._path}:{self._lines[index]}" if index < len(self._lines) else self._path


def _disorder(
    positions: _Positions, entries: Sequence[Entry], format: Format, data: bytes, as_written: bytes
) -> Iterator[Defect]:
    """What is not as it is written; nothing where every byte is."""
    if data == as_written:
        return
    twice = list(_twice(positions, data)) if format is Format.TEXT else []
    yield from twice
    if not twice:
        ordered = decode(as_written, format, "").entries
        for index, (entry, expected) in enumerate(zip(entries, ordered, strict=True)):
            if entry != expected:
                yield Defect(
                    positions[index],
                    f"is not sorted: {problem_text(entry.problem)} stands where {problem_text(expected.problem)} "
                    "belongs (--fix sorts)",
                )
                return
        yield Defect(
            _first_difference(data, as_written, positions[len(positions) or 1].split(":")[0], format),
            "is not laid out as pytest-autotune writes it, or has something twice (--fix writes it again)",
        )


def _first_difference(data: bytes, as_written: bytes, path: str, format: Format) -> str:
    if format is Format.BINARY:
        return path
    pairs = zip(data.split(b"\n"), as_written.split(b"\n"), strict=False)
    line = next((number for number, (is_, should_be) in enumerate(pairs, 1) if is_ != should_be), 1)
    return f"{path}:{line}"


def _twice(positions: _Positions, data: bytes) -> Iterator[Defect]:
    """Problems with one fingerprint that stand more than once, in a text that is laid out as ours."""
    first: dict[bytes, int] = {}
    for index, block in enumerate(_ENTRY.split(data)[1:]):
        identity = _RESULT.split(block, maxsplit=1)[0]
        if identity in first:
            yield Defect(
                positions[index],
                f"the problem and fingerprint of line {positions.line(first[identity])} once more: only the faster one "
                "is used (--fix drops the other)",
                "entries that are there twice",
            )
        else:
            first[identity] = index


def _useless(positions: _Positions, entries: Sequence[Entry], known: set[str], sources: Sources) -> Iterator[Defect]:
    """Entries that no lookup can ever find, or be served by."""
    for index, entry in enumerate(entries):
        problem = entry.problem
        if problem.tuner not in known and problem.library not in known:
            yield Defect(
                positions[index],
                f"no adapter for the tuner {safe(problem.tuner)} is installed here (--tuner={safe(problem.tuner)} "
                "where it is elsewhere)",
                "of tuners without an adapter",
            )
        elif entry.choice is None and not entry.candidates and not entry.native:
            yield Defect(positions[index], f"{problem_text(problem)} has no result", "without a result")
        elif any(map(_never_asked_for, (*problem.key, *entry.fingerprint))):
            yield Defect(
                positions[index], f"{problem_text(problem)} has a value that equals nothing", "not to be found"
            )
        elif problem.tuner == "triton" and (gone := sources.lacks(problem.kernel)):
            yield Defect(positions[index], safe(gone), "of kernels that are not there")


def _never_asked_for(value: Value) -> bool:
    return isinstance(value.value, float) and value.value != value.value
