"""A result as JSON; its schema is documented in docs/reference.md."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pytest_autotune.cache.diff import Change, find_winner
from pytest_autotune.cache.model import Candidate, Entry, Problem, Value
from pytest_autotune.run.result import DumpOutcome, RunResult
from pytest_autotune.run.rows import ProblemRow

#: Of a row.
_AS_THEY_ARE = (
    "label", "reason", "moved_from", "tuned", "failed", "unrecorded", "fallback",
)  # fmt: skip


def to_json(result: RunResult) -> str:
    """The result as JSON text with a trailing newline, in ASCII: what a terminal would act upon is escaped in it."""
    return json.dumps(to_mapping(result), indent=1) + "\n"


def to_mapping(result: RunResult) -> dict[str, Any]:
    """The result as plain values, in the order of the documented schema."""
    return {
        "format_version": 1,
        "complete": not result.collected.incomplete_reason,
        "incomplete_reason": result.collected.incomplete_reason,
        "counts": result.counts,
        "tuning_seconds": result.tuning_seconds,
        "saved_seconds": result.saved_seconds,
        "devices": [{"id": device.id, **asdict(device)} for device in result.devices],
        "loaded": [{"path": path, "entries": entries} for path, entries in result.loaded],
        "dump": _dump(result, result.dump) if result.dump is not None else None,
        "gate": {
            "limit": result.gate.limit,
            "fail_on_unused": result.gate.fail_on_unused,
            "failed": result.gate.failure,
            "skipped": result.gate.skipped,
        },
        "errors": list(result.errors),
        "lookups": [_lookup(result, row) for row in result.rows],
        "unused": [entry_mapping(entry) for entry in result.unused_entries],
        "left_out": [problem_mapping(entry.problem) for entry in result.left_out_entries],
        "untracked": list(result.collected.untracked),
        "crashed": list(result.collected.crashed_workers),
        "recovered": result.recovered_count,
        "other_versions": [
            {"tuned_with": then, "running": now, "hits": hits}
            for (then, now), hits in result.other_version_counts.items()
        ],
        "update": result.request.update_arguments,
        "notes": list(result.collected.notes),
        "changes": [_change(change) for change in result.changes.changes],
        "places": {test: {"file": place.path, "line": place.line} for test, place in result.test_places.items()},
        **{key: value for section in result.sections for key, value in section.data.items()},
    }


def _dump(result: RunResult, dump: DumpOutcome) -> dict[str, Any]:
    return {
        "path": dump.written_to or dump.path,
        **result.merged.counts,
        "error": dump.error,
        "new_only": result.request.new_only,
    }


def _change(change: Change) -> dict[str, Any]:
    sides = {"old": candidate_mapping(find_winner(change.old)), "new": candidate_mapping(find_winner(change.new))}
    return {"kind": change.kind.value, **problem_mapping(change.entry.problem), **sides}


def problem_mapping(problem: Problem) -> dict[str, Any]:
    """A problem as plain values."""
    return {
        "tuner": problem.tuner,
        "kernel": problem.kernel,
        "key": plain_values(problem.key),
        "device": problem.device.id,
    }


def entry_mapping(entry: Entry) -> dict[str, Any]:
    """What an entry is of, as plain values."""
    return {**problem_mapping(entry.problem), "fingerprint": plain_values(entry.fingerprint)}


def _lookup(result: RunResult, row: ProblemRow) -> dict[str, Any]:
    of_modes = [one.problem_remarks[row.problem] for one in result.sections if row.problem in one.problem_remarks]
    return {
        "outcome": row.outcome.value if row.outcome else None,
        **problem_mapping(row.problem),
        **{name: getattr(row, name) for name in _AS_THEY_ARE},
        "disturbed": row.is_disturbed,
        "tuning_seconds": row.tuning_seconds,
        "nearest": dict(row.nearest),
        "tests": list(row.tests),
        "searches": [{"test": test, "seconds": seconds} for test, seconds in row.searches],
        "choice": candidate_mapping(row.choice),
        "candidates": [candidate_mapping(candidate) for candidate in row.candidates],
        **{key: value for one in of_modes for key, value in one.data.items()},
    }


def plain_values(values: tuple[Value, ...]) -> dict[str, Any]:
    """Named values as plain ones."""
    return {value.name: value.value for value in values}


def candidate_mapping(candidate: Candidate | None) -> dict[str, Any] | None:
    """A candidate as plain values."""
    if candidate is None:
        return None
    plain: dict[str, Any] = {"params": plain_values(candidate.params)}
    for name in ("id", "time_us", "failed", "label"):
        if (value := getattr(candidate, name)) not in ("", None):
            plain[name] = value
    return plain
