"""The binary format: protocol buffers, with fields of newer versions kept as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import repeat
from operator import attrgetter
from typing import Any, TypeAlias

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.schema import (
    FORMAT_VERSION,
    check_names,
    check_not_empty,
    check_scalar,
    check_version,
    checked_devices,
    device_ids,
    in_order,
    many,
    one_of_each,
    uncollected,
)
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value

# The generated module has no types.
Module: TypeAlias = Any
Message: TypeAlias = Any

_NAME = attrgetter("name")


def _pb2() -> Module:
    from pytest_autotune.cache import autotune_cache_pb2

    return autotune_cache_pb2


def encode(cache: Cache) -> bytes:
    """The cache as bytes.

    :raises CacheError: for an entry that a reader would not take back.
    """
    return to_bytes(in_order(cache.entries), cache.unknown)


def to_bytes(entries: Iterable[Entry], unknown: Iterable[tuple[str, bytes]] = ()) -> bytes:
    """The entries as bytes, in the order given.

    :param unknown: as in :class:`Cache`.
    """
    entries = list(entries)
    ids = device_ids({entry.problem.device for entry in entries})
    message = _pb2().AutotuneCache(format_version=FORMAT_VERSION)
    for device, id in ids.items():
        message.devices.add(id=id, name=device.name, arch=device.arch, multiprocessors=device.multiprocessors)
    for entry in entries:
        _add_entry(message, entry, ids[entry.problem.device])
    for id, fields in unknown:
        if not id:
            message.MergeFromString(fields)
        for device_message in message.devices:
            if id and device_message.id == id:
                device_message.MergeFromString(fields)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _add_entry(cache: Message, entry: Entry, device_id: str) -> None:
    if entry.raw:
        raw = _pb2().Entry.FromString(entry.raw)
        # An entry that was changed since it was read has nothing to say about fields that we do not know.
        if entries_of([raw], {raw.device: entry.problem.device}, "") == [entry]:
            raw.device = device_id
            cache.entries.append(raw)
            return
    problem = entry.problem
    message = cache.entries.add(
        tuner=problem.tuner,
        kernel=problem.kernel,
        device=device_id,
        native=entry.native,
        label=entry.label,
        tuning_seconds=entry.tuning_seconds,
        environment=entry.environment,
    )
    _add_values(message.key, problem.key)
    _add_values(message.fingerprint, entry.fingerprint)
    if entry.choice is not None:
        message.choice.SetInParent()
        _fill_candidate(message.choice, entry.choice)
    for candidate in entry.candidates:
        _fill_candidate(message.candidates.add(), candidate)


def _fill_candidate(message: Message, candidate: Candidate) -> None:
    message.id = candidate.id
    message.failed = candidate.failed
    message.label = candidate.label
    if candidate.time_us is not None:
        message.time_us = candidate.time_us
    _add_values(message.params, candidate.params)


def _add_values(messages: Message, values: Iterable[Value]) -> None:
    for value in values:
        check_scalar(value)
        message = messages.add(name=value.name, type=value.type)
        if value.value is not None:
            setattr(message, _kind(value.value), value.value)


def _kind(scalar: bool | int | float | str) -> str:
    if isinstance(scalar, bool):
        return "bool"
    return "int" if isinstance(scalar, int) else "float" if isinstance(scalar, float) else "text"


def decode(data: bytes, where: str) -> Cache:
    """The cache that the bytes hold.

    :raises CacheError: where they hold none.
    """
    message = parse(data, where)
    known = parse(data, where)
    known.DiscardUnknownFields()
    if known.ByteSize() == message.ByteSize():
        return from_message(message, where)
    return from_message(message, where, known)


def parse(data: bytes, where: str) -> Message:
    """The bytes as a message of a version that is known; its entries are still to be checked.

    :raises CacheError: where they are none.
    """
    check_not_empty(data, where)
    try:
        message = _pb2().AutotuneCache.FromString(data)
        check_version(message.format_version, where)
    except Exception as error:  # a foreign parser at work on foreign bytes
        if all(byte >= 32 or byte in b"\t\n\r" for byte in data[:200]):
            raise CacheError(where, "holds text, not binary data", "name it .textproto, .yaml or .json") from None
        if isinstance(error, CacheError):
            raise
        raise CacheError(where, f"is not a cache: {str(error) or 'damaged'}") from None
    return message


def from_message(message: Message, where: str, known: Message | None = None) -> Cache:
    """The cache that a message holds.

    :param known: the same message without its unknown fields, where it has any.
    :raises CacheError: where it holds none.
    """
    check_version(message.format_version, where)
    devices = devices_of(message, where)
    if known is None:
        return Cache(one_of_each(entries_of(message.entries, devices, where)))
    raws = [
        b"" if less.ByteSize() == entry.ByteSize() else entry.SerializeToString(deterministic=True)
        for less, entry in zip(known.entries, message.entries, strict=True)
    ]
    entries = one_of_each(entries_of(message.entries, devices, where, raws))
    return Cache(entries, unknown=_unknown(message, devices))


def _unknown(message: Message, devices: Mapping[str, Device]) -> tuple[tuple[str, bytes], ...]:
    parts = []
    for part in message.devices:
        id = devices[part.id].id
        for name in ("id", "name", "arch", "multiprocessors"):
            part.ClearField(name)
        parts.append((id, part.SerializeToString(deterministic=True)))
    for name in ("format_version", "devices", "entries"):
        message.ClearField(name)
    parts.append(("", message.SerializeToString(deterministic=True)))
    return tuple(sorted((id, fields) for id, fields in parts if fields))


def devices_of(message: Message, where: str) -> dict[str, Device]:
    """The devices of a message by their id in it.

    :raises CacheError: for an empty or repeated id.
    """
    return checked_devices(
        ((row.id, Device(row.name, row.arch, row.multiprocessors)) for row in message.devices), where
    )


def device_of(message: Message, devices: Mapping[str, Device], index: int, where: str) -> Device:
    """The device of an entry, whose tuner and kernel are checked, too.

    :param index: its place among the entries, for the error.
    :raises CacheError: where one of the three is missing.
    """
    device = devices.get(message.device)
    if device is None:
        raise CacheError(where, f'entries[{index}].device: no device has the id "{message.device}"')
    if not (message.tuner and message.kernel):
        raise CacheError(where, f"entries[{index}].{'kernel' if message.tuner else 'tuner'} is empty")
    return device


def entries_of(
    messages: Sequence[Message], devices: Mapping[str, Device], where: str, raws: Sequence[bytes] | None = None
) -> list[Entry]:
    """The entries that messages hold.

    :param devices: by their id in the messages.
    :param raws: ``Entry.raw`` of each; None: all empty.
    :raises CacheError: where an entry must not be like this.
    """
    read = _Reader(where)
    entries = list(messages)
    with uncollected():
        return many(
            Entry,
            many(
                Problem,
                [entry.tuner for entry in entries],
                [entry.kernel for entry in entries],
                [read.sorted_values(entry.key, "key", index) for index, entry in enumerate(entries)],
                [device_of(entry, devices, index, where) for index, entry in enumerate(entries)],
            ),
            [read.sorted_values(entry.fingerprint, "fingerprint", index) for index, entry in enumerate(entries)],
            [read.candidate(entry.choice) if entry.HasField("choice") else None for entry in entries],
            [tuple(map(read.candidate, entry.candidates)) for entry in entries],
            [entry.native for entry in entries],
            [entry.label for entry in entries],
            [entry.tuning_seconds for entry in entries],
            [entry.environment for entry in entries],
            raws or repeat(b""),
        )


class _Reader:
    """Decodes every value once, however many entries hold it."""

    def __init__(self, where: str) -> None:
        self._where = where
        self._known: dict[bytes, Value] = {}
        self._sorted_names: set[tuple[str, ...]] = set()

    def sorted_values(self, messages: Iterable[Message], field: str, index: int) -> tuple[Value, ...]:
        values = self._values(messages)
        names = tuple(map(_NAME, values))
        if names in self._sorted_names:
            return values
        check_names(values, f"entries[{index}].{field}", self._where)
        if names == tuple(sorted(names)):
            self._sorted_names.add(names)
        return tuple(sorted(values, key=_NAME))

    def candidate(self, message: Message) -> Candidate:
        return Candidate(
            message.id,
            self._values(message.params),
            message.time_us if message.HasField("time_us") else None,
            message.failed,
            message.label,
        )

    def _values(self, messages: Iterable[Message]) -> tuple[Value, ...]:
        values = []
        for message in messages:
            encoded = message.SerializeToString()
            value = self._known.get(encoded)
            if value is None:
                kind = message.WhichOneof("value")
                scalar: Scalar = getattr(message, kind) if kind else None
                value = self._known[encoded] = Value(message.name, scalar, message.type)
            values.append(value)
        return tuple(values)
