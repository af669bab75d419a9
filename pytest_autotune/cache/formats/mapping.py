"""A cache as a plain mapping that mirrors the protocol buffer, field by field, and back: what every format turns into.

Of dicts, lists, text, bytes, integers, floats and booleans. What is told of a fault is told here, whatever the format.
"""

from __future__ import annotations

import base64
import binascii
import json
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NoReturn, TypeVar

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.schema import (
    FORMAT_VERSION,
    INT64,
    MESSAGES,
    UINT32,
    UPGRADE,
    check_scalar,
    check_version,
    defect,
    device_ids,
    unknown_field,
)
from pytest_autotune.cache.made_of import digests_of, known_digests
from pytest_autotune.cache.model import Cache, Candidate, Device, Digest, Entry, Problem, Scalar, Value, Versions

Plain = dict[str, Any]
_T = TypeVar("_T")

_KINDS = {bool: "bool", int: "int", float: "float", str: "text"}


def to_mapping(entries: Sequence[Entry]) -> Plain:
    """A cache of these entries as files hold it, in the order given.

    :raises CacheError: for a number that does not fit.
    """
    ids = device_ids(entry.problem.device for entry in entries)
    plain: Plain = {
        "format_version": FORMAT_VERSION,
        "devices": [{"id": id, **_device_to(device)} for device, id in ids.items()],
    }
    if digests := known_digests(entries):
        plain["digests"] = [_digest_to(digests[id]) for id in sorted(digests)]
    plain["entries"] = [_entry_to(entry, ids[entry.problem.device]) for entry in entries]
    return plain


def entry_to_mapping(entry: Entry) -> Plain:
    """The entry as JSON holds it outside a file, with its device and digests inside.

    :raises CacheError: for an integer beyond 64 bits.
    """
    plain = _entry_to(entry, "")
    plain["device"] = _device_to(entry.problem.device)
    if entry.digests:
        plain["digests"] = list(map(_digest_to, entry.digests))
    jsonable: Plain = for_json(plain)
    return jsonable


def for_json(plain: Any) -> Any:
    """A plain mapping as JSON can hold it: bytes as base64, ``"inf"`` and ``"nan"`` as text."""
    if isinstance(plain, dict):
        return {name: for_json(field) for name, field in plain.items()}
    if isinstance(plain, list):
        return list(map(for_json, plain))
    if isinstance(plain, bytes):
        return base64.b64encode(plain).decode()
    return str(plain) if isinstance(plain, float) and not math.isfinite(plain) else plain


def _filled(**fields: Any) -> Plain:
    return {name: field for name, field in fields.items() if field}


def _device_to(device: Device) -> Plain:
    return _filled(name=device.name, arch=device.arch, multiprocessors=device.multiprocessors)


def _digest_to(digest: Digest) -> Plain:
    return {"id": digest.id, "parts": list(digest.parts)}


def _value_to(value: Value) -> Plain:
    plain: Plain = {"name": value.name} if value.name else {}
    scalar = value.value
    if scalar is not None:
        check_scalar(value)
        plain[_KINDS[type(scalar)]] = scalar
    if value.type:
        plain["type"] = value.type
    return plain


def _candidate_to(candidate: Candidate) -> Plain:
    plain = _filled(id=candidate.id, params=list(map(_value_to, candidate.params)))
    if candidate.time_us is not None:
        plain["time_us"] = float(candidate.time_us)
    return plain | _filled(failed=candidate.failed, label=candidate.label)


def _entry_to(entry: Entry, device: str) -> Plain:
    problem = entry.problem
    plain = _filled(
        tuner=problem.tuner,
        kernel=problem.kernel,
        key=list(map(_value_to, problem.key)),
        device=device,
        fingerprint=list(map(_value_to, entry.fingerprint)),
    )
    if entry.choice is not None:
        plain["choice"] = _candidate_to(entry.choice)
    return plain | _filled(
        candidates=list(map(_candidate_to, entry.candidates)),
        native=entry.native,
        label=entry.label,
        tuning_seconds=float(entry.tuning_seconds),
        environment=str(entry.versions),
        compiled=list(entry.compiled),
    )


