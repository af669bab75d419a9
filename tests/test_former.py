"""What a kernel without any entry may have been called before."""

from __future__ import annotations

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value
from pytest_autotune.run.former import Former
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome

GPU, OTHER = Device("GPU", "arch", 1), Device("Other", "arch", 1)


def entry(kernel: str, n: int = 8, source: str = "old", device: Device = GPU) -> Entry:
    problem = Problem("toy", kernel, (Value("n", n),), device)
    return Entry(problem, (Value("source", source, "digest"),), Candidate())


def reason(kernel: str, *entries: Entry, source: str = "new", asked: str = "") -> str:
    lookup = entry(kernel, source=source)
    former = Former(EntryIndex.of([Cache(entries)]), {("toy", asked), ("toy", kernel)})
    return former.reason(Lookup(lookup.problem, lookup.fingerprint, Outcome.MISS, NO_ENTRY))


SAME_SOURCE = (entry("lib.ops.scale", n=16, source="new"), entry("lib.ops.relu"))
MOVED = (entry("lib.ops.relu", n=16), entry("lib.ops.gelu"))
ALIKE = (entry("lib.ops.relu_fwd"), entry("lib.ops.matmul"))


@pytest.mark.parametrize(
    ("kernel", "entries", "was"),
    [
        (
            "lib.new.stretch",
            SAME_SOURCE,
            "lib.ops.scale, which no test asked for, has the same source: renamed or moved?",
        ),
        ("lib.new.relu", MOVED, "lib.ops.relu, which no test asked for, has this name: moved and changed?"),
        (
            "lib.ops.relu_forward",
            ALIKE,
            "lib.ops.relu_fwd, which no test asked for, has an entry with this key: renamed and changed?",
        ),
    ],
)  # fmt: skip
def test_the_old_name_is_named_by_source_by_name_or_by_key(kernel: str, entries: tuple[Entry, ...], was: str) -> None:
    assert reason(kernel, *entries) == f"no entry; {was}"


@pytest.mark.parametrize(
    ("entries", "asked"),
    [
        ((entry("lib.ops.matmul"),), ""),
        ((entry("lib.ops.relu"),), "lib.ops.relu"),
        ((entry("lib.ops.relu", device=OTHER),), ""),
        ((entry("lib.a.relu", n=4), entry("lib.b.relu", n=4)), ""),
        ((), ""),
    ],
    ids=["nothing is like it", "it is still asked for", "of another device", "several have the name", "no entries"],
)
def test_nothing_is_guessed_where_no_name_stands_out(entries: tuple[Entry, ...], asked: str) -> None:
    assert reason("lib.new.relu", *entries, asked=asked) == NO_ENTRY
