"""Results of runs, for tests of reports. A test names a field, at whatever depth of the result the field is."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pytest_autotune.cache.model import Candidate, Entry
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.request import RunRequest
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.rows import ProblemRow

NOTHING = RunResult()
_OF = {kind: {field.name for field in fields(kind)} for kind in (Policy, RunRequest, Collected)}


def result(base: RunResult = NOTHING, **given: Any) -> RunResult:
    """Return a result with changed fields, also those of its request, its policy and its collected events."""

    def those_of(kind: type) -> dict[str, Any]:
        own = {name for name in given if name in _OF[kind]}
        return {name: given.pop(name) for name in own}

    recovered = given.pop("recovered", base.recovered_count)
    collected = replace(base.collected, **those_of(Collected))
    policy = replace(base.request.policy, **those_of(Policy))
    request = replace(base.request, policy=policy, **those_of(RunRequest))
    return replace(base, request=request, collected=collected, recovered_count=recovered, **given)


def tuned(row: ProblemRow, choice: Candidate | None = None, seconds: float = 1.0, test: str = "") -> ProblemRow:
    """Return the row of a problem that was tuned."""
    entry = Entry(row.problem, choice=choice or Candidate(), tuning_seconds=seconds)
    return replace(row, entry=entry, searches=((test, seconds),))
