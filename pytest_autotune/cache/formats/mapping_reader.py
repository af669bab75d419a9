"""Reads plain mappings, of which a file of YAML or JSON holds a million: what each has to be, and where it is not."""

from __future__ import annotations

import base64
import binascii
import json
import math
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias, TypeVar

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.mapping import Plain
from pytest_autotune.cache.formats.schema import (
    FIELDS,
    KnownVersions,
    UnknownField,
    check_entry,
    check_version,
    checked_devices,
    one_of_each,
)
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value
from pytest_autotune.cache.packed_texts import unpacked

_T = TypeVar("_T")

_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_UINT32 = range(2**32)
_INT64 = range(-(2**63), 2**63)
_SCALARS = (str, int, float, bool, type(None))
# Values that are kept for others that are equal: enough for the largest suite, and no more than a few megabytes.
MOST_VALUES = 20_000
# Noted of one entry, of which each takes thirty times the four characters that it may have.
_MOST_TEXTS = 10_000
# Names of one mapping; the largest of this version has thirteen.
MOST_NAMES = 1000


class Object(tuple[Any, ...]):
    """A mapping of a file, without its unknown fields: the names in their order, then what stands under each.

    A third of the size of a dict, of which a file holds a million.
    """

    __slots__ = ()


_NOTHING = Object(((),))
_NO_CANDIDATE = Candidate()


class Objects:
    """Makes objects of what a parser finds; remembers the first names that are no field of anything."""

    known = frozenset(name for fields in FIELDS.values() for name in fields)

    def __init__(self) -> None:
        self.unknown: dict[str, int] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of(self, pairs: Iterable[tuple[str, object]]) -> Object:
        """The object of these pairs, of which each name stands there once."""
        names, values = [], []
        for name, value in pairs:
            if name in self.known:
                names.append(name)
                values.append(value)
            else:
                self.saw(name)
        if not names:
            return _NOTHING
        shared = tuple(names)
        return Object((self._names.setdefault(shared, shared), *values))

    def saw(self, name: str, line: int = 0) -> None:
        """Remember an unknown name, of which a newer version may have a few and a damaged file any number."""
        if len(self.unknown) < 10:
            self.unknown.setdefault(name[:200], line)


# Where something stands: what it stands in, and its name or index there. Only an error needs it in words.
_Path: TypeAlias = "tuple[Any, str | int] | None"


def _shown(path: _Path) -> str:
    parts: list[str] = []
    while path is not None:
        path, part = path
        parts.append(f"[{part}]" if isinstance(part, int) else f".{part}")
    return "".join(reversed(parts)).removeprefix(".")


class _Fields:
    """The fields of one mapping in a file, each of the type asked for."""

    def __init__(self, found: object, path: _Path, where: str) -> None:
        if type(found) is Object:
            self._fields: Plain = dict(zip(found[0], found[1:], strict=True))
        elif type(found) is dict:
            self._fields = dict(found)
        else:
            _refuse(found, path, "a mapping", where)
        self._path = path
        self._where = where

    def path(self, name: str) -> _Path:
        return self._path, name

    def text(self, name: str) -> str:
        found = self._fields.pop(name, "")
        if type(found) is not str:
            _refuse(found, self.path(name), "text", self._where)
        return found

    def integer(self, name: str, allowed: range) -> int:
        found = self._fields.pop(name, 0)
        if type(found) is not int or found not in allowed:
            _refuse(found, self.path(name), f"an integer of {'64' if allowed is _INT64 else '32'} bits", self._where)
        return found

    def boolean(self, name: str) -> bool:
        found = self._fields.pop(name)
        if type(found) is not bool:
            _refuse(found, self.path(name), "true or false", self._where)
        return found

    def number(self, name: str) -> float:
        found = self._fields.pop(name)
        if type(found) is int and abs(found) <= 2**53:
            found = float(found)
        if type(found) is str and found in _NON_FINITE:
            found = _NON_FINITE[found]
        elif type(found) is not float or not math.isfinite(found):
            _refuse(found, self.path(name), 'a number, "inf", "-inf" or "nan"', self._where)
        return float(found)

    def data(self, name: str) -> bytes:
        text = self.text(name)
        if not text:
            return b""
        try:
            return base64.b64decode(text, validate=True)
        except (binascii.Error, ValueError):
            raise CacheError(self._where, f"{_shown(self.path(name))} is not base64") from None

    def each(self, name: str, read: Callable[[object, _Path], _T]) -> tuple[_T, ...]:
        if name not in self._fields:
            return ()
        found = self._fields.pop(name)
        if type(found) is not list:
            _refuse(found, self.path(name), "a list", self._where)
        path = self.path(name)
        items: list[Any] = found
        for index, item in enumerate(items):
            items[index] = read(item, (path, index))  # in its place: what was read is no longer needed
        return tuple(items)

    def pop(self, name: str) -> object:
        return self._fields.pop(name)

    def __contains__(self, name: str) -> bool:
        return name in self._fields

    @property
    def unknown(self) -> Collection[str]:
        """The names of fields that nobody asked for."""
        return self._fields.keys()


