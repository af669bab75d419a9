"""Short runs of the scripts in ``benchmarks/`` about files that someone damaged or made to be expensive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.errors import CacheError

from .test_formats import CACHE

BENCHMARKS = Path(__file__).parent / "benchmarks"


@pytest.mark.parametrize("script", [["fuzz_files.py", "--files", "2000"], ["hostile_files.py", "--megabytes", "0.2"]])
def test_a_hostile_file_comes_to_a_cache_or_to_one_line(script):
    name, *arguments = script
    done = subprocess.run([sys.executable, BENCHMARKS / name, *arguments], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_name_that_stands_twice_among_many_is_found_at_once():
    names = ",".join(f'{{"name":"{number}"}}' for number in [*range(20_000), 19_999])
    text = '{"format_version":1,"devices":[{"id":"d"}],"entries":[{"tuner":"t","kernel":"k","device":"d","key":[%s]}]}'
    with pytest.raises(CacheError, match='"19999" is used twice'):
        decode((text % names).encode(), Format.JSON, "cache")


def test_yaml_without_libyaml_is_read_all_the_same(monkeypatch):
    import yaml

    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert set(decode(encode(CACHE, Format.YAML), Format.YAML, "cache").entries) == set(CACHE.entries)
