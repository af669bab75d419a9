"""What holds for a cache in every format: its version, its checks and its order."""

from __future__ import annotations

import gc
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from difflib import get_close_matches
from enum import Enum
from itertools import pairwise, repeat
from operator import itemgetter
from typing import Any, TypeVar

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Device, Entry, Value, Versions
from pytest_autotune.cache.shared_values import FastIdentity, Identities, OncePerValue

FORMAT_VERSION = 1

_T = TypeVar("_T")

_UINT32 = range(2**32)
_INT64 = range(-(2**63), 2**63)
_UPGRADE = "upgrade pytest-autotune"
# Different values by which entries are told apart fast while a file is read: some megabytes.
_MOST_NUMBERED = 10_000
# More are no types of processors that a suite has met.
_MOST_DEVICES = 10_000


_CANDIDATE = {"id": "text", "params": "value", "time_us": "float", "failed": "text", "label": "text"}
#: The fields of each message, by name: what each holds, which is a scalar or another message.
FIELDS: Mapping[str, Mapping[str, str]] = {
    "cache": {"format_version": "uint32", "devices": "device", "entries": "entry"},
    "device": {"id": "text", "name": "text", "arch": "text", "multiprocessors": "uint32"},
    "value": {"name": "text", "bool": "bool", "int": "int64", "float": "float", "text": "text", "type": "text"},
    "candidate": _CANDIDATE,
    "entry": {
        "tuner": "text",
        "kernel": "text",
        "key": "value",
        "device": "text",
        "fingerprint": "value",
        "choice": "candidate",
        "candidates": "candidate",
        "native": "bytes",
        "label": "text",
        "tuning_seconds": "float",
        "environment": "text",
        "compiled": "text",
        "made_of": "text",
    },
}


@dataclass(frozen=True)
class UnknownField:
    """A field that this version does not know: of a newer one, or misspelt.

    :param line: where it stands; 0 where the format does not say.
    :param meant: the known field whose name is nearest to it; empty where none is near.
    """

    name: str
    line: int
    meant: str

    @classmethod
    def of(cls, name: str, known: Iterable[str], line: int = 0) -> UnknownField:
        """The field of a message that knows only these names."""
        return cls(name, line, next(iter(get_close_matches(name[:40], list(known), 1, 0.7)), ""))

    def as_error(self, where: str) -> CacheError:
        """It in one line, with what to do.

        :param where: the path.
        """
        remedy = f'is it "{self.meant}"?' if self.meant else _UPGRADE
        at = f"{where}:{self.line}" if self.line else where
        return CacheError(at, f'the field "{self.name}" is unknown', remedy)


class Format(Enum):
    """How a cache is written; the value is the word for it in messages."""

    TEXT = "text"
    BINARY = "binary"
    YAML = "YAML"
    JSON = "JSON"


def check_not_empty(data: bytes, where: str) -> None:
    """Refuse a file without anything in it.

    :raises CacheError: then.
    """
    if not data or data.isspace():
        raise CacheError(where, "is empty", "remove it, or restore it from version control")


def check_version(version: int, where: str) -> None:
    """Refuse a file without a version, or of a version that is not known yet.

    :raises CacheError: in both cases.
    """
    if version == FORMAT_VERSION:
        return
    if version <= 0:
        raise CacheError(where, "has no format_version", "is it a cache of pytest-autotune?")
    raise CacheError(
        where, f"format_version {version} is newer than this pytest-autotune reads ({FORMAT_VERSION})", _UPGRADE
    )


def checked_devices(devices: Iterable[tuple[str, Device]], where: str) -> dict[str, Device]:
    """The devices of a file by their id there.

    :raises CacheError: for an empty or repeated id.
    """
    by_id: dict[str, Device] = {}
    for id, device in devices:
        add_device(by_id, id, device, where)
    return by_id


def add_device(by_id: dict[str, Device], id: str, device: Device, where: str) -> None:
    """Add the next device of a file to those by their id.

    :raises CacheError: for an empty or repeated id, or too many devices.
    """
    if not id:
        raise CacheError(where, f"devices[{len(by_id)}] has no id")
    if id in by_id:
        raise CacheError(where, f'devices[{len(by_id)}]: the id "{id}" is used twice')
    if len(by_id) == _MOST_DEVICES:
        raise CacheError(where, f"has more than {_MOST_DEVICES} devices: not a cache")
    by_id[id] = device


def twice(names: Iterable[str]) -> str:
    """A name that stands there twice."""
    ordered = sorted(names)
    return next(name for name, following in pairwise(ordered) if name == following)


def check_names(values: tuple[Value, ...], path: str, where: str) -> None:
    """Refuse a name that stands twice in a key or fingerprint.

    :raises CacheError: naming it.
    """
    names = [value.name for value in values]
    if len(set(names)) < len(names):
        raise CacheError(where, f'{path}: the name "{twice(names)}" is used twice')