def _refuse(found: object, path: _Path, wanted: str, where: str) -> NoReturn:
    shown = "text in quotes" if wanted == "text" else wanted
    kinds = {dict: "a mapping", Object: "a mapping", list: "a list", str: "text", type(None): "null"}
    what = kinds.get(type(found)) or str(found)[:40]
    raise CacheError(where, f"{_shown(path) or 'the file'}: {what} where {shown} belongs")


class _Reader:
    """Reads plain mappings; ``unknown`` is the first name of a field that this version does not know."""

    def __init__(self, where: str) -> None:
        self.unknown = ""
        self._where = where
        self._devices: Mapping[str, Device] = {}
        self._values: dict[tuple[object, ...], Value] = {}
        self._versions = KnownVersions()

    def cache(self, plain: object) -> Cache:
        fields = _Fields(plain, None, self._where)
        check_version(fields.integer("format_version", _UINT32), self._where)
        self._devices = checked_devices(fields.each("devices", self._device_row), self._where)
        entries = fields.each("entries", self.entry)
        self._done(fields)
        return Cache(one_of_each(entries))

    def entry(self, plain: object, path: _Path) -> Entry:
        fields = _Fields(plain, path, self._where)
        entry = Entry(
            Problem(
                fields.text("tuner"), fields.text("kernel"), fields.each("key", self._value), self._device_of(fields)
            ),
            fields.each("fingerprint", self._value),
            self._candidate(fields.pop("choice"), fields.path("choice")) if "choice" in fields else None,
            fields.each("candidates", self._candidate),
            fields.data("native"),
            fields.text("label"),
            fields.number("tuning_seconds") if "tuning_seconds" in fields else 0.0,
            self._versions[fields.text("environment")],
            unpacked(self._noted(fields, "compiled")),
            self._noted(fields, "made_of"),
        )
        self._done(fields)
        return check_entry(entry, lambda: _shown(path), self._where)

    def _noted(self, fields: _Fields, name: str) -> tuple[str, ...]:
        texts = fields.each(name, self._text)
        if len(texts) > _MOST_TEXTS:
            raise CacheError(self._where, f"{_shown(fields.path(name))} has {len(texts)} texts: not a cache")
        return texts

    def _text(self, plain: object, path: _Path) -> str:
        if type(plain) is not str:
            _refuse(plain, path, "text", self._where)
        return plain

    def _device_of(self, fields: _Fields) -> Device:
        path = fields.path("device")
        found = fields.pop("device") if "device" in fields else ""
        if type(found) in (dict, Object):
            return self._device_row(found, path)[1]
        if type(found) is not str:
            _refuse(found, path, "text", self._where)
        device = self._devices.get(found)
        if device is None:
            raise CacheError(self._where, f'{_shown(path)}: no device has the id "{found}"')
        return device

    def _device_row(self, plain: object, path: _Path) -> tuple[str, Device]:
        fields = _Fields(plain, path, self._where)
        device = Device(fields.text("name"), fields.text("arch"), fields.integer("multiprocessors", _UINT32))
        id = fields.text("id")
        self._done(fields)
        return id, device

    def _value(self, plain: object, path: _Path) -> Value:
        if type(plain) is not Object or not all(type(part) in _SCALARS for part in plain[1:]):
            return self._new_value(plain, path)
        # True, 1 and 1.0 are one key of a dict.
        identity = plain, *map(type, plain)
        value = self._values.get(identity)
        if value is None:
            value = self._new_value(plain, path)
            # And so are 0.0 and -0.0.
            if type(value.value) is not float and len(self._values) < MOST_VALUES:
                self._values[identity] = value
        return value

    def _new_value(self, plain: object, path: _Path) -> Value:
        fields = _Fields(plain, path, self._where)
        kinds = [kind for kind in ("bool", "int", "float", "text") if kind in fields]
        if len(kinds) > 1:
            raise CacheError(self._where, f"{_shown(path)} has {' and '.join(kinds)}, one of which belongs there")
        scalar: Scalar = None
        if "bool" in kinds:
            scalar = fields.boolean("bool")
        elif "int" in kinds:
            scalar = fields.integer("int", _INT64)
        elif "float" in kinds:
            scalar = fields.number("float")
        elif kinds:
            scalar = fields.text("text")
        value = Value(fields.text("name"), scalar, fields.text("type"))
        self._done(fields)
        return value

    def _candidate(self, plain: object, path: _Path) -> Candidate:
        if plain == _NOTHING:
            return _NO_CANDIDATE
        fields = _Fields(plain, path, self._where)
        candidate = Candidate(
            fields.text("id"),
            fields.each("params", self._value),
            fields.number("time_us") if "time_us" in fields else None,
            fields.text("failed"),
            fields.text("label"),
        )
        self._done(fields)
        return candidate

    def _done(self, fields: _Fields) -> None:
        if fields.unknown and not self.unknown:
            self.unknown = next(iter(fields.unknown))


