"""Short forms of the scripts in ``benchmarks/`` about files that someone damaged or made to be expensive."""

from __future__ import annotations

import random
import tracemalloc
from contextlib import suppress

import pytest

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, decode, encode
from pytest_autotune.cache.formats.schema import one_of_each
from pytest_autotune.cache.model import Device, Entry, Problem, Value
from pytest_autotune.cache.stores import read

from .benchmarks.fuzz_files import damaged, problem
from .benchmarks.hostile_files import FILES, MOST_MEMORY
from .test_formats import CACHE

SIZE = 60_000


@pytest.mark.parametrize("name", FILES)
def test_reading_a_file_takes_no_more_memory_than_twenty_times_its_size(name, tmp_path):
    data = FILES[name](SIZE)
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    tracemalloc.start()
    with suppress(CacheError):
        read(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    # And what is made once: messages, patterns.
    assert peak < MOST_MEMORY * path.stat().st_size + 2_000_000


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("distinct-candidates.pb", "takes over 16 times its size in memory: not a cache"),
        ("distinct-entries.pb", "takes over 16 times its size in memory: not a cache"),
        ("distinct-devices.pb", "has more than 10000 devices: not a cache"),
        ("words.pb", "takes over 16 times its size in memory: not a cache"),
        ("words.json", r"entries\[0\].compiled has 6666. texts: not a cache"),
        ("words.yaml", r"entries\[0\].compiled has 6666. texts: not a cache"),
    ],
)
def test_a_file_of_parts_too_small_for_a_cache_is_refused(name, told, tmp_path):
    data = FILES[name](400_000)
    (tmp_path / name).write_bytes(data.encode() if isinstance(data, str) else data)
    with pytest.raises(CacheError, match=told):
        read(tmp_path / name)


def test_of_values_that_all_differ_only_so_many_are_numbered():
    values = tuple(Value(f"{number}", number) for number in range(50_000))
    entry = Entry(Problem("t", "k", values, Device("d", "d")))
    tracemalloc.start()
    assert one_of_each([entry, entry]) == (entry,)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 8_000_000


@pytest.mark.parametrize("format", Format, ids=lambda format: format.value)
def test_a_damaged_file_comes_to_a_cache_or_to_one_line(format):
    whole = encode(CACHE, format)
    wrong = [problem(damaged(whole, random.Random(number)), format) for number in range(300)]
    assert not list(filter(None, wrong))


def test_a_name_that_stands_twice_among_many_is_found_at_once():
    names = ",".join(f'{{"name":"{number}"}}' for number in [*range(20_000), 19_999])
    text = '{"format_version":1,"devices":[{"id":"d"}],"entries":[{"tuner":"t","kernel":"k","device":"d","key":[%s]}]}'
    with pytest.raises(CacheError, match='"19999" is used twice'):
        decode((text % names).encode(), Format.JSON, "cache")


def test_yaml_without_libyaml_is_read_while_it_is_small_and_else_told_what_to_use(monkeypatch):
    import yaml

    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    small = encode(CACHE, Format.YAML)
    assert set(decode(small, Format.YAML, "cache").entries) == set(CACHE.entries)
    with pytest.raises(CacheError, match=r"takes minutes to read without libyaml \(use \.textproto or \.json\)"):
        decode(small + b"#" * 4_000_000, Format.YAML, "cache")