def check_entry(entry: Entry, path: Callable[[], str], where: str) -> Entry:
    """The entry itself, once what every entry must have is there.

    :param path: of the entry in its file, asked for in case of an error.
    :raises CacheError: for an empty tuner or kernel, or a name that stands twice.
    """
    for part in ("tuner", "kernel"):
        if not getattr(entry.problem, part):
            raise CacheError(where, f"{path()}.{part} is empty")
    for part, values in (("key", entry.problem.key), ("fingerprint", entry.fingerprint)):
        if len({value.name for value in values}) < len(values):
            check_names(values, f"{path()}.{part}", where)
    return entry


def check_lists(text: str, where: str) -> None:
    """Refuse a file of YAML or JSON that is made of lists: each takes twenty times its two characters in memory.

    :raises CacheError: for more than one list in eight characters.
    """
    lists = text.count("[")
    if lists > 100_000 and lists * 8 > len(text):
        raise CacheError(where, f"has {lists} lists in {len(text)} characters: not a cache")


def check_scalar(value: Value) -> None:
    """Refuse what no format can hold.

    :raises CacheError: for an integer beyond 64 bits.
    """
    if isinstance(value.value, int) and value.value not in _INT64:
        raise CacheError(value.name, f"{value.value} does not fit 64 bits")


def one_of_each(entries: Iterable[Entry]) -> tuple[Entry, ...]:
    """The entries, one for each problem and fingerprint.

    Two sides of a version-control merge may both have added one. Of those the
    faster stays, then the one that is encoded lower: whatever the order of the
    lines, the same.
    """
    identify = Identities(_MOST_NUMBERED)
    chosen: dict[FastIdentity, Entry] = {}
    # Of each that was compared, since a large entry may be compared with thousands.
    preferences: dict[int, tuple[float, str, bytes]] = {}
    for entry in entries:
        identity = identify(entry)
        other = chosen.setdefault(identity, entry)
        if other is not entry:
            known = preferences.pop(id(other), None) or _preference(other)
            mine = _preference(entry)
            if mine < known:
                chosen[identity], known = entry, mine
            preferences[id(chosen[identity])] = known
    return tuple(chosen.values())


def _preference(entry: Entry) -> tuple[float, str, bytes]:
    time_us = entry.choice.time_us if entry.choice else None
    return math.inf if time_us is None or math.isnan(time_us) else time_us, repr(entry), entry.raw


def device_ids(devices: Iterable[Device]) -> dict[Device, str]:
    """An id for each device, unique inside one file and the same in any order of the devices.

    :raises CacheError: for a number of multiprocessors that does not fit 32 bits.
    """
    ids: dict[Device, str] = {}
    used: set[str] = set()
    for device in sorted(set(devices), key=lambda device: device.sort_key):
        if device.multiprocessors not in _UINT32:
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

    The order is that of ``Entry.sort_key``; devices that share an id go
    by what else they are.

    :raises CacheError: for an entry that a reader would not take back.
    """
    encoded = OncePerValue(lambda value: value.encoded)
    orders: dict[Device, tuple[str, str, str, int]] = {}
    checked: set[tuple[str, ...]] = set()
    keyed = []
    for entry in entries:
        problem = entry.problem
        order = orders.get(problem.device)
        if order is None:
            order = orders[problem.device] = problem.device.sort_key
        key, fingerprint = encoded.each(problem.key), encoded.each(entry.fingerprint)
        names = (problem.tuner, problem.kernel, *[value[0] for value in key], "", *[value[0] for value in fingerprint])
        if names not in checked:
            check_entry(entry, lambda: "entry", str(problem))
            checked.add(names)
        keyed.append(((problem.tuner, problem.kernel, order[0], key, fingerprint, order), entry))
    keyed.sort(key=itemgetter(0))
    ordered = [entry for _, entry in keyed]
    if any(one[0] == following[0] for one, following in pairwise(keyed)):
        return list(one_of_each(ordered))
    return ordered


class KnownVersions(dict[str, Versions]):
    """Versions by the text that a file has of them, which most of its entries share."""

    def __missing__(self, text: str) -> Versions:
        versions = self[text] = Versions.of(text)
        return versions


def many(cls: type[_T], first: Sequence[object], *columns: Iterable[object]) -> list[_T]:
    """One object for each row of the columns, which stand in the order of the fields.

    A frozen dataclass assigns through ``object.__setattr__``, and the model
    sorts what it is given. To set the slots a column at a time, of values that
    are sorted already, takes an eighth to a fifth off reading: of 100,000
    entries 0.86 s and not 1.09 s as text, 1.24 s and not 1.43 s in binary form.

    :param first: the first column, which gives the number of objects.
    """
    objects: list[_T] = list(map(_NEW, repeat(cls, len(first))))
    for slot, column in zip(cls.__slots__, (first, *columns), strict=True):  # type: ignore[attr-defined]
        deque(map(cls.__dict__[slot].__set__, objects, column), maxlen=0)
    return objects


_NEW: Any = object.__new__


@contextmanager
def uncollected() -> Iterator[None]:
    """Without garbage collection: a million objects that stay are looked at again and again, in vain."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
