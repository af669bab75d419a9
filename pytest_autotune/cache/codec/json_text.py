"""The JSON format: a plain mapping, printed and parsed by Python's own module."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence

from pytest_autotune.cache.codec.mapping import Codec, Plain, for_json, from_mapping, to_mapping
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry


def encode(entries: Sequence[Entry]) -> str:
    """A cache of these entries as JSON, in the order given."""
    return json.dumps(for_json(to_mapping(entries)), indent=1, ensure_ascii=False) + "\n"


#: Used in place of json.dumps(), which a test may mock.
_COMPACT_ENCODER = json.JSONEncoder(separators=(",", ":"))


def to_compact_json(plain: object) -> str:
    """Return a plain mapping, made by :func:`~.mapping.for_json`, as one line of JSON without its end."""
    return _COMPACT_ENCODER.encode(plain)


def encode_for_process(entries: Iterable[Entry]) -> str:
    """Return the entries as one line of JSON for another process of the run, in their order."""
    return to_compact_json(for_json(to_mapping(list(entries))))


def decode(text: str, where: str) -> Cache:
    """The cache that the JSON text holds.

    :raises CacheError: where it holds none, with line and column where it is no JSON.
    """

    def once(pairs: list[tuple[str, object]]) -> Plain:
        plain = dict(pairs)
        if len(plain) < len(pairs):
            ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
            raise CacheError(where, f'the name "{name}" stands twice in one object')
        return plain

    try:
        plain = json.loads(text, object_pairs_hook=once)
    except json.JSONDecodeError as error:
        raise CacheError(f"{where}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg}") from None
    except RecursionError:
        raise CacheError(where, "is nested too deeply for a cache") from None
    except ValueError as error:  # an integer of thousands of digits
        raise CacheError(where, f"is not a cache: {error}") from None
    return from_mapping(plain, where, text)


CODEC = Codec("JSON", (".json",), decode, encode)
