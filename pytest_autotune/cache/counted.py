"""Counting in words."""

from __future__ import annotations


def counted(number: int, one: str, several: str = "", separator: str = "") -> str:
    """``"1 entry"``, ``"2 entries"``.

    :param several: for any other number than 1; empty: ``one`` with ``ies`` for a ``y`` at its end, or an ``s``.
    :param separator: between the thousands of a number.
    """
    if number != 1:
        one = several or (f"{one[:-1]}ies" if one.endswith("y") else f"{one}s")
    return f"{number:{separator}} {one}"
