"""YAML and JSON: a plain mapping that mirrors the protocol buffer, field by field."""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn, TypeAlias, TypeVar

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.schema import (
    FIELDS,
    FORMAT_VERSION,
    KnownVersions,
    UnknownField,
    check_entry,
    check_lists,
    check_scalar,
    check_version,
    checked_devices,
    device_ids,
    in_order,
    one_of_each,
    twice,
)
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value
from pytest_autotune.cache.packed_texts import packed, unpacked

Plain = dict[str, Any]
_T = TypeVar("_T")

_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_UINT32 = range(2**32)
_INT64 = range(-(2**63), 2**63)


def entry_to_mapping(entry: Entry, device: str | None = None) -> Plain:
    """The entry as JSON and YAML hold it.

    :param device: the id that stands for its device; None: the device itself.
    :raises CacheError: for an integer beyond 64 bits.
    """
    problem = entry.problem
    plain: Plain = {"tuner": problem.tuner, "kernel": problem.kernel}
    if problem.key:
        plain["key"] = [_value_to(value) for value in problem.key]
    plain["device"] = _device_to(problem.device) if device is None else device
    if entry.fingerprint:
        plain["fingerprint"] = [_value_to(value) for value in entry.fingerprint]
    if entry.choice is not None:
        plain["choice"] = _candidate_to(entry.choice)
    if entry.candidates:
        plain["candidates"] = [_candidate_to(candidate) for candidate in entry.candidates]
    if entry.native:
        plain["native"] = base64.b64encode(entry.native).decode()
    if entry.label:
        plain["label"] = entry.label
    if entry.tuning_seconds:
        plain["tuning_seconds"] = _number_to(entry.tuning_seconds)
    if entry.versions:
        plain["environment"] = str(entry.versions)
    if entry.compiled:
        plain["compiled"] = list(packed(entry.compiled))
    if entry.made_of:
        plain["made_of"] = list(entry.made_of)
    return plain


def _device_to(device: Device) -> Plain:
    plain: Plain = {"name": device.name, "arch": device.arch, "multiprocessors": device.multiprocessors}
    return {name: field for name, field in plain.items() if field}


def _value_to(value: Value) -> Plain:
    plain: Plain = {"name": value.name} if value.name else {}
    scalar = value.value
    if isinstance(scalar, bool):
        plain["bool"] = scalar
    elif isinstance(scalar, int):
        check_scalar(value)
        plain["int"] = scalar
    elif isinstance(scalar, float):
        plain["float"] = _number_to(scalar)
    elif scalar is not None:
        plain["text"] = scalar
    if value.type:
        plain["type"] = value.type
    return plain


def _candidate_to(candidate: Candidate) -> Plain:
    plain: Plain = {"id": candidate.id} if candidate.id else {}
    if candidate.params:
        plain["params"] = [_value_to(value) for value in candidate.params]
    if candidate.time_us is not None:
        plain["time_us"] = _number_to(candidate.time_us)
    if candidate.failed:
        plain["failed"] = candidate.failed
    if candidate.label:
        plain["label"] = candidate.label
    return plain


def _number_to(number: float) -> float | str:
    return float(number) if math.isfinite(number) else str(float(number))


def _to_mapping(cache: Cache) -> Plain:
    ids = device_ids(cache.devices)
    return {
        "format_version": FORMAT_VERSION,
        "devices": [{"id": id, **_device_to(device)} for device, id in ids.items()],
        "entries": [entry_to_mapping(entry, ids[entry.problem.device]) for entry in in_order(cache.entries)],
    }


def to_json(cache: Cache) -> str:
    """The cache as JSON.

    :raises CacheError: for an entry that a reader would not take back.
    """
    return json.dumps(_to_mapping(cache), indent=1, ensure_ascii=False) + "\n"


# What YAML does not take literally, or takes for the end of a line.
_NOT_YAML = re.compile("[\x7f-\x9f\u2028\u2029\ufeff\ufffe\uffff]")


def to_yaml(cache: Cache) -> str:
    """The cache as YAML: a line for each device and value, every text in quotes.

    :raises CacheError: for an entry that a reader would not take back.
    """
    plain = _to_mapping(cache)
    lines = [f"format_version: {plain['format_version']}"]
    for name in ("devices", "entries"):
        lines += _yaml_field(name, plain[name], "")
    return "\n".join(lines) + "\n"


def _yaml_field(name: str, field: object, indent: str) -> Iterator[str]:
    if not isinstance(field, (dict, list)) or not field:
        yield f"{indent}{name}: {_yaml_flow(field)}"
    elif isinstance(field, dict):
        yield f"{indent}{name}:"
        for inner, value in field.items():
            yield from _yaml_field(inner, value, indent + "  ")
    else:
        yield f"{indent}{name}:"
        for item in field:
            if name == "entries":
                first, *others = (line for inner, value in item.items() for line in _yaml_field(inner, value, ""))
                yield f"{indent}- {first}"
                yield from (f"{indent}  {line}" for line in others)
            else:
                yield f"{indent}- {_yaml_flow(item)}"


