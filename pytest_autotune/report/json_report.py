"""A run's result as JSON. ``docs/reference/json-report.md`` documents the schema."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from pytest_autotune.cache.diff import Change, find_winner
from pytest_autotune.cache.model import Candidate, Device, Entry, Problem, Value
from pytest_autotune.run.ci_run import CiRun
from pytest_autotune.run.collected import TEST_OUTCOMES
from pytest_autotune.run.process_record import encode_record
from pytest_autotune.run.result import Gate, RunResult
from pytest_autotune.run.rows import ProblemRow

FORMAT_VERSION = 1
#: The fields of a row that the report has under the same name.
_ROW_FIELDS = ("label", "reason", "moved_from", "tuned", "failed", "unrecorded", "fallback")


def to_json(result: RunResult) -> str:
    """Return the result as JSON text with a newline at its end.

    The text is ASCII, so characters on which a terminal would act are escaped.
    """
    return json.dumps(to_mapping(result), indent=1) + "\n"


def to_mapping(result: RunResult) -> dict[str, Any]:
    """Return the result as plain values, in the order of the documented schema.

    Modes, such as ``verify``, add fields of their own at the end.
    """
    mapping: dict[str, Any] = {
        "format_version": FORMAT_VERSION,
        "complete": not result.collected.incomplete_reason,
        "incomplete_reason": result.collected.incomplete_reason,
        "not_passed_reason": result.collected.not_passed_reason,
        "only_skips": result.collected.has_only_skips,
        "finished": True,
        "run": asdict(result.ci_run),
        "tests": {outcome: result.collected.test_counts.get(outcome, 0) for outcome in TEST_OUTCOMES},
        "took_no_part": result.no_part_reason,
        "counts": result.counts,
        "tuning_seconds": result.tuning_seconds,
        "saved_seconds": result.saved_seconds,
        "devices": list(map(_build_device_mapping, result.devices)),
        "loaded": _list_loaded(result),
        "dump": _build_dump_mapping(result),
        "gate": _build_gate_mapping(result.gate),
        "errors": list(result.errors),
        "lookups": [_build_row_mapping(result, row) for row in result.rows],
        "unused": list(map(build_entry_mapping, result.unused_entries)),
        "left_out": [build_problem_mapping(entry.problem) for entry in result.left_out_entries],
        "untracked": list(result.collected.untracked),
        "crashed": list(result.collected.crashed_workers),
        "recovered": result.recovered_count,
        "other_versions": _list_other_versions(result),
        "update": result.request.update_arguments,
        "notes": list(result.collected.notes),
        "changes": list(map(_build_change_mapping, result.changes.changes)),
        "places": _build_locations(result),
        "process": encode_record(result),
    }
    for section in result.sections:
        mapping.update(section.data)
    return mapping


def build_unfinished_mapping(ci_run: CiRun) -> dict[str, Any]:
    """Return the report of a process that has not ended."""
    return {"format_version": FORMAT_VERSION, "complete": False, "finished": False, "run": asdict(ci_run)}


def _list_loaded(result: RunResult) -> list[dict[str, Any]]:
    mappings = []
    for path, entry_count in result.loaded:
        mappings.append({"path": path, "entries": entry_count, "digest": result.loaded_digests.get(path, "")})
    return mappings


def _build_device_mapping(device: Device) -> dict[str, Any]:
    return {"id": device.id, **asdict(device)}


def _build_dump_mapping(result: RunResult) -> dict[str, Any] | None:
    dump = result.dump
    if dump is None:
        return None
    return {
        "path": dump.written_to or dump.path,
        **result.merged.counts,
        "error": dump.error,
        "new_only": result.request.plan.only_adds,
    }


def _build_gate_mapping(gate: Gate) -> dict[str, Any]:
    return {
        "limit": gate.limit,
        "fail_on_unused": gate.fail_on_unused,
        "failed": gate.failure,
        "skipped": gate.skip_reason,
    }


def _list_other_versions(result: RunResult) -> list[dict[str, Any]]:
    mappings = []
    for (tuned_with, running), hits in result.other_version_counts.items():
        mappings.append({"tuned_with": tuned_with, "running": running, "hits": hits})
    return mappings


def _build_locations(result: RunResult) -> dict[str, Any]:
    locations = {}
    for test, location in result.test_places.items():
        locations[test] = {"file": location.path, "line": location.line}
    return locations


def _build_change_mapping(change: Change) -> dict[str, Any]:
    return {
        "kind": change.kind.value,
        **build_problem_mapping(change.entry.problem),
        "old": build_candidate_mapping(find_winner(change.old)),
        "new": build_candidate_mapping(find_winner(change.new)),
    }


def build_problem_mapping(problem: Problem) -> dict[str, Any]:
    """Return a problem as plain values."""
    return {
        "tuner": problem.tuner,
        "kernel": problem.kernel,
        "key": _build_values(problem.key),
        "device": problem.device.id,
    }


def build_entry_mapping(entry: Entry) -> dict[str, Any]:
    """Return the problem and the fingerprint of an entry as plain values."""
    return {**build_problem_mapping(entry.problem), "fingerprint": _build_values(entry.fingerprint)}


def _build_row_mapping(result: RunResult, row: ProblemRow) -> dict[str, Any]:
    """Return a problem of the run as plain values. Modes add their own fields about the problem at the end."""
    mapping: dict[str, Any] = {"outcome": None}
    if row.outcome is not None:
        mapping["outcome"] = row.outcome.value
    mapping.update(build_problem_mapping(row.problem))
    for name in _ROW_FIELDS:
        mapping[name] = getattr(row, name)
    mapping["disturbed"] = row.is_disturbed
    mapping["tuning_seconds"] = row.tuning_seconds
    mapping["changed"] = list(row.changed)
    mapping["nearest"] = dict(row.nearest)
    mapping["tests"] = list(row.tests)
    mapping["searches"] = [{"test": test, "seconds": seconds} for test, seconds in row.searches]
    mapping["choice"] = build_candidate_mapping(row.choice)
    mapping["candidates"] = list(map(build_candidate_mapping, row.candidates))
    for section in result.sections:
        remark = section.problem_remarks.get(row.problem)
        if remark is not None:
            mapping.update(remark.data)
    return mapping


def _build_values(values: tuple[Value, ...]) -> dict[str, Any]:
    """Return named values as a mapping: name -> scalar."""
    return {value.name: value.value for value in values}


def build_candidate_mapping(candidate: Candidate | None) -> dict[str, Any] | None:
    """Return a candidate as plain values, without its empty fields."""
    if candidate is None:
        return None
    mapping: dict[str, Any] = {"params": _build_values(candidate.params)}
    for name in ("id", "time_us", "failed", "label"):
        value = getattr(candidate, name)
        # The comparison keeps a time of 0, which is false in Python.
        if value is not None and value != "":
            mapping[name] = value
    return mapping
