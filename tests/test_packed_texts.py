"""What choices were compiled for, packed: files grow by little, and every text comes back."""

from __future__ import annotations

import random
import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_autotune.cache.formats import Format, decode, encode, entry_from_mapping, entry_to_mapping
from pytest_autotune.cache.model import LONGEST_COMPILED, MOST_COMPILED, AsRead, Cache, Entry, Problem, Value
from pytest_autotune.cache.packed_texts import memory_of, packed, unpacked

from .test_formats import H200, MATMUL

WORDS = [
    "i32:16",
    "i32",
    "=1",
    "_",
    "|",
    "num_warps=8",
    '="a; b"',
    "=2 3",
    "4",
    "0",
    "~",
    "~~",
    "~ a",
    ";",
    "",
    "é",
    "\n",
]
TEXTS = st.lists(
    st.one_of(
        st.lists(st.sampled_from(WORDS[:5]), min_size=1, max_size=12).map(" ".join),
        st.lists(st.sampled_from(WORDS), min_size=1, max_size=6).map(" ".join),
        st.text(max_size=20),
    ),
    max_size=MOST_COMPILED + 6,
)


def of(*texts: str, kernel: str = "k") -> Entry:
    return replace(MATMUL, problem=Problem("triton", kernel, MATMUL.problem.key, H200), compiled=texts)


def test_texts_that_differ_in_a_word_stand_in_one_field_by_what_differs() -> None:
    before = "*fp32:16 *fp32:16 =null i32 i32 i32 _ =128"
    texts = tuple(
        sorted([before, before.replace("128", "64"), before.replace("=null", "=1"), f"{before} | x=1", "i32"])
    )

    assert packed(texts) == ("~ 2*fp32:16 =1 3i32 _ =128; 2 =null; 8 | x=1; 7 =64 0; i32 0",)
    assert unpacked(packed(texts)) == texts


@given(TEXTS)
@settings(max_examples=60, deadline=None)
def test_any_texts_come_back(texts: list[str]) -> None:
    plain = tuple(sorted(set(texts)))

    assert unpacked(packed(plain)) == plain


@pytest.mark.parametrize("format", list(Format))
def test_every_format_and_a_journal_bring_back_whole_texts_and_the_same_bytes(format: Format) -> None:
    entries = (
        of("i32 i32 i32 =1", "i32 i32 i32 =2", kernel="a"),
        of("i32 i32 i32 =1", '="\u202e; 5"', "~ 3a", "~~", kernel="b"),
        of(*[f"i32 i32 i32 i32 i32 =1{number:03d}" for number in range(MOST_COMPILED)], kernel="c"),
    )

    written = encode(Cache(entries), format)
    read = decode(written, format, "x")

    assert b"~ 3i32 =1; 3 =2" in written
    assert [one.compiled for one in read.entries] == [one.compiled for one in entries]
    assert encode(read, format) == written
    assert [entry_from_mapping(entry_to_mapping(one)).compiled for one in entries] == [one.compiled for one in entries]


@pytest.mark.parametrize("word", ["16", "2 3", "=a;", ";", " ", "", "x" * LONGEST_COMPILED])
def test_an_entry_with_a_word_that_could_be_mistaken_is_written_as_its_texts(word: str) -> None:
    texts = "i32 i32 i32 i32 =1", f"i32 i32 i32 i32 {word}"

    assert packed(texts) == texts


def test_texts_are_packed_only_where_that_is_shorter() -> None:
    assert packed(["i32 _"]) == ("i32 _",)
    assert packed(["i32 i32 i32"]) == ("~ 3i32",)


@pytest.mark.parametrize("format", [Format.TEXT, Format.JSON, Format.YAML])
def test_a_file_of_whole_texts_or_of_both_loads_as_ever(format: Format) -> None:
    whole = "i32 i32 i32 =1", "i32 i32 i32 =2", "i32 i32 i32 =3"
    written = encode(Cache((of(*whole),)), format).decode()
    field = '"~ 3i32 =1; 3 =2; 3 =3"'
    line = next(line for line in written.splitlines(keepends=True) if field in line)
    assert line.count(field) == 1
    between = "," if format is Format.JSON else ""
    for fields in (whole, whole[::-1], (whole[0], "~ 3i32 =3; 3 =2"), ("~ 3i32 =3; 3 =3", *whole)):
        lines = [line.replace(field, f'"{one}"').rstrip("\n") for one in fields]
        older = written.replace(line, f"{between}\n".join(lines) + "\n").encode()

        assert decode(older, format, "x").entries[0].compiled == whole
        assert encode(decode(older, format, "x"), format).decode() == written


def test_a_binary_file_of_whole_texts_is_written_packed_however_it_was_read() -> None:
    whole = "i32 i32 i32 =1", "i32 i32 i32 =2"
    new = encode(Cache((of(*whole),)), Format.BINARY)
    old = encode(Cache((of("=placeholder"),)), Format.BINARY)
    field, texts = (b"".join(b"\x62%c%s" % (len(one), one.encode()) for one in some) for some in (packed(whole), whole))
    start = old.index(b"\x62\x0c=placeholder")
    entry_length = old.rindex(b"\x1a", 0, old.index(b"\x0a\x06triton"))
    assert old[entry_length + 2] == 1  # a length of two bytes
    length = (old[entry_length + 1] & 127) + 128 - 14 + len(texts)
    old = old[:start] + texts + old[start + 14 :]
    old = old[: entry_length + 1] + bytes([length & 127 | 128, length >> 7]) + old[entry_length + 3 :]

    assert field in new
    for as_read in (None, AsRead()):
        read = decode(old, Format.BINARY, "x", as_read)
        assert read.entries[0].compiled == whole
        assert encode(read, Format.BINARY) == new


