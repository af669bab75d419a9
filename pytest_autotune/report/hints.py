"""What to do about what a summary tells, in lines to copy from. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_autotune.cache.model import library_of
from pytest_autotune.report.naming import some_of
from pytest_autotune.report.summary import Summary
from pytest_autotune.run.lookup import Outcome


def hints(summary: Summary) -> Iterator[str]:
    """The lines, in the order in which to follow them; none where all is well."""
    yield from _update(summary)
    yield from _leave_alone(summary)
    yield from _go_without(summary)


def _update(summary: Summary) -> Iterator[str]:
    update, dump = summary.update, summary.dump
    is_dumped = dump is not None and not dump.error
    why = "to drop the unused entries, unless another suite uses them"
    prune = f"--autotune-load={dump.path} --autotune-update=prune" if dump is not None else ""
    if not update:
        if is_dumped and summary.unused:
            yield f"Run with {prune} {why}."
        return
    if update.endswith("--autotune-update"):
        prune = f"{update}=prune"
    has_no_entries = bool(summary.is_empty and summary.failures)
    if summary.to_update or (not is_dumped and (summary.moved or has_no_entries)):
        and_prune = f"; with {prune} {why}" if summary.unused else ""
        yield f"Re-run{_on(summary)} with {update} to update the cache{and_prune}."
    elif summary.unused:
        yield f"Re-run with {prune} {why}."


def _on(summary: Summary) -> str:
    """Where to run the update, if the cache is of other devices: one that was made elsewhere would change nothing."""
    devices = {device.name for tuner, device in summary.without_any_entry if summary.covered.get(tuner)}
    devices.update(row.problem.device.name for row in summary.to_update if row.outcome is Outcome.MISMATCH)
    return f" on {' and '.join(sorted(devices))}" if devices else ""


def _go_without(summary: Summary) -> Iterator[str]:
    wanted = {library_of(name) for name in summary.requested or summary.covered}
    missing = wanted & {library_of(tuner) for tuner, _ in summary.unhooked}
    if missing and summary.gate.failure:
        others = ",".join(sorted(wanted - missing))
        without = f"; --autotune-tuners={others} goes on without" if others else ""
        yield f"Upgrade pytest-autotune, or report why {' and '.join(sorted(missing))} was left alone{without}."


def _leave_alone(summary: Summary) -> Iterator[str]:
    if not summary.is_judged:
        return
    rows = [row for row in summary.rows if row.outcome is Outcome.UNPORTABLE]
    unportable = [f"{row.problem.library}:{row.problem.kernel}" for row in rows]
    unseen = [kernel.partition(" ")[0] for kernel in summary.unseen]
    unrecorded = [f"{row.problem.library}:{row.problem.kernel}" for row in summary.rows if row.unrecorded]
    if kernels := sorted({*unportable, *unseen, *unrecorded}):
        found = {"unportable": unportable, "unseen": unseen, "not recorded": unrecorded}
        what = " or ".join(word for word, those in found.items() if those)
        yield f"No update covers what is {what}: mend it, or set autotune_ignore (ini) for {some_of(kernels)}."
