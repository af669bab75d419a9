"""Whose choice is raced again tonight, and what such a race came to.

Times in a file are never compared with new ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction

from pytest_autotune.cache.diff import winner
from pytest_autotune.cache.model import Device, Entry, Problem
from pytest_autotune.cache.ties import noise_of

#: A choice is slower where another candidate saves this share of the other's time, or more.
WORTH = 0.05
ALL = "all"
#: Why a choice is not raced again of a tuner whose adapter does not ask for it.
NO_WAY_IN = "its tuner cannot race it"
#: Why a choice is not raced again whose turn it was.
TIME_OVER = "the time for it was over"
_PART = re.compile(r"(\d+)/(\d+)")
_DIGEST_BITS = 128


def worth_of(device: Device) -> float:
    """By which share of the other's time a choice on this device has to be slower to be called so."""
    return max(WORTH, noise_of(device))


@dataclass(frozen=True)
class Share:
    """The part of the problems whose turn it is in a night.

    :param text: as the user wrote it.
    :param part: more than 0, up to 1.
    """

    text: str
    part: Fraction

    @classmethod
    def parse(cls, text: str) -> Share:
        """Parse ``"all"``, ``"10%"`` or ``"1/7"``.

        :raises ValueError: for anything else, nothing, or more than all.
        """
        part = Fraction(0)
        if text == ALL:
            part = Fraction(1)
        elif match := _PART.fullmatch(text):
            part = Fraction(int(match[1]), int(match[2])) if int(match[2]) else part
        elif re.fullmatch(r"\d+(\.\d+)?%", text):
            part = Fraction(Decimal(text[:-1])) / 100
        if not 0 < part <= 1:
            raise ValueError(f"expected {ALL}, a percentage such as 10%, or a part such as 1/7, not {text!r}")
        return cls(text, part)

    def has_turn(self, problem: Problem, night: int) -> bool:
        """Whether it is this problem's turn: after as many nights as the part goes into 1, all have had theirs."""
        place = Fraction(int(problem.digest, 16), 1 << _DIGEST_BITS)
        return (place - night * self.part) % 1 < self.part


@dataclass(frozen=True)
class Verification:
    """What is to be verified in a run.

    :param night: moves on from night to night.
    :param seconds: each process spends no more than that, and what it has begun.
    """

    share: Share
    night: int
    seconds: float

    def __str__(self) -> str:
        return f"{self.share.text} (night {self.night})"

    def has_turn(self, problem: Problem) -> bool:
        """Whether a hit on this problem is to be raced."""
        return self.share.has_turn(problem, self.night)


@dataclass(frozen=True)
class Verdict:
    """What became of a loaded choice whose turn it was.

    Times are in microseconds and seconds.

    :param reason: why it was not raced; empty where it was.
    :param raced: how many candidates raced, the choice among them.
    :param slower: by which share of the fastest one's time the choice is slower; 0 where it is not.
    :param error_us: by how much the difference of the two may be wrong: two standard errors.
    :param seconds: what it took, with compiling and waiting.
    :param measured_seconds: how long the device was held.
    :param entry: what a dump keeps instead of the entry that was loaded; None where the choice is good.
    """

    reason: str = ""
    raced: int = 0
    slower: float = 0.0
    choice_us: float = 0.0
    best_us: float = 0.0
    error_us: float = 0.0
    seconds: float = 0.0
    measured_seconds: float = 0.0
    entry: Entry | None = None

    @property
    def is_slower(self) -> bool:
        """Whether another candidate is faster by so much that it counts."""
        return self.entry is not None

    @property
    def best(self) -> str:
        """The candidate that is faster, in words."""
        if self.entry is None:
            return ""
        best = winner(self.entry)
        return "" if best is None else str(best)

    def __str__(self) -> str:
        if self.reason:
            return f"not verified: {self.reason}"
        if not self.is_slower:
            return "as fast as any"
        return (
            f"the choice takes {1 + self.slower:.2f} x ({self.best}), "
            f"{self.choice_us:.4g} us -> {self.best_us:.4g} us, +-{self.error_us:.2g}"
        )
