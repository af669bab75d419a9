"""What holds for a cache in every format: its fields, its version, its checks and its order."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from enum import Enum
from typing import NamedTuple

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Device, Entry, Identity

FORMAT_VERSION = 1

UPGRADE = "upgrade pytest-autotune"


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
        "generation uint32"
    ),
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


def one_of_each(entries: Iterable[Entry]) -> tuple[Entry, ...]:
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


def device_ids(devices: Iterable[Device]) -> dict[Device, str]:
    """An id for each device, unique inside one file and the same in any order of the devices."""
    ids: dict[Device, str] = {}
    used: set[str] = set()
    for device in sorted(set(devices), key=lambda device: device.sort_key):
        base = id = device.id or "device"
        number = 2
        while id in used:
            id = f"{base}-{number}"
            number += 1
        used.add(id)
        ids[device] = id
    return ids


def in_order(entries: Iterable[Entry]) -> list[Entry]:
    """The entries as a file holds them: sorted, one for each problem and fingerprint."""
    return sorted(one_of_each(entries), key=lambda entry: entry.sort_key)
