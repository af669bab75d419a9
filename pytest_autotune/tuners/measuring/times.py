"""Statistics of measured times: a candidate's median, and comparisons of candidates that took turns.

In a *round*, each candidate is launched once. A disturbance of a whole round, such as another clock rate, changes all
its candidates alike. Candidates are therefore compared within rounds. A candidate is known by its number.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

#: A sample is an outlier if it is more than this many interquartile ranges above the upper quartile. J. W. Tukey calls
#: such samples "far out" (Exploratory Data Analysis, 1977).
FAR_OUT = 3.0
#: The standard error of the median of n normal samples is ``_ERROR_OF_MEDIAN * interquartile_range / sqrt(n)``, where
#: the factor is 1.253 / 1.349.
_ERROR_OF_MEDIAN = 0.929


class UnusableTimesError(ValueError):
    """A clock gave no time, or a time that is negative or not finite."""


@dataclass(frozen=True)
class Measurement:
    """The times of one candidate, in microseconds.

    :param median_us: the median of the times that are no outliers.
    :param spread_us: half the interquartile range of the times that are no outliers.
    :param kept: the number of times that are no outliers.
    :param runs: the number of all times.
    """

    median_us: float
    spread_us: float
    kept: int
    runs: int

    @property
    def error_us(self) -> float:
        """The standard error of the median."""
        return 2 * self.spread_us * _ERROR_OF_MEDIAN / math.sqrt(self.kept)

    def __str__(self) -> str:
        if self.runs == 1:
            return "1 run"
        return f"+-{self.spread_us:.3g} us, {self.kept} of {self.runs} runs"


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


class Mean(NamedTuple):
    """A mean of samples, and its standard error."""

    value: float
    error: float


def interquartile_mean(samples: Sequence[float]) -> Mean:
    """Return the mean of the middle half of the samples, and its standard error.

    A timer rounds each time to its ticks, and the rounding changes this mean less than a median. A tick of CUDA events
    is 0.032 us long, 0.7 % of a kernel of 4.5 us.

    The error follows J. W. Tukey and D. H. McLaughlin (Sankhya A, 1963): each sample outside the middle half is
    replaced by the nearest sample of the middle half, and the error comes from the standard deviation of this list.

    :param samples: at least one sample. For fewer than four samples, the result is the median and half their range.
    """
    ordered = sorted(samples)
    tail = len(ordered) // 4
    if not tail:
        return Mean(statistics.median(ordered), (ordered[-1] - ordered[0]) / 2)
    middle = ordered[tail:-tail]
    with_replaced_tails = [middle[0]] * tail + middle + [middle[-1]] * tail
    middle_share = len(middle) / len(ordered)
    error = statistics.stdev(with_replaced_tails) / (middle_share * math.sqrt(len(ordered)))
    return Mean(statistics.fmean(middle), error)


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the lower and the upper quartile of sorted samples."""
    if len(ordered) == 1:
        return ordered[0], ordered[0]
    lower, _, upper = statistics.quantiles(ordered, n=4, method="inclusive")
    return lower, upper


#: Two stages, which have several rounds each, disagree if the times of a candidate differ by more than this share plus
#: the part that their scatter explains.
DISAGREE = 0.05
#: A difference of two standard errors is certain. If many candidates are compared with the best, three are needed.
SURE, VERY_SURE = 2.0, 3.0
#: A candidate needs this many times before their scatter counts.
_SCATTER = 4
#: A measured difference counts if it is larger than ``threshold - ALLOWANCE``. Without this allowance, half of the
#: candidates that are slower by exactly the threshold would be measured as a little faster, and not be noticed.
ALLOWANCE = 0.0075

#: A clock with coarse ticks can give a time of 0. It is compared as if it were so many microseconds, because a ratio of
#: two times of 0 has no value.
_LEAST_US = 0.001

#: The times of the candidates in one round, in microseconds, by the number of the candidate.
Round = dict[int, float]


