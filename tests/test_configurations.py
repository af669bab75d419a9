"""The question and the results of adapters whose tuners list their configurations."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from pytest_autotune.adapters import (
    Candidate,
    ConfigurationQuestion,
    Configurations,
    Entry,
    Problem,
    SearchResults,
    UncacheableError,
    Value,
    cpu,
    param_value,
)
from pytest_autotune.tuners.source.source_digest import read_source

numpy = pytest.importorskip("numpy")
torch = pytest.importorskip("torch")

CONFIGS: list[dict[str, Any]] = [{"tile": (64, 128), "warps": 4}, {"tile": (128, 128), "warps": 8}]


class Named(NamedTuple):
    warps: int


@dataclass
class Data:
    warps: int


def kernel() -> None:
    pass


def make_question(configurations: Configurations) -> ConfigurationQuestion:
    return ConfigurationQuestion(Problem("toy", "kernel", (), cpu()), read_source(kernel), configurations)


@pytest.mark.parametrize(
    "config",
    [{"warps": 4}, Named(4), Data(4), SimpleNamespace(warps=4)],
    ids=["mapping", "named tuple", "dataclass", "object"],
)
def test_a_config_may_be_a_mapping_a_dataclass_or_an_object(config: object) -> None:
    [candidate] = Configurations([config]).list_candidates()

    assert candidate.params == (Value("warps", 4),)
    assert Configurations([config]).find(candidate) is config


class Tile(tuple[int, ...]):
    pass


class Text(str):
    pass


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (Tile((4,)), (4,)),
        ([4], (4,)),
        ({"tile": Text("a")}, {"tile": "a"}),
        (Data(4), {"warps": 4}),
        ({"dtype": torch.float16}, {"dtype": numpy.float16}),
    ],
    ids=["class of the user", "list and tuple", "inner value", "dataclass and mapping", "dtypes"],
)
def test_configs_that_differ_only_in_classes_are_uncacheable(first: object, second: object) -> None:
    with pytest.raises(UncacheableError, match="a cache cannot tell"):
        Configurations([first, second])


def test_configs_with_equal_scalars_of_python_and_numpy_are_one_candidate() -> None:
    assert len(Configurations([{"warps": 4}, {"warps": numpy.int64(4)}]).list_candidates()) == 1
    assert len(Configurations([{"layout": "row"}, {"layout": numpy.str_("row")}]).list_candidates()) == 1


def test_a_config_that_is_a_plain_number_gets_the_name_config() -> None:
    assert Configurations([128]).list_candidates() == [Candidate(params=(Value("config", 128),))]


def test_a_tuple_of_numbers_or_dtypes_in_a_config_can_be_cached() -> None:
    """A tuple of numbers is readable JSON. A tuple with a dtype keeps a stable text."""
    assert param_value("tile", (64, 128)) == Value("tile", "[64, 128]", "json")
    assert param_value("types", (int, 4)).display_text == "(builtins.int, 4)"


def test_a_candidate_config_without_a_stable_form_is_uncacheable() -> None:
    with pytest.raises(UncacheableError, match="x is a object"):
        Configurations([{"x": object()}])


def test_reordering_the_configs_does_not_change_their_digest() -> None:
    assert Configurations(CONFIGS).digest == Configurations(CONFIGS[::-1]).digest
    assert Configurations(CONFIGS).digest != Configurations(CONFIGS[:1]).digest


def test_an_entry_whose_choice_is_no_candidate_is_not_used() -> None:
    question = make_question(Configurations(CONFIGS[:1]))
    listed, unlisted = Configurations(CONFIGS).list_candidates()

    assert question.offers(Entry(question.problem, question.fingerprint, listed))
    assert not question.offers(Entry(question.problem, question.fingerprint, unlisted))
    assert not question.offers(Entry(question.problem, question.fingerprint, None))
    assert [digest.parts[0].split()[0] for digest in question.digests()] == ["kernel", "tile"]


def test_a_failed_candidate_records_the_first_line_of_its_error() -> None:
    results = SearchResults(Configurations([*CONFIGS, {"tile": (256, 256), "warps": 8}]))
    results.note_time(CONFIGS[0], 12.34567, "20 runs")
    results.note_failure(CONFIGS[1], ValueError("tile at 0x7f001234 is too large\nsecond line"))

    timed, failed, skipped = results.candidates

    assert (timed.time_us, timed.label) == (12.35, "20 runs")
    assert failed.failed == "ValueError: tile at 0x... is too large"
    assert skipped.failed == "the search did not try it"
    assert results.fastest == timed


def test_if_all_candidates_fail_the_error_lists_each_reason() -> None:
    results = SearchResults(Configurations([{"x": 1}, {"x": 2}, {"x": 3}]))
    results.note_failure({"x": 1}, "Return code 5")
    results.note_failure({"x": 2}, ValueError("too large"))
    results.note_failure({"x": 3}, "Return code 5")

    assert results.fastest is None
    assert results.failure == (
        "every candidate failed: Return code 5 (2 candidates); ValueError: too large (1 candidate)"
    )
