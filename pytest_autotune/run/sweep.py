"""Which candidate a problem runs with in a sweep: the seed and the problem decide, and nothing else.

So a failure comes back with the same seed, in any order of the tests, with any workers, for one test alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_autotune.cache.model import Candidate, Problem

_PART = re.compile(r"(\d+)/(\d+)")


@dataclass(frozen=True)
class Sweep:
    """A sweep, or one of several that belong together.

    :param seed: decides by itself; empty in one of several sweeps.
    :param part: the number of this sweep of ``parts``, from 1.
    :param parts: in so many sweeps every candidate has run, of problems that have no more candidates than that.
    """

    seed: str = ""
    part: int = 0
    parts: int = 0

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Parse a seed such as ``"7"``, ``"2/5"`` for the second of five sweeps.

        :raises ValueError: for anything else.
        """
        if match := _PART.fullmatch(text):
            if 0 < int(match[1]) <= int(match[2]):
                return cls(part=int(match[1]), parts=int(match[2]))
        elif text and "/" not in text:
            return cls(text)
        raise ValueError(f"expected a seed such as 7, or a part such as 2/5, not {text!r}")

    def __str__(self) -> str:
        return f"{self.part}/{self.parts}" if self.parts else self.seed

    def ordered(self, problem: Problem, candidates: Iterable[Candidate]) -> list[Candidate]:
        """The candidates in the order in which a problem tries them; the order in which they are given does not matter.

        Where several sweeps belong together, the first ones of all sweeps are different candidates.
        """
        distinct = {_encoded(candidate): candidate for candidate in candidates}
        prefix = repr((self.seed, problem.digest)).encode()
        ranked = sorted(distinct, key=lambda encoded: hashlib.sha256(prefix + encoded).digest())
        if not ranked:
            return []
        number = len(ranked)
        first = 0
        if self.parts:
            # Spread over more candidates than there are sweeps.
            first = (self.part - 1) * max(number, self.parts) // self.parts % number
        return [distinct[encoded] for encoded in ranked[first:] + ranked[:first]]


def _encoded(candidate: Candidate) -> bytes:
    return repr((candidate.id, [value.encoded for value in candidate.params])).encode()
