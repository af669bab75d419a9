"""A loaded choice is raced against the other candidates: is it still the fastest?

It is a tuning in which the choice holds the ties: another candidate has to be faster by a share that counts
(:data:`pytest_autotune.run.verify.WORTH`), and by more than three standard errors where these two race once more.
What is compared was measured in one race.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice

from pytest_autotune.cache.model import Candidate, Entry, significant
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.run.verify import Verdict, worth_of
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.launching import Result
from pytest_autotune.tuners.measuring.race import Limits, Race
from pytest_autotune.tuners.measuring.times import Comparison
from pytest_autotune.tuners.shared.candidates import error_line, rounded_us

#: What one race may cost. Long kernels differ less from launch to launch.
LIMITS = Limits(each_us=50_000.0, all_us=300_000.0)
#: So many candidates are made ready before it is asked again whether there is time.
AT_A_TIME = 16
#: Nothing can be measured then.
CAPTURED = Verdict("a CUDA graph was captured")
DISTURBED = "something else may have run on the device"


@dataclass(frozen=True)
class Raced:
    """What both races came to.

    :param winner: the number of the candidate that beats the choice; None where the choice is as good as any.
    :param results: of all in the first race.
    :param slower: how the choice compares with the winner, in the second race.
    :param best_us: the time of the winner there, in microseconds.
    """

    winner: int | None
    results: Sequence[Result]
    disturbed: bool
    slower: Comparison | None = None
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
        except Exception as error:  # a candidate's own, which must not fail a test that does not launch it
            verdict = Verdict(error_line(error))
        tuning.verified(replace(verdict, seconds=significant(time.perf_counter() - started)))


def slower(verdict: Verdict, found: Comparison, best_us: float, entry: Entry) -> Verdict:
    """The verdict on a choice that another candidate beats.

    :param verdict: what is known of the race already.
    :param best_us: the time of the one that beats it, in microseconds.
    :param entry: what a dump keeps instead.
    """
    return replace(
        verdict,
        slower=significant(found.slower),
        choice_us=rounded_us(best_us * (1 + found.slower)),
        best_us=rounded_us(best_us),
        error_us=significant(2 * found.error * best_us, 2),
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
        return replace(verdict, reason=DISTURBED)
    if raced.winner is None or raced.slower is None:
        return verdict
    timed = [_timed(candidate, result) for candidate, result in zip(racing, raced.results, strict=True)]
    best = timed[raced.winner] = replace(racing[raced.winner], time_us=rounded_us(raced.best_us))
    problem, fingerprint = tuning.lookup.identity
    # What the old choice was compiled for says nothing of this one.
    new = replace(entry, problem=problem, fingerprint=fingerprint, choice=best, candidates=tuple(timed), compiled=())
    return slower(verdict, raced.slower, raced.best_us, replace(new, versions=tuning.versions))


def _timed(candidate: Candidate, result: Result) -> Candidate:
    if result.measured is not None:
        return replace(candidate, time_us=rounded_us(result.time_us))
    return replace(candidate, failed=error_line(result.failed) if result.failed is not None else "failed")


def _is_choice(candidate: Candidate, entry: Entry) -> bool:
    return entry.choice is not None and candidate.same_configuration(entry.choice)


def _likeliest_first(contest: Contest, entry: Entry) -> list[Candidate]:
    """The choice, then those that the file has the lowest times of, then the others in their order."""
    kept = {(one.id, one.params): one.time_us for one in entry.candidates if one.time_us is not None}

    def place(candidate: Candidate) -> tuple[bool, float]:
        return not _is_choice(candidate, entry), kept.get((candidate.id, candidate.params), math.inf)

    return sorted(dict.fromkeys(contest.candidates), key=place)


def races(clock: Clock, runners: Sequence[Runner], worth: float, expected: tuple[type[BaseException], ...]) -> Raced:
    """Race a choice, which is the first of the runners, against the others; and again against the one that beats it.

    :raises Exception: what the choice failed with.
    """
    race = Race(clock, LIMITS, expected, worth=worth)
    race.probe(runners)
    results = race.finish()
    if (failed := results[0].failed) is not None:
        raise failed
    if race.choice == 0:
        return Raced(None, results, race.disturbed)
    again = Race(clock, LIMITS, expected, seed=1, worth=worth)
    again.probe([runners[0], runners[race.choice]])
    _, best = again.finish()
    disturbed = race.disturbed or again.disturbed
    found = again.compared(0, 1)
    if found is None or not found.is_slower(worth):
        return Raced(None, results, disturbed)
    return Raced(race.choice, results, disturbed, found, best.time_us)
