"""What holds for a cache in every format: its fields, its version, its checks and its order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from itertools import pairwise
from typing import NamedTuple

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Device, Entry, Identity, Value

FORMAT_VERSION = 1

UPGRADE = "upgrade pytest-autotune"
UINT32 = range(2**32)
INT64 = range(-(2**63), 2**63)


class Field(NamedTuple):
    """What stands under a name: a scalar or a message of this kind, or a list of them."""

    kind: str
    repeated: bool = False


_TEXT = Field("text")
#: The fields of each message, by name, in the order in which they are written; the same as in the .proto.
MESSAGES: Mapping[str, Mapping[str, Field]] = {
    "cache": {
        "format_version": Field("uint32"),
        "devices": Field("device", True),
        "digests": Field("digest", True),
        "entries": Field("entry", True),
    },
    "device": {"id": _TEXT, "name": _TEXT, "arch": _TEXT, "multiprocessors": Field("uint32")},
    "digest": {"id": _TEXT, "parts": Field("text", True)},
    "value": {
        "name": _TEXT,
        "bool": Field("bool"),
        "int": Field("int64"),
        "float": Field("float"),
        "text": _TEXT,
        "type": _TEXT,
    },
    "candidate": {
        "id": _TEXT,
        "params": Field("value", True),
        "time_us": Field("float"),
        "failed": _TEXT,
        "label": _TEXT,
    },
    "entry": {
        "tuner": _TEXT,
        "kernel": _TEXT,
        "key": Field("value", True),
        "device": _TEXT,
        "fingerprint": Field("value", True),
        "choice": Field("candidate"),
        "candidates": Field("candidate", True),
        "native": Field("bytes"),
        "label": _TEXT,
        "tuning_seconds": Field("float"),
        "environment": _TEXT,
        "compiled": Field("text", True),
    },
}


class Format(Enum):
    """How a cache is written; the value is the word for it in messages."""

    TEXT = "text"
    BINARY = "binary"
    YAML = "YAML"
    JSON = "JSON"


def unknown_field(name: str, message: str, where: str) -> CacheError:
    """What to say of a field that this version does not know: one of a newer version, or misspelt.

    :param message: what it stands in.
    """
    meant = get_close_matches(name[:40], list(MESSAGES[message]), 1, 0.7)
    return CacheError(where, f'the field "{name}" is unknown', f'is it "{meant[0]}"?' if meant else UPGRADE)


def check_version(version: int, where: str) -> None:
    """Refuse a file without a version, or of a version that is not known yet.

    :raises CacheError: in both cases.
    """
    if version == FORMAT_VERSION:
        return
    if version <= 0:
        raise CacheError(where, "has no format_version", "is it a cache of pytest-autotune?")
    raise CacheError(
        where, f"format_version {version} is newer than this pytest-autotune reads ({FORMAT_VERSION})", UPGRADE
    )


def twice(names: Iterable[str]) -> str:
    """A name that stands there twice; empty where none does."""
    ordered = list(names)
    if len(set(ordered)) == len(ordered):
        return ""
    return next(name for name, following in pairwise(sorted(ordered)) if name == following)


def defect(entry: Entry) -> tuple[str, str]:
    """What makes an entry none that a file may hold: (part, what is wrong); empty where it may hold it."""
    for part in ("tuner", "kernel"):
        if not getattr(entry.problem, part):
            return part, " is empty"
    for part, values in (("key", entry.problem.key), ("fingerprint", entry.fingerprint)):
        if len(values) > 1 and (name := twice([value.name for value in values])):
            return part, f': the name "{name}" is used twice'
    return "", ""


def check_scalar(value: Value) -> None:
    """Refuse what no format can hold.

    :raises CacheError: for an integer beyond 64 bits.
    """
    if isinstance(value.value, int) and value.value not in INT64:
        raise CacheError(value.name, f"{value.value} does not fit 64 bits")


def one_of_each(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries, one for each problem and fingerprint.

    Two sides of a version-control merge may both have added one. Of those the
    faster stays, then the one that is encoded lower: whatever the order of the
    lines, the same.
    """
    chosen: dict[Identity, Entry] = {}
    for entry in entries:
        identity = entry.identity
        other = chosen.setdefault(identity, entry)
        if other is not entry:
            chosen[identity] = min(other, entry, key=_preference)
    return tuple(chosen.values())


def _preference(entry: Entry) -> tuple[float, str]:
    time_us = entry.choice.time_us if entry.choice else None
    return math.inf if time_us is None or math.isnan(time_us) else time_us, repr(entry)


def device_ids(devices: Iterable[Device]) -> dict[Device, str]:
    """An id for each device, unique inside one file and the same in any order of the devices.

    :raises CacheError: for a number of multiprocessors that does not fit 32 bits.
    """
    ids: dict[Device, str] = {}
    used: set[str] = set()
    for device in sorted(set(devices), key=lambda device: device.sort_key):
        if device.multiprocessors not in UINT32:
            raise CacheError(device.name, f"{device.multiprocessors} multiprocessors do not fit 32 bits")
        base = id = device.id or "device"
        number = 2
        while id in used:
            id = f"{base}-{number}"
            number += 1
        used.add(id)
        ids[device] = id
    return ids


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """The entries as a file holds them: checked, sorted, one for each problem and fingerprint.

    :raises CacheError: for an entry that a reader would not take back.
    """
    ordered = sorted(one_of_each(entries), key=lambda entry: entry.sort_key)
    for entry in ordered:
        part, wrong = defect(entry)
        if wrong:
            raise CacheError(str(entry.problem), f"entry.{part}{wrong}")
    return ordered
