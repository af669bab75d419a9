"""Which candidate a problem runs with in a sweep: the seed and the problem decide, and nothing else.

So a failure comes back with the same seed, in any order of the tests, with any workers, for one test alone.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from pytest_autotune.cache.model import Candidate, Problem

#: In place of the number of the run: it goes by the night.
ALL = "all"
_PART = re.compile(rf"({ALL}|\d+)/(\d+)")


@dataclass(frozen=True)
class Sweep:
    """A sweep, or one of several that belong together.

    :param seed: decides by itself; empty in one of several sweeps.
    :param part: the number of this sweep of ``parts``, from 1; 0 where it goes by the night, see :meth:`on`.
    :param parts: in so many sweeps every candidate has run, of problems that have no more candidates than that.
    """

    seed: str = ""
    part: int = 0
    parts: int = 0

    @classmethod
    def parse(cls, text: str) -> Sweep:
        """Parse a seed such as ``"7"``, ``"2/5"`` for the second of five sweeps, or ``"all/5"``.

        :raises ValueError: for anything else.
        """
        if match := _PART.fullmatch(text):
            part, parts = 0 if match[1] == ALL else int(match[1]), int(match[2])
            if parts and part <= parts and (part or match[1] == ALL):
                return cls(part=part, parts=parts)
        elif text and text != ALL and "/" not in text:
            return cls(text)
        raise ValueError(f"expected a seed such as 7, a part such as 2/5, or {ALL}/5, not {text!r}")

    def on(self, night: int) -> Sweep:
        """The sweep of one night: its part moves on from night to night."""
        return replace(self, part=night % self.parts + 1) if self.parts and not self.part else self

    def __str__(self) -> str:
        return f"{self.part or ALL}/{self.parts}" if self.parts else self.seed

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
