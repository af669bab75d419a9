"""Numbers as entries and reports hold them."""

from __future__ import annotations


def significant(number: float, digits: int = 3) -> float:
    """A measured number without the digits that are noise."""
    return float(f"{number:.{digits}g}")
