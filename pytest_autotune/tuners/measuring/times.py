"""What several times of one candidate come to, and how candidates that took turns compare by theirs.

What disturbs a whole round, such as another clock, disturbs all candidates in it alike; so they are compared within
rounds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

#: A sample more than this many interquartile ranges above the upper quartile is an outlier: "far out"
#: in J. W. Tukey, Exploratory Data Analysis, 1977.
FAR_OUT = 3.0
#: The standard error of a median is this share of the interquartile range over the root of the number
#: of samples, where these are normal: 1.253 / 1.349.
_ERROR_OF_MEDIAN = 0.929


class UnusableTimesError(ValueError):
    """A clock gave no time, or one that is not a positive number."""


@dataclass(frozen=True)
class Measurement:
    """Times of one candidate, in microseconds: the median and half the interquartile range of those ``kept``."""

    median_us: float
    spread_us: float
    kept: int
    runs: int

    @property
    def error_us(self) -> float:
        """By how much the median may be wrong: its standard error."""
        return 2 * self.spread_us * _ERROR_OF_MEDIAN / math.sqrt(self.kept)

    def __str__(self) -> str:
        return "1 run" if self.runs == 1 else f"+-{self.spread_us:.3g} us, {self.kept} of {self.runs} runs"


def measurement(samples_us: Sequence[float]) -> Measurement:
    """What several times of one call come to; an UnusableTimesError where one is not a positive number."""
    if not samples_us or not all(math.isfinite(sample) and sample >= 0 for sample in samples_us):
        raise UnusableTimesError(f"the clock gave no usable time: {list(samples_us)[:3]}")
    ordered = sorted(samples_us)
    lower, upper = _quartiles(ordered)
    kept = [sample for sample in ordered if sample <= upper + FAR_OUT * (upper - lower)]
    lower, upper = _quartiles(kept)
    return Measurement(statistics.median(kept), (upper - lower) / 2, len(kept), len(ordered))


def interquartile_mean(samples: Sequence[float]) -> tuple[float, float]:
    """The mean of the middle half, and its standard error.

    A timer's ticks do not show in it as they do in a median: those of CUDA events are 0.032 us long, 0.7 % of a
    kernel of 4.5 us. Its error is that of J. W. Tukey and D. H. McLaughlin (Sankhya A, 1963), by the standard
    deviation of the samples whose tails were drawn in.

    :param samples: one or more; of fewer than four, the median and half their range.
    """
    ordered = sorted(samples)
    tail = len(ordered) // 4
    if not tail:
        return statistics.median(ordered), (ordered[-1] - ordered[0]) / 2
    middle = ordered[tail:-tail]
    drawn_in = [middle[0]] * tail + middle + [middle[-1]] * tail
    share = len(middle) / len(ordered)
    return statistics.fmean(middle), statistics.stdev(drawn_in) / (share * math.sqrt(len(ordered)))


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    if len(ordered) == 1:
        return ordered[0], ordered[0]
    lower, _, upper = statistics.quantiles(ordered, n=4, method="inclusive")
    return lower, upper


#: Two stages disagree where a candidate's times in them differ by this share, and by more than their scatter explains.
DISAGREE = 0.05
#: A difference of so many standard errors is one; many candidates are compared with the best of them, so some more.
SURE, VERY_SURE = 2.0, 3.0
#: So many times tell how much they scatter.
_SCATTER = 4
#: What is measured may be so much less than what counts: else half of those that are slower by just that would go
#: unnoticed.
ALLOWANCE = 0.0075

#: The times of those that took a turn in one round, by number.
Round = dict[int, float]


@dataclass(frozen=True)
class Score:
    """A candidate's time as a share of what the others took in the same rounds, and by how much it may be wrong."""

    share: float
    error: float


@dataclass(frozen=True)
class Comparison:
    """How one candidate compares with another.

    :param slower: by which share of the other's time the first takes longer; below 0 where it is the faster one.
    :param error: the standard error of ``slower``.
    """

    slower: float
    error: float

    @classmethod
    def of(cls, rounds: Sequence[Round], number: int, other: int) -> Comparison | None:
        """Compare by the rounds in which both were timed; None where there are none."""
        ratios = [one[number] / one[other] for one in rounds if number in one and one.get(other)]
        if not ratios:
            return None
        share, error = interquartile_mean(ratios)
        return cls(share - 1, error)

    def is_slower(self, worth: float) -> bool:
        """Whether it is slower: for certain, and by a share that counts."""
        return self.slower > VERY_SURE * self.error and self.slower >= worth - ALLOWANCE


def scores(rounds: Sequence[Round], numbers: Sequence[int]) -> dict[int, Score]:
    """How candidates compare: what disturbs a whole round, such as another clock, disturbs all of them alike.

    A round's level is how much longer than usual its candidates took, whichever of them were timed in it. A few rounds
    say little about how much the times of a candidate scatter, so none counts as steadier than all are together.
    """
    times_us = {number: [one[number] for one in rounds if number in one] for number in numbers}
    usual_us = {number: interquartile_mean(own)[0] for number, own in times_us.items() if own}
    shares: dict[int, list[float]] = {number: [] for number in usual_us}
    for one in rounds:
        present = [number for number in usual_us if number in one]
        level = statistics.fmean(one[number] / (usual_us[number] or 1.0) for number in present) if present else 0.0
        for number in present if level else ():
            shares[number].append(one[number] / level)
    found = {number: (*interquartile_mean(own), len(own)) for number, own in shares.items() if own}
    known = [error * count**0.5 / share for share, error, count in found.values() if count >= _SCATTER and share]
    scatter = statistics.fmean(known) if known else math.inf
    # All levels hold a part of the candidate's own time: of two, each half.
    apart = (len(found) / (len(found) - 1)) ** 0.5 if len(found) > 1 else 1.0
    return {
        number: Score(share, apart * max(error / (share or 1.0), scatter / count**0.5))
        for number, (share, error, count) in found.items()
    }


def disagree(before: Sequence[Round], after: Sequence[Round], numbers: Sequence[int]) -> str:
    """Which of two parts of a race of the same candidates was disturbed, if any: the slower, ``"old"`` or ``"new"``.

    They disagree where all candidates became slower or faster, or some more than others.
    """
    shifts, errors = [], []
    for number in numbers:
        old_us = [one[number] for one in before if number in one]
        new_us = [one[number] for one in after if number in one]
        if len(old_us) < 3 or len(new_us) < 3:
            return ""
        old, new = measurement(old_us), measurement(new_us)
        if not old.median_us or not new.median_us:
            return ""
        shifts.append(new.median_us / old.median_us - 1)
        errors.append(math.hypot(old.error_us / old.median_us, new.error_us / new.median_us))
    tolerated = DISAGREE + 1.5 * SURE * max(errors)
    if abs(statistics.median(shifts)) <= tolerated and max(shifts) - min(shifts) <= 2 * tolerated:
        return ""
    return "new" if sum(shifts) > 0 else "old"