def entry_from_mapping(mapping: object) -> Entry:
    """The entry that ``entry_to_mapping`` gave with its device inside; unknown fields are passed over.

    :raises CacheError: for anything that is not an entry.
    """
    return _Reader("entry").entry(mapping, (None, "entry"))


def cache_from(plain: object, objects: Objects, text: str, where: str) -> Cache:
    """The cache in what a parser made of a text.

    :param plain: of the objects that ``objects`` has made.
    :raises CacheError: where it is none.
    """
    if "\\" in text and _has_half_characters(plain):
        raise CacheError(where, "an escape stands for half a character")
    reader = _Reader(where)
    unknown: UnknownField | None = None
    try:
        cache = reader.cache(plain)
    except CacheError:
        unknown = _first(objects.unknown, text)
        if unknown is not None and unknown.meant:
            raise unknown.as_error(where) from None
        raise
    if not objects.unknown and not reader.unknown:
        return cache
    unknown = _first(objects.unknown or {reader.unknown: 0}, text)
    return replace(cache, lossy=unknown.as_error(where).args if unknown else ())


def _has_half_characters(plain: object) -> bool:
    if isinstance(plain, str):
        return not plain.isascii() and any("\ud800" <= char < "\ue000" for char in plain)
    return isinstance(plain, (list, tuple)) and any(map(_has_half_characters, plain))


def _first(unknown: Mapping[str, int], text: str) -> UnknownField | None:
    """Of some unknown names, of which a parser has found the inner ones first, the one that stands first."""
    if not unknown:
        return None
    name, line = next(iter(unknown.items()))
    if not line:
        found = {text.find(json.dumps(name, ensure_ascii=False)): name for name in unknown}
        found.pop(-1, None)
        if found:
            first = min(found)
            name, line = found[first], text.count("\n", 0, first) + 1
    return UnknownField.of(name, Objects.known, line)
