"""The differences between two caches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_autotune.cache.diff import ChangeKind, Diff, compare_caches, find_winner
from pytest_autotune.cache.model import Cache, Candidate, Entry, Value, Versions
from pytest_autotune.report.naming import describe_change
from tests.entries import A100, H200, entry


def found(old: list[Entry], new: list[Entry]) -> Diff:
    return compare_caches(Cache(tuple(old)), Cache(tuple(new)))


def kinds(old: list[Entry], new: list[Entry]) -> list[ChangeKind]:
    return [change.kind for change in found(old, new).changes]


def test_the_same_entries_in_another_order_are_no_difference() -> None:
    same = found([entry(1), entry(2)], [entry(2), entry(1)])

    assert (same.changes, same.unchanged, str(same)) == ((), 2, "no difference")


def test_the_diff_reports_a_time_change_if_only_the_time_is_new() -> None:
    assert kinds([entry()], [entry(time_us=11.0)]) == [ChangeKind.TIME]


def test_an_entry_with_only_new_label_and_time_is_a_time_change() -> None:
    assert kinds([entry()], [replace(entry(), tuning_seconds=9.0, label="x")]) == [ChangeKind.TIME]


def test_an_entry_with_only_new_versions_is_a_versions_change() -> None:
    assert kinds([entry()], [replace(entry(), versions=Versions.parse("triton 4"))]) == [ChangeKind.VERSIONS]


def test_a_moved_or_edited_kernel_is_one_change_in_the_diff() -> None:
    """Without a digest of its source, a moved kernel is an added entry and a removed entry."""

    def of(kernel: str = "lib.add", code: str = "") -> Entry:
        key = (Value("M", 1), *([Value("code", code, "digest")] if code else []))
        return replace(entry(), problem=replace(entry().problem, kernel=kernel, key=key))

    assert kinds([of()], [of("lib.moved")]) == [ChangeKind.MOVED]
    assert kinds([of(code="a")], [of(code="b")]) == [ChangeKind.CODE]
    assert kinds([replace(of(), fingerprint=())], [replace(of("x"), fingerprint=())]) == [
        ChangeKind.ADDED,
        ChangeKind.REMOVED,
    ]


def test_a_changed_choice_has_the_old_and_the_new_entry() -> None:
    (change,) = found([entry(block=32)], [entry(block=64)]).changes

    assert (change.kind, change.old, change.new) == (ChangeKind.CHOICE, entry(block=32), entry(block=64))


def test_a_problem_with_an_edited_source_is_one_change() -> None:
    assert kinds([entry(source="s")], [entry(source="t")]) == [ChangeKind.CODE]
    assert kinds([entry(source="s")], [entry(source="t", block=64)]) == [ChangeKind.CHOICE]


def test_the_diff_ignores_an_entry_that_both_caches_have() -> None:
    assert kinds([entry(source="a"), entry(source="b")], [entry(source="b"), entry(source="c")]) == [ChangeKind.CODE]
    assert kinds([entry(source="b")], [entry(source="b"), entry(source="c")]) == [ChangeKind.ADDED]


def test_the_diff_sorts_added_and_removed_entries_by_problem() -> None:
    changes = found([entry(1), entry(2)], [entry(4), entry(3)]).changes

    assert [(change.kind, change.entry.problem.key[0].value) for change in changes] == [
        (ChangeKind.ADDED, 3),
        (ChangeKind.ADDED, 4),
        (ChangeKind.REMOVED, 1),
        (ChangeKind.REMOVED, 2),
    ]


def test_only_the_gpu_with_most_changes_is_described_in_detail() -> None:
    """The changes on each other device are a single number."""
    old = [entry(m) for m in range(15)] + [entry(device=A100)]
    new = [entry(m, time_us=11.0) for m in range(12)] + [entry(m, block=64) for m in range(12, 15)]
    new += [entry(device=A100, block=64)]

    assert str(found(old, new)) == "3 choices changed; 12 measured again, same choice; 1 on NVIDIA A100"
    assert found(old, new).device == H200


def test_the_diff_writes_1_choice_changed_in_the_singular() -> None:
    assert str(found([entry(block=32)], [entry(block=64)])) == "1 choice changed"


def test_without_a_choice_the_fastest_candidate_is_the_winner() -> None:
    slow, fast = Candidate("a", time_us=3.0), Candidate("b", time_us=2.0)
    failed = Candidate("c", time_us=1.0, failed="spills")

    assert find_winner(replace(entry(), choice=None, candidates=(slow, failed, fast))) == fast
    assert find_winner(replace(entry(), choice=None, candidates=(failed,))) is None
    assert find_winner(entry()) == entry().choice


def test_a_new_fastest_candidate_is_a_changed_choice() -> None:
    def template(first_us: float) -> Entry:
        times = Candidate("a", time_us=first_us), Candidate("b", time_us=5.0)
        return replace(entry(), choice=None, candidates=times)

    assert kinds([template(1.0)], [template(2.0)]) == [ChangeKind.TIME]
    assert kinds([template(1.0)], [template(9.0)]) == [ChangeKind.CHOICE]


@pytest.mark.parametrize("is_first_failed", [True, False])
def test_a_diff_with_a_failed_search_shows_the_choice_in_full(is_first_failed: bool) -> None:
    failed = replace(entry(), choice=None, candidates=(Candidate(params=(Value("BLOCK", 8),), failed="invalid"),))
    sides = [failed, entry(block=32)]
    words = ["every candidate failed", "BLOCK=32"]
    if not is_first_failed:
        sides.reverse()
        words.reverse()
    (change,) = found(sides[:1], sides[1:]).changes

    assert describe_change(change)[0] == " -> ".join(words)


def test_changed_xla_bytes_are_a_changed_choice() -> None:
    old = replace(entry(), choice=None, native=b"1")

    assert kinds([old], [replace(old, native=b"2")]) == [ChangeKind.CHOICE]
