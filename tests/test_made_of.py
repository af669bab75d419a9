"""What digests stand for, in short, so that a stale entry says what has changed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.made_of import MOST, difference, of_candidates, of_parts, said_once
from pytest_autotune.cache.merge import merge
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value
from pytest_autotune.cache.ties import Measured
from pytest_autotune.tuners.shared.values import stable_value

GPU = Device("GPU", "arch", 1)


def source(**parts: str) -> str:
    return of_parts("source", "5f2c91d0a7b3", {name: digest * 4 for name, digest in parts.items()})


def search(*candidates: dict[str, object]) -> str:
    rows = [[Value(name, value) for name, value in one.items()] for one in candidates]  # type: ignore[arg-type]
    return of_candidates("search", "c0ffee", rows)


def blocks(*sizes: int) -> list[dict[str, object]]:
    return [{"BLOCK": size, "num_warps": 4} for size in sizes]


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (source(relu="a", helper="b"), source(relu="a", helper="c"), "helper"),
        (source(relu="a", EPS="b"), source(relu="c", EPS="d"), "EPS, relu"),
        (source(relu="a", old="b"), source(relu="c", new="b"), "relu; new came; old went"),
        (source(**dict.fromkeys("abcde", "1")), source(**dict.fromkeys("abcde", "2")), "a, b, c and 2 more"),
        (source(relu="a"), source(relu="a"), ""),
    ],
)
def test_a_digest_of_source_names_the_functions_and_constants_that_changed(before: str, now: str, words: str) -> None:
    assert difference(before, now) == words


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (search(*blocks(16, 32)), search(*blocks(32, 64)), "BLOCK=64 came; BLOCK=16 went"),
        (search(*blocks(16, 64, 128, 256, 512)), search(*blocks(16)), "BLOCK=64, BLOCK=128, BLOCK=256 and 1 more went"),
        (search({"A": 1}), search({"A": 1, "B": 2}), "B=2 came; B=- went"),
        (search({"A": "a b|c=d,e"}, {"A": "f"}), search({"A": "f"}), "A=a_b_c_d_e went"),
        (search(*blocks(16)), search(*blocks(16)), ""),
        ("search a: N | 1", f"search b: N | {'9' * 5000} | 1", f"N={'9' * 98} came"),
        (search(*blocks(*range(1000))), search(*blocks(*range(999))), ""),
        (search(*blocks(*range(0, 2000, 20))), search(*blocks(*range(20, 2000, 20))), "BLOCK=0 went"),
        (search(*blocks(*range(200, 900, 2))), search(*blocks(1, 2)), ""),
    ],
    ids=["both", "many", "another name", "odd values", "the same", "hostile", "too many", "a hundred", "two forms"],
)
def test_a_digest_of_candidates_names_those_that_came_and_went(before: str, now: str, words: str) -> None:
    assert difference(before, now) == words


def test_texts_are_short_whatever_there_is_and_the_same_in_any_order() -> None:
    many = [{"BLOCK": block, "warps": warps} for block in range(40) for warps in range(8)]
    shuffled = random.Random(1).sample(many, len(many))

    assert search(*many) == search(*shuffled)
    assert "BLOCK=0,1,2,3" in search(*many)
    assert len(search(*blocks(*range(5000)))) < MOST + 40


def entry(n: int, made_of: tuple[str, ...] = (), digest: str = "5f2c91d0a7b3") -> Entry:
    problem = Problem("toy", "k", (Value("n", n),), GPU)
    return Entry(problem, (Value("source", digest, "digest"),), Candidate(time_us=1.0), made_of=made_of)


TEXT = source(relu="a")


def test_one_entry_of_a_kernel_says_it_for_all_and_goes_on_to_when_others_come() -> None:
    first = merge(Cache(), [Measured(entry(n, (TEXT,))) for n in (5, 6, 7)]).cache
    later = merge(first, [Measured(entry(1, (TEXT,)))]).cache
    without = merge(later, drop=lambda one: one.problem.key[0].value == 5).cache

    assert [one.made_of for one in first.entries] == [(TEXT,), (), ()]
    assert [one.made_of for one in later.entries] == [(), (TEXT,), (), ()]
    assert [one.made_of for one in without.entries] == [(TEXT,), (), ()]


@pytest.mark.parametrize("name", ["c.textproto", "c.pb", "c.yaml", "c.json", "c/"])
def test_every_format_keeps_it(tmp_path: Path, name: str) -> None:
    cache = Cache((entry(1, (TEXT, search(*blocks(1)))), entry(2)))
    path = Location.of(f"{tmp_path}/{name}", tmp_path)

    stores.update(path, lambda now: cache)

    assert [one.made_of for one in stores.read(path).entries] == [one.made_of for one in cache.entries]


def test_what_nobody_says_and_digests_that_are_gone_are_not_said() -> None:
    assert [one.made_of for one in said_once([entry(1), entry(2, (TEXT,), digest="other")], (), ())] == [(TEXT,), ()]
    assert [one.made_of for one in said_once([entry(1)], (), ())] == [()]


def test_a_tuple_among_the_candidates_is_said_as_people_read_it() -> None:
    candidates = [(stable_value("TILE", tile),) for tile in ((16, 16), (32, 16))]

    assert of_candidates("space", "c0ffee", candidates) == "space c0ffee: TILE | (16_16) | (32_16)"
