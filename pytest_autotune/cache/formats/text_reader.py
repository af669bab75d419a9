"""Reads the text format: fast what our printer writes, and field by field what is laid out otherwise (``any_text``).

An entry is read the fast way only if printing it again gives that very text.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise, repeat
from operator import attrgetter
from typing import Any, TypeAlias

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.any_text import Fields, TextParser, unescaped
from pytest_autotune.cache.formats.schema import (
    KnownVersions,
    add_device,
    check_entry,
    check_version,
    many,
    one_of_each,
    uncollected,
)
from pytest_autotune.cache.formats.text import print_value, quote, quote_bytes
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value
from pytest_autotune.cache.packed_texts import unpacked

# Unrolled: with one repetition for each character, a long string costs a hundred times its size.
_STRING = r'"[^"\\\n]*(?:\\.[^"\\\n]*)*"'
_VALUE = re.compile(
    rf"\{{ (?:name: ({_STRING}) )?(?:(bool|int|float): ([^ ]+) |text: ({_STRING}) )?(?:type: ({_STRING}) )?\}}"
)
_ANY_VALUE = rf"\{{ (?:name: {_STRING} )?(?:(?:bool|int|float): [^ ]+ |text: {_STRING} )?(?:type: {_STRING} )?\}}"
_CONFIGURATION = re.compile(rf"(?:id: ({_STRING}) )?((?:params {_ANY_VALUE} )*)")
_CANDIDATE = re.compile(
    rf"((?:id: {_STRING} )?(?:params {_ANY_VALUE} )*)"
    rf"(?:time_us: ([^ ]+) )?(?:failed: ({_STRING}) )?(?:label: ({_STRING}) )?"
)
# Entries are read by columns, these many at a time: it spares a call for each field, and memory.
_AT_ONCE = 1000
_NAME = attrgetter("name")
_ENTRY = re.compile(
    r"entries \{\n"
    r'(  tuner: (".*")\n'
    r'  kernel: (".*")\n'
    r"((?:  key \{ .*\n)*)"
    r'  device: (".*")\n'
    r"((?:  fingerprint \{ .*\n)*))"
    r"(?:  choice \{ (.*)\}\n)?"
    r"((?:  candidates \{ .*\n)*)"
    r'(?:  native: (".*")\n)?'
    r'(?:  label: (".*")\n)?'
    r"(?:  tuning_seconds: (.+)\n)?"
    r'(?:  environment: (".*")\n)?'
    r'((?:  compiled: ".*"\n)*)'
    r'((?:  made_of: ".*"\n)*)'
    r"\}\n"
)


def decode(text: str, where: str) -> Cache:
    """The cache that the text holds.

    :raises CacheError: where it holds none, with line and column.
    """
    with uncollected():
        # Within quotes no line ends, so these are white space wherever they stand.
        return _Reader(text.replace("\r\n", "\n"), where).cache()


class _UnfamiliarError(Exception):
    """This is not as the printer writes it."""


# One group of every match: text, or None where the group took no part.
Column: TypeAlias = "tuple[Any, ...]"


class _Reader:
    """Reads what the printer writes, many entries at a time, and every line once however often the file repeats it.

    What is not familiar is handed to the parser of any text, one field of the file after the other.
    """

    def __init__(self, text: str, where: str) -> None:
        self._text = text
        self._where = where
        self._parser = TextParser(text, where)
        self._strings = _Strings({None: ""})
        self._versions = KnownVersions()
        self._compiled = _Compiled({"": ()})
        self._lines = _Lines()
        self._configurations = _Configurations(self._lines)
        self._fingerprints: dict[str, tuple[Value, ...]] = {}
        self._sorted_names: set[tuple[str, ...]] = set()
        self._devices: dict[str, Device] = {}
        self._quoted_devices: dict[str, Device] = {}
        self._found: list[Entry | None] = []
        # Entries that stand before their devices, or are to be refused when it is known of what version they are.
        self._late: list[tuple[int, Fields]] = []
        self._identities: set[int] = set()
        self._top: Fields = {}

    def cache(self) -> Cache:
        """The cache that the text holds."""
        position, end = 0, len(self._text)
        while position < end:
            some: list[re.Match[str]] = []
            start = position
            while len(some) < _AT_ONCE and (entry := _ENTRY.match(self._text, position)):
                some.append(entry)
                position = entry.end()
            if not some:
                position = self._field(position)
                continue
            columns = list(zip(*[entry.groups() for entry in some], strict=True))
            try:
                self._found += self._entries(columns[1:])
                self._identities.update(map(hash, columns[0]))
            except _UnfamiliarError:
                entries_end, position = position, start
                while position < entries_end:
                    position = self._field(position)
        check_version(self._top.get("format_version", 0), self._where)
        try:
            for index, fields in self._late:
                self._found[index] = self._entry(fields, index)
        except CacheError:
            if self._parser.unknown is not None and self._parser.unknown.meant:
                raise self._parser.unknown.as_error(self._where) from None
            raise
        lossy = self._parser.unknown.as_error(self._where).args if self._parser.unknown else ()
        entries = tuple([entry for entry in self._found if entry is not None])
        if len(self._identities) < len(entries) or len(set(self._devices.values())) < len(self._devices):
            entries = one_of_each(entries)
        return Cache(entries, lossy=lossy)

    def _field(self, position: int) -> int:
        """Read a field of the file, or what stands before it, however it is laid out; where it ends."""
        if (after := self._parser.gap(position)) > position:
            return after
        version = self._top.get("format_version")
        found = self._top if version is None else {"format_version": version}
        position = self._parser.top_field(position, found)
        if version is None and "format_version" in found:
            check_version(found["format_version"], self._where)
        for id, device in found.pop("devices", ()):
            add_device(self._devices, id, device, self._where)
            self._quoted_devices[quote(id)] = device
        for fields in found.pop("entries", ()):
            if fields.get("tuner") and fields.get("kernel") and fields.get("device") in self._devices:
                self._found.append(self._entry(fields, len(self._found)))
            else:
                self._late.append((len(self._found), fields))
                self._found.append(None)
        return position

    def _entry(self, fields: Fields, index: int) -> Entry:
        path = f"entries[{index}]"
        for name in ("tuner", "kernel"):
            if not fields.get(name):
                raise CacheError(self._where, f"{path}.{name} is empty")
        id = fields.get("device", "")
        if id not in self._devices:
            raise CacheError(self._where, f'{path}.device: no device has the id "{id}"')
        entry = Entry(
            Problem(fields["tuner"], fields["kernel"], tuple(fields.get("key", ())), self._devices[id]),
            tuple(fields.get("fingerprint", ())),
            fields.get("choice"),
            tuple(fields.get("candidates", ())),
            fields.get("native", b""),
            fields.get("label", ""),
            fields.get("tuning_seconds", 0.0),
            self._versions[fields.get("environment", "")],
            unpacked(fields.get("compiled", ())),
            tuple(fields.get("made_of", ())),
        )
        return check_entry(entry, lambda: path, self._where)

    def _entries(self, columns: Sequence[Column]) -> list[Entry]:
        """The entries in columns of what was matched, in the order of the groups of :data:`_ENTRY`."""
        tuner, kernel, key, device, fingerprint, choice, candidates, *rest = columns
        native, label, tuning_seconds, environment, compiled, made_of = rest
        devices = self._quoted_devices
        if not devices.keys() >= set(device) or '""' in tuner or '""' in kernel:
            raise _UnfamiliarError  # what is wrong is found when the entry is read field by field
        known = self._strings.__getitem__
        return many(
            Entry,
            many(
                Problem,
                list(map(known, tuner)),
                map(known, kernel),
                map(self._values, key),
                map(devices.__getitem__, device),
            ),
            map(self._fingerprint, fingerprint),
            self._choices(choice),
            map(self._candidates, candidates),
            [_unquoted_bytes(quoted) if quoted else b"" for quoted in native],
            [_unquoted(quoted) if quoted else "" for quoted in label],
            _floats([seconds or "0.0" for seconds in tuning_seconds]),
            map(self._versions.__getitem__, map(known, environment)),
            map(self._compiled.__getitem__, compiled),
            map(self._texts, made_of),
            repeat(b""),
        )

    def _values(self, lines: str) -> tuple[Value, ...]:
        values = tuple(map(self._lines.__getitem__, lines.split("\n")[:-1]))
        names = tuple(map(_NAME, values))
        if names not in self._sorted_names:
            if any(one >= following for one, following in pairwise(names)):
                raise _UnfamiliarError
            self._sorted_names.add(names)
        return values

    def _fingerprint(self, lines: str) -> tuple[Value, ...]:
        values = self._fingerprints.get(lines)
        if values is None:
            values = self._fingerprints[lines] = self._values(lines)
        return values

    def _texts(self, lines: str) -> tuple[str, ...]:
        if not lines:
            return ()
        return _in_order(tuple([self._strings[quoted] for quoted in _quoted_in(lines)]))

    def _choices(self, column: Column) -> list[Candidate | None]:
        try:
            return self._measured(column)
        except _UnfamiliarError:  # not all of them are only a configuration and a time
            return [None if fields is None else self._candidate(fields) for fields in column]

    def _measured(self, column: Column) -> list[Candidate | None]:
        if None in column:
            raise _UnfamiliarError
        parts = [fields.rpartition("time_us: ") for fields in column if fields is not None]
        if not all(part[2].endswith(" ") for part in parts):
            raise _UnfamiliarError
        known = [self._configurations[part[0]] for part in parts]
        return many(
            Candidate,
            [id for id, _ in known],
            [params for _, params in known],
            _floats([part[2][:-1] for part in parts]),
            repeat(""),
            repeat(""),
        )

    def _candidates(self, lines: str) -> tuple[Candidate, ...]:
        if not lines:
            return ()
        start = len("  candidates { ")
        rows = lines.split("\n")[:-1]
        if not all(row.endswith("}") for row in rows):
            raise _UnfamiliarError
        return tuple([self._candidate(row[start:-1]) for row in rows])

    def _candidate(self, fields: str) -> Candidate:
        match = _CANDIDATE.fullmatch(fields)
        if match is None:
            raise _UnfamiliarError
        configuration, time_us, failed, label = match.groups()
        id, params = self._configurations[configuration]
        return Candidate(
            id,
            params,
            _floats([time_us])[0] if time_us else None,
            _unquoted(failed) if failed else "",
            _unquoted(label) if label else "",
        )


class _Strings(dict["str | None", str]):
    """Text by how it stands in the file."""

    def __missing__(self, quoted: str) -> str:
        text = self[quoted] = _unquoted(quoted)
        return text


class _Compiled(dict[str, tuple[str, ...]]):
    """What choices were compiled for, by the lines that hold it."""

    def __missing__(self, lines: str) -> tuple[str, ...]:
        texts = self[lines] = _in_order(unpacked(map(_unquoted, _quoted_in(lines))))
        return texts


def _quoted_in(lines: str) -> list[str]:
    start = lines.index('"')
    return [line[start:] for line in lines.split("\n")[:-1]]


def _in_order(texts: tuple[str, ...]) -> tuple[str, ...]:
    if any(one >= following for one, following in pairwise(texts)):
        raise _UnfamiliarError
    return texts


class _Lines(dict[str, Value]):
    """Values by the line that holds them."""

    def __missing__(self, line: str) -> Value:
        value = self[line] = _read_value(line[line.index("{") :])
        return value


class _Configurations(dict[str, "tuple[str, tuple[Value, ...]]"]):
    """A candidate's id and params by how they stand in the file."""

    def __init__(self, values: dict[str, Value]) -> None:
        super().__init__()
        self._values = values

    def __missing__(self, fields: str) -> tuple[str, tuple[Value, ...]]:
        match = _CONFIGURATION.fullmatch(fields)
        if match is None:
            raise _UnfamiliarError
        id, params = match.groups()
        values = tuple([self._values[param] for param in re.findall(_ANY_VALUE, params)])
        configuration = self[fields] = (_unquoted(id) if id else "", values)
        return configuration


