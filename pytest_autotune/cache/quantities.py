"""Counts and durations in words, and measured numbers without noise."""

from __future__ import annotations

from collections.abc import Sequence


def describe_count(number: int, singular: str, plural: str = "") -> str:
    """``"1 entry"``, ``"2 entries"``.

    :param plural: for any other number than 1; empty: ``one`` with ``ies`` for a ``y`` at its end, or an ``s``.
    """
    if number != 1:
        singular = plural or (f"{singular[:-1]}ies" if singular.endswith("y") else f"{singular}s")
    return f"{number} {singular}"


def describe_first(words: Sequence[str], limit: int) -> str:
    """Some of several words, and how many there are besides: ``"a, b and 3 more"``."""
    more = len(words) - limit
    return ", ".join(words[:limit]) + (f" and {more} more" if more > 0 else "")


def describe_duration(time_us: float) -> str:
    """A time in microseconds with the unit that people would take: ``"7.68 us"``, ``"72.04 ms"``."""
    for unit, us in (("s", 1e6), ("ms", 1e3)):
        if abs(time_us) >= us:
            return f"{time_us / us:.4g} {unit}"
    return f"{time_us:.4g} us"


def describe_seconds(number: float) -> str:
    """The same of a time in seconds: ``"72 ms"``, ``"1.5 s"``, ``"2.5 min"``."""
    for unit, size, least in (("h", 3600, 5400), ("min", 60, 90)):
        if number >= least:
            return f"{number / size:.1f} {unit}"
    return describe_duration(float(f"{number * 1e6:.3g}")) if number else "0 s"


def round_significant(number: float, digits: int = 3) -> float:
    """A measured number without the digits that are noise."""
    return float(f"{number:.{digits}g}")
