"""The JSON format: a plain mapping, printed and parsed by Python's own module."""

from __future__ import annotations

import json
import re
from typing import NoReturn

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.mapping import to_mapping
from pytest_autotune.cache.formats.mapping_reader import MOST_NAMES, Object, Objects, cache_from
from pytest_autotune.cache.formats.schema import check_lists, twice
from pytest_autotune.cache.model import Cache

#: How a JSON report of a run begins, which has a version, too, and fields of other names.
_REPORT = re.compile(r'\s*\{\s*"format_version":\s*\d+,\s*"complete":')


def is_report(text: str) -> bool:
    """Whether a text is the JSON report of a run."""
    return _REPORT.match(text) is not None


def encode(cache: Cache) -> str:
    """The cache as JSON.

    :raises CacheError: for an entry that a reader would not take back.
    """
    return json.dumps(to_mapping(cache), indent=1, ensure_ascii=False) + "\n"


def decode(text: str, where: str) -> Cache:
    """The cache that the JSON text holds.

    :raises CacheError: where it holds none, with line and column where it is no JSON.
    """

    if is_report(text):
        raise CacheError(where, "is the report of a run, not a cache", "name the cache that the run loaded or dumped")
    objects = Objects()
    check_lists(text, where)

    def once(pairs: list[tuple[str, object]]) -> Object:
        if len(pairs) > MOST_NAMES:
            raise CacheError(where, f"has an object of {len(pairs)} names: not a cache")
        if len({name for name, _ in pairs}) < len(pairs):
            raise CacheError(where, f'the name "{twice(name for name, _ in pairs)}" stands twice in one object')
        return objects.of(pairs)

    def no_constant(constant: str) -> NoReturn:
        raise CacheError(where, f"{constant} is not JSON", 'write "inf", "-inf" or "nan"')

    try:
        plain = json.loads(text, object_pairs_hook=once, parse_constant=no_constant)
    except json.JSONDecodeError as error:
        raise CacheError(f"{where}:{error.lineno}:{error.colno}", f"is not JSON: {error.msg}") from None
    except RecursionError:
        raise CacheError(where, "is nested too deeply for a cache") from None
    except ValueError as error:  # an integer of thousands of digits
        raise CacheError(where, f"is not a cache: {error}") from None
    return cache_from(plain, objects, text, where)
