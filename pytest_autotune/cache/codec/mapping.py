"""A cache as a plain mapping that mirrors the protocol buffer, field by field, and back: what every format turns into.

Of dicts, lists, text, bytes, integers, floats and booleans. What holds in every format stands here: its fields, its
version, its order, and what is reported of a fault.
"""

from __future__ import annotations

import base64
import math
import re
import reprlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from itertools import chain, count
from operator import attrgetter
from typing import Any, NamedTuple

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
    Identity,
    Problem,
    UncacheableError,
    Value,
    Versions,
)

FORMAT_VERSION = 1
_UPGRADE = "upgrade pytest-autotune"

Plain = dict[str, Any]


#: What is not as we write it is looked into up to this size: protobuf's own parser takes about a second for a MiB.
MAX_FOREIGN_BYTES = 8 << 20


@dataclass(frozen=True)
class Codec:
    """A format.

    :param name: the word for it in messages.
    :param suffixes: those of its files; the first is the one that is recommended.
    :param read: text or bytes, and where they are from, to a cache; raises CacheError.
    :param write: entries in order to text or bytes; raises CacheError.
    :param is_text: a file of it is text in UTF-8.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[..., Cache]
    write: Callable[[Sequence[Entry]], str | bytes]
    is_text: bool = True


class Field(NamedTuple):
    """What stands under a name: a scalar or a message of this kind, or a list of them."""

    kind: str
    repeated: bool = False


def _fields(words: str) -> Mapping[str, Field]:
    pairs = (pair.split(" ") for pair in words.split(", "))
    return {name: Field(kind.removesuffix("*"), kind.endswith("*")) for name, kind in pairs}


#: The fields of each message, by name, in the order in which they are written; the same as in the .proto.
MESSAGES: Mapping[str, Mapping[str, Field]] = {
    "cache": _fields("format_version uint32, devices device*, digests digest*, entries entry*"),
    "device": _fields("id text, name text, arch text, multiprocessors uint32"),
    "digest": _fields("id text, parts text*"),
    "value": _fields("name text, bool bool, int int64, float float, text text, type text"),
    "candidate": _fields("id text, params value*, time_us float, failed text, label text"),
    "entry": _fields(
        "tuner text, kernel text, key value*, device text, fingerprint value*, choice candidate, "
        "candidates candidate*, native bytes, label text, tuning_seconds float, environment text, compiled text*, "
        "generation uint32, asked_by text"
    ),
}
_SCALARS = {bool: "bool", int: "int", float: "float", str: "text"}


def without_duplicates(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries, one for each problem and fingerprint.

    Two sides of a version-control merge may both have added one. Of those the
    higher generation stays, then the faster one, then the one that is encoded lower: whatever the order of the
    lines, the same.
    """
    found: dict[Identity, list[Entry]] = {}
    for entry in entries:
        found.setdefault(entry.identity, []).append(entry)
    return tuple([min(same, key=_preference) if len(same) > 1 else same[0] for same in found.values()])


def _preference(entry: Entry) -> tuple[int, float, str]:
    time_us = entry.choice.time_us if entry.choice else None
    return -entry.generation, math.inf if time_us is None or math.isnan(time_us) else time_us, repr(entry)


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """The entries as a file holds them: sorted, one for each problem and fingerprint."""
    return sorted(without_duplicates(entries), key=attrgetter("sort_key"))


def device_ids(devices: Iterable[Device]) -> dict[Device, str]:
    """An id for each device, unique inside one file and the same in any order of the devices."""
    ids: dict[str, Device] = {}
    for device in sorted(set(devices), key=attrgetter("sort_key")):
        base = device.id or "device"
        names = chain([base], (f"{base}-{number}" for number in count(2)))
        ids[next(name for name in names if name not in ids)] = device
    return {device: name for name, device in ids.items()}


def collect_digests(entries: Iterable[Entry]) -> dict[str, Digest]:
    """What entries say of digests, by the digest; where they do not say the same, the one that is lower."""
    found: dict[str, Digest] = {}
    for entry in entries:
        for digest in entry.digests:
            other = found.setdefault(digest.id, digest)
            if digest.parts < other.parts:
                found[digest.id] = digest
    return found


def select_digests(fingerprint: Iterable[Value], known: Mapping[str, Digest]) -> tuple[Digest, ...]:
    """Of what is known of digests, what a fingerprint holds."""
    return tuple([known[value.value] for value in fingerprint if isinstance(value.value, str) and value.value in known])


# To a mapping


