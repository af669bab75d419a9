"""The binary format: protocol buffers, by the generated messages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_autotune.cache.codec.mapping import MESSAGES, Codec, Plain, to_mapping
from pytest_autotune.cache.codec.reading import from_mapping
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry

#: A cache has at most so many entries, devices, digests or candidates. A damaged or hostile file may have one of them
#: in every few bytes, and reading them would take minutes.
MAX_MESSAGES = 300_000


def encode(entries: Sequence[Entry]) -> bytes:
    """Return a cache of these entries as bytes, in their order."""
    data: bytes = new_message(**to_mapping(entries)).SerializeToString(deterministic=True)
    return data


def decode(data: bytes, place: str) -> Cache:
    """Return the cache that the bytes hold, with all its entries, in their order.

    :raises CacheError: if the bytes are not a cache.
    """
    from google.protobuf.message import DecodeError

    try:
        message = new_message().FromString(data)
    except (DecodeError, ValueError) as error:
        # Without its library in C, protobuf raises ValueError for text that is not UTF-8.
        raise CacheError(place, f"is not a cache: {str(error) or 'damaged'}") from None
    candidates = sum(len(entry.candidates) for entry in message.entries)
    if max(len(message.entries), len(message.devices), len(message.digests), candidates) > MAX_MESSAGES:
        event = f"holds more than {MAX_MESSAGES:,} entries, devices, digests or candidates: not a cache"
        raise CacheError(place, event)
    return from_mapping(to_plain(message), place)


def new_message(**fields: Any) -> Any:
    """Return a generated message of a cache. The first call imports protobuf."""
    from pytest_autotune.cache import autotune_cache_pb2

    generated: Any = autotune_cache_pb2
    return generated.AutotuneCache(**fields)


def to_plain(message: Any) -> Plain:
    """Return the plain mapping of a generated message of a cache. An unknown field has its number as its name."""
    return _PlainBuilder().build(message, "cache")


class _PlainBuilder:
    """Builds the plain mapping of a generated message."""

    def __init__(self) -> None:
        #: The mappings of values by their bytes. A file has many equal values, and each is built once.
        self._values: dict[bytes, Plain] = {}

    def build(self, message: Any, kind: str) -> Plain:
        """Return the fields of a message that are set, as a plain mapping.

        :param message: a generated message.
        :param kind: the kind of the message, a key of ``MESSAGES``: ``"entry"``, ``"value"`` …
        """
        from google.protobuf.unknown_fields import UnknownFieldSet

        unknown_fields: Any = UnknownFieldSet(message)
        plain: Plain = {}
        for unknown_field in unknown_fields:
            # A newer version wrote this field. The reader of plain mappings reports it by its name. A binary file has
            # only its number, which stands for the name here.
            plain[str(unknown_field.field_number)] = None
        for descriptor, content in message.ListFields():
            field = MESSAGES[kind][descriptor.name]
            if field.is_list:
                plain[descriptor.name] = [self._build_item(item, field.kind) for item in content]
            else:
                plain[descriptor.name] = self._build_item(content, field.kind)
        return plain

    def _build_item(self, message: Any, kind: str) -> Any:
        """Return the plain mapping of a message; a scalar as it is."""
        if kind not in MESSAGES:
            return message
        if kind != "value":
            return self.build(message, kind)
        data = message.SerializeToString()
        if data not in self._values:
            self._values[data] = self.build(message, kind)
        return self._values[data]


CODEC = Codec("binary", (".pb", ".binpb"), decode, encode, is_text=False)
