"""Random caches survive every format, and random bytes are a cache or one line of error.

``AUTOTUNE_FUZZ=60`` runs sixty times as many examples, as ``make test-nightly`` does.
"""

from __future__ import annotations

import os
import random
import re

import pytest
from google.protobuf import text_format
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_autotune.cache import autotune_cache_pb2
from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions

from .test_formats import CACHE

MORE = int(os.environ.get("AUTOTUNE_FUZZ", "1"))


def examples(count: int) -> settings:
    return settings(
        max_examples=count * MORE, deadline=None, derandomize=MORE == 1, suppress_health_check=list(HealthCheck)
    )


ODD_WORDS = ['"', "\\", "\\n", "\n", "\r\n", "time_us: 1.0 ", "} params { ", "# no", "\u2028", "\x85", "é", "名"]
words = st.text(st.characters(exclude_categories=["Cs"]), max_size=8) | st.sampled_from([*ODD_WORDS, "yes", "~"])
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats() | words
values = st.builds(Value, words, scalars, st.sampled_from(["", "dtype", "digest"]) | words)
distinct = st.lists(values, max_size=4, unique_by=lambda value: value.name).map(tuple)
times = st.floats(allow_nan=False)
candidates = st.builds(
    Candidate,
    st.just("") | words,
    st.lists(values, max_size=3).map(tuple),
    st.none() | times,
    st.just("") | words,
    st.just("") | words,
)
devices = st.builds(Device, words, words, st.integers(0, 2**32 - 1)) | st.builds(
    Device, st.sampled_from(["Toy GPU", "toy-gpu", "Toy GPU 2"]), st.just(""), st.sampled_from([0, 2])
)
names = words.filter(bool)
entries = st.builds(
    Entry,
    st.builds(Problem, names, names, distinct, devices),
    distinct,
    st.none() | candidates,
    st.lists(candidates, max_size=3).map(tuple),
    st.binary(max_size=20),
    words,
    times,
    words.map(Versions.parse),
)
caches = st.lists(entries, max_size=4, unique_by=lambda entry: (entry.problem, entry.fingerprint)).map(
    lambda entries: Cache(tuple(entries))
)


@pytest.mark.parametrize("format", Format, ids=lambda format: format.value.name)
@examples(20)
@given(cache=caches, order=st.randoms())
def test_random_cache_is_read_back_equal_in_any_order_of_entries(format, cache, order):
    data = encode(cache, format)
    assert set(decode(data, format, "cache").entries) == set(cache.entries)
    shuffled = list(cache.entries)
    order.shuffle(shuffled)
    assert encode(Cache(tuple(shuffled)), format) == data


def read_by_us(written: str) -> Cache:
    return decode(written.encode() or b"#", Format.TEXT, "cache")


def read_by_protobuf(written: str) -> Cache | None:
    """The cache that protobuf's own parser finds in a text; None where it refuses the text.

    :raises CacheError: where it is a message, and not of a cache.
    """
    try:
        message = text_format.Parse(written, autotune_cache_pb2.AutotuneCache())
    except (text_format.ParseError, ValueError):
        return None
    return decode(message.SerializeToString() or b"\x08\x00", Format.BINARY, "cache")


@examples(30)
@given(cache=caches)
def test_our_text_reader_and_protobuf_read_equal_caches(cache):
    written = encode(cache, Format.TEXT).decode()
    ours = read_by_us(written)
    assert repr(ours) == repr(read_by_protobuf(written))
    assert encode(ours, Format.TEXT).decode() == written


WORDS = """
    " ' \\ { } < > [ ] # : , ; - 0 1 e5 . inf nan true t 99999999999999999999 1e999 0x10 010 1.0f -0 +1 1_0 \\377 \\x41
    \\u00e9 \\400 \\? é &a *a !!str --- <<: null {} [] \ufeff \0 \x7f [a.b/c]{}
    """
LINES = 'entries {\n|}\n|devices { }\n|format_version: 1\n|choice { }\n|  key { }\n|  label: ""\n|\n|# a\n'
FIELDS = '|  | |\r|\u2028|? |- |name: "M" |int: 5 |text: "x" |time_us: 1.5 |new: 1 '
tokens = st.sampled_from([*WORDS.split(), *LINES.split("|"), *FIELDS.split("|")])