def to_mapping(entries: Sequence[Entry]) -> Plain:
    """A cache of these entries as files hold it, in the order given."""
    ids = device_ids(entry.problem.device for entry in entries)
    digests = collect_digests(entries)
    plain: Plain = {
        "format_version": FORMAT_VERSION,
        "devices": [_plain("device", device, id=name) for device, name in ids.items()],
    }
    if digests:
        plain["digests"] = [_plain("digest", digests[name]) for name in sorted(digests)]
    plain["entries"] = [_entry_to(entry, ids[entry.problem.device]) for entry in entries]
    return plain


def _plain(kind: str, message: object, **given: Any) -> Plain:
    """The fields of a message that are set, in the order in which they are written.

    :param given: those that are no attributes of it.
    """
    plain: Plain = {}
    for name, (of, repeated) in MESSAGES[kind].items():
        found = given[name] if name in given else getattr(message, name)
        if not found and (found is None or name != "time_us"):  # a time of 0 is one that was measured
            continue
        if of == "value":
            found = list(map(_value_to, found))
        elif of == "candidate":
            found = [_plain(of, one) for one in found] if repeated else _plain(of, found)
        plain[name] = list(found) if repeated else found
    return plain


def _value_to(value: Value) -> Plain:
    plain: Plain = {"name": value.name} if value.name else {}
    if value.value is not None:
        plain[_SCALARS[type(value.value)]] = value.value
    if value.type:
        plain["type"] = value.type
    return plain


def _entry_to(entry: Entry, device: str) -> Plain:
    of_problem = {name: getattr(entry.problem, name) for name in ("tuner", "kernel", "key")}
    noted = {"tuning_seconds": float(entry.tuning_seconds), "environment": str(entry.versions)}
    return _plain("entry", entry, device=device, **of_problem, **noted)


def for_json(plain: Any) -> Any:
    """A plain mapping as JSON can hold it: bytes as base64, ``"inf"`` and ``"nan"`` as text."""
    if isinstance(plain, dict):
        return {name: for_json(field) for name, field in plain.items()}
    if isinstance(plain, list):
        return list(map(for_json, plain))
    if isinstance(plain, bytes):
        return base64.b64encode(plain).decode()
    return str(plain) if isinstance(plain, float) and not math.isfinite(plain) else plain


# From a mapping


class _WrongError(Exception):
    """Something is not what belongs there; ``path`` is what it stands in, from the inside outwards."""

    def __init__(self, found: str, *path: str) -> None:
        super().__init__(found)
        self.path = list(path)

    def __str__(self) -> str:
        return f"{'.'.join(reversed(self.path)) or 'the file'}{self.args[0]}"


_NON_FINITE = {"inf": math.inf, "-inf": -math.inf, "nan": math.nan}
_TYPES = {"text": str, "bool": bool, "float": float, "uint32": int, "int64": int, "bytes": bytes}
_RANGES = {"uint32": UINT32, "int64": INT64}
_WANTED = {"text": "text in quotes", "bool": "true or false", "float": "a number", "bytes": "text in base64"}


def _check(is_right: bool, found: object, wanted: str) -> None:
    if not is_right:
        raise _WrongError(f": {reprlib.repr(found)} where {wanted} belongs")


def _scalar(kind: str, found: Any) -> Any:
    if kind == "float" and type(found) is str:
        found = _NON_FINITE.get(found, found)
    elif kind == "float" and type(found) is int and abs(found) <= 2**53:
        found = float(found)
    elif kind == "bytes" and type(found) is str:
        try:
            found = base64.b64decode(found, validate=True)
        except ValueError:
            raise _WrongError(" is not base64") from None
    is_right = type(found) is _TYPES[kind] and (kind not in _RANGES or found in _RANGES[kind])
    _check(is_right, found, _WANTED.get(kind, f"an integer of {kind[-2:]} bits"))
    return found


