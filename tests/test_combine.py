"""Caches that were written apart as one."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

from pytest_autotune.cache.codec import Format, encode
from pytest_autotune.cache.combine import CombinedCaches, combine_caches
from pytest_autotune.cache.model import Cache, Candidate, Entry
from tests.entries import A100, H200, entry


def cache(*entries: Entry) -> Cache:
    return Cache(entries)


def of_two(ours: Cache, theirs: Cache, ancestor: Cache | None = None) -> CombinedCaches:
    return combine_caches({"ours": ours, "theirs": theirs}, ancestor)


def entries_of(combined: CombinedCaches) -> set[Entry]:
    return set(combined.cache.entries)


def test_merging_five_shards_keeps_all_entries_of_both_gpus() -> None:
    shards = {str(m): cache(entry(m), entry(m, device=A100)) for m in range(5)}

    assert entries_of(combine_caches(shards)) == {entry(m, device=device) for m in range(5) for device in (H200, A100)}


def test_a_merge_keeps_the_faster_of_two_entries_and_lists_both() -> None:
    slow, fast = entry(block=32, time_us=11.0), entry(block=64, time_us=10.0)

    combined = of_two(cache(slow), cache(fast))

    assert entries_of(combined) == {fast}
    ((fastest, other),) = combined.conflicts
    assert ((fastest.process, fastest.entry), (other.process, other.entry)) == (("theirs", fast), ("ours", slow))


def test_the_bytes_of_a_merged_cache_do_not_depend_on_the_order() -> None:
    sides = [cache(entry(1), entry(2, block)) for block in (16, 32, 64)] + [cache(entry(2, 8, source="t"))]

    written = {
        encode(combine_caches({str(sides.index(side)): side for side in order}).cache, Format.TEXT)
        for order in permutations(sides)
    }

    assert len(written) == 1


def test_an_entry_changed_on_one_side_wins_even_if_it_is_slower() -> None:
    slower = entry(time_us=20.0)

    for sides in ((cache(slower), cache(entry())), (cache(entry()), cache(slower))):
        combined = of_two(*sides, ancestor=cache(entry()))
        assert (entries_of(combined), combined.conflicts) == ({slower}, ())


def test_a_merge_removes_and_lists_an_entry_one_side_removed() -> None:
    combined = of_two(cache(entry(1)), cache(entry(1), entry(2)), ancestor=cache(entry(1), entry(2)))

    assert (entries_of(combined), combined.removed) == ({entry(1)}, (entry(2),))


def test_an_entry_one_side_removed_and_the_other_changed_stays() -> None:
    changed = entry(2, block=64)

    assert entries_of(of_two(cache(), cache(changed), ancestor=cache(entry(2)))) == {changed}


def test_a_merge_does_not_bring_back_an_entry_of_old_kernel_code() -> None:
    """Our side tuned the kernel for changed code, and their side did not change its entry. Only the new entry stays."""
    combined = of_two(cache(entry(source="new")), cache(entry(source="old")), ancestor=cache(entry(source="old")))

    assert entries_of(combined) == {entry(source="new")}


def test_a_merge_takes_all_entries_of_a_gpu_tuned_on_one_side() -> None:
    old = cache(entry(), entry(device=A100))
    ours = cache(entry(block=64), entry(device=A100))
    theirs = cache(entry(block=16), entry(device=A100, block=64), entry(2, device=A100))

    assert {
        merged_entry for merged_entry in entries_of(of_two(ours, theirs, old)) if merged_entry.problem.device == A100
    } == {
        entry(device=A100, block=64),
        entry(2, device=A100),
    }


def test_a_merge_prefers_an_entry_with_a_choice_to_a_failed_one() -> None:
    """The failure wins only if a run has tried the choice, because the entry then has a higher generation."""
    failed = replace(entry(), choice=None, candidates=(Candidate(failed="no compiler was found"),))

    assert (
        entries_of(of_two(cache(failed), cache(entry())))
        == entries_of(of_two(cache(entry()), cache(failed)))
        == {entry()}
    )
    replaced = replace(failed, generation=1)
    assert entries_of(of_two(cache(entry()), cache(replaced))) == {replaced}