@st.composite
def mutants(draw, format):
    """The bytes of a cache with some edits; half of them move whole lines."""
    data = encode(draw(caches.filter(lambda cache: cache.entries)), format)
    for _ in range(draw(st.integers(1, 3))):
        if format.value.is_text and draw(st.booleans()):
            lines = data.splitlines(keepends=True)
            start, stop = sorted(draw(st.integers(0, len(lines))) for _ in range(2))
            target = draw(st.integers(0, len(lines)))
            moved = lines[start:stop] if draw(st.booleans()) else []
            data = b"".join([*lines[:target], *moved, *lines[target:]] if moved else lines[:start] + lines[stop:])
        else:
            start = draw(st.integers(0, len(data)))
            stop = min(len(data), start + draw(st.sampled_from([0, 0, 1, 1, 2, 5])))
            piece = draw(tokens).encode() if format.value.is_text else draw(st.binary(max_size=3))
            data = data[:start] + piece + data[stop:]
    return data


def decoded(data: bytes, format: Format) -> Cache | None:
    """The cache, or None where it is refused in one line; anything else fails the test."""
    try:
        return decode(data, format, "cache")
    except CacheError as error:
        message = str(error)
    assert message.startswith("cache")
    assert message.isprintable()
    return None


@pytest.mark.parametrize("format", Format, ids=lambda format: format.value.name)
@examples(30)
@given(data=st.data())
def test_a_damaged_file_gives_a_valid_cache_or_a_one_line_error(format, data):
    """No damage raises any error but a CacheError."""
    cache = decoded(data.draw(mutants(format)), format)
    if cache is not None:
        encode(cache, format)


BASES = [encode(Cache(entries), Format.TEXT).decode() for entries in [*zip(CACHE.entries), CACHE.entries]]
TOKEN = re.compile(r'"(?:[^"\\\n]|\\.)*"|[\w.+-]+|\s|.')
STRINGS = [r'"\x41"', r'"\101"', r'"\400"', r'"\377"', r'"\303\251"', r'"\?"', '"a" "b"', "'a'", '"\t"', '"é"']
PIECES = [*STRINGS, *WORDS.split(), *LINES.split("|"), *FIELDS.split("|")]


def mutant(chance: random.Random) -> str:
    """Text with up to three tokens or lines taken away, doubled, or replaced by another one or by a piece."""
    base = chance.choice(BASES)
    parts = TOKEN.findall(base) if chance.random() < 0.7 else base.splitlines(keepends=True)
    for _ in range(chance.choice([1, 1, 1, 2, 3])):
        place = chance.randrange(len(parts))
        piece = chance.choice(parts if chance.random() < 0.3 else PIECES)
        parts[place] = chance.choice(["", parts[place] * 2, piece, piece, piece, parts[place] + piece])
    return "".join(parts)


@pytest.mark.filterwarnings("ignore:invalid .*escape sequence:DeprecationWarning")
def test_our_text_reader_accepts_exactly_what_protobuf_accepts():
    """Our reader passes text with another layout on to protobuf's parser."""
    chance = random.Random(1)
    accepted = 0
    for _ in range(1600 * MORE):
        written = mutant(chance)
        try:
            by_protobuf = read_by_protobuf(written)
            refused = ""
        except CacheError as error:
            by_protobuf, refused = None, str(error)
        try:
            ours, error = read_by_us(written), ""
        except CacheError as refusal:
            ours, error = None, str(refusal)
        if ours is None:
            assert by_protobuf is None or "binary data" in error, f"{error}: {written}"
        elif not ours.lossy:  # of those, it takes none unless it is told to
            accepted += 1
            assert repr(ours) == repr(by_protobuf), f"{refused}: {written}"
    assert accepted > 30 * MORE


@pytest.mark.parametrize("format", Format, ids=lambda format: format.value.name)
@examples(30)
@given(data=st.binary(max_size=200) | st.lists(tokens, max_size=30).map(lambda words: "".join(words).encode()))
def test_reading_random_bytes_gives_a_cache_or_a_one_line_error(format, data):
    decoded(data, format)
