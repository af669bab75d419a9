"""A cache as a plain mapping that mirrors the protocol buffer, field by field, and back: what every format turns into.

Of dicts, lists, text, bytes, integers, floats and booleans. What is told of a fault is told here, whatever the format.
"""

from __future__ import annotations

import base64
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import Any, NoReturn

from pytest_autotune.cache.codec.schema import (
    FORMAT_VERSION,
    MESSAGES,
    UPGRADE,
    check_version,
    device_ids,
    unknown_field,
)
from pytest_autotune.cache.digest_parts import digests_of, known_digests
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import (
    INT64,
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

Plain = dict[str, Any]

_KINDS = {bool: "bool", int: "int", float: "float", str: "text"}


def to_mapping(entries: Sequence[Entry]) -> Plain:
    """A cache of these entries as files hold it, in the order given."""
    ids = device_ids(entry.problem.device for entry in entries)
    plain: Plain = {
        "format_version": FORMAT_VERSION,
        "devices": [_fields_of("device", device, id=id) for device, id in ids.items()],
    }
    if digests := known_digests(entries):
        plain["digests"] = [_digest_to(digests[id]) for id in sorted(digests)]
    plain["entries"] = [_entry_to(entry, ids[entry.problem.device]) for entry in entries]
    return plain


def entry_to_mapping(entry: Entry) -> Plain:
    """The entry as JSON holds it outside a file, with its device and digests inside."""
    plain = _entry_to(entry, "")
    plain["device"] = _fields_of("device", entry.problem.device, id="")
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


def _fields_of(kind: str, message: object, **given: Any) -> Plain:
    """The fields of a message that are set, in the order in which they are written.

    :param given: those that are no attributes of it.
    """
    plain: Plain = {}
    for name, (of, repeated) in MESSAGES[kind].items():
        found = given[name] if name in given else getattr(message, name)
        if not found and (found is None or name != "time_us"):  # a time of 0 is one that was measured
            continue
        if of in MESSAGES:
            found = list(map(_WRITERS[of], found)) if repeated else _WRITERS[of](found)
        plain[name] = list(found) if repeated else found
    return plain


def _value_to(value: Value) -> Plain:
    plain: Plain = {"name": value.name} if value.name else {}
    if value.value is not None:
        plain[_KINDS[type(value.value)]] = value.value
    if value.type:
        plain["type"] = value.type
    return plain


def _digest_to(digest: Digest) -> Plain:
    return {"id": digest.id, "parts": list(digest.parts)}


def _entry_to(entry: Entry, device: str) -> Plain:
    problem = entry.problem
    return _fields_of(
        "entry",
        entry,
        tuner=problem.tuner,
        kernel=problem.kernel,
        key=problem.key,
        device=device,
        tuning_seconds=float(entry.tuning_seconds),
        environment=str(entry.versions),
    )


_WRITERS: dict[str, Callable[[Any], Plain]] = {"value": _value_to, "candidate": partial(_fields_of, "candidate")}


class _WrongError(Exception):
    """Something is not what belongs there; what it stands in is added on the way out."""

    def __init__(self, found: str, *path: str) -> None:
        super().__init__(found)
        self.found = found
        self.path = list(path)

    def __str__(self) -> str:
        return f"{'.'.join(reversed(self.path)) or 'the file'}{self.found}"


_SHOWN = {dict: "a mapping", list: "a list", str: "text", bytes: "bytes", type(None): "null"}
_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_TYPES = {"text": str, "bool": bool, "float": float, "uint32": int, "int64": int, "bytes": bytes}
_RANGES = {"uint32": UINT32, "int64": INT64}
_WANTED = {
    "text": "text in quotes",
    "bool": "true or false",
    "float": 'a number, "inf", "-inf" or "nan"',
    "uint32": "an integer of 32 bits",
    "int64": "an integer of 64 bits",
    "bytes": "text in base64",
}


def _refuse(found: object, wanted: str) -> NoReturn:
    raise _WrongError(f": {_SHOWN.get(type(found)) or str(found)[:40]} where {wanted} belongs")


def _scalar(kind: str, found: Any) -> Any:
    if kind == "float":
        if type(found) is str:
            found = _NON_FINITE.get(found, found)
        elif type(found) is int and abs(found) <= 2**53:
            found = float(found)
    elif kind == "bytes" and type(found) is str:
        try:
            found = base64.b64decode(found, validate=True)
        except ValueError:
            raise _WrongError(" is not base64") from None
    if type(found) is not _TYPES[kind] or (kind in _RANGES and found not in _RANGES[kind]):
        _refuse(found, _WANTED[kind])
    return found


#: What entries refer to comes before them, wherever it stands in the file.
_IN_ORDER = ("devices", "digests", "entries")


class _Reader:
    """Reads plain mappings; ``unknown`` is the first (field, message) that this version does not know."""

    def __init__(self) -> None:
        self.unknown: tuple[str, str] | None = None
        self._devices: dict[str, Device] = {}
        self._digests: dict[str, Digest] = {}
        # A parser may give one object for equal values, which are many.
        self._values: dict[int, Value] = {}
        self._make: dict[str, Callable[[Plain], Any]] = {
            "device": self._device_of,
            "digest": self._digest_of,
            "value": _value_of,
            "candidate": lambda fields: Candidate(**fields),
            "entry": self._entry_of,
        }

    def cache(self, plain: Any, where: str) -> Cache:
        rest = {name: plain[name] for name in plain if name not in _IN_ORDER} if type(plain) is dict else plain
        check_version(self._fields("cache", rest).get("format_version", 0), where)
        lists = {name: plain[name] for name in _IN_ORDER if name in plain}
        return Cache(self._fields("cache", lists).get("entries", ()))

    def lone_entry(self, plain: Any) -> Entry:
        """An entry with its device and digests inside."""
        if type(plain) is not dict:
            _refuse(plain, "a mapping")
        inside = dict(plain)
        if "device" in inside:
            self._devices[""] = _device_of(self._fields("device", inside.pop("device")))
        self._fields("cache", {"digests": inside.pop("digests", [])})
        entry: Entry = self._one("entry", inside)
        return entry

    def _fields(self, kind: str, plain: Any) -> Plain:
        """The fields of a message, each as what the model has for it."""
        if type(plain) is not dict:
            _refuse(plain, "a mapping")
        found: Plain = {}
        part = ""
        try:
            for name, item in plain.items():
                part, field = name, MESSAGES[kind].get(name)
                if field is None:
                    self.unknown = self.unknown or (name, kind)
                elif not field.repeated:
                    found[name] = self._one(field.kind, item)
                elif type(item) is not list:
                    _refuse(item, "a list")
                else:
                    items = []
                    for index, one in enumerate(item):
                        part = f"{name}[{index}]"
                        items.append(self._one(field.kind, one))
                    found[name] = tuple(items)
        except _WrongError as error:
            error.path.append(part)
            raise
        return found

    def _one(self, kind: str, plain: Any) -> Any:
        make = self._make.get(kind)
        if make is None:
            return _scalar(kind, plain)
        value = self._values.get(id(plain)) if kind == "value" else None
        if value is None:
            fields = self._fields(kind, plain)
            try:
                value = make(fields)
            except UncacheableError as error:
                raise _WrongError(f": {error}") from None
            if kind == "value":
                self._values[id(plain)] = value
        return value

    def _device_of(self, fields: Plain) -> None:
        id, device = fields.get("id", ""), _device_of(fields)
        if not id:
            raise _WrongError(" has no id")
        if id in self._devices:
            raise _WrongError(f': the id "{id}" is used twice')
        self._devices[id] = device

    def _digest_of(self, fields: Plain) -> None:
        digest = Digest(fields.get("id", ""), fields.get("parts", ()))
        # Both sides of a merge may have the same digest: whatever the order of the lines, the same one stays.
        self._digests[digest.id] = min(digest, self._digests.get(digest.id, digest), key=attrgetter("parts"))

    def _entry_of(self, fields: Plain) -> Entry:
        id, fingerprint = fields.pop("device", ""), fields.pop("fingerprint", ())
        device = self._devices.get(id)
        if device is None:
            raise _WrongError(f': no device has the id "{id}"', "device")
        return Entry(
            Problem(fields.pop("tuner", ""), fields.pop("kernel", ""), fields.pop("key", ()), device),
            fingerprint,
            versions=Versions.of(fields.pop("environment", "")),
            digests=digests_of(fingerprint, self._digests),
            **fields,
        )


def _device_of(fields: Plain) -> Device:
    return Device(fields.get("name", ""), fields.get("arch", ""), fields.get("multiprocessors", 0))


def _value_of(fields: Plain) -> Value:
    scalars = [kind for kind in _KINDS.values() if kind in fields]
    if len(scalars) > 1:
        raise _WrongError(f" has {' and '.join(scalars)}, one of which belongs there")
    return Value(fields.get("name", ""), fields[scalars[0]] if scalars else None, fields.get("type", ""))


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
