"""Short runs of the scripts in ``benchmarks/`` about files that someone damaged or made to be expensive."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from pytest_autotune.cache.codec import Format, decode, encode

from .test_formats import CACHE

BENCHMARKS = Path(__file__).parent / "benchmarks"


def test_hostile_files_are_read_or_refused_with_a_one_line_error():
    command = [sys.executable, BENCHMARKS / "hostile_files.py", "--megabytes", "0.2"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout


def test_a_yaml_cache_can_be_read_without_the_library_libyaml(monkeypatch):
    import yaml

    monkeypatch.delattr(yaml, "CSafeLoader", raising=False)
    assert set(decode(encode(CACHE, Format.YAML), Format.YAML, "cache").entries) == set(CACHE.entries)