@dataclass(frozen=True)
class Score:
    """A candidate's time, with which it is compared with the other candidates of the same rounds.

    :param adjusted_us: the mean of the candidate's times, each divided by the level of its round, in microseconds. The
        level of a round is 1 if its candidates took as long as usual.
    :param error: the standard error of ``adjusted_us``, as a part of it: 0.01 for 1 %.
    """

    adjusted_us: float
    error: float


@dataclass(frozen=True)
class Comparison:
    """A candidate compared with another candidate.

    :param slower: the difference as a share of the second candidate's time: 0.05 if the first is slower by 5 %, below 0
        if the first is faster.
    :param error: the standard error of ``slower``.
    """

    slower: float
    error: float

    @classmethod
    def from_rounds(cls, rounds: Sequence[Round], number: int, other: int) -> Comparison | None:
        """Compare two candidates by the rounds that timed both; None if there is no such round."""
        ratios = []
        for times in rounds:
            if number in times and times.get(other):
                ratios.append(times[number] / times[other])
        if not ratios:
            return None
        ratio = interquartile_mean(ratios)
        return cls(ratio.value - 1, ratio.error)

    def is_slower(self, threshold: float) -> bool:
        """Whether the first candidate is certainly slower, and by at least the threshold less :data:`ALLOWANCE`.

        :param threshold: a share of the second candidate's time.
        """
        is_certain = self.slower > VERY_SURE * self.error
        return is_certain and self.slower >= threshold - ALLOWANCE


def list_times_us(rounds: Sequence[Round], number: int) -> list[float]:
    """Return the times of one candidate, in the order of the rounds."""
    return [times_us[number] for times_us in rounds if number in times_us]


def scores(rounds: Sequence[Round], numbers: Sequence[int]) -> dict[int, Score]:
    """Return the score of each candidate that was timed in a round.

    The level of a round tells how much longer than usual its candidates took: 1.1 for a round in which all candidates
    took 10 % longer. A time is divided by the level of its round, so a disturbance of the whole round does not count.

    The error of a score is at least the error that the average scatter of all candidates gives. The few times of a
    single candidate could look steadier by chance than they are.
    """
    candidates = []
    for number, times_us in _divide_by_level(rounds, numbers).items():
        candidates.append(_AdjustedTimes(number, times_us, interquartile_mean(times_us)))
    average_scatter = _find_average_scatter(candidates)
    # A level is a mean over the candidates, so it contains a part of the candidate's own time: with two candidates, a
    # half. This part hides a part of the candidate's scatter, and the factor restores it.
    hidden_scatter_factor = 1.0
    if len(candidates) > 1:
        hidden_scatter_factor = (len(candidates) / (len(candidates) - 1)) ** 0.5
    score_by_number: dict[int, Score] = {}
    for candidate in candidates:
        least_error = average_scatter / len(candidate.times_us) ** 0.5
        error = hidden_scatter_factor * max(candidate.relative_error, least_error)
        score_by_number[candidate.number] = Score(candidate.mean.value, error)
    return score_by_number


@dataclass(frozen=True)
class _AdjustedTimes:
    """The times of one candidate, each divided by the level of its round.

    :param number: the candidate.
    :param times_us: the divided times, in microseconds.
    :param mean: the mean of the divided times.
    """

    number: int
    times_us: Sequence[float]
    mean: Mean

    @property
    def relative_error(self) -> float:
        """The standard error of the mean, as a part of the mean."""
        return self.mean.error / self.mean.value

    @property
    def scatter(self) -> float | None:
        """How much a single time differs from the mean, as a part of the mean; None for too few times to tell."""
        if len(self.times_us) < _SCATTER:
            return None
        # The error of a mean of n times is the scatter of a time, divided by the square root of n.
        scatter: float = self.mean.error * len(self.times_us) ** 0.5 / self.mean.value
        return scatter


