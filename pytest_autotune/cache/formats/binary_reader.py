"""Reads the entries of a binary file: fast where they are as the writer wrote them, and never in too much memory.

What each of these takes off the 0.80 s for 100,000 entries of one file, measured by leaving it out: candidates of one
configuration are parsed once (0.35 s), entries of familiar bytes are compared by those (0.18 s), many entries are
parsed at once (0.10 s), and fingerprints are made once (0.10 s).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from itertools import islice, repeat
from operator import attrgetter, eq
from struct import Struct
from typing import Any

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats.binary_messages import Message, outlines, pb2
from pytest_autotune.cache.formats.schema import KnownVersions, check_names, many, uncollected
from pytest_autotune.cache.model import AsRead, Candidate, Device, Entry, Problem, Scalar, Value
from pytest_autotune.cache.packed_texts import memory_of, packed, unpacked

# Values that are kept for others that are equal: enough for the largest suite, and no more than some megabytes.
_MOST_VALUES = 20_000
# Fingerprints that are kept, and values up to which a key or fingerprint is taken as a whole.
_MOST_FINGERPRINTS, _FEW = 2_000, 16
# What is made of an entry, a candidate and a value, by the parser and then here, takes about so many bytes of memory.
_BYTES_OF_ENTRY, _BYTES_OF_CANDIDATE, _BYTES_OF_VALUE = 464, 224, 224
# What it takes besides to keep an entry by its bytes.
_BYTES_OF_KEPT = 200
# Of the bytes of a file that may be taken; entries that a tuner writes take half of it at most. What is left to 20
# times is for the bytes themselves and the parser. And what any file may take.
_MOST_MEMORY, _ANY_MEMORY = 16, 2**20
# Entries are made by columns, these many at a time.
_AT_ONCE = 1000
# Bytes of an entry from which on its parts are counted before a parser makes something of each. And of entries that are
# parsed at once, each taken for some bytes more than it has.
_LARGE, _MORE = 2**16, 16

_NAME = attrgetter("name")
# How a candidate's time ends it: the field's number and type, and a double.
_TIME, _DOUBLE = 3 << 3 | 1, Struct("<d")


def _check_parts(data: bytes, where: str) -> None:
    """Refuse a message that is made of empty parts: each takes thirty times its two bytes in memory.

    :raises CacheError: for more than one part in four bytes.
    """
    position, parts = 0, 0
    while position < len(data):
        kind, position = data[position] & 7, _after_varint(data, position)
        if kind == 2:
            after = _after_varint(data, position)
            if after - position > 10:
                return
            position = after + sum((byte & 127) << 7 * index for index, byte in enumerate(data[position:after]))
        elif kind == 0:
            position = _after_varint(data, position)
        elif kind in (1, 5):
            position += 8 if kind == 1 else 4
        else:
            return  # a group or no message at all: the parser refuses it, or makes nothing of it
        parts += 1
        if parts * 4 > len(data):
            raise CacheError(where, f"an entry has over {len(data) // 4} parts in {len(data)} bytes: not a cache")


def _after_varint(data: bytes, position: int) -> int:
    while position < len(data) and data[position] & 128:
        position += 1
    return position + 1


def _together(encoded: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    """The entries, as many at a time as may be parsed at once; a large one alone."""
    some: list[tuple[int, bytes]] = []
    size = 0
    for row in encoded:
        if some and size + len(row[1]) > _LARGE:
            yield some
            some, size = [], 0
        some.append(row)
        size += len(row[1]) + _MORE
    if some:
        yield some


class Reader:
    """Reads entries, and every value once, however many entries hold it.

    :param as_read: entries that are known by their bytes; those that are read are added.
    """

    def __init__(self, devices: Mapping[str, Device], where: str, as_read: AsRead | None = None) -> None:
        self._devices = devices
        self._where = where
        self._as_read = as_read
        self._known: dict[bytes, Value] = {}
        self._fingerprints: dict[tuple[bytes, ...], tuple[Value, ...]] = {}
        self._short_candidates: dict[bytes, Candidate] = {}
        self._configurations: dict[bytes, Candidate] = {}
        self._texts: dict[str, str] = {}
        self._packed: dict[tuple[str, ...], tuple[str, ...]] = {}
        self._versions = KnownVersions()
        self._may_take = _ANY_MEMORY
        self._names: set[tuple[str, ...]] = set()
        self._has_unknown_fields = False
        # Whether all that was read is, to the byte, as it is written. From the first that is not, none counts as that:
        # equal values may stand there in several forms.
        self._familiar = len(set(devices.values())) == len(devices)
        # Equal for entries of one problem and fingerprint, where all is familiar.
        self._identities: list[int] = []
        self._outlines = outlines()
        self._value_message = pb2().Value

    @property
    def may_repeat(self) -> bool:
        """Whether two of the entries that were read may be of one problem and fingerprint."""
        return not self._familiar or len(set(self._identities)) < len(self._identities)

    def entries(self, encoded: Iterable[bytes]) -> list[Entry]:
        """The entries that the bytes hold; what a parser makes of some is gone before the next.

        :raises CacheError: where an entry must not be like this.
        """
        with uncollected():
            if self._as_read is None:
                return self._made(enumerate(encoded))
            return self._shared(list(encoded), self._as_read.entries)

    def _shared(self, encoded: Sequence[bytes], known: dict[bytes, tuple[Entry, int]]) -> list[Entry]:
        new = [(index, data) for index, data in enumerate(encoded) if data not in known]
        made = self._made(new)
        fresh = iter(made)
        entries = [known[data][0] if data in known else next(fresh) for data in encoded]
        # What is as small as entries can be is not worth its memory, and read all the same.
        kept_memory = _BYTES_OF_KEPT * len(new)
        if self._familiar and self._may_take >= kept_memory:
            self._take(kept_memory)
            add = [(data, pair) for (_, data), pair in zip(new, zip(made, self._identities, strict=True), strict=True)]
            self._identities += [known[data][1] for data in encoded if data in known]
            known.update(add)
        return entries

    def _made(self, encoded: Iterable[tuple[int, bytes]]) -> list[Entry]:
        made: list[Entry] = []
        rows = self._rows(encoded)
        while columns := list(zip(*islice(rows, _AT_ONCE), strict=True)):
            made += many(Entry, many(Problem, *columns[:4]), *columns[4:])
        return made

    def _rows(self, encoded: Iterable[tuple[int, bytes]]) -> Iterator[tuple[Any, ...]]:
        for some in _together(encoded):
            for (index, data), outline in zip(some, self._parsed_together([data for _, data in some]), strict=False):
                self._has_unknown_fields = False
                self._may_take += _MOST_MEMORY * len(data)
                self._take(_BYTES_OF_ENTRY)
                try:
                    row = self._row(outline or self._parsed(self._outlines.Entry, data), index)
                except CacheError:
                    raise
                except Exception as error:  # a foreign parser at work on foreign bytes
                    raise CacheError(self._where, f"entries[{index}] is damaged: {str(error) or 'no entry'}") from None
                yield *row, data if self._has_unknown_fields else b""

    def _parsed_together(self, encoded: Sequence[bytes]) -> Iterable[Message | None]:
        """The outlines of entries; None for each where they are to be parsed one by one, not being as written."""
        if self._familiar and len(encoded) > 1:
            with suppress(Exception):  # of a foreign parser: which entry is damaged shows when it is parsed by itself
                written = self._outlines.Cache(entries=encoded).SerializeToString()
                rows = self._outlines.Rows.FromString(written)
                rows.DiscardUnknownFields()
                if rows.SerializeToString(deterministic=True) == written:
                    entries: Iterable[Message] = rows.entries
                    return entries
        return repeat(None)

    def _parsed(self, kind: Any, data: bytes) -> Message:
        if len(data) > _LARGE:
            _check_parts(data, self._where)
        message = kind.FromString(data)
        message.DiscardUnknownFields()
        if message.SerializeToString(deterministic=True) != data:
            self._familiar = False
            if message.ByteSize() != len(data):  # or it is encoded in more bytes than it needs
                self._has_unknown_fields |= kind.FromString(data).ByteSize() != message.ByteSize()
        return message

    def _take(self, memory: int) -> None:
        """Count the memory of what is made next.

        :raises CacheError: for a file of parts so small that they take many times its size.
        """
        self._may_take -= memory
        if self._may_take < 0:
            raise CacheError(self._where, f"takes over {_MOST_MEMORY} times its size in memory: not a cache")

    def _row(self, outline: Message, index: int) -> tuple[Any, ...]:
        device = self._devices.get(outline.device)
        if device is None:
            raise CacheError(self._where, f'entries[{index}].device: no device has the id "{outline.device}"')
        tuner, kernel = outline.tuner, outline.kernel
        if not tuner or not kernel:
            raise CacheError(self._where, f"entries[{index}].{'kernel' if tuner else 'tuner'} is empty")
        key, fingerprint, candidates = outline.key, outline.fingerprint, outline.candidates
        if len(key) < _FEW and len(fingerprint) < _FEW:
            key, fingerprint = key[:], tuple(fingerprint[:])  # faster than one by one
        if self._familiar:
            self._identities.append(hash((tuner, kernel, outline.device, *key, b"", *fingerprint)))
        return (
            self._same(tuner),
            self._same(kernel),
            self._sorted(key, index, "key"),
            device,
            self._fingerprint(fingerprint, index),
            self._candidate(outline.choice) if outline.HasField("choice") else None,
            tuple([self._candidate(data) for data in candidates]) if candidates else (),
            outline.native,
            outline.label,
            outline.tuning_seconds,
            self._versions[outline.environment],
            self._compiled(outline.compiled),
            self._noted(outline.made_of),
        )

    def _compiled(self, fields: Collection[str]) -> tuple[str, ...]:
        if not fields:
            return ()
        written = tuple(fields)
        texts = self._packed.get(written)
        if texts is None:
            found = unpacked(written)
            is_packed = found != written
            self._take(memory_of(written) + memory_of(found) if is_packed else _BYTES_OF_VALUE * len(found))
            texts = tuple(sorted(set(found)))
            if len(self._packed) < _MOST_VALUES:
                self._packed[written] = texts
        # What is written again by its bytes has to be as it is written.
        self._familiar &= self._as_read is None or packed(texts) == written
        return texts

    def _noted(self, texts: Collection[str]) -> tuple[str, ...]:
        if not texts:
            return ()
        self._take(_BYTES_OF_VALUE * len(texts))
        noted = tuple(sorted(set(texts)))
        self._familiar &= len(noted) == len(texts) and all(map(eq, noted, texts))
        return noted

    def _same(self, text: str) -> str:
        return self._texts.setdefault(text, text) if len(self._texts) < _MOST_VALUES else text

    def _candidate(self, data: bytes) -> Candidate:
        known = self._short_candidates.get(data)
        if known is not None:
            return known
        self._take(_BYTES_OF_CANDIDATE)
        # Most entries of a kernel chose one of few configurations, each in a time of its own.
        timed = len(data) > 9 and data[-9] == _TIME
        known = self._configurations.get(data[:-9]) if timed else None
        if known is not None:
            return Candidate(known.id, known.params, *_DOUBLE.unpack(data[-8:]))
        outline = self._parsed(self._outlines.Candidate, data)
        candidate = Candidate(
            outline.id,
            self._values(outline.params),
            outline.time_us if outline.HasField("time_us") else None,
            outline.failed,
            outline.label,
        )
        last = timed and outline.HasField("time_us") and not outline.failed and not outline.label
        if last and self._familiar and len(self._configurations) < _MOST_VALUES:
            self._configurations[data[:-9]] = candidate
        few = len(self._short_candidates) < _MOST_VALUES
        if len(data) < 10 and few and not self._has_unknown_fields:  # so short that millions may stand in a file
            self._short_candidates[data] = candidate
        return candidate

    def _sorted(self, encoded: Iterable[bytes], index: int, part: str) -> tuple[Value, ...]:
        values = self._values(encoded)
        names = tuple(map(_NAME, values))
        if names in self._names:
            return values
        ordered = sorted(names)
        if any(map(eq, ordered, islice(ordered, 1, None))):
            check_names(values, f"entries[{index}].{part}", self._where)
        if all(map(eq, names, ordered)):
            if len(self._names) < _MOST_VALUES:
                self._names.add(names)
            return values
        self._familiar = False
        return tuple(sorted(values, key=_NAME))

    def _fingerprint(self, encoded: Iterable[bytes], index: int) -> tuple[Value, ...]:
        if not isinstance(encoded, tuple):
            return self._sorted(encoded, index, "fingerprint")
        known = self._fingerprints.get(encoded)
        if known is None:
            known = self._sorted(encoded, index, "fingerprint")
            if self._familiar and len(self._fingerprints) < _MOST_FINGERPRINTS:
                self._fingerprints[encoded] = known
        return known

    def _values(self, encoded: Iterable[bytes]) -> tuple[Value, ...]:
        known = self._known.get
        return tuple([known(data) or self._value(data) for data in encoded])

    def _value(self, data: bytes) -> Value:
        self._take(_BYTES_OF_VALUE)
        before, self._has_unknown_fields = self._has_unknown_fields, False
        message = self._parsed(self._value_message, data)
        kind = message.WhichOneof("value")
        scalar: Scalar = getattr(message, kind) if kind else None
        value = Value(message.name, scalar, message.type)
        if not self._has_unknown_fields and len(self._known) < _MOST_VALUES:
            self._known[data] = value
        self._has_unknown_fields |= before
        return value
