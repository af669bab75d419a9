"""What laps say: the times of candidates that took turns, and how the candidates compare by them.

What disturbs a whole lap, such as another clock, disturbs all candidates in it alike; so they are compared within laps.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_autotune.tuners.measuring.times import measurement, midmean

#: Two rounds disagree where a candidate's times in them differ by this share, and by more than their scatter explains.
DISAGREE = 0.05
#: A difference of so many standard errors is one; many candidates are compared with the best of them, so some more.
SURE, VERY_SURE = 2.0, 3.0
#: So many times tell how much they scatter.
_SCATTER = 4
#: A time that was measured once may be wrong by so much at least: a few that agree by chance decide nothing.
_LEAST_ERROR = 0.03
#: What is told to a user has to be larger than so many.
_CERTAIN = 3.0
#: What is measured may be so much less than what counts, and by so much where it is not known better: else half of
#: those that are slower by just that would go unnoticed.
_LEAST_DOUBT, _DOUBT = 0.005, 0.01

#: The times of those that took a turn in one lap, by number.
Lap = dict[int, float]


@dataclass(frozen=True)
class Score:
    """A candidate's time as a share of what the others took in the same laps, and by how much it may be wrong."""

    share: float
    error: float


@dataclass(frozen=True)
class Challenge:
    """How a candidate compares with the fastest of those that challenged it.

    :param winner: the number of that one.
    :param slower: by which share of that one's time the defender takes longer; below 0 where it is the faster one.
    :param error: the standard error of ``slower``.
    """

    winner: int
    slower: float
    error: float

    def is_slower(self, worth: float) -> bool:
        """Whether the defender is slower: for certain, and by a share that counts or may well be that."""
        is_certain = self.slower > _CERTAIN * self.error
        return is_certain and self.slower >= worth - min(max(SURE * self.error, _LEAST_DOUBT), _DOUBT)

    def may_be_slower(self, worth: float, laps: int) -> bool:
        """Whether more laps may find that it is."""
        return self.slower + SURE * self.error_over(laps) >= worth - _DOUBT

    def error_over(self, laps: int) -> float:
        """By how much ``slower`` may be wrong over so many laps, however well they agree."""
        return max(self.error, _LEAST_ERROR / math.sqrt(laps))


def compared(laps: Sequence[Lap], defender: int, number: int) -> Challenge | None:
    """How a candidate compares with another, by the laps in which both were timed; None where there are none."""
    both = [lap for lap in laps if defender in lap and lap.get(number)]
    if number == defender or not both:
        return None
    share, error = midmean([lap[defender] / lap[number] for lap in both])
    return Challenge(number, share - 1, error)


def scores(laps: Sequence[Lap], numbers: Sequence[int]) -> dict[int, Score]:
    """How candidates compare: what disturbs a whole lap, such as another clock, disturbs all of them alike.

    A lap's level is how much longer than usual its candidates took, whichever of them were timed in it. A few laps
    say little about how much the times of a candidate scatter, so none counts as steadier than all are together.
    """
    times_us = {number: [lap[number] for lap in laps if number in lap] for number in numbers}
    usual_us = {number: midmean(own)[0] for number, own in times_us.items() if own}
    shares: dict[int, list[float]] = {number: [] for number in usual_us}
    for lap in laps:
        present = [number for number in usual_us if number in lap]
        level = statistics.fmean(lap[number] / (usual_us[number] or 1.0) for number in present) if present else 0.0
        for number in present if level else ():
            shares[number].append(lap[number] / level)
    found = {number: (*midmean(own), len(own)) for number, own in shares.items() if own}
    known = [error * count**0.5 / share for share, error, count in found.values() if count >= _SCATTER and share]
    scatter = statistics.fmean(known) if known else math.inf
    # All levels hold a part of the candidate's own time: of two, each half.
    apart = (len(found) / (len(found) - 1)) ** 0.5 if len(found) > 1 else 1.0
    return {
        number: Score(share, apart * max(error / (share or 1.0), scatter / count**0.5))
        for number, (share, error, count) in found.items()
    }


def of_both(error: float, other: float) -> float:
    return float((error**2 + other**2) ** 0.5)


def disagree(before: Sequence[Lap], after: Sequence[Lap], numbers: Sequence[int]) -> str:
    """Which of two parts of a race was disturbed, if one was: the slower one, ``"old"`` or ``"new"``.

    They disagree where all candidates became slower or faster, or some more than others.
    """
    shifts, errors = [], []
    for number in numbers:
        old_us = [lap[number] for lap in before if number in lap]
        new_us = [lap[number] for lap in after if number in lap]
        if len(old_us) < 3 or len(new_us) < 3:
            return ""
        old, new = measurement(old_us), measurement(new_us)
        if not old.median_us or not new.median_us:
            return ""
        shifts.append(new.median_us / old.median_us - 1)
        errors.append(of_both(old.error_us / old.median_us, new.error_us / new.median_us))
    if not shifts:
        return ""
    tolerated = DISAGREE + 1.5 * SURE * max(errors)
    if abs(statistics.median(shifts)) <= tolerated and max(shifts) - min(shifts) <= 2 * tolerated:
        return ""
    return "new" if sum(shifts) > 0 else "old"
