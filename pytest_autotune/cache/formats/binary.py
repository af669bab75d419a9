"""The binary format: protocol buffers, with fields of newer versions kept as they are.

What is repeated inside an entry (values, candidates) stands as bytes in the
messages that protobuf makes of it, see :mod:`pytest_autotune.cache.formats.binary_messages`:
it is the same on the wire. So every value is encoded and decoded once, however
many entries hold it, and nothing is made of a file but what the cache keeps.

Of 100,000 entries (33 MB, an AMD EPYC): reading takes 0.9 s and writing 1.2 s.
With an :class:`AsRead`, a second file of which a tenth is different is read in
0.2 s, and what was read is written again in 0.4 s, most of which is the sorting.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache as remember
from itertools import repeat

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.binary_messages import Message, outlines, pb2
from pytest_autotune.cache.formats.binary_reader import Reader
from pytest_autotune.cache.formats.schema import (
    FORMAT_VERSION,
    check_not_empty,
    check_scalar,
    check_version,
    checked_devices,
    device_ids,
    in_order,
    one_of_each,
    uncollected,
)
from pytest_autotune.cache.model import AsRead, Cache, Candidate, Device, Entry, Value
from pytest_autotune.cache.packed_texts import packed
from pytest_autotune.cache.shared_values import OncePerValue


def encode(cache: Cache) -> bytes:
    """The cache as bytes.

    :raises CacheError: for an entry that a reader would not take back.
    """
    return to_bytes(in_order(cache.entries), cache.unknown, cache.as_read)


def to_bytes(
    entries: Iterable[Entry], unknown: Iterable[tuple[str, bytes]] = (), as_read: AsRead | None = None
) -> bytes:
    """The entries as bytes, in the order given.

    :param unknown: as in :class:`Cache`.
    :param as_read: as in :class:`Cache`.
    :raises CacheError: for a number that does not fit.
    """
    entries, unknown = list(entries), list(unknown)
    ids = device_ids({entry.problem.device for entry in entries})
    devices = []
    for device, id in ids.items():
        row = pb2().Device(id=id, name=device.name, arch=device.arch, multiprocessors=device.multiprocessors)
        for of, fields in unknown:
            if of == id:
                row.MergeFromString(fields)
        devices.append(row.SerializeToString(deterministic=True))
    with uncollected():
        writer = _Writer(ids)
        known = as_read.known_bytes(entries, ids) if as_read is not None else repeat(None)
        rows = [data or writer.entry(entry) for entry, data in zip(entries, known, strict=False)]
    message = outlines().Cache(format_version=FORMAT_VERSION, devices=devices, entries=rows)
    for of, fields in unknown:
        if not of:
            message.MergeFromString(fields)
    data: bytes = message.SerializeToString(deterministic=True)
    return data


class _Writer:
    """Encodes every value once, however many entries hold it."""

    def __init__(self, ids: Mapping[Device, str]) -> None:
        self._ids = ids
        self._outlines = outlines()
        self._values = OncePerValue(_encoded_value)
        self._packed = remember(packed)

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
                compiled=self._packed(entry.compiled),
                made_of=entry.made_of,
            )
        data: bytes = message.SerializeToString(deterministic=True)
        return data

    def _raw(self, entry: Entry, id: str) -> Message | None:
        """The entry with the fields that this version does not know; None where it was changed since it was read.

        A changed entry has nothing to say about what we do not know.
        """
        message = self._outlines.Entry.FromString(entry.raw)
        if Reader({message.device: entry.problem.device}, "").entries([entry.raw]) != [entry]:
            return None
        message.device = id
        message.compiled[:] = self._packed(entry.compiled)
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
    message = pb2().Value(name=value.name, type=value.type)
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


def decode(data: bytes, where: str, as_read: AsRead | None = None) -> Cache:
    """The cache that the bytes hold.

    :param as_read: of entries that are in it, none is made again; the others are added.
    :raises CacheError: where they hold none.
    """
    message = _parsed(data, where)
    devices = _devices(message, where)
    if as_read is not None and not as_read.adds_devices(devices):
        as_read = None
    reader = Reader(devices, where, as_read)
    entries = tuple(reader.entries(message.entries))
    if reader.may_repeat:
        entries = one_of_each(entries)
    return Cache(entries, unknown=_unknown(message, devices), as_read=as_read)


def entries_of(data: bytes, where: str) -> list[Entry]:
    """The entries that :func:`to_bytes` was given, in their order.

    :raises CacheError: where the bytes hold none.
    """
    message = _parsed(data, where)
    return Reader(_devices(message, where), where).entries(message.entries)


def may_be_text(data: bytes) -> bool:
    """Whether the bytes start like a text."""
    return all(byte >= 32 or byte in b"\t\n\r" for byte in data[:200])


def _parsed(data: bytes, where: str) -> Message:
    """The bytes as an outline of a version that is known.

    :raises CacheError: where they are none.
    """
    check_not_empty(data, where)
    try:
        message = outlines().Cache.FromString(data)
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
    for part in map(pb2().Device.FromString, message.devices):
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
        rows = map(pb2().Device.FromString, message.devices)
        return checked_devices(((row.id, Device(row.name, row.arch, row.multiprocessors)) for row in rows), where)
    except CacheError:
        raise
    except Exception as error:  # a foreign parser at work on foreign bytes
        raise CacheError(where, f"devices are damaged: {str(error) or 'no device'}") from None
