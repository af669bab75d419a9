"""Hints: lines that tell the user how to mend the findings of a run. A hint has the options for the user to copy.

An update is a run that tunes the problems which the loaded cache lacks, and writes them into it. Its options are, for
example, ``--autotune-load=cache.textproto --autotune-update``. The result of a run has them as ``update_arguments``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from pytest_autotune.cache.locations import is_url
from pytest_autotune.cache.model import library_of
from pytest_autotune.report.findings import MAX_SINGLE_ROWS
from pytest_autotune.report.naming import describe_kernels
from pytest_autotune.run.lookup import Outcome
from pytest_autotune.run.result import RunResult
from pytest_autotune.run.rows import ProblemRow


def list_hints(result: RunResult, *, is_quiet: bool = False) -> list[str]:
    """Return the hints, in the order in which the user should follow them; none if all is well.

    :param is_quiet: whether the report hides rows, as the terminal does with ``-q``.
    """
    #: The rows that an update would cover in vain; they are among ``rows_to_update``.
    hypothesis_rows = result.hypothesis_rows
    hints = []
    needs_update = bool(result.rows_to_update)
    if len(hypothesis_rows) > MAX_SINGLE_ROWS:
        hints.append(_advise_on_hypothesis(hypothesis_rows))
        # Hypothesis draws other problems in the next run, so an update helps only the rows of other tests.
        needs_update = len(result.rows_to_update) > len(hypothesis_rows)
    hints += _list_update_hints(result, needs_update)
    hints += _list_bypass_hints(result, is_quiet)
    hints += _list_adapter_hints(result)
    return hints


def _advise_on_hypothesis(rows: Sequence[ProblemRow]) -> str:
    """Return the hint for problems whose arguments Hypothesis draws anew in each run."""
    kernels = describe_kernels(_list_kernels(rows))
    return (
        f"Hypothesis draws {len(rows)} of these problems anew in each run, so no update covers them: fix its seed "
        f"(derandomize=True), let it draw from few values, or add {kernels} to autotune_ignore (ini)."
    )


def _list_kernels(rows: Iterable[ProblemRow]) -> list[str]:
    """Return the kernels of some rows as ``library:kernel``, sorted, each once."""
    return sorted({f"{row.problem.library}:{row.problem.kernel}" for row in rows})


def _list_update_hints(result: RunResult, needs_update: bool) -> list[str]:
    """Return how to bring the cache up to date, and how to drop its unused entries.

    :param needs_update: some rows are no hits, and an update would cover them.
    """
    hints = []
    if result.request.update_arguments and (needs_update or _needs_other_update(result)):
        on_devices = _describe_update_devices(result)
        prune_arguments = _find_prune_arguments(result)
        has_old_entries = bool(result.unused_entries) or _has_old_names(result)
        can_prune = has_old_entries and not on_devices and not result.request.prune_command
        if can_prune and prune_arguments == f"{result.request.update_arguments}=prune":
            # A single run updates the cache and drops the entries.
            return [
                f"{result.request.rerun_words} with {prune_arguments} to update the cache and to drop the unused "
                f"entries. If another suite uses them, re-run with --autotune-update=all."
            ]
        rerun = f"{result.request.rerun_words}{on_devices}"
        hints.append(f"{rerun} with {result.request.shown_update_arguments} to update the cache.")
    if result.unused_entries:
        hints += _list_prune_hints(result)
    return hints


def _list_prune_hints(result: RunResult) -> list[str]:
    """Return how to drop the unused entries; none if the run has no cache to update."""
    command = result.request.prune_command
    if not command:
        prune_arguments = _find_prune_arguments(result)
        if not prune_arguments:
            return []
        command = f"with {prune_arguments}"
    return [f"Run {command} to drop the unused entries, unless another suite uses them."]


def _is_dumped(result: RunResult) -> bool:
    """Whether the run has written its entries into the dump path."""
    return result.dump is not None and not result.dump.error


def _needs_other_update(result: RunResult) -> bool:
    """Whether an update helps although all rows are covered.

    It adds the entries of renamed kernels under their new names, or fills an empty cache.
    """
    if _is_dumped(result):
        # This run has already written its entries.
        return False
    if result.copy_counts:
        return True
    has_only_empty_caches = bool(result.loaded) and not result.loaded_entry_count
    # The run may fail because the caches are empty. An update fills them.
    return has_only_empty_caches and bool(result.failures)


def _has_old_names(result: RunResult) -> bool:
    """Whether a prune would drop entries under old names. Only a complete run drops them, and never from a store."""
    if result.collected.unasked_reason or any(is_url(path) for path, _ in result.loaded):
        return False
    loaded_identities = {entry.identity for entry in result.initial_entries}
    asked_kernels = {row.problem.name for row in result.rows}
    for row in result.rows:
        if row.hit is None or not row.moved_from:
            continue
        # The cache of a single test keeps its entries.
        is_loaded_for_all = row.hit.identity in loaded_identities
        if is_loaded_for_all and row.hit.problem.name not in asked_kernels:
            return True
    return False


def _find_prune_arguments(result: RunResult) -> str:
    """Return the arguments that drop unused entries; empty if the run has no cache to update."""
    update_arguments = result.request.update_arguments
    if update_arguments.endswith("--autotune-update"):
        if len(result.loaded) > 1:
            # An update would drop only the unused entries of the cache that was loaded last.
            return "--autotune-report=r.json, then pytest-autotune prune --unused-in=r.json for each of these caches,"
        return f"{update_arguments}=prune"
    # The update of any other run is another dump, and a dump to a path that is not loaded drops no entries.
    dump = result.dump
    if dump is not None and (update_arguments or not dump.error):
        return f"--autotune-load={dump.path} --autotune-update=prune"
    return ""


def _describe_update_devices(result: RunResult) -> str:
    """Return the devices on which an update should run, as words of a hint: `` on NVIDIA H200``.

    The text is empty unless the loaded caches have entries for other devices. The user could then run the update on one
    of those by mistake, and an update only writes entries for the device on which it runs.
    """
    devices = set()
    for tuner, device in result.rows_without_entries:
        # Without entries for any other device, there is nothing to mix up.
        if result.devices_by_tuner.get(tuner):
            devices.add(str(device))
    for row in result.rows_to_update:
        if row.outcome is Outcome.MISMATCH:
            devices.add(str(row.problem.device))
    if not devices:
        return ""
    return f" on {' and '.join(sorted(devices))}"


def _list_adapter_hints(result: RunResult) -> list[str]:
    """Return what to do about tuners that the plugin could not hook, or for which it has no adapter."""
    if not result.failures:
        # The run has passed without these tuners, and a note names them.
        return []
    hints = []
    unhooked = sorted(set(map(library_of, result.unhooked_tuners)))
    if unhooked:
        names = " and ".join(unhooked)
        advice = f"The plugin could not hook {names}: upgrade pytest-autotune or its adapter, or report the failure"
        hints.append(f"{advice}; {_advise_to_ignore(unhooked)}")
    without_adapter = result.tuners_without_adapter
    if without_adapter:
        advice = f"Install the adapter of {' and '.join(without_adapter)}"
        hints.append(f"{advice}; {_advise_to_ignore(without_adapter)}")
    return hints


def _advise_to_ignore(tuners: Iterable[str]) -> str:
    """Return the end of a hint: ``or set autotune_ignore (ini) to cute:*, toy:* to run without its entries.``"""
    globs = ", ".join(f"{tuner}:*" for tuner in tuners)
    return f"or set autotune_ignore (ini) to {globs} to run without its entries."


def _list_bypass_hints(result: RunResult, is_quiet: bool) -> list[str]:
    """Return what to do about problems that no update covers.

    Such a problem has no stable form (uncacheable), its search recorded nothing (unrecorded), or its kernel was tuned
    without asking pytest-autotune (untracked).
    """
    if not result.is_judged:
        # Without a loaded cache no problem was expected to be a hit.
        return []
    uncacheable: list[ProblemRow] = []
    has_unrecorded = False
    for row in result.rows:
        if row.outcome is Outcome.UNCACHEABLE:
            uncacheable.append(row)
        elif row.unrecorded:
            has_unrecorded = True
    # An untracked kernel may have words after its name: ``lib.kernel (lib.Autotuner)``.
    untracked = [kernel.partition(" ")[0] for kernel in result.collected.untracked]
    shown = ""
    if is_quiet:
        shown = " (shown without -q)"
    hints = []
    words = []
    if uncacheable:
        words.append("uncacheable")
    if untracked:
        words.append("untracked")
    if words:
        kernels = describe_kernels(sorted({*_list_kernels(uncacheable), *untracked}))
        hints.append(
            f"An update does not help for {' or '.join(words)} problems: fix the cause that each row names{shown}, or "
            f"add {kernels} to autotune_ignore (ini)."
        )
    if has_unrecorded:
        # Mostly the error is that of the test, so the kernel must not be ignored.
        hints.append(
            f"An update does not help for unrecorded problems: first repair the test or kernel with the error that "
            f"each row names{shown}."
        )
    return hints