class _WrongError(Exception):
    """Something is not what belongs there; what it stands in is added on the way out."""

    def __init__(self, found: str, *path: str) -> None:
        super().__init__(found)
        self.found = found
        self.path = list(path)

    def __str__(self) -> str:
        return f"{'.'.join(reversed(self.path)) or 'the file'}{self.found}"


_SHOWN = {dict: "a mapping", list: "a list", str: "text", bytes: "bytes", type(None): "null"}
_HALF_CHARACTER = re.compile(r"\\[uU]0*[dD][89a-fA-F]")
_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}


def _refuse(found: object, wanted: str, *path: str) -> NoReturn:
    raise _WrongError(f": {_SHOWN.get(type(found)) or str(found)[:40]} where {wanted} belongs", *path)


def _text(plain: Plain, name: str) -> str:
    found = plain.get(name, "")
    return found if type(found) is str else _any_text(found, name)


def _any_text(found: object, *path: str) -> str:
    return found if type(found) is str else _refuse(found, "text in quotes", *path)


def _integer(plain: Plain, name: str, allowed: range) -> int:
    found = plain.get(name, 0)
    if type(found) is not int or found not in allowed:
        _refuse(found, f"an integer of {'64' if allowed is INT64 else '32'} bits", name)
    return found


def _number(plain: Plain, name: str) -> float:
    found = plain[name]
    if type(found) is float:
        return found
    if type(found) is int and abs(found) <= 2**53:
        return float(found)
    if type(found) is str and found in _NON_FINITE:
        return _NON_FINITE[found]
    _refuse(found, 'a number, "inf", "-inf" or "nan"', name)


def _data(plain: Plain, name: str) -> bytes:
    found = plain.get(name, b"")
    if type(found) is bytes:
        return found
    try:
        return base64.b64decode(_text(plain, name), validate=True)
    except (binascii.Error, ValueError):
        raise _WrongError(" is not base64", name) from None


def _each(plain: Plain, name: str, read: Callable[[Any], _T]) -> tuple[_T, ...]:
    items = plain.get(name)
    if items is None and name not in plain:
        return ()
    if type(items) is not list:
        _refuse(items, "a list", name)
    found: list[_T] = []
    try:
        for item in items:
            found.append(read(item))
        return tuple(found)
    except _WrongError as error:
        error.path.append(f"{name}[{len(found)}]")
        raise


