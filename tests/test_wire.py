"""Binary caches without protobuf: the same bytes and the same entries as with it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, decode, encode, wire
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value

GPU = Device("NVIDIA H200", "sm_90", 132)
SCALARS: list[Scalar] = [None, True, False, 0, 1, 127, 128, -1, 2**63 - 1, -(2**63), 0.0, -0.0, 1.5, float("inf"), ""]


def entry(scalar: Scalar = 1, kernel: str = "lib.add", **changes: Any) -> Entry:
    problem = Problem("triton", kernel, (Value("M", scalar), Value("a.dtype", "fp16", "dtype")), GPU)
    choice = Candidate(params=(Value("BLOCK", scalar),), time_us=10.0)
    return replace(Entry(problem, (Value("source", "s", "digest"),), choice), **changes)


ENTRIES = [
    *(entry(scalar) for scalar in SCALARS),
    entry(choice=None),
    entry(choice=Candidate()),
    entry(choice=Candidate("id", time_us=0.0, failed="spills", label="x")),
    entry(choice=Candidate(time_us=float("nan"), label="y" * 300)),
    entry(choice=None, candidates=(Candidate("a", time_us=1.0), Candidate("b", failed="no"), Candidate())),
    entry(native=bytes(range(256)), label="l", tuning_seconds=-0.0, environment="triton 3.7.1"),
    entry(fingerprint=(), tuning_seconds=1.5),
    entry(kernel="k" * 20_000),
]


def message_of(entries: list[Entry]) -> Any:
    from pytest_autotune.cache.autotune_cache_pb2 import AutotuneCache  # type: ignore[attr-defined]

    return AutotuneCache.FromString(encode(Cache(tuple(entries)), Format.BINARY))


def test_what_could_fill_the_memory_is_left_to_protobuf() -> None:
    many = tuple(Candidate(params=(Value("BLOCK", number),)) for number in range(10_000))
    for one in (entry(candidates=many), entry(candidates=(Candidate(),))):
        data = wire.write([one])
        with pytest.raises(wire.UnfamiliarError):
            wire.read(data)
        assert decode(data, Format.BINARY, "x.pb").entries == (one,)


@pytest.mark.parametrize("one", ENTRIES, ids=range(len(ENTRIES)))
def test_the_bytes_are_those_that_protobuf_writes_and_hold_the_entry(one: Entry) -> None:
    data = wire.write([one])

    assert message_of([one]).SerializeToString(deterministic=True) == data
    assert repr(decode(data, Format.BINARY, "x.pb").entries) == repr((one,))


def test_devices_with_one_id_and_without_multiprocessors_stay_apart() -> None:
    devices = [Device("CPU", "x", 0), Device("cpu", "x", 0), Device("", "", 2**32 - 1)]
    entries = [entry(problem=replace(entry().problem, device=device)) for device in devices]
    data = wire.write(entries)

    assert message_of(entries).SerializeToString(deterministic=True) == encode(Cache(tuple(entries)), Format.BINARY)
    assert wire.read(data)[1] == entries


def test_an_entry_that_is_there_twice_is_seen() -> None:
    assert wire.read(wire.write([entry(1), entry(2)]))[2]
    assert not wire.read(wire.write([entry(1), entry(1, choice=None)]))[2]


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data + b"\x9a\x06\x01x",  # a field of a newer version
        lambda data: data[:-1],
        lambda data: data[2:] + data[:2],  # another order
        lambda data: data.replace(b"\x08\x01", b"\x08\x81\x00", 1),  # a number in more bytes than it needs
        lambda data: data.replace(b"lib.add", b"lib.\xff\xff\xff"),
        lambda data: data.replace(b"triton", b"\x0a\x0a\x0a\x0a\x0a\x0a"),
        lambda data: b"",
    ],
)
def test_anything_else_is_left_to_protobuf(change: Any) -> None:
    data = change(wire.write([entry()]))
    try:
        through_protobuf = decode(data, Format.BINARY, "x.pb")
    except CacheError:
        through_protobuf = None

    try:
        read = wire.read(data)[1]
    except wire.UnfamiliarError:
        return
    assert through_protobuf is not None
    assert list(through_protobuf.entries) == read


def test_every_cut_and_every_changed_byte_is_read_as_protobuf_reads_it_or_left_to_it() -> None:
    from pytest_autotune.cache.formats import binary

    data = wire.write([entry(300), entry(2, choice=None, candidates=(Candidate("a", time_us=1.0),), native=b"n")])
    changed = [data[:cut] for cut in range(len(data))]
    changed += [data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :] for i in range(len(data)) for bit in (1, 8, 128)]
    familiar = 0
    for one in changed:
        try:
            _, entries, once = wire.read(one)
        except wire.UnfamiliarError:
            continue
        familiar += 1
        if once:
            message = binary.parse(one, "x")
            by_protobuf = binary.entries_of(message.entries, binary.devices_of(message, "x"), "x")
            assert repr(by_protobuf) == repr(entries)
    assert familiar > 50
