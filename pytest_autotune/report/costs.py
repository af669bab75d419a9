"""Where the time of a run's searches went. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from pytest_autotune.report.summary import Summary

#: Searches that no test asked for: at import, or in a fixture of the session.
OUTSIDE = "outside of tests"


@dataclass(frozen=True)
class Cost:
    """What one kernel, or one test, took.

    :param problems: how many problems were searched.
    :param seconds: all searches together.
    """

    name: str
    problems: int
    seconds: float


def by_kernel(summary: Summary) -> list[Cost]:
    """Of each kernel, as ``tuner:kernel``; the longest first."""
    return _costs((row.problem.name, seconds) for row in summary.rows for _, seconds in row.searches)


def by_test(summary: Summary) -> list[Cost]:
    """Of each test, by the one that searched; the longest first."""
    return _costs((test or OUTSIDE, seconds) for row in summary.rows for test, seconds in row.searches)


def _costs(searches: Iterable[tuple[str, float]]) -> list[Cost]:
    found: defaultdict[str, list[float]] = defaultdict(list)
    for name, seconds in searches:
        found[name].append(seconds)
    costs = [Cost(name, len(each), sum(sorted(each))) for name, each in found.items()]
    return sorted(costs, key=lambda cost: (-cost.seconds, cost.name))
