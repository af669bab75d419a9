"""Keys of hand-written tuners, and helpers to make them coarser."""

from __future__ import annotations

from collections.abc import Mapping

from pytest_autotune.cache.model import Value
from pytest_autotune.tuners.shared.values import stable_value


class Coarse(int):
    """A value of a key that stands for several sizes.

    :param of: the size at hand, of which a choice is not to depend.
    """

    of: int

    def __new__(cls, value: int, of: int) -> Coarse:
        coarse = super().__new__(cls, value)
        coarse.of = of
        return coarse


def sizes_in(key: Mapping[str, object]) -> tuple[int, ...]:
    """The sizes for which a key has a coarser value."""
    return tuple(value.of for value in key.values() if isinstance(value, Coarse))


def power_of_two(n: int) -> int:
    """The smallest power of two that is not below ``n``; 1 for 0 and 1.

    :raises ValueError: for a negative number.
    """
    if n < 0:
        raise ValueError(f"power_of_two({n}): a size is not negative")
    return Coarse(1 << (n - 1).bit_length() if n > 1 else 1, n)


def multiple_of(n: int, k: int) -> int:
    """The smallest multiple of ``k`` that is not below ``n``.

    :raises ValueError: when ``n`` is negative or ``k`` is not positive.
    """
    if n < 0 or k <= 0:
        raise ValueError(f"multiple_of({n}, {k}): expected a size of 0 or more, and a step of 1 or more")
    return Coarse(-(-n // k) * k, n)


def key_values(key: Mapping[str, object]) -> tuple[Value, ...]:
    """A caller's key, sorted by name.

    :raises TypeError: when it is no mapping from names.
    :raises UnportableError: when a value has no stable form.
    """
    if not isinstance(key, Mapping) or not all(isinstance(name, str) for name in key):
        raise TypeError(f"key= takes a mapping of names to values, not {key!r}")
    return tuple(stable_value(name, key[name]) for name in sorted(key))
