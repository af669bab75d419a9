"""Measuring one candidate: warm-up, repeated timing, outliers dropped, the median with its spread."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from pytest_autotune.tuners.function.clocks import Clock, OwnClock
from pytest_autotune.tuners.function.errors import InvalidConfiguration
from pytest_autotune.tuners.narrowing import BRIEF_MS, BRIEF_WARMUP_MS

#: A sample more than this many interquartile ranges above the upper quartile is an outlier: "far out"
#: in J. W. Tukey, Exploratory Data Analysis, 1977.
FAR_OUT = 3.0
#: How many runs the first, short look at a candidate has at least.
BRIEF_RUNS = 3
#: The longest that a GPU is kept busy before a run: a call that takes longer waits for its kernels itself.
LONGEST_LAUNCH_US = 1000.0


@dataclass(frozen=True)
class Measuring:
    """How candidates are measured.

    A candidate runs until it has been measured for ``measure_ms``, but no fewer than ``min_runs``
    and no more than ``max_runs`` times.

    :param warmup_ms: how long it runs before that; once at least.
    :param flush_l2: overwrite the GPU's L2 cache before each run, so that it reads its inputs from memory.
    :param clock: ``"torch"`` or ``"cupy"`` (CUDA events on the current stream of either), ``"host"``, or a
        function that takes a call without arguments and returns its time, or several times, in
        microseconds; it does its own warming up. None: what fits the device.
    """

    warmup_ms: float = 25.0
    measure_ms: float = 100.0
    min_runs: int = 5
    max_runs: int = 1000
    flush_l2: bool = False
    clock: str | OwnClock | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.min_runs <= self.max_runs:
            raise ValueError(f"expected 1 <= min_runs <= max_runs, not {self.min_runs} and {self.max_runs}")
        if not (self.warmup_ms >= 0 and self.measure_ms >= 0):
            raise ValueError(f"expected times of 0 ms or more, not {self.warmup_ms} and {self.measure_ms}")
        if self.flush_l2 and callable(self.clock):
            raise ValueError("flush_l2=True does nothing for a clock of your own: flush in it")

    @property
    def brief(self) -> Measuring:
        """The same for a first, short look."""
        runs = min(self.min_runs, BRIEF_RUNS)
        return replace(
            self,
            warmup_ms=min(self.warmup_ms, BRIEF_WARMUP_MS),
            measure_ms=min(self.measure_ms, BRIEF_MS),
            min_runs=runs,
            max_runs=max(runs, self.max_runs),
        )


@dataclass(frozen=True)
class Measurement:
    """The times of one candidate, in microseconds.

    :param spread_us: half the interquartile range of the runs that were kept.
    :param kept: how many runs are left of ``runs`` without outliers.
    """

    median_us: float
    minimum_us: float
    spread_us: float
    kept: int
    runs: int

    def __str__(self) -> str:
        if self.runs == 1:
            return "1 run"
        return f"+-{self.spread_us:.3g} us, {self.kept} of {self.runs} runs"


def measurement(samples_us: Sequence[float]) -> Measurement:
    """What several times of one call come to.

    :raises InvalidConfiguration: when there are none, or one is not a positive number.
    """
    if not samples_us or not all(math.isfinite(sample) and sample >= 0 for sample in samples_us):
        raise InvalidConfiguration(f"the clock gave no usable time: {list(samples_us)[:3]}")
    ordered = sorted(samples_us)
    lower, upper = _quartiles(ordered)
    kept = [sample for sample in ordered if sample <= upper + FAR_OUT * (upper - lower)]
    lower, upper = _quartiles(kept)
    return Measurement(statistics.median(kept), kept[0], (upper - lower) / 2, len(kept), len(ordered))


def _quartiles(ordered: Sequence[float]) -> tuple[float, float]:
    if len(ordered) == 1:
        return ordered[0], ordered[0]
    lower, _, upper = statistics.quantiles(ordered, n=4, method="inclusive")
    return lower, upper


def measure(call: Callable[[], object], before: Callable[[], object], how: Measuring, clock: Clock) -> Measurement:
    """Measure one call.

    :param before: called before each run and not timed.
    """
    if callable(how.clock):
        before()
        times = how.clock(call)
        return measurement([float(time) for time in times] if isinstance(times, Iterable) else [float(times)])
    launches_us: list[float] = []

    def launch() -> None:
        started = time.perf_counter_ns()
        call()
        launches_us.append((time.perf_counter_ns() - started) / 1000)

    estimate_ms = statistics.median(clock.samples_us(launch, before, 2)) / 1000
    launch_us = min(*launches_us, LONGEST_LAUNCH_US)
    warm_up = _runs(how.warmup_ms, estimate_ms, 0, how.max_runs)
    if warm_up:
        estimate_ms = statistics.median(clock.samples_us(call, before, warm_up, launch_us)) / 1000
    runs = _runs(how.measure_ms, estimate_ms, how.min_runs, how.max_runs)
    return measurement(clock.samples_us(call, before, runs, launch_us))


def _runs(budget_ms: float, each_ms: float, least: int, most: int) -> int:
    """How many runs take about that long."""
    return most if each_ms * most <= budget_ms else max(least, int(budget_ms / each_ms))
