"""The binary format: protocol buffers, by the generated messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_autotune.cache.codec.mapping import MESSAGES, Codec, Plain, from_mapping, to_mapping
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry

#: A damaged or hostile file may have one in every few bytes, which would take minutes.
MOST = 300_000


def encode(entries: Sequence[Entry]) -> bytes:
    """A cache of these entries as bytes, in the order given."""
    data: bytes = new_message(**to_mapping(entries)).SerializeToString(deterministic=True)
    return data


def decode(data: bytes, where: str) -> Cache:
    """The cache that the bytes hold, with all its entries, in their order.

    :raises CacheError: where they hold none.
    """
    from google.protobuf.message import DecodeError

    try:
        message = new_message().FromString(data)
    except (DecodeError, ValueError) as error:  # protobuf without its library in C says so of text that is none
        raise CacheError(where, f"is not a cache: {str(error) or 'damaged'}") from None
    candidates = sum(len(entry.candidates) for entry in message.entries)
    if max(len(message.entries), len(message.devices), len(message.digests), candidates) > MOST:
        raise CacheError(where, f"holds more than {MOST:,} entries, devices, digests or candidates: not a cache")
    return from_mapping(plain_of(message, "cache", {}), where)


def new_message(**fields: Any) -> Any:
    """A generated message of a cache; protobuf is imported now."""
    from pytest_autotune.cache import autotune_cache_pb2

    generated: Any = autotune_cache_pb2
    return generated.AutotuneCache(**fields)


def plain_of(message: Any, kind: str, values: dict[bytes, Plain]) -> Plain:
    """The set fields of a message, unknown ones by their number; of equal values, which are many, one object."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    unknown: Any = UnknownFieldSet(message)
    plain: Plain = {str(field.field_number): None for field in unknown}
    for descriptor, found in message.ListFields():
        name = descriptor.name
        of, repeated = MESSAGES[kind][name]
        if of == "value":
            encoded = [(one, one.SerializeToString()) for one in found]
            plain[name] = [
                values[data] if data in values else values.setdefault(data, plain_of(one, of, values))
                for one, data in encoded
            ]
        elif of in MESSAGES:
            plain[name] = [plain_of(one, of, values) for one in found] if repeated else plain_of(found, of, values)
        else:
            plain[name] = list(found) if repeated else found
    return plain


CODEC = Codec("binary", (".pb", ".binpb"), decode, encode, is_text=False)
