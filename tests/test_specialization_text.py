"""The texts of specializations, and how a run merges them into the entries."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_autotune.cache.codec import Format, decode, encode
from pytest_autotune.cache.combine import combine_caches
from pytest_autotune.cache.merge import merge_run
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value
from pytest_autotune.cache.ties import MeasuredEntry
from pytest_autotune.run.collected import collect
from pytest_autotune.run.finish import finish_run
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup, Outcome, UsedEntry
from pytest_autotune.run.request import UPDATE_ALL, UPDATE_PRUNE, FileDump, RunRequest
from pytest_autotune.run.settle import EndedRun, InitialCaches, settle_run
from pytest_autotune.tuners.triton.specialization_text import (
    LONGEST,
    NoText,
    Parameter,
    encode_specialization,
    parse_specialization,
)
from pytest_autotune.workers.events import Event

H200 = Device("NVIDIA H200", "sm_90", 132)


def source(**kinds: Any) -> Any:
    """Triton's source of a kernel with these parameters: a kind, (kind, divisible) or {constant}."""
    signature, constants, attrs = {}, {}, {}
    for index, (name, kind) in enumerate(kinds.items()):
        signature[name] = kind
        if isinstance(kind, dict):
            signature[name], constants[(index,)] = "constexpr", kind["value"]
        elif isinstance(kind, tuple):
            signature[name], attrs[(index,)] = kind[0], [["tt.divisibility", 16]]
    return SimpleNamespace(signature=signature, constants=constants, attrs=attrs)


def test_the_text_for_a_variant_has_one_word_per_parameter() -> None:
    """A parameter that the choice sets is an underscore."""
    of = source(x=("*fp16", 16), y="*fp16", n=("i32", 16), one={"value": 1}, BLOCK={"value": 64})

    assert encode_specialization(of, ["BLOCK"], {}) == "*fp16:16 *fp16 i32:16 =1 _"


def test_the_text_for_a_variant_ends_with_the_launch_options() -> None:
    assert encode_specialization(source(n="i32"), [], {"num_warps": 8, "fast": True}) == "i32 | fast=true num_warps=8"


@pytest.mark.parametrize("value", [None, True, 1.5, "a b,c)"])
def test_a_constant_in_the_text_for_a_variant_is_read_back_equal(value: object) -> None:
    text = encode_specialization(source(a={"value": value}, b="i64"), [], {})

    assert parse_specialization(text) == ([Parameter("constexpr", value), Parameter("i64")], {})


def test_types_and_alignments_are_read_from_text_for_a_variant() -> None:
    parameters, options = parse_specialization("*fp32:16 tensordesc<fp16[128,64]> _ *kfp32 | num_warps=8")

    assert parameters == [
        Parameter("*fp32", divisible=True),
        Parameter("tensordesc<fp16[128, 64]>"),
        Parameter("constexpr", is_in_choice=True),
        Parameter("*kfp32"),
    ]
    assert options == {"num_warps": 8}


@pytest.mark.parametrize(
    "value", [object(), (1, 2), "x" * LONGEST, lambda: 0], ids=["an object", "a tuple", "a long text", "a function"]
)
def test_a_variant_for_an_object_or_a_long_text_is_not_recorded(value: object) -> None:
    with pytest.raises(NoText):
        encode_specialization(source(a={"value": value}), [], {})


