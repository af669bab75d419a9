"""Whose choice is raced again, and what such a race came to.

Times in a file are never compared with new ones.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pytest_autotune.cache.diff import winner
from pytest_autotune.cache.model import Device, Entry, Problem
from pytest_autotune.cache.ties import noise_of
from pytest_autotune.workers.locks import in_distributed_run

#: A choice is slower where another candidate saves this share of the other's time, or more.
WORTH = 0.05
ALL = "all"
#: Why a choice is not raced again of a tuner whose adapter does not ask for it.
NO_WAY_IN = "its tuner cannot race it"
#: Why a choice is not raced again whose turn it was.
TIME_OVER = "the time for it was over"
_PART = re.compile(r"(\d+)/(\d+)")


def worth_of(device: Device) -> float:
    """By which share of the other's time a choice on this device has to be slower to be called so."""
    return max(WORTH, noise_of(device))


@dataclass(frozen=True)
class Share:
    """The problems whose turn it is: one of several parts that together are all of them.

    :param part: the number of this part, from 1.
    """

    part: int = 1
    parts: int = 1

    @classmethod
    def parse(cls, text: str) -> Share:
        """Parse ``"all"``, or ``"2/7"`` for the second of seven parts.

        :raises ValueError: for anything else.
        """
        if text == ALL:
            return cls()
        match = _PART.fullmatch(text)
        if match is None or not 0 < int(match[1]) <= int(match[2]):
            raise ValueError(f"expected {ALL}, or a part such as 2/7, not {text!r}")
        return cls(int(match[1]), int(match[2]))

    def __str__(self) -> str:
        return ALL if self.parts == 1 else f"{self.part}/{self.parts}"

    def has_turn(self, problem: Problem) -> bool:
        """Whether it is this problem's turn."""
        return int(problem.digest, 16) % self.parts == self.part - 1


@dataclass(frozen=True)
class Verification:
    """What is to be verified in a run.

    :param seconds: each process spends no more than that, and what it has begun.
    """

    share: Share
    seconds: float

    def __str__(self) -> str:
        return str(self.share)


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


class Races:
    """What a process spends on races.

    :param verify: whose turn it is; None where nobody's is.
    """

    def __init__(self, verify: Verification | None) -> None:
        self._verify = verify
        #: Seconds.
        self.spent_s = 0.0

    def has_turn(self, problem: Problem) -> bool:
        """Whether a hit on this problem is to be raced."""
        return self._verify is not None and self._verify.share.has_turn(problem)

    @property
    def left_s(self) -> float:
        """The seconds that are left for races."""
        return 0.0 if self._verify is None else self._verify.seconds - self.spent_s

    @property
    def why_none(self) -> str:
        """Why no race may begin now; empty where one may."""
        if in_distributed_run():  # ranks that race a kernel with a collective would wait for each other
            return "one of several ranks"
        return "" if self.left_s > 0 else TIME_OVER
