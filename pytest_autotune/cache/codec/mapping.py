"""Turns the entries of a cache into a plain mapping, which every format writes.

The mapping mirrors the protocol buffer, field by field. It consists of dicts, lists, text, bytes, integers, floats and
booleans. This module has the fields, the version and the order that all formats share.
:mod:`~pytest_autotune.cache.codec.reading` turns a mapping back into a cache.
"""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import count
from operator import attrgetter
from typing import Any, NamedTuple

from pytest_autotune.cache.model import Cache, Candidate, Device, Digest, Entry, Identity, Value

FORMAT_VERSION = 1

#: The fields of a message by their names.
Plain = dict[str, Any]

#: A larger file is read only if it is laid out as we write it. Other layouts need protobuf's parser, which takes about
#: 1 s per MiB.
MAX_FOREIGN_BYTES = 8 << 20


@dataclass(frozen=True)
class Codec:
    """A format.

    :param name: the word for the format in messages.
    :param suffixes: the suffixes of its files; the first is recommended.
    :param read: turns text or bytes, and their place for the error, into a cache; raises CacheError.
    :param write: turns sorted entries into text or bytes; raises CacheError.
    :param is_text: whether its files are text in UTF-8.
    """

    name: str
    suffixes: tuple[str, ...]
    read: Callable[..., Cache]
    write: Callable[[Sequence[Entry]], str | bytes]
    is_text: bool = True


class Field(NamedTuple):
    """A field of a message.

    :param kind: the kind of scalar or message.
    :param is_list: whether the field holds a list of them.
    """

    kind: str
    is_list: bool = False


def _fields(text: str) -> Mapping[str, Field]:
    """Return the fields in a text such as ``"id text, parts text*"``; a star marks a list."""
    fields = {}
    for pair in text.split(", "):
        name, kind = pair.split(" ")
        fields[name] = Field(kind.removesuffix("*"), kind.endswith("*"))
    return fields


#: The fields of each message, by name, in the order in which they are written. The .proto has the same fields.
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
#: The field that holds a scalar of this type.
_SCALAR_FIELDS = {bool: "bool", int: "int", float: "float", str: "text"}
#: Used in place of json.dumps(). A test of a library may replace json.dumps() while a kernel is tuned, and the event of
#: this tuning must still be written. The method of an encoder that exists already is not replaced along with it.
_COMPACT_ENCODER = json.JSONEncoder(separators=(",", ":"))


# Entries in a file