def _yaml_flow(field: object) -> str:
    if isinstance(field, dict):
        return f"{{{', '.join(f'{name}: {_yaml_flow(value)}' for name, value in field.items())}}}"
    if isinstance(field, list):
        return f"[{', '.join(map(_yaml_flow, field))}]"
    if isinstance(field, float) and "e" in repr(field):
        digits, exponent = repr(field).split("e")
        return f"{digits if '.' in digits else digits + '.0'}e{exponent}"
    return _NOT_YAML.sub(lambda match: f"\\u{ord(match[0]):04x}", json.dumps(field, ensure_ascii=False))


class _Object(tuple[Any, ...]):
    """A mapping of a file, without its unknown fields: the names in their order, then what stands under each.

    A third of the size of a dict, of which a file holds a million.
    """

    __slots__ = ()


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
        if type(found) is _Object:
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
    kinds = {dict: "a mapping", _Object: "a mapping", list: "a list", str: "text", type(None): "null"}
    what = kinds.get(type(found)) or str(found)[:40]
    raise CacheError(where, f"{_shown(path) or 'the file'}: {what} where {shown} belongs")


# Values that are kept for others that are equal: enough for the largest suite, and no more than a few megabytes.
_MOST_VALUES = 20_000
# Noted of one entry, of which each takes thirty times the four characters that it may have.
_MOST_TEXTS = 10_000
# Of one mapping; the largest of this version has thirteen.
_MOST_NAMES = 1000


class _Reader:
    """Reads plain mappings; ``unknown`` is the first name of a field that this version does not know."""

    def __init__(self, where: str, devices: Mapping[str, Device] | None = None) -> None:
        self.unknown = ""
        self._where = where
        self._devices = devices or {}
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
        if type(found) in (dict, _Object):
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
        if type(plain) is not _Object or not all(type(part) in _SCALARS for part in plain[1:]):
            return self._new_value(plain, path)
        # True, 1 and 1.0 are one key of a dict.
        identity = plain, *map(type, plain)
        value = self._values.get(identity)
        if value is None:
            value = self._new_value(plain, path)
            # And so are 0.0 and -0.0.
            if type(value.value) is not float and len(self._values) < _MOST_VALUES:
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


_SCALARS = (str, int, float, bool, type(None))
_NOTHING = _Object(((),))
_NO_CANDIDATE = Candidate()


class _Objects:
    """Makes objects of what a parser finds; remembers the first names that are no field of anything."""

    known = frozenset(name for fields in FIELDS.values() for name in fields)

    def __init__(self) -> None:
        self.unknown: dict[str, int] = {}
        self._names: dict[tuple[str, ...], tuple[str, ...]] = {}

    def of(self, pairs: Iterable[tuple[str, object]]) -> _Object:
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
        return _Object((self._names.setdefault(shared, shared), *values))

    def saw(self, name: str, line: int = 0) -> None:
        """Remember an unknown name, of which a newer version may have a few and a damaged file any number."""
        if len(self.unknown) < 10:
            self.unknown.setdefault(name[:200], line)


def entry_from_mapping(mapping: object, devices: Mapping[str, Device] | None = None, where: str = "entry") -> Entry:
    """The entry that :func:`entry_to_mapping` gave; unknown fields are passed over.

    :param devices: by id, for an entry that holds the id of its device.
    :param where: the place it was read from, for the error.
    :raises CacheError: for anything that is not an entry.
    """
    return _Reader(where, devices).entry(mapping, (None, "entry"))


