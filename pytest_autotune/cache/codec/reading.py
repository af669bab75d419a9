"""Turns the plain mapping of a file back into a cache, and says what is wrong with the file.

All formats are read here: a parser makes the mapping, and :func:`from_mapping` checks it. The fields are those of
:mod:`~pytest_autotune.cache.codec.mapping`.
"""

from __future__ import annotations

import base64
import math
import re
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from difflib import get_close_matches
from typing import Any

from pytest_autotune.cache.codec.mapping import FORMAT_VERSION, MESSAGES, Field, Plain
from pytest_autotune.cache.errors import CacheError, ReportError
from pytest_autotune.cache.model import (
    INT64,
    LAST_GENERATION,
    UINT32,
    Cache,
    Candidate,
    Device,
    Digest,
    Entry,
    Problem,
    UncacheableError,
    Value,
    Versions,
)

_UPGRADE = "upgrade pytest-autotune"


@dataclass(frozen=True)
class UnknownField:
    """A field that this version does not know.

    :param message: the kind of the message that has the field.
    """

    name: str
    message: str


def from_mapping(plain: object, place: str, text: str = "", unknown: UnknownField | None = None) -> Cache:
    """Return the cache in a file's mapping, with all its entries, in their order.

    If the file has an unknown field, the cache must not be rewritten: its ``lossy`` then says why.

    :param place: the path, for the error.
    :param text: the text of the file, to find the line of an unknown field; empty for a binary file.
    :param unknown: an unknown field that the parser found and left out of the mapping; None if it found none.
    :raises CacheError: if the mapping is not a cache.
    """
    if isinstance(plain, dict) and "complete" in plain and "lookups" in plain:
        # Only the JSON report of a run has both fields. The report also has a format_version, as a cache has.
        raise ReportError(place)
    reader = _Reader(unknown)
    try:
        cache = reader.read_cache(plain, place)
    except _WrongPartError as wrong_part:
        if reader.unknown is not None and _find_nearest_name(reader.unknown):
            # The unknown field is misspelt, such as "devise" for "device". So the part seems to lack the field, which
            # caused the error.
            raise _describe_unknown_field(reader.unknown, place, text) from None
        raise CacheError(place, str(wrong_part)) from None
    if reader.unknown is None:
        return cache
    reason = _describe_unknown_field(reader.unknown, place, text)
    return replace(cache, lossy=(reason.place, reason.event, reason.remedy))


def _find_nearest_name(unknown: UnknownField) -> str:
    """Return the known field whose name is nearest to the name of an unknown field; empty if no name is near."""
    # A long name would take the comparison a long time.
    name = unknown.name[:40]
    matches = get_close_matches(name, list(MESSAGES[unknown.message]), n=1, cutoff=0.7)
    if not matches:
        return ""
    return matches[0]


def _describe_unknown_field(unknown: UnknownField, place: str, text: str) -> CacheError:
    """Return the error for an unknown field, with the line of the field if the file is text."""
    name = unknown.name
    # A field is written as `name:`, `name {` or `name <`. JSON and YAML may have quotes around the name.
    if match := re.search(rf"""["']?\b{re.escape(name)}["']?\s*[:{{<]""", text):
        line = text.count("\n", 0, match.start()) + 1
        place = f"{place}:{line}"
    remedy = _UPGRADE
    nearest = _find_nearest_name(unknown)
    if nearest:
        remedy = f'correct the name: is it "{nearest}"?'
    return CacheError(place, f'the field "{name}" is unknown', remedy)


def check_version(version: int, place: str) -> None:
    """Refuse a file without a version, or with a version that this version does not know yet.

    :raises CacheError: in both cases.
    """
    if version <= 0:
        raise CacheError(place, "has no format_version", "is it a cache of pytest-autotune?")
    if version > FORMAT_VERSION:
        event = f"format_version {version} is newer than this pytest-autotune reads ({FORMAT_VERSION})"
        raise CacheError(place, event, _UPGRADE)


class _WrongPartError(Exception):
    """A part of a file has wrong content. Its text is like ``entries[3].key[0]: 1.5 where text in quotes belongs``.

    :param message: the text behind the path, such as ``: 1.5 where text in quotes belongs``.
    :param path: the names of the parts that contain the wrong part, from the inside outwards: ``key[0]``,
        ``entries[3]``. Each method of the reader adds the part that it reads.
    """

    def __init__(self, message: str, *path: str) -> None:
        super().__init__(message)
        self.message = message
        self.path = list(path)

    def __str__(self) -> str:
        path = ".".join(reversed(self.path)) or "the file"
        return f"{path}{self.message}"


