"""The binary format: protocol buffers, with fields of newer versions kept as they are.

What is repeated inside an entry (values, candidates) stands as bytes in the
messages that protobuf makes of it, see :func:`_outlines`: it is the same on the
wire. So every value is encoded and decoded once, however many entries hold it,
and nothing is made of a file but what the cache keeps. To read 100,000 entries
takes 1.6 s and to write them 1.5 s; a reader and writer of the wire format of
our own took 1.1 and 1.5 s, and 400 lines.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from operator import attrgetter, eq
from types import SimpleNamespace
from typing import Any, TypeAlias

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.schema import (
    FORMAT_VERSION,
    KnownVersions,
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
from pytest_autotune.cache.shared_values import OncePerValue

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
    :raises CacheError: for a number that does not fit.
    """
    entries, unknown = list(entries), list(unknown)
    ids = device_ids({entry.problem.device for entry in entries})
    devices = []
    for device, id in ids.items():
        row = _pb2().Device(id=id, name=device.name, arch=device.arch, multiprocessors=device.multiprocessors)
        for of, fields in unknown:
            if of == id:
                row.MergeFromString(fields)
        devices.append(row.SerializeToString(deterministic=True))
    with uncollected():
        rows = list(map(_Writer(ids).entry, entries))
    message = _outlines().Cache(format_version=FORMAT_VERSION, devices=devices, entries=rows)
    for of, fields in unknown:
        if not of:
            message.MergeFromString(fields)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


class _Writer:
    """Encodes every value once, however many entries hold it."""

    def __init__(self, ids: Mapping[Device, str]) -> None:
        self._ids = ids
        self._outlines = _outlines()
        self._values = OncePerValue(_encoded_value)

    def entry(self, entry: Entry) -> bytes:
        problem = entry.problem
        id = self._ids[problem.device]
        message = self._raw(entry, id) if entry.raw else None
        if message is None:
            message = self._outlines.Entry(
                tuner=problem.tuner,
                kernel=problem.kernel,
                key=self._values.each(problem.key),
                device=id,
                fingerprint=self._values.each(entry.fingerprint),
                choice=self._candidate(entry.choice) if entry.choice is not None else None,
                candidates=list(map(self._candidate, entry.candidates)),
                native=entry.native,
                label=entry.label,
                tuning_seconds=entry.tuning_seconds,
                environment=str(entry.versions),
                compiled=entry.compiled,
                made_of=entry.made_of,
            )
        data: bytes = message.SerializeToString(deterministic=True)
        return data

    def _raw(self, entry: Entry, id: str) -> Message | None:
        """The entry with the fields that this version does not know; None where it was changed since it was read.

        A changed entry has nothing to say about what we do not know.
        """
        message = self._outlines.Entry.FromString(entry.raw)
        if _Reader({message.device: entry.problem.device}, "").entries([entry.raw]) != [entry]:
            return None
        message.device = id
        message.compiled[:] = entry.compiled
        message.made_of[:] = entry.made_of
        return message

    def _candidate(self, candidate: Candidate) -> bytes:
        message = self._outlines.Candidate(
            id=candidate.id,
            params=self._values.each(candidate.params),
            time_us=candidate.time_us,
            failed=candidate.failed,
            label=candidate.label,
        )
        data: bytes = message.SerializeToString(deterministic=True)
        return data


def _encoded_value(value: Value) -> bytes:
    check_scalar(value)
    message = _pb2().Value(name=value.name, type=value.type)
    if value.value is not None:
        setattr(message, _kind(value.value), value.value)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


def _kind(scalar: bool | int | float | str) -> str:
    if isinstance(scalar, bool):
        return "bool"
    if isinstance(scalar, int):
        return "int"
    return "float" if isinstance(scalar, float) else "text"


def decode(data: bytes, where: str) -> Cache:
    """The cache that the bytes hold.

    :raises CacheError: where they hold none.
    """
    message = _parsed(data, where)
    devices = _devices(message, where)
    entries = one_of_each(_Reader(devices, where).entries(message.entries))
    return Cache(entries, unknown=_unknown(message, devices))


def entries_of(data: bytes, where: str) -> list[Entry]:
    """The entries that :func:`to_bytes` was given, in their order.

    :raises CacheError: where the bytes hold none.
    """
    message = _parsed(data, where)
    return _Reader(_devices(message, where), where).entries(message.entries)


def may_be_text(data: bytes) -> bool:
    """Whether the bytes start like a text."""
    return all(byte >= 32 or byte in b"\t\n\r" for byte in data[:200])


