"""Keys of hand-written tuners, and helpers to make them coarser."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress

from pytest_autotune.cache.foreign_text import one_line, words_of
from pytest_autotune.cache.model import UncacheableError, Value
from pytest_autotune.tuners.shared.source_digest import stable_value

#: Characters of what is said of a key, or of why it fails.
_LONGEST = 200


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below ``n``; 1 for 0 and 1.

    :raises ValueError: for a negative number.
    """
    if n < 0:
        raise ValueError(f"power_of_two({n}): a size is not negative")
    return 1 << (n - 1).bit_length() if n > 1 else 1


def multiple_of(n: int, k: int) -> int:
    """The smallest multiple of ``k`` that is not below ``n``.

    :raises ValueError: when ``n`` is negative or ``k`` is not positive.
    """
    if n < 0 or k <= 0:
        raise ValueError(f"multiple_of({n}, {k}): expected a size of 0 or more, and a step of 1 or more")
    return -(-n // k) * k


class KeyArgumentError(TypeError):
    """A caller's key is none, or looking at a part of it fails."""


def key_values(key: object) -> tuple[Value, ...]:
    """A caller's ``key=``, in its order.

    :raises KeyArgumentError: when it is no mapping from names, or a value fails as it is looked at.
    :raises UncacheableError: when a value has no stable form.
    """
    return tuple(_value(name, value) for name, value in _parts(key))


def stable_values(key: object) -> tuple[Value, ...]:
    """Those of :func:`key_values` that have a stable form: they tell problems apart that cannot be kept."""
    values = []
    for name, value in _parts(key):
        with suppress(UncacheableError):
            values.append(_value(name, value))
    return tuple(values)


def _parts(key: object) -> list[tuple[str, object]]:
    parts = {} if key is None else key
    if not isinstance(parts, Mapping) or not all(isinstance(name, str) for name in parts):
        raise KeyArgumentError(f"key= takes a mapping of names to values, not a {type(key).__name__}")
    return [(name, parts[name]) for name in parts]


def _value(name: str, value: object) -> Value:
    try:
        return stable_value(name, value, carried=False)
    except UncacheableError:
        raise
    except Exception as error:
        words = one_line(f"{type(error).__name__}: {words_of(error)}", _LONGEST)
        raise KeyArgumentError(f"key={{{name!r}: …}} cannot be encoded: {words}") from None
