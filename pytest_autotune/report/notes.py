"""The notes of a run: lines about workers, versions, renamed kernels and pruning, above the counts."""

from __future__ import annotations

from collections import Counter

from pytest_autotune.cache.wording import describe_count
from pytest_autotune.report.line import Line
from pytest_autotune.run.result import RunResult


def list_notes(result: RunResult, verbosity: int) -> list[Line]:
    """Return the notes that pytest's verbosity asks for: 0 by default, negative for ``-q``, positive for ``-v``."""
    notes = _list_crashes(result)
    if result.recovered_count:
        tunings = describe_count(result.recovered_count, "tuning")
        notes.append(Line(f"recovered {tunings} that an earlier run with this dump path could not write"))
    notes += list_warnings(result)
    if result.no_part_reason and not result.gate.skip_reason:
        notes.append(Line(f"the cache took no part: {result.no_part_reason} (?optional)", color="yellow"))
    if verbosity >= 0:
        notes += _list_entry_notes(result)
    reason = result.collected.incomplete_reason
    if reason and result.request.plan.prunes:
        notes.append(Line(f"nothing was pruned, the run was not complete: {reason}", color="yellow"))
    elif reason and verbosity > 0 and (result.loaded or result.dump):
        notes.append(Line(f"unused entries not checked: {reason}"))
    if verbosity >= 0:
        for section in result.sections:
            for note in section.notes:
                notes.append(Line(note))
    return notes


def list_warnings(result: RunResult) -> list[Line]:
    """Return the notes about tuners that could not be used as the user wished, and about other failures."""
    warnings = []
    for tuner in result.tuners_without_adapter:
        warnings.append(Line(f"{tuner}: entries are loaded, and no adapter for it is installed", color="yellow"))
    for note in result.collected.notes:
        warnings.append(Line(note, color="yellow"))
    return warnings


def _list_crashes(result: RunResult) -> list[Line]:
    consequence = "its last test may be missing here"
    if result.dump is not None:
        consequence = "every tuning that it had finished was kept"
    notes = []
    for worker in result.collected.crashed_workers:
        notes.append(Line(f"worker {worker} crashed; {consequence}", color="yellow"))
    return notes


def _list_entry_notes(result: RunResult) -> list[Line]:
    """Return the notes about entries of other versions, names or devices, and about entries that a dump leaves out."""
    notes = []
    checks = ""
    if result.request.version_checks:
        checks = f" ({'; '.join(result.request.version_checks)})"
    for (tuned_version, version), hits in result.other_version_counts.items():
        notes.append(Line(f"{describe_count(hits, 'hit')}, tuned with {tuned_version}; this run has {version}{checks}"))
    advice = ""
    if result.collected.incomplete_reason:
        advice = "; an update of a complete run renames the entries"
    for (old_name, new_name), hits in result.rename_counts.items():
        notes.append(Line(f"{describe_count(hits, 'hit')} of {new_name} moved from {old_name}{advice}"))
    for device, entry_device in result.alias_counts:
        notes.append(Line(f"{device} used entries of {entry_device} (autotune_device_alias)"))
    if result.left_out_entries and result.dump is not None:
        entries = describe_count(len(result.left_out_entries), "loaded entry is", "loaded entries are")
        devices = _describe_devices_left_out(result)
        notes.append(Line(f"{entries} not in {result.dump.path}, which no test asked for ({devices})"))
    return notes


def _describe_devices_left_out(result: RunResult) -> str:
    """Return how many loaded entries of each device the dump leaves out."""
    counts: Counter[str] = Counter()
    for entry in result.left_out_entries:
        counts[str(entry.problem.device)] += 1
    return "; ".join(f"{count} for {device}" for device, count in sorted(counts.items()))
