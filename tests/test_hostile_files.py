"""Short forms of the scripts in ``benchmarks/`` about files that someone damaged or made to be expensive."""

from __future__ import annotations

import random

import pytest

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.formats import Format, decode, encode
from pytest_autotune.cache.stores import read

from .benchmarks.fuzz_files import damaged, problem
from .benchmarks.hostile_files import FILES
from .test_formats import CACHE


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_was_made_to_be_expensive_comes_to_a_cache_or_to_one_line(name, tmp_path):
    data = FILES[name](60_000)
    path = tmp_path / name
    path.write_bytes(data.encode() if isinstance(data, str) else data)
    told = ""
    try:
        read(path)
    except CacheError as error:
        told = str(error)
    assert told.isprintable()
    assert len(told) < 1000


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


def test_yaml_without_libyaml_is_read_all_the_same(monkeypatch):
    import yaml

    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert set(decode(encode(CACHE, Format.YAML), Format.YAML, "cache").entries) == set(CACHE.entries)
