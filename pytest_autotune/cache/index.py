"""Entries by tuner, kernel and key, decoded kernel by kernel as somebody asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import chain

from pytest_autotune.cache.model import Cache, Device, Entry, Problem, Value

_Key = tuple[Value, ...]


class _Kernel:
    """The entries of one kernel, in precedence order.

    :param encoded: the same as a serialised AutotuneCache, where that is all there is of them.
    """

    def __init__(self, name: str, entries: Sequence[Entry] = (), encoded: bytes = b"") -> None:
        self._name = name
        self._entries = entries
        self._encoded = encoded

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        from pytest_autotune.cache.codec import binary  # protobuf is imported at the first question

        return binary.decode(self._encoded, self._name).entries if self._encoded else tuple(self._entries)

    @cached_property
    def encoded(self) -> bytes:
        from pytest_autotune.cache.codec import binary

        return self._encoded or binary.encode(self._entries)

    @cached_property
    def by_key(self) -> Mapping[_Key, Sequence[Entry]]:
        found: dict[_Key, list[Entry]] = {}
        for entry in self.entries:
            found.setdefault(entry.problem.sorted_key, []).append(entry)
        return found

    @cached_property
    def by_fingerprint(self) -> frozenset[_Key]:
        return frozenset(entry.fingerprint for entry in self.entries)


class EntryIndex:
    """The entries of some caches, for lookups; made with :meth:`of` or :meth:`from_groups`.

    Entries of one key come in precedence order. Nothing is decoded, nor protobuf
    imported, before the first question about a kernel. That question raises
    :class:`CacheError` where what was indexed without a look inside is damaged.
    """

    def __init__(self, kernels: Mapping[tuple[str, str], _Kernel]) -> None:
        self._kernels = kernels

    @classmethod
    def of(cls, caches: Sequence[Cache]) -> EntryIndex:
        """The index of decoded caches; the last one precedes."""
        found: dict[tuple[str, str], list[Entry]] = {}
        for entry in chain.from_iterable(cache.entries for cache in reversed(caches)):
            found.setdefault((entry.problem.tuner, entry.problem.kernel), []).append(entry)
        return cls({name: _Kernel(":".join(name), entries) for name, entries in found.items()})

    @classmethod
    def from_groups(cls, groups: Iterable[tuple[str, str, bytes]]) -> EntryIndex:
        """The index whose :meth:`groups` these are."""
        return cls({(tuner, name): _Kernel(f"{tuner}:{name}", encoded=data) for tuner, name, data in groups})

    def groups(self) -> list[tuple[str, str, bytes]]:
        """The index as plain data, for another process: (tuner, kernel, serialised AutotuneCache)."""
        return [(*name, kernel.encoded) for name, kernel in sorted(self._kernels.items(), key=lambda item: item[0])]

    def of_kernel(self, tuner: str, kernel: str) -> tuple[Entry, ...]:
        """The entries of one kernel, of any key and device."""
        found = self._kernels.get((tuner, kernel))
        return found.entries if found else ()

    def same_key(self, problem: Problem) -> Sequence[Entry]:
        """The entries of the problem's tuner, kernel and key, of any device."""
        found = self._kernels.get((problem.tuner, problem.kernel))
        return found.by_key.get(problem.sorted_key, ()) if found else ()

    def with_fingerprint(self, tuner: str, fingerprint: _Key) -> Sequence[str]:
        """The kernels of this tuner that have an entry with this fingerprint, which is not empty."""
        kernels = [(name, kernel) for (of, name), kernel in self._kernels.items() if of == tuner and fingerprint]
        return [name for name, kernel in kernels if fingerprint in kernel.by_fingerprint]

    def kernels(self) -> list[str]:
        """The kernels that there are entries of, as ``tuner:kernel``."""
        return [":".join(name) for name in self._kernels]

    def tuners(self) -> frozenset[str]:
        """The tuners that there are entries of."""
        return frozenset(tuner for tuner, _ in self._kernels)

    def devices(self, tuner: str) -> frozenset[Device]:
        """The devices that there are entries of this tuner for."""
        of_tuner = (kernel.entries for (of, _), kernel in self._kernels.items() if of == tuner)
        return frozenset(entry.problem.device for entries in of_tuner for entry in entries)

    def __iter__(self) -> Iterator[Entry]:
        """The entries, those of one key in precedence order."""
        for kernel in self._kernels.values():
            yield from kernel.entries

    def __len__(self) -> int:
        """The number of entries."""
        return sum(len(kernel.entries) for kernel in self._kernels.values())
