"""Whose turn it is to be raced again, and what a race of a loaded choice finds on a device that is made up."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Cache, Candidate, Device, Entry, Identity, Problem, Value
from pytest_autotune.modes.verify import ALL_PROBLEMS, TIME_OVER, Verify, build_verdict_event, list_verdicts, parse
from pytest_autotune.modes.verify_race import Verdict
from pytest_autotune.report.gate import Limit
from pytest_autotune.report.verdict import build_verdict
from pytest_autotune.run.lookup import Lookup, Outcome, Policy
from pytest_autotune.run.request import FileDump
from pytest_autotune.run.result import Gate
from pytest_autotune.run.rows import ProblemRow
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Event, Log
from pytest_autotune.workers.locks import Locks
from tests.results import result
from tests.sessions import AnyChoice
from tests.test_race import Gpu

GPU = Device("GPU", "arch", 1)
PROBLEMS = [Problem("toy", "k", (Value("M", m),), GPU) for m in range(300)]


# Whose turn it is


def test_seven_verify_parts_together_cover_each_problem_once() -> None:
    parts = [
        {problem for problem in PROBLEMS if Verify(parse(f"{part}/7"), 100.0).has_turn(problem)} for part in range(1, 8)
    ]

    assert sum(map(len, parts)) == len(set().union(*parts)) == len(PROBLEMS)
    assert all(20 < len(part) < 70 for part in parts)
    assert all(Verify(parse("all"), 100.0).has_turn(problem) for problem in PROBLEMS)


@pytest.mark.parametrize("text", ["", "10%", "0/7", "8/7", "1/0", "7", "some", "-1/7"])
def test_an_invalid_value_of_option_verify_raises_a_value_error(text: str) -> None:
    with pytest.raises(ValueError, match="expected all, or a part such as 2/7, not"):
        parse(text)


# The race


def candidate(number: int) -> Candidate:
    return Candidate(params=(Value("BLOCK", number),))


def race_choice(
    gpu: Gpu,
    times_us: Sequence[float],
    choice: int = 0,
    kept_candidates: Sequence[Candidate] = (),
    **contest: Any,
) -> Any:
    """The verdict on a hit with this choice, where candidates take so long now; None where it is not raced."""
    entry = Entry(PROBLEMS[0], (), candidate(choice), tuple(kept_candidates))
    log = Log(None, "main")
    index = EntryIndex.from_caches([Cache((entry,))])
    mode = Verify(ALL_PROBLEMS, 100.0)
    session = Session(Policy(), index, Coordinator(Locks(1.0)), pytest.fail, log=log, modes=(mode,))

    def ready(some: Sequence[Candidate]) -> dict[Candidate, Runner]:
        numbers = {runnable: runnable.params[0].value for runnable in some}
        return {runnable: Runner(lambda number=number: times_us[number]) for runnable, number in numbers.items()}  # type: ignore

    with session.tuning(AnyChoice(PROBLEMS[0])) as tuning:
        candidates = [candidate(number) for number in range(len(times_us))]
        options = {"ready": ready, **contest}
        tuning.race(lambda: Contest(candidates, make_clock=lambda: gpu, **options))  # type: ignore[arg-type]
        assert tuning.entry == entry
    assert [lookup.outcome for lookup in session.lookups] == [Outcome.HIT]
    verdicts = [verdict for _, verdict in list_verdicts(Event.decode(line) for line in log.lines)]
    assert len(verdicts) <= 1
    return verdicts[0] if verdicts else None


def test_a_slower_choice_gets_a_loss_the_noise_and_a_new_entry() -> None:
    """The verdict has the loss, the error of the measurement and an entry with the faster choice and all candidates."""
    verdict = race_choice(Gpu(), [41.2, 36.8, 50.0, 80.0])

    assert verdict.slower == pytest.approx(41.2 / 36.8 - 1, abs=0.01)
    assert 0 < verdict.error_us < 0.5
    assert str(verdict).startswith("the choice takes 41.")
    assert verdict.entry is not None
    assert verdict.entry.choice == Candidate(params=(Value("BLOCK", 1),), time_us=verdict.faster_us)
    assert len(verdict.entry.candidates) == verdict.raced == 4


def test_a_choice_that_is_five_percent_slower_is_reported() -> None:
    """At least 38 of 40 races find a loss of 5 %. At most one calls a loss of 2 % slower."""
    slower_count = {}
    for loss in (0.0, 0.02, 0.05, 0.10):
        slower_count[loss] = 0
        for seed in range(40):
            chance = random.Random(seed)
            best = chance.uniform(4, 60)
            rivals = [best * chance.uniform(1.0, 1.5) for _ in range(8)]
            verdict = race_choice(Gpu(noise=0.02, seed=seed), [best * (1 + loss), best, *rivals])
            slower_count[loss] += verdict.is_slower
    assert slower_count[0.0] == 0
    assert slower_count[0.02] <= 1
    assert slower_count[0.05] >= 38
    assert slower_count[0.10] == 40


def test_a_choice_that_is_still_fastest_is_verified_quickly() -> None:
    gpu = Gpu()

    verdict = race_choice(gpu, [20.0, *[21.0 + number for number in range(15)]])

    assert verdict == Verdict(raced=16, seconds=verdict.seconds, device_seconds=verdict.device_seconds)  # type: ignore
    assert gpu.now_s < 0.1


def test_a_choice_that_was_slower_only_once_is_not_reported() -> None:
    """Another process slows the choice during the first race only. The choice is not called slower."""
    gpu = Gpu()

    # Another process takes the GPU whenever the choice has its turn, while the first race lasts.

    def ready(some: Sequence[Candidate]) -> dict[Candidate, Runner]:
        def run(number: int) -> float:
            return 40.0 if number or gpu.now_s > 0.004 else 48.0

        return {runnable: Runner(lambda number=runnable.params[0].value: run(number)) for runnable in some}  # type: ignore

    verdict = race_choice(gpu, [40.0, 40.0], ready=ready)

    assert not verdict.is_slower


@pytest.mark.parametrize(
    ("contest", "reason"),
    [
        ({"ready": lambda some: {}}, "the choice cannot be launched"),
        ({"ready": lambda some: {some[0]: Runner(lambda: 5.0)}}, "no candidate except the choice can be launched"),
        ({"ready": lambda some: 1 / 0}, "ZeroDivisionError: division by zero"),
        ({"choice": 7}, "the choice has no other candidate to race against"),
    ],
    ids=["nothing can be launched", "only the choice can be launched", "an error before the race", "no rival"],
)
def test_a_choice_that_cannot_be_measured_gets_a_reason(contest: Any, reason: str) -> None:
    """The race raises no error, and the choice is not called slower."""
    verdict = race_choice(Gpu(), [5.0, 6.0], **contest)

    assert verdict.not_raced == reason
    assert not verdict.is_slower


def test_a_failing_candidate_is_left_out_unless_it_is_the_choice() -> None:
    """If the choice itself fails, the verdict has the error and there is no race."""

    class OutOfResources(Exception):
        pass

    def failing(number: int) -> Any:
        def ready(some: Sequence[Candidate]) -> dict[Candidate, Runner]:
            def run(own: int) -> float:
                if own == number:
                    raise OutOfResources("shared memory")
                return 5.0

            return {runnable: Runner(lambda own=runnable.params[0].value: run(own)) for runnable in some}  # type: ignore

        return ready

    other = race_choice(Gpu(), [5.0, 1.0, 5.0], ready=failing(1), expected=(OutOfResources,))
    own = race_choice(Gpu(), [5.0, 5.0], ready=failing(0), expected=(OutOfResources,))

    assert (other.not_raced, other.is_slower) == ("", False)
    assert own.not_raced == "OutOfResources: shared memory"


def test_if_all_other_candidates_fail_the_choice_is_not_compared() -> None:
    """All rivals fail in their launch, so the choice does not count as raced."""

    class OutOfResources(Exception):
        pass

    def ready(some: Sequence[Candidate]) -> dict[Candidate, Runner]:
        def run(block: Any) -> float:
            if block:
                raise OutOfResources("shared memory")
            return 5.0

        return {runnable: Runner(lambda block=runnable.params[0].value: run(block)) for runnable in some}  # type: ignore

    verdict = race_choice(Gpu(), [5.0, 1.0, 1.0], ready=ready, expected=(OutOfResources,))

    assert verdict.not_raced == "no candidate except the choice can be launched"


def test_on_a_cpu_12_percent_slower_is_reported_and_7_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU is noisier than a GPU. A loss of 7 % is within its noise, a loss of 12 % is not."""
    monkeypatch.setattr("tests.test_verify.PROBLEMS", [Problem("toy", "k", (), Device("CPU", "avx2", 8))])

    seven, twelve = (race_choice(Gpu(), [40.0 * factor, 40.0]) for factor in (1.07, 1.12))

    assert not seven.is_slower
    assert twelve.is_slower


