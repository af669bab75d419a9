"""The binary format: protocol buffers, with fields of newer versions kept as they are."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from types import SimpleNamespace
from typing import Any, TypeAlias

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import wire
from pytest_autotune.cache.formats.schema import (
    FORMAT_VERSION,
    check_entry,
    check_not_empty,
    check_scalar,
    check_version,
    checked_devices,
    device_ids,
    in_order,
    one_of_each,
    uncollected,
)
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value

# The generated module has no types.
Module: TypeAlias = Any
Message: TypeAlias = Any


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
    unknown = list(unknown)
    if not unknown and not any(entry.raw for entry in entries):
        return wire.write(entries)
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
        if entries_of([entry.raw], {raw.device: entry.problem.device}, "") == [entry]:
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
    try:
        _, read, once = wire.read(data)
        return Cache(tuple(read) if once else one_of_each(read))
    except wire.UnfamiliarError:
        pass
    message = parse(data, where)
    devices = devices_of(message, where)
    entries = one_of_each(entries_of(message.entries, devices, where))
    return Cache(entries, unknown=_unknown(message, devices))


def may_be_text(data: bytes) -> bool:
    """Whether the bytes start like a text."""
    return all(byte >= 32 or byte in b"\t\n\r" for byte in data[:200])


def parse(data: bytes, where: str) -> Message:
    """The bytes as an outline of a version that is known: its entries are bytes that are still to be read.

    :raises CacheError: where they are none.
    """
    check_not_empty(data, where)
    try:
        message = _outlines().Cache.FromString(data)
        check_version(message.format_version, where)
    except Exception as error:  # a foreign parser at work on foreign bytes
        if may_be_text(data):
            raise CacheError(where, "holds text, not binary data", "name it .textproto, .yaml or .json") from None
        if isinstance(error, CacheError):
            raise
        raise CacheError(where, f"is not a cache: {str(error) or 'damaged'}") from None
    return message


def _unknown(message: Message, devices: Mapping[str, Device]) -> tuple[tuple[str, bytes], ...]:
    parts = []
    for part in map(_pb2().Device.FromString, message.devices):
        id = devices[part.id].id
        for name in ("id", "name", "arch", "multiprocessors"):
            part.ClearField(name)
        parts.append((id, part.SerializeToString(deterministic=True)))
    for name in ("format_version", "devices", "entries"):
        message.ClearField(name)
    parts.append(("", message.SerializeToString(deterministic=True)))
    return tuple(sorted((id, fields) for id, fields in parts if fields))


def devices_of(message: Message, where: str) -> dict[str, Device]:
    """The devices of an outline by their id in it.

    :raises CacheError: for an empty or repeated id.
    """
    try:
        rows = map(_pb2().Device.FromString, message.devices)
        return checked_devices(((row.id, Device(row.name, row.arch, row.multiprocessors)) for row in rows), where)
    except CacheError:
        raise
    except Exception as error:  # a foreign parser at work on foreign bytes
        raise CacheError(where, f"devices are damaged: {str(error) or 'no device'}") from None


def entries_of(encoded: Iterable[bytes], devices: Mapping[str, Device], where: str) -> list[Entry]:
    """The entries that the bytes hold; what a parser makes of one is gone before the next.

    :param devices: by their id in the bytes.
    :raises CacheError: where an entry must not be like this.
    """
    read = _Reader(devices, where)
    with uncollected():
        return [read.entry(data, index) for index, data in enumerate(encoded)]


# Values that are kept for others that are equal: enough for the largest suite, and no more than some megabytes.
_MOST_VALUES = 20_000


# Bytes of an entry from which on its parts are counted before a parser makes something of each.
_LARGE = 2**16


def _check_parts(data: bytes, where: str) -> None:
    """Refuse a message that is made of empty parts: each takes thirty times its two bytes in memory.

    :raises CacheError: for more than one part in four bytes.
    """
    position, parts = 0, 0
    while position < len(data):
        kind, position = data[position] & 7, _after_varint(data, position)
        if kind == 2:
            after = _after_varint(data, position)
            if after - position > 10:
                return
            position = after + sum((byte & 127) << 7 * index for index, byte in enumerate(data[position:after]))
        elif kind == 0:
            position = _after_varint(data, position)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            return  # a group or no message at all: the parser refuses it, or makes nothing of it
        parts += 1
        if parts * 4 > len(data):
            raise CacheError(where, f"an entry has over {len(data) // 4} parts in {len(data)} bytes: not a cache")


def _after_varint(data: bytes, position: int) -> int:
    while position < len(data) and data[position] & 128:
        position += 1
    return position + 1


class _Reader:
    """Reads entries, and every value once, however many entries hold it."""

    def __init__(self, devices: Mapping[str, Device], where: str) -> None:
        self._devices = devices
        self._where = where
        self._known: dict[bytes, Value] = {}
        self._short_candidates: dict[bytes, Candidate] = {}
        self._texts: dict[str, str] = {}
        self._has_unknown_fields = False
        self._outlines = _outlines()
        self._value_message = _pb2().Value

    def entry(self, data: bytes, index: int) -> Entry:
        """The entry that the bytes hold.

        :param index: its place among the entries, for the error.
        """
        self._has_unknown_fields = False
        try:
            entry = self._entry(self._parsed(self._outlines.Entry, data), index)
        except CacheError:
            raise
        except Exception as error:  # a foreign parser at work on foreign bytes
            raise CacheError(self._where, f"entries[{index}] is damaged: {str(error) or 'no entry'}") from None
        check_entry(entry, lambda: f"entries[{index}]", self._where)
        return replace(entry, raw=data) if self._has_unknown_fields else entry

    def _parsed(self, kind: Any, data: bytes) -> Message:
        if len(data) > _LARGE:
            _check_parts(data, self._where)
        message = kind.FromString(data)
        size = message.ByteSize()
        message.DiscardUnknownFields()
        self._has_unknown_fields |= message.ByteSize() != size
        return message

    def _entry(self, outline: Message, index: int) -> Entry:
        device = self._devices.get(outline.device)
        if device is None:
            raise CacheError(self._where, f'entries[{index}].device: no device has the id "{outline.device}"')
        tuner, kernel, environment = outline.tuner, outline.kernel, outline.environment
        shared = self._texts.setdefault
        return Entry(
            Problem(shared(tuner, tuner), shared(kernel, kernel), self._values(outline.key), device),
            self._values(outline.fingerprint),
            self._candidate(outline.choice) if outline.HasField("choice") else None,
            tuple([self._candidate(data) for data in outline.candidates]),
            outline.native,
            outline.label,
            outline.tuning_seconds,
            shared(environment, environment),
        )

    def _candidate(self, data: bytes) -> Candidate:
        known = self._short_candidates.get(data)
        if known is not None:
            return known
        outline = self._parsed(self._outlines.Candidate, data)
        candidate = Candidate(
            outline.id,
            self._values(outline.params),
            outline.time_us if outline.HasField("time_us") else None,
            outline.failed,
            outline.label,
        )
        few = len(self._short_candidates) < _MOST_VALUES
        if len(data) < 10 and few and not self._has_unknown_fields:  # so short that millions may stand in a file
            self._short_candidates[data] = candidate
        return candidate

    def _values(self, encoded: Iterable[bytes]) -> tuple[Value, ...]:
        known = self._known.get
        return tuple([known(data) or self._value(data) for data in encoded])

    def _value(self, data: bytes) -> Value:
        before, self._has_unknown_fields = self._has_unknown_fields, False
        message = self._parsed(self._value_message, data)
        kind = message.WhichOneof("value")
        scalar: Scalar = getattr(message, kind) if kind else None
        value = Value(message.name, scalar, message.type)
        if not self._has_unknown_fields and len(self._known) < _MOST_VALUES:
            self._known[data] = value
        self._has_unknown_fields |= before
        return value


@lru_cache(maxsize=1)
def _outlines() -> Any:
    """The messages, in which what is repeated inside an entry stands as bytes.

    It is the same on the wire. A message of protobuf takes fifty times the two
    bytes that an empty one may have in a file; bytes take eight times.
    """
    from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

    file = descriptor_pb2.FileDescriptorProto()
    _pb2().DESCRIPTOR.CopyToProto(file)
    package = file.package
    for message in file.message_type:
        for field in message.field:
            if field.type_name:
                field.ClearField("type_name")
                field.type = field.TYPE_BYTES
                if field.label == field.LABEL_OPTIONAL:  # so that it can be told from an empty one
                    field.proto3_optional = True
                    field.oneof_index = len(message.oneof_decl)
                    message.oneof_decl.add(name=f"_{field.name}")
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = [
        message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{package}.{name}"))
        for name in ("AutotuneCache", "Entry", "Candidate")
    ]
    return SimpleNamespace(Cache=made[0], Entry=made[1], Candidate=made[2])
