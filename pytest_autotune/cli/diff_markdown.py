"""The differences of two caches as Markdown, for a comment on a pull request: ``pytest-autotune diff --markdown``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from pytest_autotune.cache.diff import Change, ChangeKind, Diff
from pytest_autotune.cache.model import Device
from pytest_autotune.cli.diff_groups import count_versions, group_by_device
from pytest_autotune.cli.output import compare_keys, safe
from pytest_autotune.report.markdown import format_code
from pytest_autotune.report.naming import describe_change

#: The largest number of characters in a row of a Markdown table, without the backticks of its code spans.
_MAX_ROW_LENGTH = 119
#: Of these, the characters between the cells.
_BETWEEN_CELLS = 21
_MAX_CHOICE_LENGTH = 36
_MAX_TIME_LENGTH = 20
_MAX_HEADING_LENGTH = 113
_MAX_VERSIONS_LENGTH = 90


def build_markdown(diff: Diff) -> Iterator[str]:
    """Yield the counts, and a table for each kernel and device."""
    yield f"**{format_code(str(diff), _MAX_HEADING_LENGTH)}**"
    for device, changes in group_by_device(diff):
        for count in count_versions(changes):
            yield f"\n{count.entries}: {format_code(safe(count.versions, _MAX_VERSIONS_LENGTH))}"
        changes_by_kernel: defaultdict[str, list[Change]] = defaultdict(list)
        for change in changes:
            if change.kind is not ChangeKind.VERSIONS:
                changes_by_kernel[change.entry.problem.name].append(change)
        for kernel, kernel_changes in changes_by_kernel.items():
            yield from _build_kernel_table(kernel, device, kernel_changes)


def _build_kernel_table(kernel: str, device: Device, changes: Sequence[Change]) -> Iterator[str]:
    """Yield a Markdown table. Its heading has the parts of the key that all rows share."""
    keys = compare_keys([change.entry.problem for change in changes])
    heading = ", ".join([kernel, *map(str, keys.shared_values)])
    # " on " and the code span's backticks also need room.
    heading_length = _MAX_HEADING_LENGTH - len(device.name) - 6
    yield f"\n{format_code(safe(heading, heading_length))} on {format_code(device.name)}\n"
    yield "| | problem | choice | time |\n| --- | --- | --- | --- |"
    for change, key in zip(changes, keys.values_by_name, strict=True):
        values = [f"{name}={key[name].display_text}" for name in keys.differing_names if name in key]
        yield _build_row(change, " ".join(values))


def _build_row(change: Change, problem: str) -> str:
    """Return a row of a Markdown table. The problem takes the characters that the other cells leave.

    :param problem: the parts of the key that differ between rows.
    """
    choice, time = describe_change(change)
    choice = safe(choice, _MAX_CHOICE_LENGTH)
    time = safe(time, _MAX_TIME_LENGTH)
    kind = change.kind.value
    problem_length = _MAX_ROW_LENGTH - _BETWEEN_CELLS - len(kind) - len(choice) - len(time)
    cells = map(format_code, (kind, safe(problem, problem_length), choice, time))
    return f"| {' | '.join(cells)} |"