@pytest.mark.parametrize(
    "damage",
    [
        {"slower": "0.1"},
        {"slower": True},
        {"seconds": None},
        {"seconds": float("nan")},
        {"raced": -1},
        {"not_raced": 1.0},
        {"unknown": 1},
    ],
)
def test_a_run_skips_a_damaged_result_and_the_gate_rejects_it(damage: dict[str, Any]) -> None:
    """A run leaves it out. The gate over many processes reports it."""
    event = build_verdict_event(Verdict(raced=2, seconds=1.0), Lookup(Identity(PROBLEMS[0], ())))
    damaged = replace(event, data={**event.data, **damage})

    assert [report.event for report in list_verdicts([event, damaged])] == [event]
    with pytest.raises(ValueError, match="a verdict"):
        Verify(ALL_PROBLEMS, 1.0).check_events([event, damaged])


# The gate


def test_if_the_time_runs_out_the_gate_names_the_option_to_raise() -> None:
    """The failure names the setting to raise, although another choice had another reason."""
    rows = tuple(ProblemRow(problem, Outcome.HIT) for problem in PROBLEMS[:2])
    lookups = [Lookup(Identity(row.problem, ())) for row in rows]
    verdicts = (Verdict("the choice cannot be launched"), Verdict(TIME_OVER))
    events = tuple(build_verdict_event(verdict, lookup) for verdict, lookup in zip(verdicts, lookups, strict=True))

    section = Verify(ALL_PROBLEMS, 1.0, Limit.parse("0")).build_section(
        result(loaded=(("c", 2),), rows=rows, mode_events=events)
    )

    assert section.gate is not None
    assert section.gate.failure == f"none of 1 choice was raced: {TIME_OVER}"


