"""Entries by tuner, kernel and key, decoded and sorted only as far as somebody asks for them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from itertools import chain, zip_longest
from zlib import crc32

from pytest_autotune.cache.made_of import by_digest
from pytest_autotune.cache.model import Cache, Device, Entry, Problem, Value

# In the place of a kernel, which is never empty: the row that holds the outline of a tuner.
_OUTLINE = ""
# So many entries are decoded together: few enough for a lookup, and enough that their common parts are kept once.
_BUCKET = 64
# From so many entries it is judged which part of the key divides them best.
_SAMPLE = 64

_Key = tuple[Value, ...]
_Words = tuple[str, ...]


class _Bucket:
    """Some entries of one kernel; whoever made it knows how to decode them."""

    def __init__(self, decode: Callable[[], Iterable[Entry]]) -> None:
        self._decode = decode
        self._by_words: dict[Value | None, dict[_Words, list[Entry]]] = {}

    @cached_property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(self._decode())

    def same_key(self, key: _Key, words: _Words) -> Sequence[Entry]:
        """The entries with this key. The first question sorts all of them by one part of it, and those by the rest.

        :param words: those of the key.
        """
        index = self._dividing_part
        part = key[index] if index < len(key) else None
        found = self._by_words.get(part)
        if found is None:
            found = self._by_words[part] = {}
            for entry in self._by_part.get(part, ()):
                found.setdefault(_words(entry.problem.key), []).append(entry)
        return [entry for entry in found.get(words, ()) if entry.problem.key == key]

    @cached_property
    def _dividing_part(self) -> int:
        """The index in the key of the part that divides the entries best."""
        step = len(self.entries) // _SAMPLE + 1
        parts = zip_longest(*[entry.problem.key for entry in self.entries[::step]])
        distinct = [len(set(values)) for values in parts]
        return distinct.index(max(distinct)) if distinct else 0

    @cached_property
    def _by_part(self) -> Mapping[Value | None, list[Entry]]:
        index = self._dividing_part
        found: dict[Value | None, list[Entry]] = {}
        # Entries that were read together share their values: each is hashed once.
        known: dict[int, list[Entry]] = {}
        for entry in self.entries:
            key = entry.problem.key
            part = key[index] if index < len(key) else None
            same = known.get(id(part))
            if same is None:
                same = known[id(part)] = found.setdefault(part, [])
            same.append(entry)
        return found


class _Kernel:
    """The entries of one kernel, in buckets by the digest of their key."""

    def __init__(self, buckets: Sequence[_Bucket], encoded: Sequence[bytes] = ()) -> None:
        self._buckets = buckets
        self._encoded = encoded

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(chain.from_iterable(bucket.entries for bucket in self._buckets))

    def same_key(self, key: _Key) -> Sequence[Entry]:
        words = _words(key)
        bucket = _digest(words) % len(self._buckets) if len(self._buckets) > 1 else 0
        return self._buckets[bucket].same_key(key, words)

    @cached_property
    def encoded(self) -> Sequence[bytes]:
        """Each bucket as a serialised AutotuneCache."""
        if self._encoded:
            return self._encoded
        entries = self.entries
        number = len(entries) // _BUCKET + 1
        buckets: list[list[Entry]] = [[] for _ in range(number)]
        for entry in entries:
            buckets[_digest(_words(entry.problem.key)) % number if number > 1 else 0].append(entry)
        return [_to_bytes(bucket) for bucket in buckets]


def _words(key: _Key) -> _Words:
    """Of equal keys the same, of others mostly not; a key's own hash and equality take several times as long."""
    return tuple([str(value.value) for value in key])


def _digest(words: _Words) -> int:
    """The same number in every process, unlike a hash."""
    return crc32("\0".join(words).encode(errors="surrogatepass"))


