"""The groups in which ``pytest-autotune diff`` shows changes, in a terminal and as Markdown."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from pytest_autotune.cache.diff import Change, ChangeKind, Diff
from pytest_autotune.cache.model import Device
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.report.naming import join_with_arrow


def group_by_device(diff: Diff) -> Iterator[tuple[Device, list[Change]]]:
    """Yield the changes of each device. The device with the most changes comes first."""
    changes_by_device: defaultdict[Device, list[Change]] = defaultdict(list)
    for change in diff.changes:
        changes_by_device[change.entry.problem.device].append(change)
    for device in sorted(changes_by_device, key=lambda device: (device != diff.device, device.sort_key)):
        yield device, changes_by_device[device]


@dataclass(frozen=True)
class VersionCount:
    """Entries that differ only in the versions of libraries.

    :param entries: their number: ``2 entries``.
    :param versions: the old and the new versions: ``triton 3.3.0 -> triton 3.4.0``.
    """

    entries: str
    versions: str


def count_versions(changes: Sequence[Change]) -> list[VersionCount]:
    """Return how many entries changed from which versions to which."""
    counts: Counter[str] = Counter()
    for change in changes:
        if change.kind is ChangeKind.VERSIONS:
            old, new = change.old or change.entry, change.new or change.entry
            counts[join_with_arrow(str(old.versions), str(new.versions))] += 1
    version_counts = []
    for versions, count in counts.items():
        version_counts.append(VersionCount(describe_count(count, "entry"), versions))
    return version_counts
