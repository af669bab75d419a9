"""Binary caches without protobuf: our own reader and writer of what protobuf writes for them.

Of many entries protobuf's messages take twice as long to read and three times as long to write, most of it spent
on handing out what each entry repeats. What does not look as protobuf's writer leaves it is for protobuf to read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise, repeat
from operator import attrgetter
from struct import Struct

from pytest_autotune.cache.formats.schema import (
    FORMAT_VERSION,
    Encoded,
    check_scalar,
    device_ids,
    many,
    uncollected,
)
from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Scalar, Value

_NAME = attrgetter("name")
_DOUBLE = Struct("<d")
_VERSION = bytes([0x08, FORMAT_VERSION])

# Tags: number of the field * 8 + how it is encoded (0: varint, 1: eight bytes, 2: length and bytes).
_DEVICES, _ENTRIES = 0x12, 0x1A
_TUNER, _KERNEL, _KEY, _DEVICE, _FINGERPRINT = 0x0A, 0x12, 0x1A, 0x22, 0x2A
_CHOICE, _CANDIDATES, _NATIVE, _LABEL, _TUNING_SECONDS, _ENVIRONMENT = 0x32, 0x3A, 0x42, 0x4A, 0x51, 0x5A


# A file that is made to fill the memory is for the other reader: larger entries, shorter candidates, more devices.
_LARGEST_ENTRY = 2**16
_SHORTEST_CANDIDATE = 10
_MOST_DEVICES = 1000
# Parts that are kept for others that are equal.
_MOST_KNOWN = 20_000


class UnfamiliarError(Exception):
    """This is not as protobuf writes what this version knows."""


def _varint(data: bytes, position: int) -> tuple[int, int]:
    """A number that is encoded in as few bytes as it can be, and where it ends."""
    number = shift = 0
    while True:
        byte = data[position]
        position += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            if (not byte and shift) or number >= 2**64:
                raise UnfamiliarError
            return number, position
        shift += 7


def _fields(data: bytes, repeated: int = 0) -> list[tuple[int, bytes | int]]:
    """The fields of a message in the order of their numbers, each once but for one that may be repeated."""
    fields: list[tuple[int, bytes | int]] = []
    position = last = 0
    end = len(data)
    while position < end:
        tag = data[position]
        if tag <= last and tag != repeated:
            raise UnfamiliarError
        last = tag
        position += 1
        kind = tag & 7
        if kind == 2:
            length, position = _varint(data, position)
            fields.append((tag, data[position : position + length]))
            position += length
        elif kind == 1:
            fields.append((tag, data[position : position + 8]))
            position += 8
        elif kind == 0:
            number, position = _varint(data, position)
            fields.append((tag, number))
        else:
            raise UnfamiliarError
    if position != end:
        raise UnfamiliarError
    return fields


def _text(part: bytes | int) -> str:
    assert isinstance(part, bytes)
    return part.decode()


def _double(part: bytes | int) -> float:
    assert isinstance(part, bytes)
    number: float = _DOUBLE.unpack(part)[0]
    return number


def _int(part: bytes | int) -> int:
    assert isinstance(part, int)
    return part - 2**64 if part >= 2**63 else part


def read(data: bytes) -> tuple[list[tuple[str, Device]], list[Entry], bool]:
    """The devices with their ids and the entries that the bytes hold, and whether each entry is there once.

    :raises UnfamiliarError: where protobuf has to read them.
    """
    try:
        with uncollected():
            return _Reader().cache(data)
    except (UnicodeDecodeError, IndexError, KeyError, AssertionError) as error:
        raise UnfamiliarError from error


class _Reader:
    """Decodes every part once, however many entries hold it."""

    def __init__(self) -> None:
        self._texts: dict[bytes, str] = {}
        self._values: dict[bytes, Value] = {}
        self._configurations: dict[bytes, tuple[str, tuple[Value, ...]]] = {}
        self._sorted_names: set[tuple[str, ...]] = set()
        self._fingerprints: dict[tuple[bytes, ...], tuple[Value, ...]] = {}

    def cache(self, data: bytes) -> tuple[list[tuple[str, Device]], list[Entry], bool]:
        if data[:2] != _VERSION:
            raise UnfamiliarError
        position, end = 2, len(data)
        devices: list[tuple[str, Device]] = []
        while position < end and data[position] == _DEVICES:
            length, position = _varint(data, position + 1)
            devices.append(_device(data[position : position + length]))
            position += length
            if len(devices) > _MOST_DEVICES:
                raise UnfamiliarError
        by_id = {id.encode(): device for id, device in devices}
        if len(by_id) < len(devices) or b"" in by_id:
            raise UnfamiliarError
        rows: list[tuple[object, ...]] = []
        identities: set[int] = set()
        row = self._row
        while position < end:
            if data[position] != _ENTRIES:
                raise UnfamiliarError
            length, position = _varint(data, position + 1)
            following = position + length
            if length > _LARGEST_ENTRY:
                raise UnfamiliarError
            rows.append(row(data[position:following], by_id, identities))
            position = following
        if position != end:
            raise UnfamiliarError
        once = len(identities) == len(rows) and len(set(by_id.values())) == len(by_id)
        return devices, _entries(rows), once

    def _row(self, data: bytes, devices: dict[bytes, Device], identities: set[int]) -> tuple[object, ...]:
        values, texts = self._values, self._texts
        tuner = kernel = environment = label = ""
        native = b""
        device: Device | None = None
        choice: Candidate | None = None
        seconds = 0.0
        key: list[Value] = []
        fingerprint: list[bytes] = []
        candidates: list[Candidate] = []
        position = last = identified = 0
        end = len(data)
        while position < end:
            tag = data[position]
            if tag <= last and tag not in (_KEY, _FINGERPRINT, _CANDIDATES):
                raise UnfamiliarError
            last = tag
            if tag == _TUNING_SECONDS:
                seconds = _DOUBLE.unpack_from(data, position + 1)[0]
                position += 9
                continue
            length = data[position + 1]
            if length < 0x80:
                position += 2
            else:
                length, position = _varint(data, position + 1)
            part = data[position : position + length]
            position += length
            if tag == _KEY:
                value = values.get(part)
                key.append(self._value(part) if value is None else value)
            elif tag == _FINGERPRINT:
                fingerprint.append(part)
            elif tag == _CHOICE:
                choice = self._candidate(part)
                continue
            elif tag == _CANDIDATES:
                candidates.append(self._candidate(part))
                continue
            elif tag == _NATIVE:
                native = part
                continue
            elif tag == _DEVICE:
                device = devices[part]
            else:
                text = texts.get(part)
                if text is None:
                    text = part.decode()
                    if len(texts) < _MOST_KNOWN:
                        texts[part] = text
                if tag == _TUNER:
                    tuner = text
                elif tag == _KERNEL:
                    kernel = text
                elif tag == _ENVIRONMENT:
                    environment = text
                    continue
                elif tag == _LABEL:
                    label = text
                    continue
                else:
                    raise UnfamiliarError
            identified = position
        if position != end or device is None or not tuner or not kernel:
            raise UnfamiliarError
        # What a problem and a fingerprint are is written first, and in one way only.
        identities.add(hash(data[:identified]))
        return (
            tuner,
            kernel,
            self._sorted(tuple(key)),
            device,
            self._fingerprint(tuple(fingerprint)),
            choice,
            tuple(candidates),
            native,
            label,
            seconds,
            environment,
        )

    def _sorted(self, values: tuple[Value, ...]) -> tuple[Value, ...]:
        names = tuple(map(_NAME, values))
        if names not in self._sorted_names:
            if any(one >= following for one, following in pairwise(names)):
                raise UnfamiliarError
            self._sorted_names.add(names)
        return values

    def _fingerprint(self, parts: tuple[bytes, ...]) -> tuple[Value, ...]:
        values = self._fingerprints.get(parts)
        if values is None:
            values = self._sorted(tuple(map(self._value, parts)))
            if len(self._fingerprints) < _MOST_KNOWN:
                self._fingerprints[parts] = values
        return values

    def _value(self, data: bytes) -> Value:
        known = self._values.get(data)
        if known is not None:
            return known
        name = type = ""
        scalar: Scalar = None
        scalars = 0
        for tag, part in _fields(data):
            if tag == 0x0A:
                name = _text(part)
            elif tag == 0x32:
                type = _text(part)
            else:
                scalars += 1
                if tag == 0x10 and part in (0, 1):
                    scalar = bool(part)
                elif tag == 0x18:
                    scalar = _int(part)
                elif tag == 0x21:
                    scalar = _double(part)
                elif tag == 0x2A:
                    scalar = _text(part)
                else:
                    raise UnfamiliarError
        if scalars > 1:
            raise UnfamiliarError
        value = Value(name, scalar, type)
        if len(self._values) < _MOST_KNOWN:
            self._values[data] = value
        return value

    def _candidate(self, data: bytes) -> Candidate:
        # Most end with their time, and repeat what stands before it. What was read whole once needs no other look.
        known = self._configurations.get(data[:-9])
        if known is not None and len(data) >= _SHORTEST_CANDIDATE and data[-9] == 0x19:
            return Candidate(*known, _DOUBLE.unpack_from(data, len(data) - 8)[0])
        if len(data) < _SHORTEST_CANDIDATE:
            raise UnfamiliarError
        id = failed = label = ""
        time_us: float | None = None
        params: list[Value] = []
        for tag, part in _fields(data, repeated=0x12):
            if tag == 0x0A:
                id = _text(part)
            elif tag == 0x12:
                assert isinstance(part, bytes)
                params.append(self._value(part))
            elif tag == 0x19:
                time_us = _double(part)
            elif tag == 0x22:
                failed = _text(part)
            elif tag == 0x2A:
                label = _text(part)
            else:
                raise UnfamiliarError
        if time_us is not None and not failed and not label and len(self._configurations) < _MOST_KNOWN:
            self._configurations[data[:-9]] = id, tuple(params)
        return Candidate(id, tuple(params), time_us, failed, label)


def _device(data: bytes) -> tuple[str, Device]:
    id = name = arch = ""
    multiprocessors = 0
    for tag, part in _fields(data):
        if tag == 0x0A:
            id = _text(part)
        elif tag == 0x12:
            name = _text(part)
        elif tag == 0x1A:
            arch = _text(part)
        elif tag == 0x20 and isinstance(part, int) and part < 2**32:
            multiprocessors = part
        else:
            raise UnfamiliarError
    return id, Device(name, arch, multiprocessors)


def _entries(rows: list[tuple[object, ...]]) -> list[Entry]:
    if not rows:
        return []
    tuner, kernel, key, device, *rest = zip(*rows, strict=True)
    return many(Entry, many(Problem, tuner, kernel, key, device), *rest, repeat(b""))


def write(entries: Iterable[Entry]) -> bytes:
    """The entries, in the order given, as protobuf writes them; without what newer versions added to them.

    :raises CacheError: for a number that does not fit.
    """
    entries = list(entries)
    ids = device_ids({entry.problem.device for entry in entries})
    parts = [_VERSION]
    for device, id in ids.items():
        number = _part(0x20, device.multiprocessors) if device.multiprocessors else b""
        parts.append(_block(0x12, _string(0x0A, id) + _string(0x12, device.name) + _string(0x1A, device.arch) + number))
    with uncollected():
        parts += map(_Writer(ids).entry, entries)
    return b"".join(parts)


def _number(number: int) -> bytes:
    encoded = bytearray()
    while number >= 0x80:
        encoded.append(number & 0x7F | 0x80)
        number >>= 7
    encoded.append(number)
    return bytes(encoded)


def _part(tag: int, number: int) -> bytes:
    return bytes([tag]) + _number(number)


def _block(tag: int, data: bytes) -> bytes:
    return bytes([tag]) + _number(len(data)) + data


def _string(tag: int, text: str) -> bytes:
    return _block(tag, text.encode()) if text else b""


class _Writer:
    """Encodes every value and text once."""

    def __init__(self, ids: dict[Device, str]) -> None:
        self._devices = {device: _string(_DEVICE, id) for device, id in ids.items()}
        self._keys = Encoded(lambda value: _block(_KEY, _value(value)))
        self._fingerprints = Encoded(lambda value: _block(_FINGERPRINT, _value(value)))
        self._params = Encoded(lambda value: _block(0x12, _value(value)))
        self._string = lru_cache(maxsize=10_000)(_string)

    def entry(self, entry: Entry) -> bytes:
        problem = entry.problem
        string = self._string
        parts = [
            string(_TUNER, problem.tuner),
            string(_KERNEL, problem.kernel),
            *self._keys.each(problem.key),
            self._devices[problem.device],
            *self._fingerprints.each(entry.fingerprint),
        ]
        if entry.choice is not None:
            parts.append(_block(_CHOICE, self._candidate(entry.choice)))
        parts += [_block(_CANDIDATES, self._candidate(candidate)) for candidate in entry.candidates]
        if entry.native:
            parts.append(_block(_NATIVE, entry.native))
        parts.append(string(_LABEL, entry.label))
        seconds = _DOUBLE.pack(entry.tuning_seconds)
        if seconds != bytes(8):
            parts.append(b"\x51" + seconds)
        parts.append(string(_ENVIRONMENT, entry.environment))
        return _block(_ENTRIES, b"".join(parts))

    def _candidate(self, candidate: Candidate) -> bytes:
        time_us = b"" if candidate.time_us is None else b"\x19" + _DOUBLE.pack(candidate.time_us)
        return b"".join(
            [
                _string(0x0A, candidate.id),
                *self._params.each(candidate.params),
                time_us,
                _string(0x22, candidate.failed),
                _string(0x2A, candidate.label),
            ]
        )


def _value(value: Value) -> bytes:
    check_scalar(value)
    scalar = value.value
    encoded = b""
    if isinstance(scalar, bool):
        encoded = _part(0x10, scalar)
    elif isinstance(scalar, int):
        encoded = _part(0x18, scalar % 2**64)
    elif isinstance(scalar, float):
        encoded = b"\x21" + _DOUBLE.pack(scalar)
    elif scalar is not None:
        encoded = _block(0x2A, scalar.encode())
    return _string(0x0A, value.name) + encoded + _string(0x32, value.type)
