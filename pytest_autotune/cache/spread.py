"""How far the times of a candidate lie apart, as its label says it: written and read here, and nowhere else.

Files and reports hold it as text beside the time; what draws it needs the numbers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_TEXT = re.compile(r"\+-(\d[0-9.]*(?:e[+-]?\d+)?) us, (\d+) of (\d+) runs")


@dataclass(frozen=True)
class Spread:
    """Of the runs of one candidate.

    :param us: half the interquartile range of the runs that were kept, in microseconds.
    :param kept: how many runs are left of ``runs`` without outliers.
    """

    us: float
    kept: int
    runs: int

    @classmethod
    def of(cls, label: str) -> Spread | None:
        """The reverse of ``str``; None for any other label."""
        found = _TEXT.fullmatch(label)
        try:
            return cls(float(found[1]), int(found[2]), int(found[3])) if found else None
        except ValueError:  # a file may hold digits that Python refuses to read
            return None

    def __str__(self) -> str:
        if self.runs == 1:
            return "1 run"
        return f"+-{self.us:.3g} us, {self.kept} of {self.runs} runs"