def from_json(text: str, where: str) -> Cache:
    """The cache that the JSON text holds.

    :raises CacheError: where it holds none, with line and column where it is no JSON.
    """

    objects = _Objects()
    check_lists(text, where)

    def once(pairs: list[tuple[str, object]]) -> _Object:
        if len(pairs) > _MOST_NAMES:
            raise CacheError(where, f"has an object of {len(pairs)} names: not a cache")
        if len({name for name, _ in pairs}) < len(pairs):
            raise CacheError(where, f'the name "{twice(name for name, _ in pairs)}" stands twice in one object')
        return objects.of(pairs)

    def no_constant(constant: str) -> NoReturn:
        raise CacheError(where, f"{constant} is not JSON", 'write "inf", "-inf" or "nan"')

    try:
        plain = json.loads(text, object_pairs_hook=once, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise CacheError(f"{where}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg}") from None
    except RecursionError:
        raise CacheError(where, "is nested too deeply for a cache") from None
    except ValueError as error:  # an integer of thousands of digits
        raise CacheError(where, f"is not a cache: {error}") from None
    return _cache_from(plain, objects, text, where)


def from_yaml(text: str, where: str) -> Cache:
    """The cache that the YAML text holds.

    :raises CacheError: where it holds none, with line and column where it is no YAML.
    """
    import yaml

    loader = getattr(yaml, "CSafeLoader", None)
    if loader is None:
        if len(text) > _MOST_YAML_WITHOUT_C:
            raise CacheError(where, "takes minutes to read without libyaml", "use .textproto or .json")
        loader = yaml.SafeLoader
    check_lists(text, where)
    objects = _Objects()
    try:
        plain = _Events(yaml.parse(text, loader), where, objects).document()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = f"{where}:{mark.line + 1}:{mark.column + 1}" if mark else where
        raise CacheError(at, f"is not YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:
        raise CacheError(where, f"is not YAML: {error}") from None
    return _cache_from(plain, objects, text, where)


_DEEPEST = 20
# PyYAML's own parser takes a minute for so many characters.
_MOST_YAML_WITHOUT_C = 4_000_000
_PLAIN_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,19})")
_PLAIN_FLOAT = re.compile(r"-?[0-9]+(?:\.[0-9]*)?(?:[eE][-+]?[0-9]+)?")
_PLAIN_WORDS = {"": None, "~": None, "null": None, "true": True, "false": False}


class _Events:
    """Turns the events of a YAML parser into plain data: no tags, no aliases, no name twice.

    Events, because libyaml composes nested nodes by recursion and crashes the
    process when they are nested some thousand deep. What is not quoted is a
    number, true, false, null or text: YAML 1.1 sees dates, octals and "yes".
    """

    def __init__(self, events: Iterator[Any], where: str, objects: _Objects) -> None:
        self._events = events
        self._where = where
        self._objects = objects
        self._words: dict[str, str] = {}

    def document(self) -> object:
        """The one document of the stream."""
        plain: object = None
        documents = 0
        for event in self._events:
            if type(event).__name__ == "DocumentStartEvent":
                documents += 1
                if documents > 1:
                    self._refuse(event, "a second YAML document")
                plain = self._node(next(self._events), 0)
        return plain

    def _node(self, event: Any, depth: int) -> object:
        kind = type(event).__name__
        if kind == "AliasEvent":
            self._refuse(event, "an alias of YAML: caches have none")
        if depth > _DEEPEST:
            self._refuse(event, "is nested too deeply for a cache")
        if event.tag is not None:
            self._refuse(event, f"the tag {event.tag} of YAML: caches have none")
        if kind == "ScalarEvent":
            word = self._shared(event.value)
            return _plain_scalar(word) if event.implicit[0] else word
        if kind == "SequenceStartEvent":
            return self._list(event, depth)
        plain: Plain = {}
        for name_event in self._until("MappingEndEvent"):
            name = self._node(name_event, depth + 1)
            if type(name) is not str:
                self._refuse(name_event, "a name that is not text")
            if name in plain:
                self._refuse(name_event, f'the name "{name}" stands twice in one mapping')
            if len(plain) >= _MOST_NAMES:
                self._refuse(name_event, f"a mapping of more than {_MOST_NAMES} names: not a cache")
            if name not in self._objects.known:
                self._objects.saw(name, name_event.start_mark.line + 1)
            plain[name] = self._node(next(self._events), depth + 1)
        return self._objects.of(plain.items())

    def _list(self, event: Any, depth: int) -> list[object]:
        items: list[object] = []
        for item in self._until("SequenceEndEvent"):
            if type(item).__name__ == "SequenceStartEvent":
                self._refuse(event, "a list in a list: caches have none")
            items.append(self._node(item, depth + 1))
        return items

    def _shared(self, word: str) -> str:
        """The word, as one object for all that are equal; parsers make each anew."""
        return self._words.setdefault(word, word) if len(self._words) < _MOST_VALUES else word

    def _until(self, end: str) -> Iterator[Any]:
        for event in self._events:
            if type(event).__name__ == end:
                return
            yield event

    def _refuse(self, event: Any, found: str) -> NoReturn:
        mark = event.start_mark
        raise CacheError(f"{self._where}:{mark.line + 1}:{mark.column + 1}", found)


def _plain_scalar(word: str) -> Scalar:
    if word in _PLAIN_WORDS:
        return _PLAIN_WORDS[word]
    if _PLAIN_INT.fullmatch(word):
        return int(word)
    return float(word) if _PLAIN_FLOAT.fullmatch(word) else word


def _cache_from(plain: object, objects: _Objects, text: str, where: str) -> Cache:
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
    return UnknownField.of(name, _Objects.known, line)
