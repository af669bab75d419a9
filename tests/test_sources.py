"""Where a choice may come from, each source alone; and which outcome is an error."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Problem, Value
from pytest_autotune.run.find import Caches
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.policy import OnMiss, OnStale, Policy
from pytest_autotune.run.sources import Answer, Loaded, OtherWorker, Remembered
from pytest_autotune.workers.coordinator import Claim

GPU = Device("GPU", "arch", 1)
CHOICE = Candidate(params=(Value("BLOCK", 16),), time_us=1.0)
FAILED = Candidate(failed="too large")


def entry(source: str = "s", choice: Candidate | None = CHOICE, **key: int) -> Entry:
    problem = Problem("toy", "k", tuple(Value(name, value) for name, value in key.items()), GPU)
    return Entry(problem, (Value("source", source, "digest"),), choice, () if choice else (FAILED,))


ENTRY = entry()
ASKED = Lookup(ENTRY.problem, ENTRY.fingerprint, test="test_a.py::test")
TUNED = replace(ASKED, entry=ENTRY, tuned=True)


def always(entry: Entry) -> bool:
    return True


def never(entry: Entry) -> bool:
    return False


def loaded(*entries: Entry, offered: Any = always, policy: Policy | None = None, of_one_test: bool = False) -> Loaded:
    caches = Caches([EntryIndex.of([Cache(entries)])], of_one_test=of_one_test)
    return Loaded(caches, policy or Policy(), offered)


def test_what_is_remembered_is_offered_without_an_outcome_and_has_been_reported() -> None:
    answer = Remembered({ENTRY.identity: ENTRY}, always).ask(ASKED)

    assert answer == Answer(ASKED, ENTRY, is_reported=True)


@pytest.mark.parametrize(
    "source",
    [
        pytest.param(Remembered({}, always), id="nothing remembered"),
        pytest.param(Remembered({ENTRY.identity: ENTRY}, never), id="remembered, and no candidate any more"),
        pytest.param(Remembered({ENTRY.identity: entry(choice=None)}, always), id="every candidate failed"),
        pytest.param(Loaded(Caches(), Policy(), always), id="nothing loaded"),
        pytest.param(OtherWorker(Claim, always), id="no other worker"),
        pytest.param(OtherWorker(lambda: Claim(ASKED.event), always), id="another worker that recorded nothing"),
        pytest.param(
            OtherWorker(lambda: Claim(replace(ASKED, entry=ENTRY, tuned=True).event), never), id="no candidate"
        ),
    ],
)
def test_a_source_that_has_nothing_leaves_the_lookup_as_it_is(source: Any) -> None:
    assert source.ask(ASKED) == Answer(ASKED)


def test_a_loaded_hit_is_offered_and_stale_with_the_tuners_reason_where_it_rejects_it() -> None:
    source = loaded(ENTRY)

    answer = source.ask(ASKED)
    rejected = source.rejected(ASKED, "does not compile")

    assert (answer.entry, answer.lookup.outcome, answer.lookup.entry) == (ENTRY, Outcome.HIT, ENTRY)
    assert (rejected.outcome, rejected.reason, rejected.entry) == (Outcome.STALE, "does not compile", None)


def test_a_loaded_failure_is_a_hit_with_nothing_to_use_and_the_last_word() -> None:
    answer = loaded(entry(choice=None)).ask(ASKED)

    assert (answer.lookup.outcome, answer.entry, answer.is_last) == (Outcome.HIT, None, True)


@pytest.mark.parametrize(("on_stale", "used"), [(OnStale.TUNE, False), (OnStale.USE, True), (OnStale.ERROR, False)])
def test_a_stale_entry_is_offered_only_where_the_policy_uses_it(on_stale: OnStale, used: bool) -> None:
    answer = loaded(entry("other"), policy=Policy(on_stale=on_stale)).ask(ASKED)

    assert (answer.lookup.outcome, answer.lookup.reason) == (Outcome.STALE, "source changed")
    assert (answer.entry is not None) == (answer.lookup.entry is not None) == used


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ([Value("version", 1)], [Value("version", 2)], "version changed (1 -> 2)"),
        ([], [Value("settings", "runtime.debug=True", "settings")], "settings changed (none -> runtime.debug=True)"),
        (
            [Value("flush_l2", True), Value("version", "3.1")],
            [],
            "flush_l2, version changed (flush_l2: True -> none; version: 3.1 -> none)",
        ),
        ([Value("clock", "5f2c", "function")], [Value("clock", "81cc", "function")], "clock changed"),
    ],
)
def test_what_is_no_digest_is_told_as_it_was_and_as_it_is(old: list[Value], new: list[Value], reason: str) -> None:
    was = replace(ENTRY, fingerprint=(*ENTRY.fingerprint, *old))
    now = replace(ASKED, fingerprint=tuple(sorted((*ENTRY.fingerprint, *new), key=lambda value: value.name)))

    assert loaded(was).ask(now).lookup.reason == reason


def test_what_is_judged_is_the_lookup_that_was_asked() -> None:
    asked = Lookup(ENTRY.problem, ENTRY.fingerprint, test="a test", label="a label")

    judged = loaded(ENTRY).ask(asked).lookup

    assert judged == replace(asked, outcome=Outcome.HIT, entry=ENTRY)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        (loaded(entry(M=16)), "no entry"),
        (loaded(entry(M=16), of_one_test=True), "no entry; the nearest has M 16 instead of 64"),
        (loaded(entry(M=16), policy=Policy(on_miss=OnMiss.ERROR)), "no entry; the nearest has M 16 instead of 64"),
    ],
)
def test_the_nearest_entry_is_looked_for_at_once_only_where_nobody_does_it_later(source: Loaded, reason: str) -> None:
    asked = Lookup(entry(M=64).problem, ENTRY.fingerprint)

    assert source.ask(asked).lookup.reason == reason


def test_what_another_worker_chose_comes_with_its_outcome_and_this_process_test() -> None:
    theirs = Lookup(ENTRY.problem, ENTRY.fingerprint, Outcome.MISS, "no entry", "test_b.py::b", entry=ENTRY, tuned=True)
    source = OtherWorker(lambda: Claim(theirs.event), always)

    answer = source.ask(ASKED)

    assert (answer.entry, answer.lookup.outcome, answer.lookup.test) == (ENTRY, Outcome.MISS, ASKED.test)
    assert (answer.lookup.shared, answer.lookup.tuned) == (True, False)
    assert source.rejected(ASKED, "does not compile") == ASKED


def test_a_worker_that_does_not_finish_disturbs_the_measurement() -> None:
    source = OtherWorker(lambda: Claim(timed_out=True), always)

    assert source.ask(ASKED).lookup.disturbed


def test_the_rule_for_errors_is_one_table() -> None:
    missed = {Outcome.MISS, Outcome.MISMATCH, Outcome.STALE, Outcome.UNCACHEABLE}
    for on_miss, on_stale in itertools.product(OnMiss, OnStale):
        errors = {
            outcome for outcome in (None, *Outcome) if Policy(on_miss=on_miss, on_stale=on_stale).is_error(outcome)
        }
        if on_miss is OnMiss.ERROR:
            assert errors == missed
        else:
            assert errors == ({Outcome.STALE} if on_stale is OnStale.ERROR else set())
