"""Entries by tuner and kernel, decoded only when somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial

from pytest_autotune.cache.model import Cache, Device, Entry, Problem

Encoded = tuple[tuple[str, str, str, str], ...]

# In the place of a kernel, which is never empty: the row that holds the devices of a tuner.
_DEVICES = ""


class _Group:
    """The entries of one kernel, or the devices of one tuner: whoever made it knows how to decode and encode them."""

    def __init__(self, decode: Callable[[], Iterable[Entry]], encode: Callable[[], bytes]) -> None:
        self._decode = decode
        self._encode = encode

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._decode())

    @cached_property
    def data(self) -> bytes:
        return self._encode()

    @cached_property
    def by_key(self) -> Mapping[Encoded, list[Entry]]:
        found: dict[Encoded, list[Entry]] = {}
        encoded: dict[int, tuple[str, str, str, str]] = {}
        for entry in self.entries:
            for value in entry.problem.key:
                if id(value) not in encoded:
                    encoded[id(value)] = value.encoded
            key = tuple([encoded[id(value)] for value in entry.problem.key])
            found.setdefault(key, []).append(entry)
        return found


class EntryIndex:
    """The entries of some caches, for lookups; made with :meth:`of`, :meth:`from_groups` or ``stores.read_index``.

    Entries come in precedence order. Nothing is decoded, nor protobuf imported,
    before the first question about a kernel. That question raises
    :class:`CacheError` where what was indexed without a look inside is damaged.
    """

    def __init__(self, groups: Mapping[tuple[str, str], _Group], devices: Mapping[str, Callable[[], Iterable[Device]]]):
        self._groups = groups
        self._find_devices = devices
        self._devices: dict[str, frozenset[Device]] = {}

    @classmethod
    def of(cls, caches: Sequence[Cache]) -> EntryIndex:
        """The index of decoded caches; the last one precedes."""
        found: dict[tuple[str, str], list[Entry]] = {}
        for cache in reversed(caches):
            for entry in cache.entries:
                found.setdefault((entry.problem.tuner, entry.problem.kernel), []).append(entry)
        groups = {name: _Group(partial(tuple, entries), partial(_to_bytes, entries)) for name, entries in found.items()}
        return cls(groups, {tuner: partial(_devices_in, groups, tuner) for tuner, _ in groups})

    @classmethod
    def of_binary(cls, data: bytes, where: str) -> EntryIndex:
        """The index of a file in the binary format.

        :param where: the path, for the error.
        :raises CacheError: where the bytes hold no cache.
        """
        from pytest_autotune.cache.formats import binary

        message = binary.parse(data, where)
        devices = binary.devices_of(message, where)
        found: dict[tuple[str, str], list[binary.Message]] = {}
        seen: dict[str, set[Device]] = {}
        for index, entry in enumerate(message.entries):
            seen.setdefault(entry.tuner, set()).add(binary.device_of(entry, devices, index, where))
            found.setdefault((entry.tuner, entry.kernel), []).append(entry)
        groups = {
            (tuner, kernel): _Group(
                partial(binary.entries_of, entries, devices, f"{where}: {tuner}:{kernel}"),
                partial(binary.joined, entries, devices),
            )
            for (tuner, kernel), entries in found.items()
        }
        return cls(groups, {tuner: partial(tuple, devices_seen) for tuner, devices_seen in seen.items()})

    @classmethod
    def from_groups(cls, groups: Iterable[tuple[str, str, bytes]]) -> EntryIndex:
        """The index whose :meth:`groups` these are."""
        rows = {
            (tuner, kernel): _Group(partial(_from_bytes, data, f"{tuner}:{kernel}"), partial(bytes, data))
            for tuner, kernel, data in groups
        }
        devices = {
            tuner: partial(_devices_from_bytes, group.data)
            for (tuner, kernel), group in rows.items()
            if kernel == _DEVICES
        }
        return cls({name: group for name, group in rows.items() if name[1] != _DEVICES}, devices)

    def groups(self) -> list[tuple[str, str, bytes]]:
        """The index as plain data, for another process: (tuner, kernel, serialised AutotuneCache).

        Each holds the entries of one kernel in precedence order, except that an
        empty kernel stands for the devices of all the tuner's entries.
        """
        rows = [(tuner, _DEVICES, _devices_to_bytes(self.devices(tuner))) for tuner in self.tuners()]
        return sorted(rows + [(tuner, kernel, group.data) for (tuner, kernel), group in self._groups.items()])

    def of_kernel(self, tuner: str, kernel: str) -> tuple[Entry, ...]:
        """The entries of one kernel, of any key and device."""
        group = self._groups.get((tuner, kernel))
        return group.entries if group else ()

    def same_key(self, problem: Problem) -> tuple[Entry, ...]:
        """The entries of the problem's tuner, kernel and key, of any device."""
        group = self._groups.get((problem.tuner, problem.kernel))
        return tuple(group.by_key.get(tuple([value.encoded for value in problem.key]), ())) if group else ()

    def tuners(self) -> frozenset[str]:
        """The tuners that there are entries of."""
        return frozenset(tuner for tuner, _ in self._groups)

    def devices(self, tuner: str) -> frozenset[Device]:
        """The devices that there are entries of this tuner for."""
        if tuner not in self._devices:
            find = self._find_devices.get(tuner)
            self._devices[tuner] = frozenset(find() if find else ())
        return self._devices[tuner]

    def __iter__(self) -> Iterator[Entry]:
        """The entries, in precedence order within a kernel; it decodes them all."""
        for group in self._groups.values():
            yield from group.entries

    def __len__(self) -> int:
        """The number of entries; it decodes them all."""
        return sum(len(group.entries) for group in self._groups.values())


def _devices_in(groups: Mapping[tuple[str, str], _Group], tuner: str) -> Iterable[Device]:
    return {entry.problem.device for name, group in groups.items() if name[0] == tuner for entry in group.entries}


def _to_bytes(entries: list[Entry]) -> bytes:
    from pytest_autotune.cache.formats import binary

    return binary.to_bytes(entries)


def _from_bytes(data: bytes, where: str) -> Iterable[Entry]:
    from pytest_autotune.cache.formats import binary

    message = binary.parse(data, where)
    return binary.entries_of(message.entries, binary.devices_of(message, where), where)


def _devices_to_bytes(devices: frozenset[Device]) -> bytes:
    from pytest_autotune.cache.formats import binary
    from pytest_autotune.cache.formats.schema import device_ids

    return binary.joined((), {id: device for device, id in device_ids(devices).items()})


def _devices_from_bytes(data: bytes) -> Iterable[Device]:
    from pytest_autotune.cache.formats import binary

    return binary.devices_of(binary.parse(data, "devices"), "devices").values()