class _Reader:
    """Reads plain mappings; ``unknown`` is the first (field, message) that this version does not know."""

    def __init__(self) -> None:
        self.unknown: tuple[str, str] | None = None
        self._devices: dict[str, Device] = {}
        self._digests: dict[str, Digest] = {}
        # A parser may give one object for equal values, which are many.
        self._values: dict[int, Value] = {}

    def cache(self, plain: Any, where: str) -> Cache:
        plain = self._message(plain, "cache")
        check_version(_integer(plain, "format_version", UINT32), where)
        for index, (id, device) in enumerate(_each(plain, "devices", self._device_row)):
            if not id:
                raise _WrongError(" has no id", f"devices[{index}]")
            if id in self._devices:
                raise _WrongError(f': the id "{id}" is used twice', f"devices[{index}]")
            self._devices[id] = device
        self._digests = self._known(plain)
        return Cache(_each(plain, "entries", self._entry))

    def lone_entry(self, plain: Any) -> Entry:
        """An entry with its device and digests inside."""
        fields = dict(self._message(plain, "entry"))
        if "device" in fields:
            self._devices = {"": self._device_row(fields.pop("device"))[1]}
        self._digests = self._known(fields)
        return self._entry(fields)

    def _message(self, plain: Any, kind: str) -> Plain:
        if type(plain) is not dict:
            _refuse(plain, "a mapping")
        known = MESSAGES[kind]
        if self.unknown is None and not plain.keys() <= known.keys():
            self.unknown = next(name for name in plain if name not in known), kind
        found: Plain = plain
        return found

    def _known(self, plain: Plain) -> dict[str, Digest]:
        # Both sides of a merge may have the same digest: whatever the order of the lines, the same one stays.
        found = _each(plain, "digests", self._digest)
        return {digest.id: digest for digest in sorted(found, key=lambda digest: digest.parts, reverse=True)}

    def _digest(self, plain: Any) -> Digest:
        fields = self._message(plain, "digest")
        return Digest(_text(fields, "id"), _each(fields, "parts", _any_text))

    def _device_row(self, plain: Any) -> tuple[str, Device]:
        fields = self._message(plain, "device")
        device = Device(_text(fields, "name"), _text(fields, "arch"), _integer(fields, "multiprocessors", UINT32))
        return _text(fields, "id"), device

    def _entry(self, plain: Any) -> Entry:
        fields = self._message(plain, "entry")
        id = _text(fields, "device")
        device = self._devices.get(id)
        if device is None:
            raise _WrongError(f': no device has the id "{id}"', "device")
        fingerprint = _each(fields, "fingerprint", self._value)
        entry = Entry(
            Problem(_text(fields, "tuner"), _text(fields, "kernel"), _each(fields, "key", self._value), device),
            fingerprint,
            self._choice(fields),
            _each(fields, "candidates", self._candidate),
            _data(fields, "native"),
            _text(fields, "label"),
            _number(fields, "tuning_seconds") if "tuning_seconds" in fields else 0.0,
            Versions.of(_text(fields, "environment")),
            _each(fields, "compiled", _any_text),
            digests_of(fingerprint, self._digests),
        )
        part, wrong = defect(entry)
        if wrong:
            raise _WrongError(wrong, part)
        return entry

    def _choice(self, fields: Plain) -> Candidate | None:
        try:
            return self._candidate(fields["choice"]) if "choice" in fields else None
        except _WrongError as error:
            error.path.append("choice")
            raise

    def _candidate(self, plain: Any) -> Candidate:
        fields = self._message(plain, "candidate")
        return Candidate(
            _text(fields, "id"),
            _each(fields, "params", self._value),
            _number(fields, "time_us") if "time_us" in fields else None,
            _text(fields, "failed"),
            _text(fields, "label"),
        )

    def _value(self, plain: Any) -> Value:
        known = self._values.get(id(plain))
        if known is not None:
            return known
        fields = self._message(plain, "value")
        kinds = [kind for kind in ("bool", "int", "float", "text") if kind in fields]
        if len(kinds) > 1:
            raise _WrongError(f" has {' and '.join(kinds)}, one of which belongs there")
        scalar: Scalar = None
        if "bool" in kinds:
            scalar = fields["bool"]
            if type(scalar) is not bool:
                _refuse(scalar, "true or false", "bool")
        elif "int" in kinds:
            scalar = _integer(fields, "int", INT64)
        elif "float" in kinds:
            scalar = _number(fields, "float")
        elif kinds:
            scalar = _text(fields, "text")
        value = self._values[id(plain)] = Value(_text(fields, "name"), scalar, _text(fields, "type"))
        return value


def entry_from_mapping(mapping: object) -> Entry:
    """The entry that :func:`entry_to_mapping` gave; unknown fields are passed over.

    :raises CacheError: for anything that is not an entry.
    """
    try:
        return _Reader().lone_entry(mapping)
    except _WrongError as error:
        error.path.append("entry")
        raise CacheError("entry", str(error)) from None


def from_mapping(plain: object, where: str, text: str = "") -> Cache:
    """The cache in what a parser made of a file, with all its entries, in their order.

    :param text: of the file, in which an unknown field is looked for; empty for a binary one.
    :raises CacheError: where it is none.
    """
    if _HALF_CHARACTER.search(text):
        try:
            json.dumps(for_json(plain), ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise CacheError(where, "an escape stands for half a character") from None
    reader = _Reader()
    try:
        cache = reader.cache(plain, where)
        wrong = None
    except _WrongError as error:
        cache, wrong = Cache(), CacheError(where, str(error))
    if reader.unknown is not None:
        name, message = reader.unknown
        there = re.search(rf"""["']?\b{re.escape(name)}["']?\s*[:{{<]""", text)
        line = f":{text.count(chr(10), 0, there.start()) + 1}" if there else ""
        unknown = unknown_field(name, message, f"{where}{line}")
        if wrong is not None and unknown.remedy != UPGRADE:
            raise unknown
        cache = replace(cache, lossy=unknown.args)
    if wrong is not None:
        raise wrong
    return cache
