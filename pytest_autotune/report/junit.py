"""What is added of a summary to pytest's own JUnit report.

The counts as properties, and a test case for the gate and for each thing that was asked for and could not be done, so
that a run that fails for one of these has a failed test case.
"""

from __future__ import annotations

from dataclasses import dataclass

from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.report.summary import Summary

#: The class of the test cases that are added to pytest's report.
CLASS = "autotune_cache"


@dataclass(frozen=True)
class Case:
    """A test case.

    :param failed: why it failed, in one line; empty where it did not.
    :param skipped: why it says nothing, in one line; empty where it does.
    """

    classname: str
    name: str
    failed: str = ""
    skipped: str = ""


def properties(summary: Summary) -> dict[str, int]:
    """The properties of the whole suite."""
    return {f"autotune_{name}": count for name, count in summary.counts.items()}


def cases(summary: Summary) -> list[Case]:
    """The test cases of the run itself: the gate where there is one, and what could not be done."""
    gate = summary.gate
    found = []
    if gate.limit or gate.fail_on_unused or gate.failure:
        found.append(Case(CLASS, "gate", one_line(gate.failure), one_line(gate.skipped)))
    if summary.drift.limit:
        found.append(Case(CLASS, "drift", one_line(summary.drift.failure), one_line(summary.drift.skipped)))
    # Named by their order: the words of an error would be another test case in each run.
    found += [Case(CLASS, f"error_{number}", one_line(error)) for number, error in enumerate(summary.errors, 1)]
    return found