class _Reader:
    """Reads plain mappings; ``unknown`` is the first (field, message) that this version does not know."""

    def __init__(self) -> None:
        self.unknown: tuple[str, str] | None = None
        self._devices: dict[str, Device] = {}
        self._digests: dict[str, Digest] = {}
        # A parser may give one object for equal values, which are many.
        self._values: dict[int, Value] = {}

    def cache(self, plain: Any, where: str) -> Cache:
        _check(type(plain) is dict, plain, "a mapping")
        # What entries refer to is read before them, wherever it stands in the file.
        plain = {name: plain[name] for name in sorted(plain, key=lambda name: name == "entries")}
        version = {"format_version": plain.get("format_version", 0)}
        check_version(self._fields("cache", version)["format_version"], where)
        return Cache(self._fields("cache", plain).get("entries", ()))

    def _fields(self, kind: str, plain: Any) -> Plain:
        """The fields of a message, each as what the model has for it."""
        _check(type(plain) is dict, plain, "a mapping")
        found: Plain = {}
        part = ""
        try:
            for name, item in plain.items():
                part, field = name, MESSAGES[kind].get(name)
                if field is None:
                    self.unknown = self.unknown or (name, kind)
                elif not field.repeated:
                    found[name] = self._one(field.kind, item)
                else:
                    _check(type(item) is list, item, "a list")
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
        if kind not in MESSAGES:
            return _scalar(kind, plain)
        value = self._values.get(id(plain)) if kind == "value" else None
        if value is None:
            fields = self._fields(kind, plain)
            try:
                value = getattr(self, f"_{kind}")(fields)
            except UncacheableError as error:
                raise _WrongError(f": {error}") from None
            if kind == "value":
                self._values[id(plain)] = value
        return value

    # What is made of the fields of each message

    @staticmethod
    def _candidate(fields: Plain) -> Candidate:
        return Candidate(**fields)

    def _device(self, fields: Plain) -> None:
        name = fields.get("id", "")
        if not name:
            raise _WrongError(" has no id")
        if name in self._devices:
            raise _WrongError(f': the id "{name}" is used twice')
        self._devices[name] = Device(fields.get("name", ""), fields.get("arch", ""), fields.get("multiprocessors", 0))

    def _digest(self, fields: Plain) -> None:
        digest = Digest(fields.get("id", ""), fields.get("parts", ()))
        # Both sides of a merge may have the same digest: whatever the order of the lines, the same one stays.
        self._digests[digest.id] = min(digest, self._digests.get(digest.id, digest), key=attrgetter("parts"))

    @staticmethod
    def _value(fields: Plain) -> Value:
        name, of_type = fields.pop("name", ""), fields.pop("type", "")
        if len(fields) > 1:
            raise _WrongError(f" has {' and '.join(fields)}, one of which belongs there")
        return Value(name, next(iter(fields.values()), None), of_type)

    def _entry(self, fields: Plain) -> Entry:
        name = fields.pop("device", "")
        if name not in self._devices:
            raise _WrongError(f': no device has the id "{name}"', "device")
        parts = fields.pop("tuner", ""), fields.pop("kernel", ""), fields.pop("key", ())
        versions = Versions.parse(fields.pop("environment", ""))
        digests = select_digests(fields.get("fingerprint", ()), self._digests)
        if fields.get("generation", 0) > LAST_GENERATION:
            del fields["generation"]  # no choice is replaced so often, and nothing could replace this one
        return Entry(Problem(*parts, self._devices[name]), versions=versions, digests=digests, **fields)


def check_version(version: int, where: str) -> None:
    """Refuse a file without a version, or of a version that is not known yet.

    :raises CacheError: in both cases.
    """
    if version <= 0:
        raise CacheError(where, "has no format_version", "is it a cache of pytest-autotune?")
    if version > FORMAT_VERSION:
        found = f"format_version {version} is newer than this pytest-autotune reads ({FORMAT_VERSION})"
        raise CacheError(where, found, _UPGRADE)


def from_mapping(plain: object, where: str, text: str = "", unknown: tuple[str, str] | None = None) -> Cache:
    """The cache in what a parser made of a file, with all its entries, in their order.

    :param text: of the file, in which an unknown field is looked for; empty for a binary one.
    :param unknown: a field that the parser left out, and the message that it stands in.
    :raises CacheError: where it is none.
    """
    if isinstance(plain, dict) and {"complete", "lookups"} <= plain.keys():  # it has a version, too
        raise ReportError(where)
    reader = _Reader()
    reader.unknown = unknown
    try:
        cache, wrong = reader.cache(plain, where), None
    except _WrongError as error:
        cache, wrong = Cache(), CacheError(where, str(error))
    if reader.unknown is not None:
        name, message = reader.unknown
        there = re.search(rf"""["']?\b{re.escape(name)}["']?\s*[:{{<]""", text)
        line = f":{text.count(chr(10), 0, there.start()) + 1}" if there else ""
        meant = get_close_matches(name[:40], list(MESSAGES[message]), 1, 0.7)
        remedy = f'mend it first: is it "{meant[0]}"?' if meant else _UPGRADE
        lossy = CacheError(f"{where}{line}", f'the field "{name}" is unknown', remedy)
        if wrong is not None and meant:
            raise lossy
        cache = replace(cache, lossy=lossy.args)
    if wrong is not None:
        raise wrong
    return cache