def _check(is_right: bool, plain: object, expected: str) -> None:
    """Raise an error that names the plain data and the expected data, unless ``is_right``."""
    if not is_right:
        raise _WrongPartError(_describe_wrong_type(plain, expected))


def _describe_wrong_type(plain: object, expected: str) -> str:
    """Return the text behind the path of a wrong part: ``: 1.5 where text in quotes belongs``."""
    return f": {reprlib.repr(plain)} where {expected} belongs"


_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_TYPES = {"text": str, "bool": bool, "float": float, "uint32": int, "int64": int, "bytes": bytes}
_RANGES = {"uint32": UINT32, "int64": INT64}
_DESCRIPTIONS = {
    "text": "text in quotes",
    "bool": "true or false",
    "float": "a number",
    "bytes": "text in base64",
    "uint32": "an integer of 32 bits",
    "int64": "an integer of 64 bits",
}
#: A float holds every integer up to this size.
_LARGEST_EXACT = 2**53


def _read_scalar(kind: str, plain: Any) -> Any:
    """Return a scalar of a kind, such as ``"float"``. All parsers use this function.

    :raises _WrongPartError: for a scalar of another kind, and for an integer that is out of range.
    """
    scalar = _convert_scalar(kind, plain)
    # isinstance() would take True for an integer.
    is_right = type(scalar) is _TYPES[kind]
    if is_right and kind in _RANGES:
        is_right = scalar in _RANGES[kind]
    _check(is_right, scalar, _DESCRIPTIONS[kind])
    return scalar


def _convert_scalar(kind: str, plain: Any) -> Any:
    """Return a scalar of which JSON and YAML have another form; any other plain data as it is.

    - A float may be an integer, ``64`` for ``64.0``, or the text ``"inf"``, ``"-inf"`` or ``"nan"``.
    - Bytes are text in base64.

    :raises _WrongPartError: for text that is not base64.
    """
    if kind == "float" and type(plain) is str:
        return _NON_FINITE.get(plain, plain)
    if kind == "float" and type(plain) is int and abs(plain) <= _LARGEST_EXACT:
        return float(plain)
    if kind == "bytes" and type(plain) is str:
        try:
            return base64.b64decode(plain, validate=True)
        except ValueError:
            raise _WrongPartError(" is not base64") from None
    return plain