HOSTILE = [
    "~ ",
    "~ a; 2",
    "~ 1 a",
    "~ 0a",
    "~ a  b",
    "~ a; ",
    "~ a; 99999999999999999999 b",
    "~ 99999999999999999999a",
    "~ " + "9" * 5000,
    "~ 999a",
    "~ 999a 999a 999a",
    "~ " + "999a " * 10_000 + "b",
    "~ 400" + "x" * 50_000,
    "~ " + "x" * 50_000 + "; 1; 1",
    "~ " + "; ".join(["999a"] * 9_000),
    "~ " + "; ".join(f"a{number}" for number in range(MOST_COMPILED + 1)),
    "~ a b; 1 c" + "; 1 d" * 60_000,
    "~ " + "i32:16 " * 30 + "=1" + "; 30 =2" * 30,
]


@pytest.mark.parametrize("field", HOSTILE, ids=range(len(HOSTILE)))
def test_a_field_that_is_damaged_or_stands_for_too_much_is_a_text_as_it_is(field: str) -> None:
    tracemalloc.start()
    found = unpacked([field])
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert found == (field,)
    assert packed(found) == (field,)
    assert peak < 20 * len(field) + 100_000


def test_no_field_stands_for_more_memory_than_a_file_may_take_for_its_size() -> None:
    chance = random.Random(1)
    for _ in range(3000):
        fields = packed([f"i32:16 i32:16 =1 _ _ _ ={number} i32:16" for number in range(chance.randrange(1, 30))])
        field = list(chance.choice(fields))
        for _ in range(chance.randrange(1, 4)):
            place = chance.randrange(len(field) + 1)
            field[place : place + chance.randrange(3)] = chance.choice([*"~ ;01289a", "; ", "999x", " 99 "])
        damaged = "".join(field)

        found = unpacked([damaged])

        assert found == (damaged,) or memory_of(found) <= 15 * len(damaged)
        assert unpacked(packed(found)) == found


def test_of_more_fields_than_an_entry_has_texts_none_is_unpacked() -> None:
    fields = tuple(f"~ 3i32 ={number}" for number in range(MOST_COMPILED + 1))

    assert unpacked(fields[1:])[0] == "i32 i32 i32 =1"
    assert unpacked(fields) == fields
    assert unpacked(packed(fields)) == fields


def test_what_is_written_of_many_entries_with_all_their_texts_is_read_back() -> None:
    texts = [
        [f"*fp32:16 *fp32:16 i32:16 i32:16 =k{kernel} =1{number:02d}" for number in range(64)] for kernel in range(400)
    ]
    plain = Problem("triton.jit", "k", (), H200)
    cache = Cache(
        tuple(Entry(replace(plain, kernel=f"k{number}"), compiled=tuple(some)) for number, some in enumerate(texts))
    )

    read = decode(encode(cache, Format.BINARY), Format.BINARY, "x")

    assert sorted(one.compiled for one in read.entries) == sorted(map(tuple, texts))


def test_a_file_of_kernels_with_many_parameters_and_many_texts_grows_by_less_than_15_percent() -> None:
    """As one of selective state-space kernels: 22 entries, 99 texts of 30 words that differ in one or two."""
    head = "*bf16:16 *bf16:16 *fp32:16 *fp32:16 *fp32:16 =null i32:16 i32:16 i32:16"
    tail = "i32:16 i32:16 i32:16 =1 i32:16 i32:16 i32:16 =1 i32:16 i32:16 i32:16 i32:16 =1 i32:16 i32:16 =false _ _ _"
    key = tuple(Value(f"{name}_ptr.dtype", "bf16", "dtype") for name in ("a", "b", "chunk_state", "out", "states"))
    entries = [
        Entry(
            Problem("triton", f"lib.ops.chunk_scan_{kernel}", (*key, Value("chunk_size", kernel)), H200),
            (Value("search", "7d95083b9e0d", "digest"), Value("source", "48fe7a2a3096", "digest.2")),
            MATMUL.choice,
            label="+-0 us, 4 of 4 runs",
            tuning_seconds=0.0433,
            versions=MATMUL.versions,
            compiled=tuple(f"{head} {one} {other} {tail}" for one in ("=1", "i32", "i32:16") for other in "_x")[
                : 4 + kernel % 2
            ],
            made_of=("search 7d95083b9e0d: BLOCK_SIZE_K BLOCK_SIZE_M num_warps | 64 128 4 | 32 64 2 | 64 64 8",),
        )
        for kernel in range(22)
    ]
    bare = len(encode(Cache(tuple(replace(one, compiled=()) for one in entries)), Format.TEXT))
    whole = sum(len(f'  compiled: "{text}"\n') for one in entries for text in one.compiled)
    grown = len(encode(Cache(tuple(entries)), Format.TEXT)) - bare

    assert whole > 0.7 * bare
    assert 0 < grown <= 0.15 * bare
