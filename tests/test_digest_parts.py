"""The short parts of digests, by which the reason of a stale entry names the changed functions."""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.digest_parts import (
    MAX_LIST_LENGTH,
    describe_changes,
    describe_difference,
    digest_of_candidates,
    digest_of_parts,
    list_changed_names,
)
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache, Candidate, Device, Digest, Entry, Problem, Value
from tests.stores import update_store

GPU = Device("GPU", "arch", 1)


def source(**parts: str) -> Digest:
    return digest_of_parts("5f2c91d0a7b3", {name: digest * 4 for name, digest in parts.items()})


def search(*candidates: dict[str, object]) -> Digest:
    rows = [[Value(name, value) for name, value in candidate.items()] for candidate in candidates]  # type: ignore[arg-type]
    return digest_of_candidates("c0ffee", rows)


def blocks(*sizes: int) -> list[dict[str, object]]:
    return [{"BLOCK": size, "num_warps": 4} for size in sizes]


def grid(sizes: Iterable[int]) -> list[dict[str, object]]:
    """Return more candidates than a digest lists, so it has only the values of each param."""
    return [{"BLOCK": size, "warps": warps} for size in sizes for warps in range(8)]


@pytest.mark.parametrize(
    ("names", "digests", "words"),
    [
        (["source"], [], "source changed"),
        (
            ["source"],
            [digest_of_parts("a", {"relu": "a"}), digest_of_parts("b", {"relu": "b"})],
            "source changed (relu)",
        ),
        (["search", "source"], [], "search, source changed"),
        ([], [], ""),
    ],
)
def test_a_stale_reason_names_kind_and_functions_of_the_change(
    names: list[str], digests: list[Digest], words: str
) -> None:
    before = [Value(name, "a", "digest") for name in names]
    now = [Value(name, "b", "digest") for name in names]

    assert describe_changes(before, now, digests) == words
    assert list_changed_names(before, now) == names


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (source(relu="a", helper="b"), source(relu="a", helper="c"), "helper"),
        (source(relu="a", EPS="b"), source(relu="c", EPS="d"), "EPS, relu"),
        (source(relu="a", old="b"), source(relu="c", new="b"), "relu; new added; old removed"),
        (source(**dict.fromkeys("abcde", "1")), source(**dict.fromkeys("abcde", "2")), "a, b, c and 2 more"),
        (source(relu="a"), source(relu="a"), ""),
    ],
    ids=["one function", "a function and a constant", "added and removed", "more than three", "equal parts"],
)
def test_a_stale_reason_names_edited_new_and_removed_functions(before: Digest, now: Digest, words: str) -> None:
    assert describe_difference("source", before, now) == words


@pytest.mark.parametrize(
    ("before", "now", "words"),
    [
        (search(*blocks(16, 32)), search(*blocks(32, 64)), "BLOCK=64 added; BLOCK=16 removed"),
        (
            search(*blocks(16, 64, 128, 256, 512)),
            search(*blocks(16)),
            "BLOCK=64, BLOCK=128, BLOCK=256 and 1 more removed",
        ),
        (search({"A": 1}), search({"A": 1, "B": 2}), "B=2 added; B=- removed"),
        (search({"A": "a b|c=d,e"}, {"A": "f"}), search({"A": "f"}), "A=a_b_c_d_e removed"),
        (search(*blocks(16)), search(*blocks(16)), ""),
        (Digest("a", ("N", "1")), Digest("b", ("N", "9" * 5000, "1")), f"N={'9' * 98} added"),
        (Digest("a", ()), Digest("b", ("",)), ""),
        (search(*blocks(*range(1000))), search(*blocks(*range(999))), ""),
        (search(*blocks(*range(0, 2000, 20))), search(*blocks(*range(20, 2000, 20))), "BLOCK=0 removed"),
        (search(*blocks(*range(200, 900, 2))), search(*blocks(1, 2)), ""),
        (search(*grid(range(40))), search(*grid(range(1, 41))), "BLOCK=40 added; BLOCK=0 removed"),
    ],
    ids=[
        "both",
        "many",
        "another name",
        "odd values",
        "the same",
        "hostile",
        "empty",
        "too many",
        "a hundred",
        "two forms",
        "params with their values",
    ],
)
def test_a_stale_reason_names_new_and_removed_candidates(before: Digest, now: Digest, words: str) -> None:
    assert describe_difference("search", before, now) == words


def test_the_stored_candidate_list_is_short_and_ignores_order() -> None:
    many = grid(range(40))
    shuffled = random.Random(1).sample(many, len(many))

    assert search(*many) == search(*shuffled)
    assert search(*many).parts[0].startswith("BLOCK=0,1,2,3")
    assert sum(map(len, search(*blocks(*range(5000))).parts)) < MAX_LIST_LENGTH


def entry(n: int, *digests: Digest, source: str = "5f2c91d0a7b3") -> Entry:
    problem = Problem("toy", "k", (Value("n", n),), GPU)
    parts = (Value("source", source, "digest"), Value("search", "c0ffee", "digest"))
    return Entry(problem, parts, Candidate(time_us=1.0), digests=digests)


SOURCE, SEARCH = source(relu="a"), search(*blocks(1))


@pytest.mark.parametrize("name", ["c.textproto", "c.pb", "c.yaml", "c.json", "c/"])
def test_a_source_hash_that_entries_share_is_stored_only_once(tmp_path: Path, name: str) -> None:
    path = Location.parse(f"{tmp_path}/{name}", tmp_path)

    update_store(
        stores.open_store(path), lambda now: Cache((entry(1, SOURCE, SEARCH), entry(2), entry(3, source="other")))
    )

    digests = {str(cached_entry.problem): set(cached_entry.digests) for cached_entry in stores.read_cache(path).entries}
    alone = name == "c/"
    assert digests == {
        "toy:k (n=1)": {SOURCE, SEARCH},
        "toy:k (n=2)": set() if alone else {SOURCE, SEARCH},
        "toy:k (n=3)": set() if alone else {SEARCH},
    }
    if not alone:
        assert path.path.read_bytes().count(b"BLOCK num_warps") == 1