class _Reader:
    """Reads the plain mapping of a file.

    Attributes: ``unknown``, the first field that this version does not know; None if all are known.
    """

    def __init__(self, unknown: UnknownField | None) -> None:
        self.unknown = unknown
        self._devices: dict[str, Device] = {}
        self._digests: dict[str, Digest] = {}
        #: The values by the Python id of their plain data. A file has many equal values, and its parser may give one
        #: object for all of them.
        self._values: dict[int, Value] = {}

    def read_cache(self, plain: Any, place: str) -> Cache:
        """Return the cache in a file's mapping.

        :raises CacheError: for a version that is not known.
        """
        _check(type(plain) is dict, plain, "a mapping")
        # The version is read before all other fields: a file of a later version may have other fields.
        version_field = {"format_version": plain.get("format_version", 0)}
        version = self._read_fields("cache", version_field)["format_version"]
        check_version(version, place)
        # Entries refer to devices and digests by their ids. A file may have these behind the entries, so the entries
        # are moved to the end.
        ordered = dict(plain)
        if "entries" in ordered:
            ordered["entries"] = ordered.pop("entries")
        fields = self._read_fields("cache", ordered)
        return Cache(fields.get("entries", ()))

    def _read_fields(self, kind: str, plain: Any) -> Plain:
        """Return the fields of a message, as objects of the model and scalars.

        :param kind: the kind of the message: ``"entry"``, ``"value"`` …
        """
        _check(type(plain) is dict, plain, "a mapping")
        known_fields = MESSAGES[kind]
        fields: Plain = {}
        for name, item in plain.items():
            field = known_fields.get(name)
            if field is None:
                # A later version may have added the field. The cache is read without it, and its first unknown field is
                # reported.
                self.unknown = self.unknown or UnknownField(name, kind)
            elif field.is_list:
                fields[name] = self._read_list(name, field, item)
            else:
                try:
                    fields[name] = self._read_item(field.kind, item)
                except _WrongPartError as error:
                    # The message of the error begins with the path of the wrong part.
                    error.path.append(name)
                    raise
        return fields

    def _read_list(self, name: str, field: Field, plain: Any) -> tuple[Any, ...]:
        """Return the items of a field that holds a list."""
        if type(plain) is not list:
            raise _WrongPartError(_describe_wrong_type(plain, "a list"), name)
        items = []
        for index, item in enumerate(plain):
            try:
                items.append(self._read_item(field.kind, item))
            except _WrongPartError as error:
                error.path.append(f"{name}[{index}]")
                raise
        return tuple(items)

    def _read_item(self, kind: str, plain: Any) -> Any:
        """Return a scalar, or the object that a message stands for.

        For a device or a digest, it returns None: these are only stored, so that entries can refer to them.

        :param kind: the kind of a scalar, ``"text"``, or of a message, ``"entry"``.
        """
        if kind not in MESSAGES:
            return _read_scalar(kind, plain)
        if kind == "value" and id(plain) in self._values:
            # The same object was read before.
            return self._values[id(plain)]
        fields = self._read_fields(kind, plain)
        try:
            item = self._build(kind, fields)
        except UncacheableError as error:
            raise _WrongPartError(f": {error}") from None
        if kind == "value":
            self._values[id(plain)] = item
        return item

    def _build(self, kind: str, fields: Plain) -> Any:
        """Return the object for a message of the file; None for a device or a digest, which is stored by its id."""
        if kind == "value":
            return _build_value(fields)
        if kind == "candidate":
            return Candidate(**fields)
        if kind == "entry":
            return self._build_entry(fields)
        if kind == "device":
            return self._add_device(fields)
        return self._add_digest(fields)

    def _add_device(self, fields: Plain) -> None:
        """Store a device by its id, for the entries that refer to it."""
        device_id = fields.get("id", "")
        if not device_id:
            raise _WrongPartError(" has no id")
        if device_id in self._devices:
            raise _WrongPartError(f': the id "{device_id}" is used twice')
        device = Device(fields.get("name", ""), fields.get("arch", ""), fields.get("multiprocessors", 0))
        self._devices[device_id] = device

    def _add_digest(self, fields: Plain) -> None:
        """Store a digest by its id, for the entries whose fingerprints have it."""
        digest = Digest(fields.get("id", ""), fields.get("parts", ()))
        earlier = self._digests.get(digest.id)
        # After a merge by git, a file may have the same digest from both sides, with different parts. The digest with
        # the lower parts stays, so that the order of the lines does not matter.
        if earlier is None or digest.parts < earlier.parts:
            self._digests[digest.id] = digest

    def _build_entry(self, fields: Plain) -> Entry:
        """Return an entry.

        :param fields: the fields of the message. Some have another form in ``Entry``, such as the id of the device. The
            others are passed on as they are.
        """
        device_id = fields.pop("device", "")
        if device_id not in self._devices:
            raise _WrongPartError(f': no device has the id "{device_id}"', "device")
        tuner, kernel, key = fields.pop("tuner", ""), fields.pop("kernel", ""), fields.pop("key", ())
        versions = Versions.parse(fields.pop("environment", ""))
        digests = _select_digests(fields.get("fingerprint", ()), self._digests)
        if fields.get("generation", 0) > LAST_GENERATION:
            # No choice is replaced so often, so the number is damaged. It is ignored: otherwise no later entry could
            # have a higher generation and replace this entry.
            del fields["generation"]
        problem = Problem(tuner, kernel, key, self._devices[device_id])
        return Entry(problem, versions=versions, digests=digests, **fields)


def _build_value(fields: Plain) -> Value:
    """Return a value. Its scalar stands in one of the fields ``bool``, ``int``, ``float`` and ``text``.

    Without any of these fields, the value is None.
    """
    name, value_type = fields.pop("name", ""), fields.pop("type", "")
    scalars = list(fields.values())
    if len(scalars) > 1:
        raise _WrongPartError(f" has {' and '.join(fields)}, one of which belongs there")
    if not scalars:
        return Value(name, None, value_type)
    return Value(name, scalars[0], value_type)


def _select_digests(fingerprint: Iterable[Value], digests: Mapping[str, Digest]) -> tuple[Digest, ...]:
    """Return the digests that are values of a fingerprint."""
    selected = []
    for value in fingerprint:
        if isinstance(value.value, str) and value.value in digests:
            selected.append(digests[value.value])
    return tuple(selected)
