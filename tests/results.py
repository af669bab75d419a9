"""Results of runs for tests of what is made of them: each field by its name, wherever in a result it stands."""

from __future__ import annotations

from dataclasses import fields, replace
from typing import Any

from pytest_autotune.cache.model import Candidate, Entry
from pytest_autotune.run.collected import Collected
from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.result import Request, Result
from pytest_autotune.run.rows import Row

NOTHING = Result()
_OF = {kind: {field.name for field in fields(kind)} for kind in (Policy, Request, Collected)}


def result(base: Result = NOTHING, **given: Any) -> Result:
    """A result with other fields, also those of what the user asked for and of what processes have reported."""

    def those_of(kind: type) -> dict[str, Any]:
        own = {name for name in given if name in _OF[kind]}
        return {name: given.pop(name) for name in own}

    recovered = given.pop("recovered", base.recovered)
    collected = replace(base.collected, **those_of(Collected))
    policy = replace(base.request.policy, **those_of(Policy))
    request = replace(base.request, policy=policy, **those_of(Request))
    return replace(base, request=request, collected=collected, recovered=recovered, **given)


def tuned(row: Row, choice: Candidate | None = None, seconds: float = 1.0, test: str = "") -> Row:
    """A row of a problem that was searched."""
    entry = Entry(row.problem, choice=choice or Candidate(), tuning_seconds=seconds)
    return replace(row, entry=entry, searches=((test, seconds),))
