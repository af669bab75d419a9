"""The JSON format: a plain mapping, printed and parsed by Python's own module."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence

from pytest_autotune.cache.codec.mapping import Codec, Plain, for_json, to_mapping
from pytest_autotune.cache.codec.reading import from_mapping
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Entry


def encode(entries: Sequence[Entry]) -> str:
    """Return a cache of these entries as JSON, in their order."""
    return json.dumps(for_json(to_mapping(entries)), indent=1, ensure_ascii=False) + "\n"


def decode(text: str, place: str) -> Cache:
    """Return the cache that the JSON text holds.

    :raises CacheError: if the text is not a cache; with line and column if it is not JSON.
    """
    try:
        plain = json.loads(text, object_pairs_hook=_build_mapping)
    except _RepeatedNameError as error:
        raise CacheError(place, f'the name "{error}" stands twice in one object') from None
    except json.JSONDecodeError as error:
        raise CacheError(f"{place}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg}") from None
    except RecursionError:
        raise CacheError(place, "is nested too deeply for a cache") from None
    except ValueError as error:
        # An integer has thousands of digits.
        raise CacheError(place, f"is not a cache: {error}") from None
    return from_mapping(plain, place, text)


class _RepeatedNameError(Exception):
    """An object of JSON has a name twice; the message is the name."""


def _build_mapping(pairs: list[tuple[str, object]]) -> Plain:
    """Return an object of JSON.

    :raises _RepeatedNameError: if a name stands twice in it.
    """
    plain = dict(pairs)
    if len(plain) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise _RepeatedNameError(name)
    return plain


CODEC = Codec("JSON", (".json",), decode, encode)