NO_HIT = "1 entry was loaded, but none fits this run, so no choice was raced (run --autotune-update)"
NOT_RACED = "the speed of the autotune choices was not checked: no choice was raced"


@pytest.mark.parametrize(
    ("changes", "failure", "skip_reason"),
    [
        ({}, NO_HIT, ""),
        ({"incomplete_reason": "t.py::t was skipped", "is_only_skipped": True}, NO_HIT, ""),
        ({"incomplete_reason": "-k selects tests", "chosen_tests": "-k selects tests"}, "", NOT_RACED),
        ({"plan": FileDump(is_update=True)}, "", NOT_RACED),
        ({"no_part_reason": "no GPU is visible"}, "", NOT_RACED),
        ({"loaded": ()}, "", NOT_RACED),
    ],
)
def test_the_gate_on_slower_choices_fails_a_run_without_a_hit(
    changes: dict[str, Any], failure: str, skip_reason: str
) -> None:
    """The gate fails if the whole suite ran, as the gate on misses does if no test looked up an entry.

    A part of the suite may lack hits, and an update replaces the choices that do not fit.
    """
    missed = result(loaded=(("c", 1),), rows=(ProblemRow(PROBLEMS[0], Outcome.MISS),))

    section = Verify(ALL_PROBLEMS, 1.0, Limit.parse("0")).build_section(result(missed, **changes))

    assert section.gate is not None
    assert (section.gate.failure, section.gate.skip_reason) == (failure, skip_reason)


def test_a_report_does_not_say_passed_if_no_choice_was_compared() -> None:
    """The gate on misses has passed, and no choice was raced for the limit on drift."""
    hit = result(loaded=(("c", 1),), rows=(ProblemRow(PROBLEMS[0], Outcome.HIT),), gate=Gate(limit="0"))
    section = Verify(ALL_PROBLEMS, 1.0, Limit.parse("0")).build_section(hit)

    verdict = build_verdict(replace(hit, sections=(section,)))

    assert (verdict.state, verdict.reason) == ("unjudged", NOT_RACED)


def test_a_run_counts_hits_that_their_tuner_cannot_measure_again() -> None:
    entry = Entry(PROBLEMS[0], (), candidate(0))

    section = Verify(ALL_PROBLEMS, 1.0).build_section(
        result(loaded=(("c", 1),), rows=(ProblemRow(PROBLEMS[0], Outcome.HIT, entry=entry),))
    )

    assert section.lines == (
        "verify all: 0 choices raced",
        "1 choice of toy not raced: this tuner does not support races",
    )