def without_duplicates(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """Return the entries, one for each identity: a problem with a fingerprint.

    After a merge by version control, a file may have two entries of the same identity. The entry with the higher
    generation stays, and of equal generations the faster entry. If both are equally fast, the entry whose text sorts
    first stays. The order of the lines in the file has no influence.
    """
    entries_by_identity: dict[Identity, list[Entry]] = {}
    for entry in entries:
        entries_by_identity.setdefault(entry.identity, []).append(entry)
    remaining = []
    for same_identity in entries_by_identity.values():
        best = same_identity[0]
        if len(same_identity) > 1:
            best = min(same_identity, key=_preference)
        remaining.append(best)
    return tuple(remaining)


def _preference(entry: Entry) -> tuple[int, float, str]:
    """Sorts entries of the same identity; the lowest stays."""
    time_us = math.inf
    if entry.choice and entry.choice.time_us is not None and not math.isnan(entry.choice.time_us):
        time_us = entry.choice.time_us
    return -entry.generation, time_us, repr(entry)


def sort_entries(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries as a file has them: sorted, one for each problem and fingerprint."""
    return sorted(without_duplicates(entries), key=attrgetter("sort_key"))


def device_ids(devices: Iterable[Device]) -> dict[Device, str]:
    """Return an id for each device. Ids are unique inside a file, and do not depend on the order of the devices.

    Two devices whose own id is ``toy-gpu`` get the ids ``toy-gpu`` and ``toy-gpu-2``.
    """
    ids: dict[Device, str] = {}
    used_ids: set[str] = set()
    for device in sorted(set(devices), key=attrgetter("sort_key")):
        base = device.id or "device"
        unique_id = base
        numbers = count(2)
        while unique_id in used_ids:
            unique_id = f"{base}-{next(numbers)}"
        used_ids.add(unique_id)
        ids[device] = unique_id
    return ids


def collect_digests(entries: Iterable[Entry]) -> dict[str, Digest]:
    """Return the digests of all entries by their id. If two have the same id, the lower one stays."""
    digests: dict[str, Digest] = {}
    for entry in entries:
        for digest in entry.digests:
            earlier = digests.setdefault(digest.id, digest)
            if digest.parts < earlier.parts:
                digests[digest.id] = digest
    return digests


# To a mapping


def to_mapping(entries: Sequence[Entry]) -> Plain:
    """Return a cache of these entries as a plain mapping; the entries stay in their order."""
    ids = device_ids(entry.problem.device for entry in entries)
    digests = collect_digests(entries)
    plain: Plain = {
        "format_version": FORMAT_VERSION,
        "devices": [_device_mapping(device, device_id) for device, device_id in ids.items()],
    }
    if digests:
        plain["digests"] = [_message_mapping("digest", digests[digest_id]) for digest_id in sorted(digests)]
    plain["entries"] = [_entry_mapping(entry, ids[entry.problem.device]) for entry in entries]
    return plain


def _device_mapping(device: Device, device_id: str) -> Plain:
    """Return the fields of a device that are set.

    :param device_id: the id that is unique in the file, unlike the device's own id.
    """
    plain: Plain = {"id": device_id}
    for name in ("name", "arch", "multiprocessors"):
        value = getattr(device, name)
        if value:
            plain[name] = value
    return plain


def _entry_mapping(entry: Entry, device_id: str) -> Plain:
    """Return the fields of an entry that are set, in the order in which they are written."""
    problem = entry.problem
    # The other fields of the message have the same names and values as the fields of an Entry.
    special_values = {
        "tuner": problem.tuner,
        "kernel": problem.kernel,
        "key": problem.key,
        "device": device_id,
        "tuning_seconds": float(entry.tuning_seconds),
        "environment": str(entry.versions),
    }
    plain: Plain = {}
    for name, field in MESSAGES["entry"].items():
        if name in special_values:
            value = special_values[name]
        else:
            value = getattr(entry, name)
        if value:
            plain[name] = _field_value(field, value)
    return plain


def _message_mapping(kind: str, message: object) -> Plain:
    """Return the fields of a message that are set, in the order in which they are written."""
    plain: Plain = {}
    for name, field in MESSAGES[kind].items():
        value = getattr(message, name)
        # A time of 0 was measured.
        if value or (name == "time_us" and value is not None):
            plain[name] = _field_value(field, value)
    return plain


def _field_value(field: Field, value: Any) -> Any:
    """Return a field of the model as plain data: messages become mappings, and tuples become lists."""
    if field.kind == "value":
        return [_value_mapping(item) for item in value]
    if field.kind == "candidate" and field.is_list:
        return [_candidate_mapping(item) for item in value]
    if field.kind == "candidate":
        return _candidate_mapping(value)
    if field.is_list:
        return list(value)
    return value


def _candidate_mapping(candidate: Candidate) -> Plain:
    return _message_mapping("candidate", candidate)


def _value_mapping(value: Value) -> Plain:
    """Return a value with its scalar in the field of the scalar's type: ``{"name": "M", "int": 64}``."""
    plain: Plain = {}
    if value.name:
        plain["name"] = value.name
    if value.value is not None:
        plain[_SCALAR_FIELDS[type(value.value)]] = value.value
    if value.type:
        plain["type"] = value.type
    return plain


def for_json(plain: Any) -> Any:
    """Return a plain mapping as JSON can hold it: bytes become base64, infinity and NaN become text."""
    if isinstance(plain, dict):
        return {name: for_json(field) for name, field in plain.items()}
    if isinstance(plain, list):
        return [for_json(item) for item in plain]
    if isinstance(plain, bytes):
        return base64.b64encode(plain).decode()
    if isinstance(plain, float) and not math.isfinite(plain):
        return str(plain)
    return plain


def encode_for_process(entries: Iterable[Entry]) -> str:
    """Return the entries as one line of JSON for another process of the run, in their order."""
    return to_compact_json(for_json(to_mapping(list(entries))))


def to_compact_json(plain: object) -> str:
    """Return plain data, made by :func:`for_json`, as one line of JSON without its end."""
    return _COMPACT_ENCODER.encode(plain)
