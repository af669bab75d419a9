"""Counts and durations in words, and measured numbers without noise."""

from __future__ import annotations

from collections.abc import Sequence


def describe_count(number: int, singular: str, plural: str = "") -> str:
    """Return a number with its noun: ``"1 entry"``, ``"2 entries"``.

    :param plural: the noun for any number but 1; empty for the singular with an ``s``, or with ``ies`` in place of its
        last ``y``.
    """
    if number == 1:
        return f"{number} {singular}"
    if plural:
        return f"{number} {plural}"
    if singular.endswith("y"):
        return f"{number} {singular[:-1]}ies"
    return f"{number} {singular}s"


def describe_first(words: Sequence[str], limit: int) -> str:
    """Return the first words, and the number of the words that are left out: ``"a, b and 3 more"``."""
    text = ", ".join(words[:limit])
    omitted_count = len(words) - limit
    if omitted_count > 0:
        text += f" and {omitted_count} more"
    return text


def describe_duration(time_us: float) -> str:
    """Return a time with a readable unit: ``"7.68 us"``, ``"72.04 ms"``.

    :param time_us: the time in microseconds.
    """
    for unit, us in (("s", 1e6), ("ms", 1e3)):
        if abs(time_us) >= us:
            return f"{time_us / us:.4g} {unit}"
    return f"{time_us:.4g} us"


def describe_seconds(number: float) -> str:
    """Return a time with a readable unit: ``"72 ms"``, ``"1.5 s"``, ``"2.5 min"``.

    :param number: the time in seconds.
    """
    if not number:
        return "0 s"
    if number >= 5400:
        return f"{number / 3600:.1f} h"
    if number >= 90:
        return f"{number / 60:.1f} min"
    return describe_duration(float(f"{number * 1e6:.3g}"))


def round_significant(number: float, digits: int = 3) -> float:
    """Return a measured number without the digits that are noise."""
    return float(f"{number:.{digits}g}")
