"""A loaded decision among templates is measured again: is its winner still the fastest?

Inductor measures templates and library calls one after the other, on inputs that it makes for each time. They cannot
take turns; so the two that matter are measured in both orders, and what the two differ by counts as noise.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from pytest_autotune.cache.model import Entry
from pytest_autotune.run.door import Tuning
from pytest_autotune.run.rounding import significant
from pytest_autotune.run.verify import Verdict, worth_of
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.measuring.comparing import Comparison
from pytest_autotune.tuners.measuring.times import Measurement
from pytest_autotune.tuners.measuring.verifying import DISTURBED, report, slower

_Benchmark = Callable[[Sequence[Any]], Mapping[Any, float]]


def verify_winner(
    tuning: Tuning,
    timed: Benchmarks,
    choices: Sequence[Any],
    winner: Any,
    benchmark: _Benchmark,
    entry_of: Callable[[Mapping[Any, float]], Entry],
) -> None:
    """Measure the candidates of a loaded decision where it is its turn, and report what came of it.

    :param winner: the candidate that the loaded times make Inductor take.
    :param benchmark: Inductor's own, of some candidates.
    :param entry_of: makes the entry that a dump keeps instead, of the candidates' times in milliseconds.
    """

    def race(is_over: Callable[[], bool]) -> Verdict:
        with timed.during(tuning):
            began = time.perf_counter()
            worth = worth_of(tuning.lookup.problem.device)
            first = timed.measured(benchmark, choices)
            found = _challenge(first, choices, winner)
            again = None
            if found is not None and found[1].is_slower(worth):
                again = _again(timed, benchmark, winner, found[0])
            held_s = significant(time.perf_counter() - began)
        if winner not in first:
            return Verdict("it was not measured in this process")
        told = Verdict(raced=len(first), measured_seconds=held_s)
        if tuning.lookup.disturbed:
            return Verdict(DISTURBED, len(first), measured_seconds=held_s)
        if found is None or again is None or not again[0].is_slower(worth):
            return told
        times_ms = {choice: one.median_us / 1000 for choice, one in first.items()}
        return slower(told, *again, entry_of({**times_ms, found[0]: min(times_ms.values())}))

    if tuning.to_verify:
        report(tuning, race)


def _challenge(
    measured: Mapping[Any, Measurement], choices: Sequence[Any], winner: Any
) -> tuple[Any, Comparison] | None:
    """The fastest of the others, and how the winner compares with it."""
    others = [choice for choice in choices if choice in measured and choice is not winner]
    if winner not in measured or not others:
        return None
    best = min(others, key=lambda choice: measured[choice].median_us)
    return best, _compared(measured[winner], measured[best])


def _compared(own: Measurement, other: Measurement) -> Comparison:
    ratio = own.median_us / other.median_us
    error = ratio * math.hypot(own.error_us / own.median_us, other.error_us / other.median_us)
    return Comparison(ratio - 1, error)


def _again(timed: Benchmarks, benchmark: _Benchmark, winner: Any, best: Any) -> tuple[Comparison, float] | None:
    """Both once more in either order: how they compare, and the time of the faster one in microseconds."""
    found = []
    for order in ([best, winner], [winner, best]):
        measured = timed.measured(benchmark, order)
        if winner not in measured or best not in measured:
            return None
        found.append((_compared(measured[winner], measured[best]), measured[best].median_us))
    (one, one_us), (two, two_us) = found
    error = math.hypot(one.error, two.error, one.slower - two.slower) / 2
    return Comparison((one.slower + two.slower) / 2, error), (one_us + two_us) / 2
