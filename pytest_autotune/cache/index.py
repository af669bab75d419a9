"""The entries of caches by tuner, kernel and key, for lookups."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property

from pytest_autotune.cache.model import Cache, Device, Entry, Fingerprint, Problem, Value


class EntryIndex:
    """The entries of some caches. Entries with the same key are in the order of precedence.

    :param entries: the entries in the order of precedence.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        entries_by_kernel: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        for entry in entries:
            entries_by_kernel[entry.problem.tuner, entry.problem.kernel].append(entry)
        self._entries_by_kernel = dict(entries_by_kernel)

    @classmethod
    def from_caches(cls, caches: Sequence[Cache]) -> EntryIndex:
        """Return the index of caches; the last cache takes precedence."""
        entries: list[Entry] = []
        for cache in reversed(caches):
            entries += cache.entries
        return cls(entries)

    @cached_property
    def _entries_by_key(self) -> dict[tuple[str, str, tuple[Value, ...]], list[Entry]]:
        entries_by_key: defaultdict[tuple[str, str, tuple[Value, ...]], list[Entry]] = defaultdict(list)
        for entry in self:
            problem = entry.problem
            entries_by_key[problem.tuner, problem.kernel, problem.sorted_key].append(entry)
        return dict(entries_by_key)

    @cached_property
    def _kernels_by_fingerprint(self) -> dict[tuple[str, Fingerprint], list[str]]:
        kernels_by_fingerprint: defaultdict[tuple[str, Fingerprint], list[str]] = defaultdict(list)
        for entry in self:
            kernels = kernels_by_fingerprint[entry.problem.tuner, entry.fingerprint]
            if entry.fingerprint and entry.problem.kernel not in kernels:
                kernels.append(entry.problem.kernel)
        return dict(kernels_by_fingerprint)

    def list_kernel_entries(self, tuner: str, kernel: str) -> Sequence[Entry]:
        """Return the entries of a kernel, for any key and device."""
        return self._entries_by_kernel.get((tuner, kernel), ())

    def list_same_key(self, problem: Problem) -> Sequence[Entry]:
        """Return the entries of the problem's tuner, kernel and key, for any device."""
        return self._entries_by_key.get((problem.tuner, problem.kernel, problem.sorted_key), ())

    def list_kernels_with_fingerprint(self, tuner: str, fingerprint: Fingerprint) -> Sequence[str]:
        """Return the kernels of a tuner that have an entry with this fingerprint; none for an empty fingerprint."""
        return self._kernels_by_fingerprint.get((tuner, fingerprint), ())

    def list_kernels(self) -> list[str]:
        """Return the kernels of all entries, as ``tuner:kernel``."""
        return [f"{tuner}:{kernel}" for tuner, kernel in self._entries_by_kernel]

    def list_tuners(self) -> frozenset[str]:
        """Return the tuners of all entries."""
        return frozenset(tuner for tuner, _ in self._entries_by_kernel)

    def list_devices(self, tuner: str) -> frozenset[Device]:
        """Return the devices of a tuner's entries."""
        return frozenset(entry.problem.device for entry in self if entry.problem.tuner == tuner)

    def __iter__(self) -> Iterator[Entry]:
        """Yield all entries. Entries with the same key are in the order of precedence."""
        for entries in self._entries_by_kernel.values():
            yield from entries
