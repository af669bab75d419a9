"""Looking entries up: precedence, any device, and what crosses to another process."""

from __future__ import annotations

import pytest

from pytest_autotune.cache.codec import json_text
from pytest_autotune.cache.codec.mapping import encode_for_process
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value

H200 = Device("NVIDIA H200", "sm_90", 132)
MI300 = Device("AMD Instinct MI300X", "gfx942", 304)


def entry(kernel: str, m: object = 1, device: Device = H200, tuner: str = "triton", time_us: float = 1.0) -> Entry:
    problem = Problem(tuner, kernel, (Value("M", m), Value("a", None)), device)
    return Entry(problem, (Value("source", "one"),), Candidate(params=(Value("BLOCK", 64),), time_us=time_us))


CACHE = Cache(
    (entry("add"), entry("add", device=MI300), entry("add", 2), entry("mul"), entry("hlo", tuner="xla", device=MI300))
)


def crossed(index: EntryIndex) -> EntryIndex:
    return EntryIndex(json_text.decode(encode_for_process(index), "index").entries)


@pytest.fixture(params=["caches", "encoded"])
def index(request) -> EntryIndex:
    index = EntryIndex.from_caches([CACHE])
    return crossed(index) if request.param == "encoded" else index


def test_the_index_lists_the_entries_of_a_key_on_all_devices(index):
    assert set(index.list_same_key(entry("add").problem)) == {entry("add"), entry("add", device=MI300)}
    assert list(index.list_same_key(entry("add", 2, MI300).problem)) == [entry("add", 2)]


def test_1_and_true_and_1_0_are_different_key_values(index):
    assert not index.list_same_key(entry("add", 1.0).problem)
    assert not index.list_same_key(entry("add", True).problem)


def test_the_index_lists_all_tuners_and_the_devices_of_each_one(index):
    assert index.list_tuners() == {"triton", "xla"}
    assert index.list_devices("triton") == {H200, MI300}
    assert index.list_devices("xla") == {MI300}


def test_an_entry_of_the_last_loaded_cache_takes_precedence():
    slow, fast = entry("add", time_us=9.0), entry("add", time_us=1.0)
    for index in (
        EntryIndex.from_caches([Cache((fast,)), Cache((slow,))]),
        crossed(EntryIndex.from_caches([Cache((fast,)), Cache((slow,))])),
    ):
        assert [same_key_entry.choice.time_us for same_key_entry in index.list_same_key(fast.problem)] == [9.0, 1.0]


def test_the_entry_index_lists_all_kernels_with_a_given_source(index) -> None:
    assert sorted(index.list_kernels_with_fingerprint("triton", (Value("source", "one"),))) == ["add", "mul"]
    assert not index.list_kernels_with_fingerprint("triton", (Value("source", "two"),))
    assert not index.list_kernels_with_fingerprint("triton", ())
