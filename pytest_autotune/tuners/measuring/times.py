"""What several times of one candidate come to: the median without outliers, with its spread."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from pytest_autotune.cache.spread import Spread

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
    """The times of one candidate, in microseconds.

    :param spread_us: half the interquartile range of the runs that were kept.
    :param kept: how many runs are left of ``runs`` without outliers.
    """

    median_us: float
    spread_us: float
    kept: int
    runs: int

    @property
    def error_us(self) -> float:
        """By how much the median may be wrong: its standard error."""
        return 2 * self.spread_us * _ERROR_OF_MEDIAN / math.sqrt(self.kept)

    def __str__(self) -> str:
        return str(Spread(self.spread_us, self.kept, self.runs))


def measurement(samples_us: Sequence[float]) -> Measurement:
    """What several times of one call come to.

    :raises UnusableTimesError: when there are none, or one is not a positive number.
    """
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
