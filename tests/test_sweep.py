"""Which candidate a sweep picks: the seed and the problem decide, and nothing else."""

from __future__ import annotations

import itertools

import pytest

from pytest_autotune.cache.model import Candidate, Device, Problem, Value
from pytest_autotune.modes.sweep import parse

GPU = Device("GPU", "arch", 1)


def problem(**key: int) -> Problem:
    return Problem("toy", "k", tuple(Value(name, value) for name, value in key.items()), GPU)


def candidates(number: int) -> list[Candidate]:
    return [Candidate(params=(Value("BLOCK", block),)) for block in range(number)]


def test_a_seed_picks_the_same_candidate_in_every_list_order() -> None:
    for seed in ("7", "nightly-3"):
        picks = {tuple(parse(seed).ordered(problem(M=8), order)) for order in itertools.permutations(candidates(4))}
        assert len(picks) == 1


def test_among_100_seeds_or_problems_all_8_candidates_are_picked() -> None:
    of_seeds = {parse(str(seed)).ordered(problem(M=8), candidates(8))[0] for seed in range(100)}
    of_problems = {parse("7").ordered(problem(M=m), candidates(8))[0] for m in range(100)}

    assert len(of_seeds) == len(of_problems) == 8


@pytest.mark.parametrize("number", [1, 2, 5, 7])
def test_seven_sweep_parts_test_all_of_at_most_seven_candidates(number: int) -> None:
    """Every candidate comes first in at least one of the seven parts of a sweep."""
    for m in range(20):
        firsts = [parse(f"{part}/7").ordered(problem(M=m), candidates(number))[0] for part in range(1, 8)]
        assert set(firsts) == set(candidates(number))


def test_each_of_seven_sweep_parts_tests_a_different_candidate() -> None:
    """Each of seven sweeps over 30 candidates begins with a different candidate."""
    firsts = [parse(f"{part}/7").ordered(problem(), candidates(30))[0] for part in range(1, 8)]

    assert len(set(firsts)) == 7


@pytest.mark.parametrize("text", ["", "0/3", "4/3", "1/0", "all/3", "a/3", "1/2/3", "/"])
def test_an_invalid_sweep_seed_or_part_is_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected a seed such as 7, or a part such as 2/5, not"):
        parse(text)
