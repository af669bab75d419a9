"""The reason of a miss: how the nearest entry of the kernel differs."""

from __future__ import annotations

from typing import Any

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import MergeResult
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Identity, Problem, Value
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome, Policy
from pytest_autotune.run.nearest import explain_miss
from pytest_autotune.run.rows import build_rows

GPU = Device("GPU", "arch", 1)
OTHER = Device("Other", "arch", 2)


def problem(device: Device = GPU, **key: Any) -> Problem:
    values = [value if isinstance(value, Value) else Value(name, value) for name, value in key.items()]
    return Problem("toy", "k", tuple(values), device)


def index(*problems: Problem) -> EntryIndex:
    return EntryIndex.from_caches(
        [Cache(tuple(Entry(problem_of_entry, (), Candidate()) for problem_of_entry in problems))]
    )


def reason(missed: Problem, *problems: Problem, alias: str = "") -> str:
    policy = Policy(device_aliases={missed.device.name: alias} if alias else {})
    return explain_miss([index(*problems)], missed, policy).text


def test_a_miss_names_only_key_values_that_differ_from_nearest() -> None:
    entries = [problem(M=m, N=n) for m, n in ((16, 16), (64, 64))]
    assert reason(problem(M=64, N=128), *entries) == "no entry; the nearest entry has N 64 instead of 128"


def test_a_miss_names_the_entry_whose_size_is_nearest_to_its_own() -> None:
    entries = [problem(M=64, N=n) for n in (16, 112, 256)]
    assert reason(problem(M=64, N=128), *entries) == "no entry; the nearest entry has N 112 instead of 128"


def test_numbers_in_a_text_key_decide_which_entry_is_nearest() -> None:
    entries = [problem(x=x) for x in ("bf16[2, 64]", "f32[2, 8]", "f32[2, 96]", "f32[2]", "f32[2, " + "9" * 5000 + "]")]
    assert (
        reason(problem(x="f32[2, 100]"), *entries)
        == "no entry; the nearest entry has x f32[2, 96] instead of f32[2, 100]"
    )

    entries = [problem(c=Value("c", digest, "digest"), n=n) for digest, n in (("a1", 4), ("a8", 2))]
    assert "n 4 instead of 5" in reason(problem(c=Value("c", "a9", "digest"), n=5), *entries)


def test_a_miss_names_an_entry_of_another_gpu_only_with_an_alias() -> None:
    assert reason(problem(M=1), problem(OTHER, M=2)) == NO_ENTRY
    assert (
        reason(problem(M=1), problem(OTHER, M=2), alias="Other") == "no entry; the nearest entry has M 2 instead of 1"
    )


def test_misses_of_unknown_code_hashes_say_new_or_changed_code() -> None:
    old, new = (problem(code=Value("code", text, "digest")) for text in ("a", "b"))
    assert reason(new, old) == "no entry; new or changed code"


def test_if_all_entries_have_other_key_names_a_miss_lists_them() -> None:
    assert reason(problem(M=1), problem(N=1, K=1)).endswith("the entries of this kernel have other key names: N, K")


def test_a_miss_says_none_for_a_key_that_the_nearest_entry_lacks() -> None:
    settings = Value("settings", "max_autotune", "settings")
    missed, plain, set_up = problem(M=1), problem(M=2), problem(M=1, settings=settings)

    assert reason(missed, set_up) == "no entry; the nearest entry has settings max_autotune instead of none"
    assert reason(missed, plain, set_up) == "no entry; the nearest entry has M 2 instead of 1"
    assert reason(set_up, missed) == "no entry; the nearest entry has settings none instead of max_autotune"
    assert reason(problem(M=1, sizes="[s0, 8]"), plain) == (
        "no entry; the nearest entry has M 2 instead of 1, sizes none instead of [s0, 8]"
    )
    assert reason(problem(M=1, code=Value("code", "a", "digest")), missed) == "no entry; new or changed code"
    assert reason(problem(M=1, K=1), plain) == "no entry; the nearest entry has M 2 instead of 1, K none instead of 1"
    assert reason(problem(K=1, N=1), problem(K=1, M=1)).endswith(
        "the entries of this kernel have other key names: K, M"
    )


def test_a_summary_row_lists_the_test_with_worst_outcome_first() -> None:
    problem_of_row = problem(M=1)
    lookups = [
        Lookup(Identity(problem_of_row, ()), Outcome.HIT, test="test_first"),
        Lookup(Identity(problem_of_row, (Value("source", "b"),)), Outcome.STALE, "reason", "test_stale"),
        Lookup(Identity(problem_of_row, ()), Outcome.HIT, test="test_last"),
    ]
    (row,) = build_rows(lookups, EntryIndex(()), Policy(), MergeResult(Cache()))
    assert row.outcome is Outcome.STALE
    assert row.tests == ("test_stale", "test_first", "test_last")


def test_an_entry_with_the_same_key_is_not_named_as_the_nearest() -> None:
    """The gate compares a miss with the current cache, which may have the entry by now."""
    assert reason(problem(M=1), problem(M=1)) == "no entry"
