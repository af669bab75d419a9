"""The wire format of protocol buffers, so far as to cut a message into its fields.

XLA's own bytes are kept as they are: parsing and serialising again would move
fields that this version does not know.
"""

from __future__ import annotations

from collections.abc import Iterator

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """The fields of a message in their order: (number, value).

    :raises ValueError: where the bytes are no message.
    """
    position = 0
    while position < len(data):
        tag, position = _varint(data, position)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise ValueError("a field has the number 0")
        if kind == _VARINT:
            value, position = _varint(data, position)
            yield number, value
            continue
        if kind == _BYTES:
            length, position = _varint(data, position)
        elif kind in (_FIXED64, _FIXED32):
            length = 8 if kind == _FIXED64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if position + length > len(data):
            raise ValueError("cut off")
        yield number, data[position : position + length]
        position += length


def bytes_field(number: int, value: bytes) -> bytes:
    """One field that holds bytes, text or a message."""
    return _to_varint(number << 3 | _BYTES) + _to_varint(len(value)) + value


def int_field(number: int, value: int) -> bytes:
    """One field that holds a non-negative integer."""
    return _to_varint(number << 3 | _VARINT) + _to_varint(value)


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        if position >= len(data) or shift > 63:
            raise ValueError("cut off")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _to_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