def _floats(texts: list[str]) -> list[float]:
    try:
        numbers = list(map(float, texts))
    except ValueError:
        raise _UnfamiliarError from None
    if list(map(repr, numbers)) != texts:
        raise _UnfamiliarError
    return numbers


def _read_value(fields: str) -> Value:
    match = _VALUE.fullmatch(fields)
    if match is None:
        raise _UnfamiliarError
    name, kind, number, text, type = match.groups()
    scalar: Scalar = None
    try:
        if kind == "bool":
            scalar = number == "true"
        elif kind == "int":
            scalar = int(number[:21])
        elif kind == "float":
            scalar = float(number)
        elif text:
            scalar = _unquoted(text)
        value = Value(_unquoted(name) if name else "", scalar, _unquoted(type) if type else "")
        same = print_value(value) == fields
    except (ValueError, CacheError):
        raise _UnfamiliarError from None
    if not same:
        raise _UnfamiliarError
    return value


def _unquoted(quoted: str) -> str:
    inner = quoted[1:-1]
    if "\\" in inner:
        try:
            inner = unescaped([inner]).decode()
        except ValueError:
            raise _UnfamiliarError from None
    if quote(inner) != quoted:
        raise _UnfamiliarError
    return inner


def _unquoted_bytes(quoted: str) -> bytes:
    try:
        data = unescaped([quoted[1:-1]])
    except ValueError:
        raise _UnfamiliarError from None
    if quote_bytes(data) != quoted:
        raise _UnfamiliarError
    return data
