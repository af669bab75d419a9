"""Params that are lists or mappings are readable in a file, and decode to equal values."""

from __future__ import annotations

import collections
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_autotune.adapters import Candidate, Device, Entry, Problem, UncacheableError, Value
from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.structured import decode_params, decode_value, structured_value

Tile = collections.namedtuple("Tile", ["m", "n"])
CONFIG = {
    "block_sizes": [64, 128],
    "indexing": "pointer",
    "loop_orders": [[0, 1], None],
    "maxnreg": None,
    "reorder": {"b": True, "a": 1.5},
    "words": ["Größe", ""],
}


@pytest.mark.parametrize("form", list(Format))
def test_a_nested_config_survives_every_cache_file_format(form: Format) -> None:
    params = tuple(structured_value(name, value) for name, value in CONFIG.items())
    problem = Problem("toy", "kernel", (), Device("GPU", "arch"))
    encoded = encode(Cache((Entry(problem, choice=Candidate(params=params)),)), form)

    [entry] = decode(encoded, form, "a file").entries

    assert entry.choice is not None
    assert decode_params(entry.choice.params) == CONFIG


def test_a_list_in_a_choice_is_written_as_readable_json() -> None:
    params = (structured_value("block_sizes", (64, 128)), structured_value("reorder", {"b": True, "a": 1.5}))
    entry = Entry(Problem("toy", "kernel", (), Device("GPU", "arch")), choice=Candidate(params=params))

    text = encode(Cache((entry,)), Format.TEXT).decode()

    assert "[64, 128]" in text
    assert str(entry.choice) == 'block_sizes=[64, 128], reorder={"a": 1.5, "b": true}'


@pytest.mark.parametrize("value", [4, 2**70, -1.5, "row", None, True])
def test_a_number_or_text_in_a_choice_is_written_without_json(value: object) -> None:
    encoded = structured_value("x", value)

    assert encoded.type in ("", "int")
    assert decode_value(encoded) == value


def test_a_named_tuple_in_a_choice_is_read_back_as_a_list() -> None:
    assert decode_value(structured_value("tile", Tile(64, 128))) == [64, 128]


@pytest.mark.parametrize(
    "value",
    [[math.nan], [math.inf], [object()], {1: 2}, [b"x"], ["\ud800"], [{"\ud800": 1}]],
    ids=["nan", "infinity", "object", "number as a key", "bytes", "text outside UTF-8", "key outside UTF-8"],
)
def test_a_choice_with_nan_bytes_or_objects_is_uncacheable(value: object) -> None:
    with pytest.raises(UncacheableError):
        structured_value("x", value)


def test_a_choice_nested_100000_levels_deep_is_uncacheable() -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]

    with pytest.raises(UncacheableError):
        structured_value("x", value)


@pytest.mark.parametrize(
    "value",
    [
        Value("x", "[1, 2", "json"),
        Value("x", "[" * 100_000, "json"),
        Value("x", "1.5", "int"),
        Value("x", "many", "int"),
        Value("x", "fp16", "dtype"),
        Value("x", "[('int', '1', '')]", "tuple"),
    ],
)
def test_reading_damaged_json_in_a_choice_is_a_value_error(value: Value) -> None:
    with pytest.raises(ValueError, match="x is"):
        decode_value(value)


_DATA = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text("aä\n'\"[]"),
    lambda inner: st.lists(inner) | st.dictionaries(st.text("ab"), inner),
    max_leaves=10,
)


@given(_DATA)
def test_random_json_data_in_a_choice_is_read_back_equal(value: object) -> None:
    assert decode_value(structured_value("x", value)) == value
