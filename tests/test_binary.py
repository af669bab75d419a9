"""Binary caches: the bytes and the entries are those of protobuf's own messages."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Scalar, Value, Versions

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
    entry(native=bytes(range(256)), label="l", tuning_seconds=1e-9, versions=Versions.of("triton 3.7.1")),
    entry(fingerprint=(), tuning_seconds=1.5),
    entry(kernel="k" * 20_000),
]


def to_bytes(*entries: Entry) -> bytes:
    return encode(Cache(entries), Format.BINARY)


def message_of(data: bytes) -> Any:
    from pytest_autotune.cache.autotune_cache_pb2 import AutotuneCache  # type: ignore[attr-defined]

    return AutotuneCache.FromString(data)


@pytest.mark.parametrize("one", ENTRIES, ids=range(len(ENTRIES)))
def test_the_bytes_are_those_that_protobuf_writes_and_hold_the_entry(one: Entry) -> None:
    data = to_bytes(one)

    assert message_of(data).SerializeToString(deterministic=True) == data
    assert repr(decode(data, Format.BINARY, "x.pb").entries) == repr((one,))


def test_values_in_another_order_are_sorted_by_name() -> None:
    message = message_of(to_bytes(entry()))
    message.entries[0].key.reverse()

    assert decode(message.SerializeToString(), Format.BINARY, "x.pb").entries == (entry(),)


def test_what_protobuf_refuses_is_refused_and_the_rest_is_what_it_reads() -> None:
    data = to_bytes(entry(300), entry(2, choice=None, candidates=(Candidate("a", time_us=1.0),), native=b"n"))
    changed = [data[:cut] for cut in range(len(data))]
    changed += [data[:i] + bytes([data[i] ^ bit]) + data[i + 1 :] for i in range(len(data)) for bit in (1, 8, 128)]
    accepted = 0
    for one in changed:
        try:
            read = decode(one, Format.BINARY, "x.pb").entries
        except CacheError:
            continue
        accepted += 1
        assert {found.problem.kernel for found in read} == {row.kernel for row in message_of(one).entries}
    assert accepted > 50
