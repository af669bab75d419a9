"""The session: lookups and tunings of adapters, and their outcomes."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, NoReturn

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Digest, Entry, Identity, Problem, Value
from pytest_autotune.run.lookup import Lookup, Outcome, TunedEntry
from pytest_autotune.run.session import Session
from pytest_autotune.workers.coordinator import Claim, Coordinator
from pytest_autotune.workers.locks import Locks
from tests import sessions
from tests.sessions import AnyChoice

GPU = Device("GPU", "arch", 1)
FAST = Candidate(params=(Value("BLOCK", 16),), time_us=1.0)
SLOW = Candidate(params=(Value("BLOCK", 32),), time_us=2.0)


class Refused(BaseException):
    pass


def refuse(message: str) -> NoReturn:
    raise Refused(message)


def problem(kernel: str = "k", device: Device = GPU, **key: Any) -> Problem:
    return Problem("toy", kernel, tuple(Value(name, value) for name, value in key.items()), device)


a_session = partial(sessions.a_session, refuse=refuse)


def open_tuning(session: Session, asked: Problem | None = None, source: str = "s", **options: Any) -> Any:
    question = AnyChoice(asked or problem(), [Value("source", source)])
    question.offers = options.pop("offered", question.offers)  # type: ignore[method-assign]
    return session.tuning(question)


def tune(session: Session, asked: Problem | None = None, **options: Any) -> Entry:
    with open_tuning(session, asked, **options) as tuning:
        return tuning.entry or tuning.record(FAST, [FAST, SLOW])


def test_a_tuning_that_raises_is_neither_recorded_nor_a_miss() -> None:
    session, lookups = a_session(())

    with pytest.raises(ZeroDivisionError), open_tuning(session):
        1 / 0  # noqa: B018

    [lookup] = lookups
    assert (lookup.outcome, lookup.is_tuned, lookup.entry) == (None, False, None)
    assert lookup.unrecorded_reason == "ZeroDivisionError: division by zero"


def test_an_entry_that_the_adapter_rejects_is_stale() -> None:
    recorded, _ = a_session()
    session, lookups = a_session((tune(recorded),))

    with open_tuning(session) as tuning:
        assert tuning.entry is not None
        tuning.reject("the choice does not compile")
        assert tuning.entry is None
        tuning.record(SLOW)

    assert lookups[0].outcome is Outcome.STALE
    assert lookups[0].reason == "the choice does not compile"
    assert lookups[0].entry.choice == SLOW


def test_an_adapter_must_reject_an_entry_to_get_the_next_one() -> None:
    """Without the check, an adapter that forgets the rejection would get the same entry for ever."""
    recorded, _ = a_session()
    session, _ = a_session((tune(recorded),))

    with open_tuning(session) as tuning:
        offered = tuning.offered_entries()
        next(offered)
        with pytest.raises(RuntimeError, match="did not say whether it used the entry"):
            next(offered)


def test_option_on_stale_error_fails_a_test_on_a_rejected_entry() -> None:
    recorded, _ = a_session()
    session, lookups = a_session((tune(recorded),), on_stale="error")

    with pytest.raises(Refused, match="STALE toy:k: broken"), open_tuning(session) as tuning:
        tuning.reject("broken")

    assert [lookup.outcome for lookup in lookups] == [Outcome.STALE]


def test_the_reason_of_a_miss_names_the_nearest_entry() -> None:
    recorded, _ = a_session()
    entries = (tune(recorded, problem(M=16)),)
    session, lookups = a_session(entries, on_miss="error")

    with pytest.raises(Refused, match="the nearest entry has M 16 instead of 64"), open_tuning(session, problem(M=64)):
        pytest.fail("the tuner was asked")

    session, lookups = a_session(())
    with session.isolated():
        session.add_cache(EntryIndex.from_caches([Cache(entries)]))
        tune(session, problem(M=64))
    assert lookups[0].reason == "no entry; the nearest entry has M 16 instead of 64"


def fail(session: Session, *reasons: str) -> None:
    with open_tuning(session) as tuning:
        assert tuning.entry is None
        tuning.record_failure(reasons)


def test_saved_error_texts_are_cut_and_hide_addresses_and_paths() -> None:
    entries = []
    for reasons in (
        ["no\x1b 0x7ffe12", "in /tmp/a/tmpk3_x9q2.ptx: bad"],
        ["in /home/b/tmpzz8_q11.ptx: bad", "no 0x1", "no 0x2"],
    ):
        session, lookups = a_session()
        fail(session, *reasons)
        entries.append(lookups[0].entry)
        assert lookups[0].is_tuned

    assert entries[0].candidates == entries[1].candidates
    assert [failed_candidate.failed for failed_candidate in entries[0].candidates] == ["in tmp....ptx: bad", "no 0x..."]
    session, lookups = a_session()
    fail(session, *[letter * 300 for letter in "mnopqrstu"])
    assert [len(failed_candidate.failed) for failed_candidate in lookups[0].entry.candidates] == [200] * 5


@pytest.mark.parametrize("label", ["", "words of the search"])
def test_an_entry_has_the_label_of_its_search_or_of_its_question(label: str) -> None:
    session, _ = a_session()
    question = AnyChoice(problem())
    question.label = "words of the question"

    with session.tuning(question) as tuning:
        entry = tuning.record(FAST, label=label)

    assert entry.label == (label or "words of the question")


def test_only_a_search_without_a_usable_candidate_has_failed() -> None:
    session, lookups = a_session()

    tune(session)
    with open_tuning(session, problem(n=2)) as tuning:
        tuning.record_failure(["too large"])

    assert [lookup.has_failed for lookup in lookups] == [False, True]
    # Also in the process that reads the lookup from a log.
    assert [Lookup.from_event(lookup.to_event()) for lookup in lookups] == lookups


def test_a_loaded_entry_whose_candidates_all_failed_is_a_hit() -> None:
    recorded, first = a_session()
    fail(recorded, "too large")
    claims = Claims()
    session, lookups = a_session((first[0].entry,), claims, on_miss="error")

    fail(session, "another reason")
    with pytest.raises(ZeroDivisionError), open_tuning(session):
        1 / 0  # noqa: B018

    assert {(lookup.outcome, lookup.is_tuned, lookup.entry) for lookup in lookups} == {
        (Outcome.HIT, False, first[0].entry)
    }
    assert claims.waits == []


@pytest.mark.parametrize("policy", [{"on_stale": "error"}, {"on_miss": "error"}])
def test_an_entry_of_failed_candidates_is_stale_if_one_works_now(policy: dict[str, str]) -> None:
    recorded, first = a_session()
    fail(recorded, "too large")
    session, lookups = a_session((first[0].entry,), **policy)

    with pytest.raises(Refused, match="STALE toy:k: every candidate failed when this entry was tuned"):
        tune(session)

    assert [(lookup.outcome, lookup.entry.choice) for lookup in lookups] == [(Outcome.STALE, FAST)]


def test_the_reason_of_a_stale_entry_names_only_what_changed() -> None:
    def ask(version: int) -> Lookup:
        session, lookups = a_session((entry,))
        with session.tuning(AnyChoice(problem(), [Value("source", "b", "digest"), Value("version", version)])):
            pass
        return lookups[0]

    before = (Value("source", "a", "digest"), Value("version", 1))
    entry = Entry(problem(), before, FAST)

    assert ask(version=1).changed == ("source",)
    changed_twice = ask(version=2)
    assert changed_twice.changed == ("source", "version")
    assert "version: 1 -> 2" in changed_twice.reason


def test_a_stale_problems_reason_names_the_most_similar_entry() -> None:
    """A factory made kernels of ``relu`` and ``square``, and both were edited."""

    def of(source: str, choice: Candidate, *parts: str) -> Entry:
        return Entry(problem(), (Value("source", source, "digest"),), choice, digests=(Digest(source, parts),))

    now = of("c", FAST, "kernel 2", "square 2")
    entries = (of("a", FAST, "kernel 1", "relu 1"), of("b", SLOW, "kernel 1", "square 1"))
    session, lookups = a_session(entries, on_stale="use")
    with session.tuning(AnyChoice(problem(), now.fingerprint, now.digests)) as tuning:
        assert tuning.entry.choice == SLOW

    assert lookups[0].changed == ("source",)
    assert "(kernel, square)" in lookups[0].reason


def test_all_problems_that_8_threads_tune_at_once_are_recorded() -> None:
    session, lookups = a_session()
    barrier = threading.Barrier(8)

    def ask(number: int) -> None:
        barrier.wait()
        tune(session, problem(M=number % 4))

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)

    assert {lookup.problem for lookup in lookups} == {problem(M=number) for number in range(4)}


class Claims:
    """A coordination that notes who may wait."""

    def __init__(self) -> None:
        self.waits: list[bool] = []

    @contextmanager
    def claim(self, name: str, helper: Any) -> Iterator[Claim]:
        self.waits.append(helper is not None)
        yield Claim()

    @contextmanager
    def measuring(self, on: str = "") -> Iterator[bool]:
        yield True


def test_a_tuning_inside_a_tuning_never_waits_for_other_workers() -> None:
    claims = Claims()
    session, _ = a_session(coordination=claims)

    with open_tuning(session, problem(M=1)) as outer:
        tune(session, problem(M=2))
        outer.record(FAST)
    tune(session, problem(M=3))

    assert claims.waits == [True, False, True]


def test_an_observed_hit_is_attributed_to_the_current_test() -> None:
    session, lookups = a_session()
    session.current_test = "test_a.py::test_a"

    session.report_observed(Lookup(Identity(problem(), ()), outcome=Outcome.HIT))

    assert [(lookup.outcome, lookup.test) for lookup in lookups] == [(Outcome.HIT, "test_a.py::test_a")]


@pytest.mark.parametrize(
    ("policy", "outcome"),
    [
        ({"on_miss": "error"}, Outcome.MISS),
        ({"on_miss": "error"}, Outcome.MISMATCH),
        ({"on_stale": "error"}, Outcome.STALE),
    ],
)
def test_a_hit_reported_with_a_failing_miss_is_still_recorded(policy: dict[str, str], outcome: Outcome) -> None:
    session, lookups = a_session((), **policy)

    hit = Lookup(Identity(problem("other"), ()), outcome=Outcome.HIT)
    with pytest.raises(Refused, match=f"autotune: {outcome.value.upper()} toy:k: gone"):
        session.report_observed(Lookup(Identity(problem(), ()), outcome=outcome, reason="gone"), hit)

    assert [lookup.outcome for lookup in lookups] == [outcome, Outcome.HIT]


def test_without_a_cache_option_on_miss_error_allows_tunings() -> None:
    session, lookups = a_session(None, on_miss="error")

    session.report_observed(Lookup(Identity(problem(), ()), result=TunedEntry(an_entry("k"))))

    assert len(lookups) == 1


def test_measuring_outside_a_tuning_locks_the_named_gpu() -> None:
    processors = []

    class Held(Coordinator):
        @contextmanager
        def measuring(self, on: str = "") -> Iterator[bool]:
            processors.append(on)
            yield True

    session, _ = a_session(None, Held(Locks(1.0)))

    with session.measuring("GPU-a") as undisturbed:
        assert undisturbed
    assert processors == ["GPU-a"]


def test_the_tuning_time_omits_the_wait_for_the_gpu_lock() -> None:
    class Busy(Claims):
        @contextmanager
        def measuring(self, on: str = "") -> Iterator[bool]:
            threading.Event().wait(0.3)
            yield False

    session, lookups = a_session(coordination=Busy())
    with open_tuning(session) as tuning:
        with tuning.measuring():
            pass
        entry = tuning.record(FAST)

    assert entry.tuning_seconds < 0.25
    assert lookups[0].is_disturbed


def test_an_error_of_releasing_a_lock_leaves_the_tuning_alone() -> None:
    class Broken(Claims):
        @contextmanager
        def measuring(self, processor: str = "") -> Iterator[bool]:
            try:
                yield True
            finally:
                raise OSError("the lock cannot be released")

    session, lookups = a_session(coordination=Broken())
    with open_tuning(session) as tuning:
        with tuning.measuring():
            pass
        with pytest.raises(ZeroDivisionError), tuning.measuring():
            1 / 0  # noqa: B018
        tuning.record(FAST)

    assert lookups[0].is_tuned
    [note] = session.notes
    assert note.endswith("the lock cannot be released")


def test_a_tuning_without_times_is_not_marked_as_sharing_the_gpu() -> None:
    session, lookups = a_session()
    with open_tuning(session) as tuning:
        tuning.record(FAST)

    assert not lookups[0].is_disturbed


def test_the_tuning_time_omits_tunings_inside_the_tuning() -> None:
    session, _ = a_session()
    with open_tuning(session, problem("outer")) as outer:
        with open_tuning(session, problem("inner")) as inner:
            threading.Event().wait(0.3)
            assert inner.record(FAST).tuning_seconds >= 0.3
        entry = outer.record(FAST)

    assert entry.tuning_seconds < 0.25


def after_a_move(*entries: Entry) -> list[Lookup]:
    session, lookups = a_session(entries)
    with open_tuning(session, problem("new")) as tuning:
        if tuning.entry is None:
            tuning.record(FAST)
    return lookups


def an_entry(kernel: str, choice: Candidate = FAST, source: str = "s", device: Device = GPU) -> Entry:
    return Entry(problem(kernel, device), (Value("source", source),), choice)


@pytest.mark.parametrize(
    "others",
    [
        [an_entry("old", source="other")],
        [an_entry("old", device=Device("Other", "arch"))],
    ],
)
def test_a_renamed_kernel_is_a_miss_without_an_entry_of_its_source(others) -> None:
    assert [(lookup.outcome, lookup.is_tuned) for lookup in after_a_move(*others)] == [(Outcome.MISS, True)]


def test_a_renamed_kernel_uses_the_entry_under_its_old_name() -> None:
    """Of several entries the first by name counts."""
    (lookup,) = after_a_move(an_entry("older", SLOW), an_entry("old"))
    assert lookup.outcome is Outcome.HIT
    assert lookup.entry == an_entry("old")
    assert lookup.reason == "used the entry of old, which has the same source"


def test_a_renamed_kernel_with_an_entry_for_other_code_uses_the_old_name() -> None:
    """Kernels of one factory share a name. An update may have added the new name for one of them only."""
    (lookup,) = after_a_move(an_entry("new", source="of another kernel"), an_entry("old"))
    assert (lookup.outcome, lookup.entry) == (Outcome.HIT, an_entry("old"))


def test_a_copied_kernel_is_a_hit_before_and_after_the_original() -> None:
    session, lookups = a_session((an_entry("old"),))

    for kernel in ("copy", "old", "later copy"):
        with open_tuning(session, problem(kernel)) as tuning:
            assert tuning.entry == an_entry("old")

    assert [lookup.outcome for lookup in lookups] == [Outcome.HIT] * 3
