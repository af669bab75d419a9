"""Binary files that are read together: what is equal is read and written once, and comes to the same."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress
from dataclasses import replace

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.combine import combine
from pytest_autotune.cache.diff import diff
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, binary, decode, encode
from pytest_autotune.cache.formats.binary import to_bytes
from pytest_autotune.cache.model import AsRead, Cache, Candidate, Device, Entry, Problem, Value

from .benchmarks.fuzz_files import damaged
from .benchmarks.hostile_files import FILES, MOST_MEMORY
from .entries import A100, H200, entry
from .test_formats import CACHE


def binary_of(*entries: Entry) -> bytes:
    return encode(Cache(entries), Format.BINARY)


def read(data: bytes, as_read: AsRead | None = None) -> Cache:
    return decode(data, Format.BINARY, "x.pb", as_read)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[Entry]:
    """The entries that were encoded, and not copied."""
    found: list[Entry] = []
    encoded = binary._Writer.entry
    monkeypatch.setattr(binary._Writer, "entry", lambda self, entry: found.append(entry) or encoded(self, entry))
    return found


def test_entries_that_two_files_have_in_common_are_the_same_objects() -> None:
    as_read = AsRead()
    old = read(binary_of(entry(1), entry(2)), as_read).entries
    new = read(binary_of(entry(1), entry(2, block=64), entry(3)), as_read).entries

    assert new == (entry(1), entry(2, block=64), entry(3))
    assert [one is other for one, other in zip(old, new, strict=False)] == [True, False]


def test_what_is_written_of_two_files_is_copied_but_for_what_was_changed(written: list[Entry]) -> None:
    as_read = AsRead()
    old, new = (read(binary_of(entry(1), entry(2, block)), as_read) for block in (32, 64))
    merged = combine({"old": old, "new": new}, old).cache
    mine = replace(merged.entries[1], label="mine")
    changed = replace(merged, entries=(merged.entries[0], mine))
    written.clear()
    data = encode(merged, Format.BINARY), encode(changed, Format.BINARY)

    assert written == [mine]
    assert data == (binary_of(entry(1), entry(2, 64)), binary_of(entry(1), mine))


def test_a_file_in_which_a_device_has_another_id_is_read_by_itself() -> None:
    as_read = AsRead()
    twin = Device("NVIDIA  H200", H200.arch, H200.multiprocessors)
    assert twin.id == H200.id
    read(binary_of(entry(1)), as_read)
    other = read(binary_of(entry(1, device=twin)), as_read)

    assert other.entries == (entry(1, device=twin),)
    both = Cache((entry(1), *other.entries), as_read=as_read)
    assert encode(both, Format.BINARY) == binary_of(entry(1), entry(1, device=twin))


def test_an_entry_whose_device_gets_another_id_is_not_copied() -> None:
    as_read = AsRead()
    later = Device("NVIDIA  H200", H200.arch, H200.multiprocessors)
    entries = read(binary_of(entry(1, device=later)), as_read).entries
    earlier = entry(1, device=replace(later, name="NVIDIA   H200"))

    for cache in (Cache((*entries, earlier), as_read=as_read), Cache((earlier, *entries), as_read=as_read)):
        assert read(encode(cache, Format.BINARY)).entries == read(binary_of(*cache.entries)).entries


def test_of_an_entry_that_is_there_twice_the_faster_stays_when_one_was_known() -> None:
    as_read = AsRead()
    read(binary_of(entry(1, time_us=20.0)), as_read)
    twice = to_bytes([entry(1, time_us=20.0), entry(1, time_us=10.0)])

    assert read(twice, as_read).entries == (entry(1, time_us=10.0),)
    assert read(to_bytes([entry(1), entry(1)]), as_read).entries == (entry(1),)


def test_what_another_writer_wrote_is_not_copied() -> None:
    message = binary.outlines().Cache.FromString(binary_of(entry(1)))
    message.entries[0] = b"\x12\x07lib.add" + message.entries[0].replace(b"\x12\x07lib.add", b"")
    cache = read(message.SerializeToString(), AsRead())

    assert cache.entries == (entry(1),)
    assert encode(cache, Format.BINARY) == binary_of(entry(1))


def test_entries_as_small_as_a_tuner_writes_are_read_as_they_are_by_themselves() -> None:
    gpu, choice = Device("Toy GPU", "toy", 4), Candidate(params=(Value("B", 1),), time_us=1.0)
    problems = (Problem("toy", "op", (Value("M", m),), gpu) for m in range(12_000))
    data = encode(Cache(tuple(Entry(one, choice=choice, tuning_seconds=0.5) for one in problems)), Format.BINARY)

    assert read(data, AsRead()).entries == read(data).entries


def test_a_damaged_file_is_read_and_written_as_it_is_by_itself() -> None:
    good, as_read = binary_of(*CACHE.entries), AsRead()
    whole = read(good, as_read)
    accepted = 0
    for number in range(600):
        data = damaged(good, random.Random(number))
        told = []
        for known in (None, AsRead(), as_read):
            try:
                cache = read(data, known)
                told.append((repr(cache.entries), encode(cache, Format.BINARY)))
                accepted += 1
            except CacheError as error:
                told.append((str(error), b""))
        assert told[1:] == told[:1] * 2
    assert accepted > 30
    assert encode(whole, Format.BINARY) == good


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".pb")])
def test_a_file_that_is_kept_by_its_bytes_takes_no_more_memory_than_twenty_times_its_size(name, tmp_path) -> None:
    data = FILES[name](60_000)
    assert isinstance(data, bytes)
    (tmp_path / name).write_bytes(data)
    tracemalloc.start()
    with suppress(CacheError):
        stores.read(tmp_path / name, as_read=AsRead())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < MOST_MEMORY * len(data) + 2_000_000


def test_of_versions_that_share_entries_the_same_comes_as_of_others() -> None:
    before = [entry(1), entry(2), entry(3), entry(4, device=A100)]
    ours = [entry(1), entry(2, block=64), entry(4, device=A100), entry(5)]
    theirs = [entry(1), entry(2), entry(3, time_us=1.0), entry(5, block=64, time_us=5.0)]
    as_read = AsRead()
    alone = [Cache(tuple(entries)) for entries in (ours, theirs, before)]
    together = [read(binary_of(*entries), as_read) for entries in (ours, theirs, before)]

    def told(ours: Cache, theirs: Cache, before: Cache) -> list[object]:
        found = [combine({"ours": ours, "theirs": theirs}, base) for base in (None, before)]
        return [(encode(one.cache, Format.BINARY), one.conflicts, one.removed) for one in found] + [diff(before, ours)]

    assert told(*together) == told(*alone)