def _find_average_scatter(candidates: Iterable[_AdjustedTimes]) -> float:
    """Return the average scatter of all candidates; infinite if no candidate has enough times."""
    scatters = [candidate.scatter for candidate in candidates if candidate.scatter is not None]
    if not scatters:
        return math.inf
    return statistics.fmean(scatters)


def _divide_by_level(rounds: Sequence[Round], numbers: Sequence[int]) -> dict[int, list[float]]:
    """Return the times of each candidate, each divided by the level of its round.

    Example: candidate 0 usually takes 10 us, and candidate 1 takes 20 us. In the round ``{0: 11.0, 1: 22.0}`` both took
    10 % longer, so its level is 1.1, and the divided times are 10 and 20.

    :returns: by the number of the candidate; a candidate without a time is left out.
    """
    usual_us = _find_usual_times(rounds, numbers)
    divided_us: dict[int, list[float]] = {number: [] for number in usual_us}
    for times_us in rounds:
        compared_us = {}
        for number in usual_us:
            if number in times_us:
                compared_us[number] = max(times_us[number], _LEAST_US)
        if not compared_us:
            continue
        level = statistics.fmean(compared_us[number] / usual_us[number] for number in compared_us)
        for number, time_us in compared_us.items():
            divided_us[number].append(time_us / level)
    return divided_us


def _find_usual_times(rounds: Sequence[Round], numbers: Sequence[int]) -> dict[int, float]:
    """Return the mean time of each candidate over all rounds, by its number; a candidate without a time is left out."""
    usual_us = {}
    for number in numbers:
        times_us = list_times_us(rounds, number)
        if times_us:
            usual_us[number] = max(interquartile_mean(times_us).value, _LEAST_US)
    return usual_us


@dataclass(frozen=True)
class _Shift:
    """The difference between the earlier rounds and the latest rounds of a race, for one candidate.

    :param slower: (latest median - earlier median) / earlier median.
    :param error: the standard error of ``slower``.
    """

    slower: float
    error: float


class Disturbed(Enum):
    """The rounds of a race that a disturbance made slower."""

    #: The stages agree.
    NONE = "none"
    #: All rounds before the latest stage.
    EARLIER = "earlier"
    #: The rounds of the latest stage.
    LATEST = "latest"


def find_disturbed_rounds(before: Sequence[Round], after: Sequence[Round], numbers: Sequence[int]) -> Disturbed:
    """Return which rounds of a race were disturbed.

    Rounds disagree if all candidates became slower or faster, or if some candidates changed more than others. A
    disturbance only makes launches slower, so the slower rounds were disturbed.

    :param before: the rounds of the earlier stages.
    :param after: the rounds of the latest stage.
    :param numbers: the candidates to compare.
    """
    shifts = []
    for number in numbers:
        shift = _find_shift(list_times_us(before, number), list_times_us(after, number))
        if shift is None:
            # Too few times tell nothing about disturbances.
            return Disturbed.NONE
        shifts.append(shift)
    tolerated = DISAGREE + 1.5 * SURE * max(shift.error for shift in shifts)
    changes = [shift.slower for shift in shifts]
    all_changed = abs(statistics.median(changes)) > tolerated
    some_changed_more = max(changes) - min(changes) > 2 * tolerated
    if not all_changed and not some_changed_more:
        return Disturbed.NONE
    if sum(changes) > 0:
        return Disturbed.LATEST
    return Disturbed.EARLIER


def _find_shift(old_us: Sequence[float], new_us: Sequence[float]) -> _Shift | None:
    """Compare a candidate's times in earlier rounds and in the latest rounds.

    :returns: None if either has fewer than three times, or a median of 0.
    """
    if len(old_us) < 3 or len(new_us) < 3:
        return None
    old, new = measurement(old_us), measurement(new_us)
    if not old.median_us or not new.median_us:
        return None
    error = math.hypot(old.error_us / old.median_us, new.error_us / new.median_us)
    return _Shift(new.median_us / old.median_us - 1, error)
