"""The names, texts and orders of problems, entries, candidates and devices."""

from __future__ import annotations

import enum
import itertools
from collections.abc import Callable

import pytest

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.model import (
    Cache,
    Candidate,
    Device,
    Entry,
    Problem,
    UncacheableError,
    Value,
    Versions,
    library_of,
)
from pytest_autotune.cache.wording import describe_count
from pytest_autotune.tuners.source.source_digest import stable_value

GPU = Device("GPU", "arch", 1)


class Scope(enum.Enum):
    GLOBAL = 1


def test_the_name_of_a_problem_has_its_tuner_and_its_kernel() -> None:
    problem = Problem("inductor.config", "triton_poi_fused_add", (), Device("CPU", "avx512"))

    assert problem.name == "inductor.config:triton_poi_fused_add"
    assert str(problem) == problem.name
    assert problem.library == library_of("inductor.config") == library_of("inductor") == "inductor"


@pytest.mark.parametrize(
    ("candidates", "is_failure"),
    [
        ((), False),
        ((Candidate("a", failed="too large"), Candidate("b")), False),
        ((Candidate("a", failed="too large"), Candidate("b", failed="too large")), True),
    ],
)
def test_an_entry_is_a_failure_if_every_candidate_failed(candidates: tuple[Candidate, ...], is_failure: bool) -> None:
    """An entry without a candidate has no result, so it is no failure."""
    entry = Entry(Problem("toy", "k", (), GPU), (), None, candidates)

    assert entry.is_failure is is_failure


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Candidate("a1b2", (Value("BLOCK", 64), Value("num_warps", 4)), label="a label"), "BLOCK=64, num_warps=4"),
        (Candidate("a1b2", label="Template mm"), "Template mm"),
        (Candidate("extern_mm"), "extern_mm"),
        (Candidate(time_us=1.0), "default"),
    ],
)
def test_a_candidate_without_parameters_is_shown_by_label_or_id(candidate: Candidate, words: str) -> None:
    """An id may be a digest, which a reader cannot understand."""
    assert str(candidate) == words


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ((16, 32), "(16, 32)"),
        ((1.5,), "(1.5,)"),
        ((), "()"),
        ((None, True, "row"), "(None, True, row)"),
        (((1, 2), ("a", "b'c")), "((1, 2), (a, b'c))"),
        ((2**70, Scope.GLOBAL), "(1180591620717411303424, Scope.GLOBAL)"),
        (("[('int', '1', '')]",), "([('int', '1', '')],)"),
        ("[('int', '1', '')]", "[('int', '1', '')]"),
    ],
)
def test_a_tuple_in_a_problem_key_is_shown_as_written_in_python(value: object, words: str) -> None:
    assert str(stable_value("shape", value)) == f"shape={words}"


@pytest.mark.parametrize("text", ["[('int', '1', '')", "[('int', '1')]", "x", "[__import__('os')]"])
def test_an_invalid_tuple_text_in_a_key_is_shown_unchanged(text: str) -> None:
    assert Value("shape", text, "tuple").display_text == text


def test_a_count_in_a_message_has_a_singular_or_plural_noun() -> None:
    assert [describe_count(number, "entry") for number in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert describe_count(3, "choice") == "3 choices"


def test_devices_of_a_cache_with_the_same_id_are_sorted_by_name() -> None:
    names = ["".join(letters) for letters in itertools.product("gG", "pP", "uU", "1")]
    cache = Cache(tuple(Entry(Problem("t", "k", (), Device(name, "a"))) for name in names))

    assert len({device.id for device in cache.devices}) == 1
    assert [device.name for device in cache.devices] == sorted(names)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Problem("", "k", (), GPU),
        lambda: Problem("t", "", (), GPU),
        lambda: Problem("t", "half a character \ud800", (), GPU),
        lambda: Problem("t", 3, (), GPU),  # type: ignore[arg-type]
        lambda: Problem("t", "k", (Value("M", 1), Value("M", 2)), GPU),
        lambda: Value("M", 2**63),
        lambda: Value("M", -(10**5000)),
        lambda: Value("M", "\ud800"),
        lambda: Device("d", "a", 2**32),
        lambda: Candidate("\ud800"),
        lambda: Entry(Problem("t", "k", (), GPU), native="text"),  # type: ignore[arg-type]
        lambda: Entry(Problem("t", "k", (), GPU), choice="BLOCK=64"),  # type: ignore[arg-type]
        lambda: Entry(Problem("t", "k", (), GPU), candidates=("BLOCK=64",)),  # type: ignore[arg-type]
    ],
    ids=[
        "no tuner",
        "no kernel",
        "kernel outside UTF-8",
        "kernel that is a number",
        "one name twice in the key",
        "number of more than 64 bits",
        "number of 5000 digits",
        "text outside UTF-8",
        "multiprocessors of more than 32 bits",
        "id outside UTF-8",
        "native bytes that are text",
        "choice that is text",
        "candidate that is text",
    ],
)
def test_a_problem_or_value_that_no_file_can_hold_is_uncacheable(make: Callable[[], object]) -> None:
    with pytest.raises(UncacheableError):
        make()


def test_text_that_utf8_cannot_encode_is_saved_escaped() -> None:
    candidate = Candidate(failed="no file /tmp/\udcff")
    entry = Entry(
        Problem("t", "k", (), GPU), candidates=(candidate,), label="\ud800", versions=Versions.parse("t \ud800")
    )

    assert candidate.failed == "no file /tmp/\\udcff"
    for format in Format:
        assert decode(encode(Cache((entry,)), format), format, "x").entries == (entry,)


def test_keys_with_the_same_values_in_another_order_are_equal() -> None:
    first, second = (Problem("t", "k", tuple(Value(name, 1) for name in names), GPU) for names in ("MNK", "KMN"))

    assert [value.name for value in first.key] == ["M", "N", "K"]
    assert (first, first.digest, hash(first)) == (second, second.digest, hash(second))
    assert str(first) == "t:k (M=1, N=1, K=1)"


def test_problems_are_sorted_by_keys_as_numbers_and_not_as_text() -> None:
    problems = [Problem("t", "k", (Value("M", m),), GPU) for m in (1024, 1, 128)]

    assert [problem.key[0].value for problem in sorted(problems, key=lambda problem: problem.sort_key)] == [
        1,
        128,
        1024,
    ]


def test_problems_that_differ_in_any_field_have_different_hashes() -> None:
    problem_of_m = Problem("t", "k", (Value("M", 1),), GPU)
    other_problems = [
        Problem("t", "k", (Value("N", 1),), GPU),
        Problem("t", "k", (Value("M", 1, "dtype"),), GPU),
        Problem("t", "k", (Value("M", 1),), Device("other", "arch", 1)),
        Problem("t", "k", (Value("M", 1),), Device("GPU", "arch", 2)),
    ]

    # A file that holds many problems of one hash would take minutes.
    assert len({hash(problem) for problem in (problem_of_m, *other_problems)}) == 5