def _parsed(data: bytes, where: str) -> Message:
    """The bytes as an outline of a version that is known.

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


def _devices(message: Message, where: str) -> dict[str, Device]:
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


# Values that are kept for others that are equal: enough for the largest suite, and no more than some megabytes.
_MOST_VALUES = 20_000
# What is made of an entry, a candidate and a value, by the parser and then here, takes about so many bytes of memory.
_BYTES_OF_ENTRY, _BYTES_OF_CANDIDATE, _BYTES_OF_VALUE = 464, 224, 224
# Of the bytes of a file that may be taken; entries that a tuner writes take half of it at most. What is left to 20
# times is for the bytes themselves and the parser. And what any file may take.
_MOST_MEMORY, _ANY_MEMORY = 16, 2**20
# Entries are made by columns, these many at a time.
_AT_ONCE = 1000


_NAME = attrgetter("name")

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
        self._versions = KnownVersions()
        self._may_take = _ANY_MEMORY
        self._names: set[tuple[str, ...]] = set()
        self._has_unknown_fields = False
        self._outlines = _outlines()
        self._value_message = _pb2().Value

    def entries(self, encoded: Iterable[bytes]) -> list[Entry]:
        """The entries that the bytes hold; what a parser makes of one is gone before the next.

        :raises CacheError: where an entry must not be like this.
        """
        found: list[Entry] = []
        with uncollected():
            rows = self._rows(encoded)
            while columns := list(zip(*islice(rows, _AT_ONCE), strict=True)):
                found += many(Entry, many(Problem, *columns[:4]), *columns[4:])
        return found

    def _rows(self, encoded: Iterable[bytes]) -> Iterator[tuple[Any, ...]]:
        for index, data in enumerate(encoded):
            self._has_unknown_fields = False
            self._may_take += _MOST_MEMORY * len(data)
            self._take(_BYTES_OF_ENTRY)
            try:
                row = self._row(data, f"entries[{index}]")
            except CacheError:
                raise
            except Exception as error:  # a foreign parser at work on foreign bytes
                raise CacheError(self._where, f"entries[{index}] is damaged: {str(error) or 'no entry'}") from None
            yield *row, data if self._has_unknown_fields else b""

    def _take(self, memory: int) -> None:
        """Count the memory of what is made next.

        :raises CacheError: for a file of parts so small that they take many times its size.
        """
        self._may_take -= memory
        if self._may_take < 0:
            raise CacheError(self._where, f"takes over {_MOST_MEMORY} times its size in memory: not a cache")

    def _row(self, data: bytes, path: str) -> tuple[Any, ...]:
        outline = self._parsed(self._outlines.Entry, data)
        device = self._devices.get(outline.device)
        if device is None:
            raise CacheError(self._where, f'{path}.device: no device has the id "{outline.device}"')
        tuner, kernel = outline.tuner, outline.kernel
        if not tuner or not kernel:
            raise CacheError(self._where, f"{path}.{'kernel' if tuner else 'tuner'} is empty")
        return (
            self._shared(tuner),
            self._shared(kernel),
            self._sorted(outline.key, path, "key"),
            device,
            self._sorted(outline.fingerprint, path, "fingerprint"),
            self._candidate(outline.choice) if outline.HasField("choice") else None,
            tuple([self._candidate(data) for data in outline.candidates]),
            outline.native,
            outline.label,
            outline.tuning_seconds,
            self._versions[outline.environment],
            self._noted(outline.compiled),
            self._noted(outline.made_of),
        )

    def _noted(self, texts: Collection[str]) -> tuple[str, ...]:
        if not texts:
            return ()
        self._take(_BYTES_OF_VALUE * len(texts))
        return tuple(sorted(set(texts)))

    def _shared(self, text: str) -> str:
        return self._texts.setdefault(text, text) if len(self._texts) < _MOST_VALUES else text

    def _parsed(self, kind: Any, data: bytes) -> Message:
        if len(data) > _LARGE:
            _check_parts(data, self._where)
        message = kind.FromString(data)
        message.DiscardUnknownFields()
        if message.ByteSize() != len(data):  # or it is encoded in more bytes than it needs
            self._has_unknown_fields |= kind.FromString(data).ByteSize() != message.ByteSize()
        return message

    def _candidate(self, data: bytes) -> Candidate:
        known = self._short_candidates.get(data)
        if known is not None:
            return known
        self._take(_BYTES_OF_CANDIDATE)
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

    def _sorted(self, encoded: Iterable[bytes], path: str, part: str) -> tuple[Value, ...]:
        values = self._values(encoded)
        names = tuple(map(_NAME, values))
        if names in self._names:
            return values
        ordered = sorted(names)
        if any(map(eq, ordered, islice(ordered, 1, None))):
            check_names(values, f"{path}.{part}", self._where)
        if all(map(eq, names, ordered)):
            if len(self._names) < _MOST_VALUES:
                self._names.add(names)
            return values
        return tuple(sorted(values, key=_NAME))

    def _values(self, encoded: Iterable[bytes]) -> tuple[Value, ...]:
        known = self._known.get
        return tuple([known(data) or self._value(data) for data in encoded])

    def _value(self, data: bytes) -> Value:
        self._take(_BYTES_OF_VALUE)
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
