"""Statistics of measured times: a candidate's median, and comparisons of candidates that took turns.

A disturbance of a whole round, such as another clock rate, changes all its candidates alike. Candidates are therefore
compared within rounds.
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
    """Return the median and the spread of several times of one call, without outliers.

    :raises UnusableTimesError: if there is no time, or a time is negative or not finite.
    """
    if not samples_us or not all(math.isfinite(sample) and sample >= 0 for sample in samples_us):
        raise UnusableTimesError(f"the clock gave no usable time: {list(samples_us)[:3]}")
    ordered = sorted(samples_us)
    lower, upper = _quartiles(ordered)
    kept = [sample for sample in ordered if sample <= upper + FAR_OUT * (upper - lower)]
    lower, upper = _quartiles(kept)
    return Measurement(statistics.median(kept), (upper - lower) / 2, len(kept), len(ordered))


def interquartile_mean(samples: Sequence[float]) -> tuple[float, float]:
    """Return the mean of the middle half of the samples, and its standard error.

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
        ratios = []
        for times in rounds:
            if number in times and times.get(other):
                ratios.append(times[number] / times[other])
        if not ratios:
            return None
        share, error = interquartile_mean(ratios)
        return cls(share - 1, error)

    def is_slower(self, worth: float) -> bool:
        """Whether it is slower: for certain, and by a share that counts."""
        return self.slower > VERY_SURE * self.error and self.slower >= worth - ALLOWANCE


def scores(rounds: Sequence[Round], numbers: Sequence[int]) -> dict[int, Score]:
    """Return the score of each candidate that was timed in a round.

    A round's level says how much longer than usual its candidates took. A few rounds say little about the scatter of
    a candidate's times, so no candidate counts as steadier than the average of all.
    """
    usual_us: dict[int, float] = {}
    for number in numbers:
        times_us = [times[number] for times in rounds if number in times]
        if times_us:
            usual_us[number], _ = interquartile_mean(times_us)
    shares_by_number = _shares_of_level(rounds, usual_us)
    means: dict[int, tuple[float, float]] = {}
    scatters: list[float] = []
    for number, shares in shares_by_number.items():
        share, error = means[number] = interquartile_mean(shares)
        if len(shares) >= _SCATTER and share:
            scatters.append(error * len(shares) ** 0.5 / share)
    scatter = statistics.fmean(scatters) if scatters else math.inf
    # Every level holds a part of the candidate's own time: with two candidates, half of it.
    own_part = (len(means) / (len(means) - 1)) ** 0.5 if len(means) > 1 else 1.0
    result: dict[int, Score] = {}
    for number, (share, error) in means.items():
        relative_error = max(error / (share or 1.0), scatter / len(shares_by_number[number]) ** 0.5)
        result[number] = Score(share, own_part * relative_error)
    return result


def _shares_of_level(rounds: Sequence[Round], usual_us: dict[int, float]) -> dict[int, list[float]]:
    """Return each candidate's times, divided by the level of their round; no candidate without such a time."""
    shares: dict[int, list[float]] = {number: [] for number in usual_us}
    for times in rounds:
        present = [number for number in usual_us if number in times]
        if not present:
            continue
        level = statistics.fmean(times[number] / (usual_us[number] or 1.0) for number in present)
        if not level:
            continue
        for number in present:
            shares[number].append(times[number] / level)
    return {number: values for number, values in shares.items() if values}


def disagree(before: Sequence[Round], after: Sequence[Round], numbers: Sequence[int]) -> str:
    """Return the disturbed part of a race, which is the slower one: ``"old"``, ``"new"``, or ``""`` for neither.

    The parts disagree if all candidates became slower or faster, or if some candidates changed more than others.
    """
    shifts, errors = [], []
    for number in numbers:
        old_us = [times[number] for times in before if number in times]
        new_us = [times[number] for times in after if number in times]
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