HOSTILE = [
    "x" * (LONGEST + 1),
    "(" * 900,
    "=" + "[" * 900,
    "__import__('os')",
    "=",
    "i32  i32",
    "i32 | num_warps",
    "i32 | =1",
    "=NaN\0",
    "tensordesc<fp16[99999999999999999999,]>",
    "\u202e*fp16",
    '={"dtype":"../../etc"}',
    '={"jit":"os:system"}',
    "=[1]",
    "={}",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_reading_an_invalid_text_for_a_variant_is_an_error(text: str) -> None:
    with pytest.raises(NoText):
        parse_specialization(text)


def entry(kernel: str = "k", block: int = 64, *compiled: str) -> Entry:
    problem = Problem("triton", kernel, (Value("M", 64),), H200)
    choice = Candidate(params=(Value("BLOCK", block),), time_us=10.0)
    return Entry(problem, (Value("source", "s", "digest"),), choice, tuning_seconds=1.0, compiled=compiled)


@pytest.mark.parametrize("format", list(Format))
def test_every_cache_file_format_keeps_the_compiled_variants(format: Format) -> None:
    cache = Cache((entry("a", 64, "i32 _", '="\\u0041\u202e" _'), entry("b")))

    written = encode(cache, format)

    assert [decoded.compiled for decoded in decode(written, format, "x").entries] == [
        ('="\\u0041\u202e" _', "i32 _"),
        (),
    ]
    assert encode(decode(written, format, "x"), format) == written


def test_entries_that_differ_only_in_compiled_variants_are_equal() -> None:
    assert entry("k", 64, "a") == entry("k", 64, "b")


def test_a_merge_adds_new_specializations_to_the_recorded_ones() -> None:
    """The order of the merged entries does not matter, and the entry counts as unchanged."""
    base = Cache((entry("k", 64, "old"),))
    used = [entry("k", 64, "b"), entry("k", 64, "a")]

    for order in (used, used[::-1]):
        merged = merge_run(base, used=order)
        assert merged.cache.entries[0].compiled == ("a", "b", "old")
        assert merged.counts["unchanged"] == 1


def test_a_replaced_choice_loses_its_compiled_variants() -> None:
    faster = replace(entry("k", 128, "new"), candidates=(entry("k", 128).choice, entry("k", 64).choice))
    faster = replace(
        faster,
        candidates=tuple(replace(candidate, time_us=t) for candidate, t in zip(faster.candidates, (1, 9), strict=True)),
    )

    (merged,) = merge_run(Cache((entry("k", 64, "old"),)), [MeasuredEntry(faster)]).cache.entries

    assert merged.choice == faster.choice
    assert merged.compiled == ("new",)


def test_a_git_merge_unites_the_compiled_variants_of_both_sides() -> None:
    ancestor = Cache((entry("k", 64, "a"),))
    sides = {"ours": Cache((entry("k", 64, "a", "b"),)), "theirs": Cache((entry("k", 64, "a", "c"),))}

    combined = combine_caches(sides, ancestor)

    assert combined.cache.entries[0].compiled == ("a", "b", "c")
    assert not combined.conflicts


def build_lookup(used_entry: Entry) -> Lookup:
    return Lookup(used_entry.identity, Outcome.HIT, result=UsedEntry(used_entry))


def dumped(cache: Cache, lookups: list[Entry], *workers: list[Event], prune: bool = False) -> list[tuple[str, ...]]:
    events = [(f"gw{index}", event) for index, seen in enumerate(workers) for event in seen]
    collected = collect([*(("gw0", build_lookup(used_entry).to_event()) for used_entry in lookups), *events])
    loaded = (("x", cache),)
    plan = FileDump(UPDATE_PRUNE if prune else UPDATE_ALL)
    run = EndedRun.of_one_process(InitialCaches(loaded, cache), collected, RunRequest(plan))
    merged = finish_run(settle_run(run), cache).merged
    return [used_entry.compiled for used_entry in merged.cache.entries]


def build_event(used_entry: Entry, text: str) -> Event:
    return Event(SPECIALIZATION, data={"entry": used_entry.identity.digest, "text": text})


def test_dumped_variants_do_not_depend_on_the_order_of_workers() -> None:
    a, b = entry("a"), entry("b", 64, "old")
    cache = Cache((a, b))

    assert dumped(cache, [a, b], [build_event(a, "2"), build_event(b, "3")], [build_event(a, "1")]) == [
        ("1", "2"),
        ("3", "old"),
    ]
    assert dumped(cache, [b, a], [build_event(a, "1")], [build_event(b, "3"), build_event(a, "2")]) == [
        ("1", "2"),
        ("3", "old"),
    ]


def test_an_entry_has_at_most_64_compiled_variants() -> None:
    loaded_entry = entry("k", 64, *(f"=1{number:03}" for number in range(32)))
    texts = [build_event(loaded_entry, f"=2{number:03}") for number in range(100)]

    [texts_kept] = dumped(Cache((loaded_entry,)), [loaded_entry], texts)
    assert texts_kept == tuple(f"={number}" for number in (*range(1000, 1032), *range(2000, 2032)))


@pytest.mark.parametrize(("prune", "kept"), [(False, ("new", "old")), (True, ("new",))])
def test_option_update_prune_keeps_only_variants_of_the_run(prune: bool, kept: tuple[str, ...]) -> None:
    loaded_entry = entry("k", 64, "old")

    assert dumped(Cache((loaded_entry,)), [loaded_entry], [build_event(loaded_entry, "new")], prune=prune) == [kept]


def test_option_update_prune_keeps_variants_if_none_was_compiled() -> None:
    loaded_entry = entry("k", 64, "old")

    assert dumped(Cache((loaded_entry,)), [loaded_entry], [], prune=True) == [("old",)]
