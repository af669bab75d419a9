"""What a cache holds has names that users and other rooms know it by."""

from __future__ import annotations

import enum
import itertools

import pytest

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, library_of
from pytest_autotune.tuners.shared.source_digest import stable_value


class Scope(enum.Enum):
    GLOBAL = 1


def test_a_problem_is_named_by_tuner_and_kernel_and_knows_the_library_of_its_tuner() -> None:
    problem = Problem("inductor.config", "triton_poi_fused_add", (), Device("CPU", "avx512"))

    assert problem.name == "inductor.config:triton_poi_fused_add"
    assert str(problem) == problem.name
    assert problem.library == library_of("inductor.config") == library_of("inductor") == "inductor"


@pytest.mark.parametrize(
    ("candidate", "words"),
    [
        (Candidate("a1b2", (Value("BLOCK", 64), Value("num_warps", 4)), label="a label"), "BLOCK=64, num_warps=4"),
        (Candidate("a1b2", label="Template mm"), "Template mm"),
        (Candidate("extern_mm"), "extern_mm"),
        (Candidate(time_us=1.0), "default"),
    ],
)
def test_a_candidate_is_named_by_what_a_reader_knows_of_it_and_by_an_id_where_that_is_all(
    candidate: Candidate, words: str
) -> None:
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
def test_a_tuple_is_shown_as_it_is_written_in_python(value: object, words: str) -> None:
    assert str(stable_value("shape", value)) == f"shape={words}"


@pytest.mark.parametrize("text", ["[('int', '1', '')", "[('int', '1')]", "x", "[__import__('os')]"])
def test_a_tuple_that_no_dump_has_written_is_shown_as_the_file_has_it(text: str) -> None:
    assert Value("shape", text, "tuple").words == text


def test_what_is_counted_is_one_or_several() -> None:
    assert [counted(number, "entry") for number in (0, 1, 2)] == ["0 entries", "1 entry", "2 entries"]
    assert counted(3, "choice") == "3 choices"
    assert counted(2000, "miss", "misses", separator=",") == "2,000 misses"


def test_devices_of_one_id_come_in_the_same_order_in_every_process() -> None:
    names = ["".join(letters) for letters in itertools.product("gG", "pP", "uU", "1")]
    cache = Cache(tuple(Entry(Problem("t", "k", (), Device(name, "a"))) for name in names))

    assert len({device.id for device in cache.devices}) == 1
    assert [device.name for device in cache.devices] == sorted(names)
