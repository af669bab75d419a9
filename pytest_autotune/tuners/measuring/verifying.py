"""A loaded choice is raced against the other candidates: is it still the fastest?

What is compared was measured in one race. A choice is called slower where another candidate is faster by a share that
counts (:data:`pytest_autotune.run.verify.WORTH`), and by more than three standard errors of the difference; and where
a second race, of these two alone, says so too.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from pytest_autotune.cache.model import Candidate, Entry
from pytest_autotune.run.door import Tuning
from pytest_autotune.run.rounding import significant
from pytest_autotune.run.verify import Verdict, worth_of
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.laps import Challenge
from pytest_autotune.tuners.measuring.launching import Result
from pytest_autotune.tuners.measuring.race import Limits, Race
from pytest_autotune.tuners.shared.candidates import error_line, rounded_us

#: What one race may cost. Long kernels differ less from launch to launch.
LIMITS = Limits(each_us=50_000.0, all_us=300_000.0)
#: So many candidates are made ready before it is asked again whether there is time.
AT_A_TIME = 16
#: Nothing can be measured then.
CAPTURED = Verdict("a CUDA graph was captured")


@dataclass(frozen=True)
class Comparison:
    """The outcome of both races.

    :param challenge: None where the choice is as good as any.
    :param results: of all in the first race.
    :param best_us: the time of the one that is faster, in microseconds.
    """

    challenge: Challenge | None
    results: Sequence[Result]
    disturbed: bool
    best_us: float = 0.0


@dataclass(frozen=True)
class Contest:
    """What a tuner brings to the race of a loaded choice.

    :param candidates: all that are on offer now, without times.
    :param ready: makes some of them ready to be launched, without holding the device, and leaves out what cannot be.
    :param make_clock: what times them.
    :param expected: errors that are a candidate's own.
    :param on: names the processor where it is not the current GPU.
    :param spent_s: seconds that were spent before on making candidates ready.
    """

    candidates: Iterable[Candidate]
    ready: Callable[[Sequence[Candidate]], Mapping[Candidate, Runner]]
    make_clock: Callable[[], Clock]
    expected: tuple[type[BaseException], ...] = ()
    on: str = ""
    spent_s: float = 0.0


def verify(tuning: Tuning, contest: Contest) -> None:
    """Race the loaded choice where it is its turn, and report what came of it; what fails is reported, too."""
    report(tuning, partial(_verdict, tuning, contest), contest.spent_s)


def report(tuning: Tuning, race: Callable[[Callable[[], bool]], Verdict], spent_s: float = 0.0) -> None:
    """Have a loaded choice raced where it is its turn, and report what came of it; what fails is reported, too.

    :param race: is called with what says whether the time for it is over.
    :param spent_s: seconds that were spent on it before.
    """
    with tuning.verifying() as is_over:
        if is_over is None:
            return
        started = time.perf_counter() - spent_s
        try:
            verdict = race(is_over)
        except Exception as error:
            verdict = Verdict(error_line(error))
        tuning.verified(replace(verdict, seconds=significant(time.perf_counter() - started)))


def slower(verdict: Verdict, challenge: Challenge, best_us: float, entry: Entry) -> Verdict:
    """The verdict on a choice that another candidate beats.

    :param verdict: what is known of the race already.
    :param best_us: the time of the one that beats it, in microseconds.
    :param entry: what a dump keeps instead.
    """
    return replace(
        verdict,
        slower=significant(challenge.slower),
        choice_us=rounded_us(best_us * (1 + challenge.slower)),
        best_us=rounded_us(best_us),
        error_us=significant(2 * challenge.error * best_us, 2),
        entry=entry,
    )


def _verdict(tuning: Tuning, contest: Contest, is_over: Callable[[], bool]) -> Verdict:
    entry = tuning.entry
    assert entry is not None
    ordered = _likeliest_first(contest, entry)
    if len(ordered) < 2 or not _is_choice(ordered[0], entry):
        return Verdict("there is nothing to race it against")
    runners: dict[Candidate, Runner] = {}
    rest = iter(ordered)
    while batch := list(islice(rest, AT_A_TIME)):
        runners.update(contest.ready(batch))
        if is_over():
            break
    racing = list(runners)
    if ordered[0] not in runners:
        return Verdict("it cannot be launched")
    if len(racing) < 2:
        return Verdict("no other candidate can be launched")
    with tuning.measuring(contest.on):
        began = time.perf_counter()
        worth = worth_of(tuning.lookup.problem.device)
        raced = races(contest.make_clock(), list(runners.values()), worth, contest.expected)
        verdict = Verdict(raced=len(racing), measured_seconds=significant(time.perf_counter() - began))
    if raced.disturbed or tuning.lookup.disturbed:
        return replace(verdict, reason="something else may have run on the device")
    if raced.challenge is None:
        return verdict
    timed = [_timed(candidate, result) for candidate, result in zip(racing, raced.results, strict=True)]
    winner = raced.challenge.winner
    best = timed[winner] = replace(racing[winner], time_us=rounded_us(raced.best_us))
    return slower(verdict, raced.challenge, raced.best_us, _entry(tuning, best, timed))


def _timed(candidate: Candidate, result: Result) -> Candidate:
    if result.measured is not None:
        return replace(candidate, time_us=rounded_us(result.time_us))
    return replace(candidate, failed=error_line(result.failed) if result.failed is not None else "failed")


def _entry(tuning: Tuning, best: Candidate, timed: Sequence[Candidate]) -> Entry:
    """What a dump keeps where another candidate is faster."""
    old = tuning.entry
    assert old is not None
    problem, fingerprint = tuning.lookup.identity
    # What the old choice was compiled for says nothing of this one.
    new = replace(old, problem=problem, fingerprint=fingerprint, choice=best, candidates=tuple(timed), compiled=())
    return replace(new, versions=tuning.versions, raw=b"")


def _is_choice(candidate: Candidate, entry: Entry) -> bool:
    return entry.choice is not None and candidate.same_configuration(entry.choice)


def _likeliest_first(contest: Contest, entry: Entry) -> list[Candidate]:
    """The choice, then those that the file has the lowest times of, then the others in their order."""
    kept = {(one.id, one.params): one.time_us for one in entry.candidates if one.time_us is not None}

    def place(candidate: Candidate) -> tuple[bool, float]:
        return not _is_choice(candidate, entry), kept.get((candidate.id, candidate.params), math.inf)

    return sorted(dict.fromkeys(contest.candidates), key=place)


def races(
    clock: Clock, runners: Sequence[Runner], worth: float, expected: tuple[type[BaseException], ...]
) -> Comparison:
    """Race a choice, which is the first of the runners, against the others; and again against the one that beats it."""
    race = Race(clock, LIMITS, expected)
    race.look(runners)
    first = race.challenge(worth)
    results = race.results
    if first is None or not first.is_slower(worth):
        return Comparison(None, results, race.disturbed)
    again = Race(clock, LIMITS, expected, seed=1)
    again.look([runners[0], runners[first.winner]])
    second = again.challenge(worth)
    if second is None or not second.is_slower(worth):
        return Comparison(None, results, race.disturbed or again.disturbed)
    challenge = replace(second, winner=first.winner)
    return Comparison(challenge, results, race.disturbed or again.disturbed, again.results[1].time_us)