class EntryIndex:
    """The entries of some caches, for lookups; made with :meth:`of` or :meth:`from_groups`.

    Entries of one key come in precedence order. Nothing is decoded, nor protobuf
    imported, before the first question about a kernel. That question raises
    :class:`CacheError` where what was indexed without a look inside is damaged.
    """

    def __init__(self, kernels: Mapping[tuple[str, str], _Kernel], outlines: Mapping[str, Callable[[], list[Entry]]]):
        self._kernels = kernels
        self._find_outline = outlines
        self._outlines: dict[str, list[Entry]] = {}
        self._devices: dict[str, frozenset[Device]] = {}
        self._made_of: dict[tuple[str, str], Mapping[str, str]] = {}
        self._by_code: dict[str, Mapping[_Key, list[str]]] = {}

    @classmethod
    def of(cls, caches: Sequence[Cache]) -> EntryIndex:
        """The index of decoded caches; the last one precedes."""
        found: dict[tuple[str, str], list[Entry]] = {}
        for cache in reversed(caches):
            for entry in cache.entries:
                found.setdefault((entry.problem.tuner, entry.problem.kernel), []).append(entry)
        kernels = {name: _Kernel([_Bucket(partial(tuple, entries))]) for name, entries in found.items()}
        return cls(kernels, {tuner: partial(_outline, found, tuner) for tuner, _ in found})

    @classmethod
    def from_groups(cls, groups: Iterable[tuple[str, str, bytes]]) -> EntryIndex:
        """The index whose :meth:`groups` these are."""
        rows: dict[tuple[str, str], list[bytes]] = {}
        for tuner, kernel, data in groups:
            rows.setdefault((tuner, kernel), []).append(data)
        kernels = {
            (tuner, kernel): _Kernel([_Bucket(partial(_from_bytes, data, f"{tuner}:{kernel}")) for data in some], some)
            for (tuner, kernel), some in rows.items()
            if kernel != _OUTLINE
        }
        outlines = {
            tuner: partial(_from_bytes, data, tuner)
            for (tuner, kernel), (data, *_) in rows.items()
            if kernel == _OUTLINE
        }
        return cls(kernels, outlines)

    def groups(self) -> list[tuple[str, str, bytes]]:
        """The index as plain data, for another process: (tuner, kernel, serialised AutotuneCache).

        Each holds some entries of one kernel; all rows of a kernel stand together, in an order
        that matters. An empty kernel stands for what is known of all the tuner's entries.
        """
        rows = [(tuner, _OUTLINE, _to_bytes(self._outline_of(tuner))) for tuner in self.tuners()]
        for (tuner, kernel), found in self._kernels.items():
            rows += [(tuner, kernel, data) for data in found.encoded]
        return sorted(rows, key=lambda row: row[:2])

    def of_kernel(self, tuner: str, kernel: str) -> tuple[Entry, ...]:
        """The entries of one kernel, of any key and device; it decodes them all."""
        found = self._kernels.get((tuner, kernel))
        return found.entries if found else ()

    def same_key(self, problem: Problem) -> tuple[Entry, ...]:
        """The entries of the problem's tuner, kernel and key, of any device."""
        found = self._kernels.get((problem.tuner, problem.kernel))
        return tuple(found.same_key(problem.key)) if found else ()

    def with_fingerprint(self, tuner: str, fingerprint: _Key) -> Sequence[str]:
        """The kernels of this tuner that have an entry with this fingerprint, which is not empty."""
        if tuner not in self._by_code:
            found: dict[_Key, list[str]] = {}
            for entry in self._outline_of(tuner):
                kernels = found.setdefault(entry.fingerprint, [])
                if entry.problem.kernel not in kernels:
                    kernels.append(entry.problem.kernel)
            self._by_code[tuner] = found
        return self._by_code[tuner].get(fingerprint, ()) if fingerprint else ()

    def made_of(self, tuner: str, kernel: str) -> Mapping[str, str]:
        """What the entries of a kernel say about the digests of their fingerprints, by :func:`by_digest`."""
        if (tuner, kernel) not in self._made_of:
            texts = (text for entry in self.of_kernel(tuner, kernel) for text in entry.made_of)
            self._made_of[tuner, kernel] = by_digest(texts)
        return self._made_of[tuner, kernel]

    def outline(self, tuner: str) -> Sequence[Entry]:
        """One empty entry, without a key, for each kernel, device and fingerprint that a tuner has entries of."""
        return self._outline_of(tuner)

    def tuners(self) -> frozenset[str]:
        """The tuners that there are entries of."""
        return frozenset(tuner for tuner, _ in self._kernels)

    def devices(self, tuner: str) -> frozenset[Device]:
        """The devices that there are entries of this tuner for."""
        if tuner not in self._devices:
            self._devices[tuner] = frozenset(entry.problem.device for entry in self._outline_of(tuner))
        return self._devices[tuner]

    def _outline_of(self, tuner: str) -> list[Entry]:
        if tuner not in self._outlines:
            find = self._find_outline.get(tuner)
            self._outlines[tuner] = list(find()) if find else []
        return self._outlines[tuner]

    def __iter__(self) -> Iterator[Entry]:
        """The entries, those of one key in precedence order; it decodes them all."""
        for kernel in self._kernels.values():
            yield from kernel.entries

    def __len__(self) -> int:
        """The number of entries; it decodes them all."""
        return sum(len(kernel.entries) for kernel in self._kernels.values())


def _outline(kernels: Mapping[tuple[str, str], Sequence[Entry]], tuner: str) -> list[Entry]:
    """One empty entry for each kernel, device and fingerprint that a tuner has entries of."""
    found: dict[tuple[str, Device, _Key], Entry] = {}
    for (name, kernel), entries in kernels.items():
        # Entries that were read together share the values of their fingerprints: few are told apart by hashes.
        known: set[tuple[int, ...]] = set()
        for entry in entries if name == tuner else ():
            parts = (id(entry.problem.device), *map(id, entry.fingerprint))
            if parts not in known:
                known.add(parts)
                device = entry.problem.device
                outlined = Entry(Problem(tuner, kernel, (), device), entry.fingerprint)
                found.setdefault((kernel, device, entry.fingerprint), outlined)
    return sorted(found.values(), key=lambda entry: entry.sort_key)


def _to_bytes(entries: list[Entry]) -> bytes:
    from pytest_autotune.cache.formats import binary

    return binary.to_bytes(entries)


def _from_bytes(data: bytes, where: str) -> list[Entry]:
    from pytest_autotune.cache.formats import binary

    return binary.entries_of(data, where)
