"""Merging what a run has learned into the cache that is there."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from pytest_autotune.cache.codec import Format, encode
from pytest_autotune.cache.merge import MergeRules, merge_run
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value, Versions
from pytest_autotune.cache.ties import NOISE, MeasuredEntry

GPU = Device("NVIDIA H200", "sm_90", 132)


def candidate(name: str, time_us: float | None = None) -> Candidate:
    return Candidate(params=(Value("BLOCK", name),), time_us=time_us, failed="" if time_us else "out of memory")


def entry(kernel: str = "k", times: dict[str, float] | None = None, source: str = "s", device: Device = GPU) -> Entry:
    candidates = tuple(candidate(name, time_us) for name, time_us in (times or {"a": 10.0, "b": 20.0}).items())
    best = min(candidates, key=lambda one: one.time_us or float("inf"))
    problem = Problem("triton", kernel, (Value("M", 64),), device)
    return Entry(problem, (Value("source", source, "digest"),), best, candidates, tuning_seconds=1.0)


def kept(measured_entry: Entry) -> Entry:
    """An entry as a file holds it."""
    return replace(measured_entry, candidates=())


def chosen(cache: Cache) -> list[str]:
    return [str(merged_entry.choice) for merged_entry in cache.entries]


def test_a_dump_saves_a_new_entry_without_its_candidates() -> None:
    merged = merge_run(Cache(), [MeasuredEntry(entry())])

    assert merged.cache.entries == (kept(entry()),)
    assert merged.counts_text == "1 added"


def test_setting_keep_candidates_saves_them_with_a_new_entry() -> None:
    assert merge_run(Cache(), [MeasuredEntry(entry())], rules=MergeRules(keep_candidates=True)).cache.entries == (
        entry(),
    )


def test_an_entry_without_a_choice_is_saved_with_its_candidates() -> None:
    result = replace(entry(), choice=None)

    assert merge_run(Cache(), [MeasuredEntry(result)]).cache.entries == (result,)


def untimed(name: str) -> Entry:
    return replace(entry(), choice=candidate(name), candidates=())


def test_a_dump_without_times_keeps_the_committed_choice() -> None:
    assert chosen(merge_run(Cache((untimed("a"),)), [MeasuredEntry(untimed("b"))]).cache) == ["BLOCK=a"]


@pytest.mark.parametrize(("slower_by", "stays"), [(0.0, True), (NOISE * 0.9, True), (NOISE * 1.1, False)])
def test_a_choice_is_replaced_only_if_it_is_slower_beyond_noise(slower_by: float, stays: bool) -> None:
    committed = kept(entry(times={"a": 9.0, "b": 20.0}))
    again = entry(times={"a": 10.0 * (1 + slower_by), "b": 10.0})

    merged = merge_run(Cache((committed,)), [MeasuredEntry(again)])

    assert merged.cache.entries == ((committed,) if stays else (kept(again),))
    assert merged.counts_text == ("1 unchanged" if stays else "1 changed")


def test_a_changed_choice_raises_its_entrys_generation_by_one() -> None:
    """An entry that stays keeps its generation. An entry with a new fingerprint replaces no entry."""
    committed = replace(kept(entry(times={"a": 9.0, "b": 20.0})), generation=2)
    other = entry(times={"a": 20.0, "b": 9.0})

    def generations(*measured: Entry, used: tuple[Entry, ...] = ()) -> list[int]:
        merged = merge_run(Cache((committed,)), map(MeasuredEntry, measured), used)
        return [merged_entry.generation for merged_entry in merged.cache.entries]

    assert generations(other) == generations(used=(kept(other),)) == [3]
    assert (
        generations(entry(times={"a": 9.1, "b": 9.0})) == generations(used=(replace(committed, generation=0),)) == [2]
    )
    assert generations(entry(kernel="new")) == [2, 0]
    assert generations(entry(source="changed")) == [0], "another fingerprint is another entry"


def test_a_dump_replaces_a_committed_choice_that_fails_now() -> None:
    committed = kept(entry(times={"a": 9.0, "b": 20.0}))
    again = replace(entry(times={"b": 30.0}), candidates=(candidate("a"), candidate("b", 30.0)))

    assert chosen(merge_run(Cache((committed,)), [MeasuredEntry(again)]).cache) == ["BLOCK=b"]


def test_if_all_candidates_fail_the_saved_choice_stays() -> None:
    committed = replace(kept(entry(times={"a": 9.0})), versions=Versions.parse("triton 3.6.0"))
    failed = replace(committed, choice=None, candidates=(Candidate(failed="ValueError: a test has patched it"),))
    failed = replace(failed, versions=Versions.parse("triton 3.7.1"))

    merged = merge_run(Cache((committed,)), [MeasuredEntry(failed)])

    assert merged.cache.entries == (committed,)
    assert merged.counts_text == "1 unchanged"


def failing(good_entry: Entry) -> Entry:
    return replace(good_entry, choice=None, candidates=(Candidate(failed="no compiler was found"),))


@pytest.mark.parametrize("is_rejected", [False, True])
def test_a_choice_of_one_worker_wins_over_a_failure_of_another(is_rejected: bool) -> None:
    """All candidates failed in one process, and another process has a choice."""
    good, failed = entry(), MeasuredEntry(failing(entry()), "gw0", has_rejected_entry=is_rejected)

    disturbed = merge_run(Cache(), [failed, MeasuredEntry(good, "gw1", is_disturbed=True)])
    used = merge_run(Cache(), [failed], [kept(good)])

    assert chosen(disturbed.cache) == chosen(used.cache) == ["BLOCK=a"]


def test_a_loaded_entry_without_choice_replaces_no_dumped_choice() -> None:
    """The loaded cache has a failure, so the run did not tune. The dump path has a choice, which stays."""
    committed = kept(entry())

    assert merge_run(Cache((committed,)), used=[failing(entry())]).cache.entries == (committed,)
    retuned = merge_run(Cache((committed,)), [MeasuredEntry(entry(source="new"))], [failing(entry())])
    assert committed in retuned.cache.entries


def test_setting_keep_candidates_adds_them_to_unchanged_choices() -> None:
    committed = replace(kept(entry()), generation=2)

    def merged(again: Entry, was: Entry = committed) -> tuple[Entry, ...]:
        return merge_run(Cache((was,)), [MeasuredEntry(again)], rules=MergeRules(keep_candidates=True)).cache.entries

    measured = entry(times={"a": 10.1, "b": 21.0})
    with_candidates = replace(committed, candidates=measured.candidates)
    assert merged(measured) == (with_candidates,)
    assert merged(measured)[0].generation == 2
    assert merged(entry(times={"a": 10.2, "b": 22.0}), with_candidates) == (with_candidates,)
    assert merged(failing(entry())) == (committed,)


def test_entries_without_choice_stay_if_only_error_texts_change() -> None:
    """A test may draw the words of a failure at random."""
    was, again = (
        replace(entry(), choice=None, candidates=(Candidate(failed=f"cannot convert [{drawn}]"),))
        for drawn in ("0.42", "0.17")
    )

    merged = merge_run(Cache((was,)), [MeasuredEntry(again)])

    assert merged.cache.entries == (was,)
    assert merged.counts_text == "1 unchanged"
    assert chosen(merge_run(merged.cache, [MeasuredEntry(entry())]).cache) == ["BLOCK=a"]


def test_retuning_a_problem_removes_unused_entries_of_old_source() -> None:
    old, used, new = (kept(entry(source=source)) for source in ("old", "used", "new"))

    merged = merge_run(Cache((old, used)), [MeasuredEntry(entry(source="new"))], [used])

    assert merged.cache.entries == (new, used)
    assert merged.counts_text == "1 changed, 1 unchanged"


def test_a_used_loaded_entry_replaces_the_one_in_the_dumped_file() -> None:
    committed = kept(entry(times={"a": 10.0, "b": 20.0}))
    used = kept(entry(times={"a": 20.0, "b": 10.0}))

    assert merge_run(Cache(), used=[used]).cache.entries == (used,)
    assert merge_run(Cache((committed,)), used=[used]).cache.entries == (used,)


def test_if_the_choice_stays_only_a_new_minor_version_is_written() -> None:
    """A new patch version, and an unknown version, change nothing."""
    committed, again = kept(entry()), replace(entry(times={"a": 10.1, "b": 20.0}), tuning_seconds=7.0)

    def merged(then: str, now: str) -> tuple[Entry, ...]:
        there_then = replace(committed, versions=Versions.parse(then))
        return merge_run(
            Cache((there_then,)), [MeasuredEntry(replace(again, versions=Versions.parse(now)))]
        ).cache.entries

    assert merged("triton 3.6.0", "triton 3.7.1") == (replace(committed, versions=Versions.parse("triton 3.7.1")),)
    assert merged("triton 3.7.0", "triton 3.7.1") == (replace(committed, versions=Versions.parse("triton 3.7.0")),)
    assert merged("triton 3.7.0", "") == (replace(committed, versions=Versions.parse("triton 3.7.0")),)


def test_option_update_set_to_prune_removes_no_used_entry() -> None:
    dropped, used = kept(entry("dropped")), kept(entry("used"))

    merged = merge_run(Cache((dropped, used)), used=[used], dropped={dropped.identity, used.identity})

    assert merged.cache.entries == (used,)


def test_a_dump_keeps_the_faster_tuning_of_two_workers() -> None:
    slow, fast = entry(times={"a": 10.0, "b": 11.0}), entry(times={"a": 9.0, "b": 8.0})

    merged = merge_run(Cache(), [MeasuredEntry(slow, "gw0"), MeasuredEntry(fast, "gw1")])

    assert chosen(merged.cache) == ["BLOCK=b"]


def test_a_tuning_alone_on_the_gpu_is_preferred_to_a_faster_one() -> None:
    alone, disturbed = entry(times={"a": 10.0, "b": 11.0}), entry(times={"a": 9.0, "b": 8.0})

    merged = merge_run(Cache(), [MeasuredEntry(disturbed, "gw0", is_disturbed=True), MeasuredEntry(alone, "gw1")])

    assert chosen(merged.cache) == ["BLOCK=a"]


def test_dumped_bytes_do_not_depend_on_the_order_of_measurements() -> None:
    rng = random.Random(3)
    measured = [
        MeasuredEntry(entry(f"k{i % 7}", {"a": rng.uniform(9, 11), "b": rng.uniform(9, 11)}, f"s{i % 2}"), f"gw{i % 4}")
        for i in range(60)
    ]
    base = Cache(tuple(kept(entry(f"k{i}")) for i in range(9)))
    used = list(base.entries[:3])
    results = set()
    for _ in range(5):
        rng.shuffle(measured)
        rng.shuffle(used)
        merged = merge_run(base, measured, used)
        results.add(encode(merged.cache, Format.TEXT))

    assert len(results) == 1


@pytest.mark.parametrize("keep", [True, False])
def test_an_incomplete_run_keeps_entries_of_other_pruned_lists(keep: bool) -> None:
    """An incomplete run may lack the lookups of the other lists."""
    lists = [(Value("pruned", text, "digest"), Value("search", "s", "digest")) for text in ("a", "b", "c")]
    problem = Problem("t", "k", (), Device("GPU", "arch", 1))
    choice = Candidate(params=(Value("BLOCK", 1),), time_us=1.0)
    other = Entry(problem, (Value("search", "other", "digest"),), choice)
    before = Cache((*(Entry(problem, fingerprint, choice) for fingerprint in lists[:2]), other))

    after = merge_run(
        before, [MeasuredEntry(Entry(problem, lists[2], choice))], rules=MergeRules(keep_pruned=keep)
    ).cache

    assert {entry.fingerprint for entry in after.entries} == set(lists if keep else lists[2:])
