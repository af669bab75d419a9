"""What to do about what a result tells, in lines to copy from. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_autotune.cache.model import library_of
from pytest_autotune.report.findings import MAX_SINGLE_ROWS
from pytest_autotune.report.naming import describe_kernels
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import RunResult


def list_hints(result: RunResult) -> Iterator[str]:
    """The lines, in the order in which to follow them; none where all is well."""
    drawn = result.hypothesis_rows if len(result.hypothesis_rows) > MAX_SINGLE_ROWS else ()
    if drawn:
        kernels = describe_kernels(sorted({f"{row.problem.library}:{row.problem.kernel}" for row in drawn}))
        yield (
            f"Hypothesis draws {len(drawn)} of these problems anew in each run, so no update covers them: fix its seed "
            f"(derandomize=True), round what it draws to few sizes, or set autotune_ignore (ini) for {kernels}."
        )
    yield from _update(result, len(result.rows_to_update) > len(drawn))
    yield from _bypass(result)
    yield from _go_without(result)


def _update(result: RunResult, has_missed: bool) -> Iterator[str]:
    """How to bring the cache up to date, where an update covers something (``has_missed``) or entries are unused."""
    update, dump = result.request.update_arguments, result.dump
    is_dumped = dump is not None and not dump.error
    prune = ""
    if update.endswith("--autotune-update"):
        prune = f"{update}=prune"
        if len(result.loaded) > 1:  # an update writes the last one alone
            prune = "--autotune-report=r.json, then pytest-autotune prune --unused-in=r.json for each of these caches,"
    elif dump is not None and (update or is_dumped):
        prune = f"--autotune-load={dump.path} --autotune-update=prune"
    has_no_entries = bool(result.loaded and not result.loaded_entry_count and result.failures)
    has_moved = result.rename_counts and not result.collected.incomplete_reason
    if update and (has_missed or (not is_dumped and (has_moved or has_no_entries))):
        yield f"Re-run{_on(result)} with {update} to update the cache."
    if prune and result.unused_entries:
        yield f"Run with {prune} to drop the unused entries, unless another suite uses them."


def _on(result: RunResult) -> str:
    """Where to run the update, if the cache is of other devices: one that was made elsewhere would change nothing."""
    devices = {str(device) for tuner, device in result.rows_without_entries if result.devices_by_tuner.get(tuner)}
    devices.update(str(row.problem.device) for row in result.rows_to_update if row.outcome is Outcome.MISMATCH)
    return f" on {' and '.join(sorted(devices))}" if devices else ""


def _go_without(result: RunResult) -> Iterator[str]:
    missing = sorted({library_of(tuner) for tuner in result.unhooked_tuners})
    ways = (
        (missing, f"Upgrade pytest-autotune or its adapter, or report why {' and '.join(missing)} was bypassed"),
        (result.tuners_without_adapter, f"Install the adapter of {' and '.join(result.tuners_without_adapter)}"),
    )
    for tuners, way in ways if result.failures else ():
        if tuners:
            yield f"{way}; autotune_ignore (ini) for {', '.join(f'{one}:*' for one in tuners)} goes on without."


def _bypass(result: RunResult) -> Iterator[str]:
    if not result.is_judged:
        return
    rows = [row for row in result.rows if row.outcome is Outcome.UNCACHEABLE]
    uncacheable = [f"{row.problem.library}:{row.problem.kernel}" for row in rows]
    untracked = [kernel.partition(" ")[0] for kernel in result.collected.untracked]
    unrecorded = [f"{row.problem.library}:{row.problem.kernel}" for row in result.rows if row.unrecorded]
    if kernels := sorted({*uncacheable, *untracked, *unrecorded}):
        found = {"uncacheable": uncacheable, "untracked": untracked, "not recorded": unrecorded}
        what = " or ".join(word for word, those in found.items() if those)
        leave_out = f"set autotune_ignore (ini) for {describe_kernels(kernels)}"
        yield f"No update covers what is {what}: mend what its row names, or {leave_out}."
