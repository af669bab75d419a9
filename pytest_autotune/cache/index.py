"""Entries by tuner, kernel and key, for lookups; in precedence order."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import chain

from pytest_autotune.cache.model import Cache, Device, Entry, Problem, Value

_Key = tuple[Value, ...]


class EntryIndex:
    """The entries of some caches; those of one key come in precedence order.

    :param entries: in that order.
    """

    def __init__(self, entries: Iterable[Entry]) -> None:
        found: defaultdict[tuple[str, str], list[Entry]] = defaultdict(list)
        for entry in entries:
            found[entry.problem.tuner, entry.problem.kernel].append(entry)
        self._kernels = dict(found)

    @classmethod
    def from_caches(cls, caches: Sequence[Cache]) -> EntryIndex:
        """The index of caches; the last one precedes."""
        return cls(chain.from_iterable(cache.entries for cache in reversed(caches)))

    @cached_property
    def _by_key(self) -> dict[tuple[str, str, _Key], list[Entry]]:
        found: defaultdict[tuple[str, str, _Key], list[Entry]] = defaultdict(list)
        for entry in self:
            found[entry.problem.tuner, entry.problem.kernel, entry.problem.sorted_key].append(entry)
        return dict(found)

    @cached_property
    def _by_fingerprint(self) -> dict[tuple[str, _Key], dict[str, None]]:
        found: defaultdict[tuple[str, _Key], dict[str, None]] = defaultdict(dict)
        for entry in self:
            if entry.fingerprint:
                found[entry.problem.tuner, entry.fingerprint][entry.problem.kernel] = None
        return dict(found)

    def list_kernel_entries(self, tuner: str, kernel: str) -> Sequence[Entry]:
        """The entries of one kernel, of any key and device."""
        return self._kernels.get((tuner, kernel), ())

    def list_same_key(self, problem: Problem) -> Sequence[Entry]:
        """The entries of the problem's tuner, kernel and key, of any device."""
        return self._by_key.get((problem.tuner, problem.kernel, problem.sorted_key), ())

    def list_kernels_with_fingerprint(self, tuner: str, fingerprint: _Key) -> Sequence[str]:
        """The kernels of this tuner that have an entry with this fingerprint, which is not empty."""
        return list(self._by_fingerprint.get((tuner, fingerprint), ()))

    def list_kernels(self) -> list[str]:
        """The kernels that there are entries of, as ``tuner:kernel``."""
        return [":".join(name) for name in self._kernels]

    def list_tuners(self) -> frozenset[str]:
        """The tuners that there are entries of."""
        return frozenset(tuner for tuner, _ in self._kernels)

    def list_devices(self, tuner: str) -> frozenset[Device]:
        """The devices that there are entries of this tuner for."""
        return frozenset(entry.problem.device for entry in self if entry.problem.tuner == tuner)

    def __iter__(self) -> Iterator[Entry]:
        """The entries, those of one key in precedence order."""
        return chain.from_iterable(self._kernels.values())
