"""The race: all candidates take turns on the device, in random order, and losers drop out early.

Each candidate is probed with a few launches. The candidates that may win go on to stages of some rounds. In a round,
every candidate is launched once. After each stage the clearly slower candidates drop out. The host waits for the
device once for many launches. A disturbance (kernels of another process, a clock that ramps, a host that stalls) slows
all candidates alike, because they take turns. A stage that disagrees with the stages before it is run again.

A *racer* is a candidate that is launched. Candidates with equal code have one racer. A race may begin with a choice,
the first candidate: it keeps the choice unless another candidate is faster by a threshold. A difference that is too
small to matter is a *tie*. Among tied candidates, the first one is chosen.

The stages were chosen by measuring 61 problems of public suites on an H200, kernels of 4 to 90 us, against 200 to
300 launches of every candidate: the choice was 0.3 % slower than the best on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry
from pytest_autotune.cache.ties import NOISE, NOISE_ON_CPU, TIE, choose_candidate, order_of_preference, tie_on_gpu
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.launching import (
    CandidateResult,
    Defeat,
    Launching,
    Racer,
    RoundTimes,
    mark_errors,
)
from pytest_autotune.tuners.measuring.times import (
    ALLOWANCE,
    SURE,
    VERY_SURE,
    Comparison,
    Disturbed,
    Round,
    Score,
    find_disturbed_rounds,
    list_times_us,
    scores,
)


class StagePlan(NamedTuple):
    """A stage of a race.

    :param rounds: how often it launches each candidate.
    :param margin: a share of the best time. After the stage, candidates drop out that are slower than the best by more
        than this share.
    """

    rounds: int
    margin: float


STAGES = (
    StagePlan(4, 0.30),
    StagePlan(5, 0.15),
    StagePlan(10, 0.08),
    StagePlan(20, 0.04),
    StagePlan(40, 0.02),
    StagePlan(40, 0.0),
)
#: The number of rounds in a stage of a candidate that is timed alone.
ROUNDS_ALONE = 10
#: The number of rounds in each stage that decides ties.
ROUNDS_TO_DECIDE = 40
#: A kernel is quick if it runs for less than so many times the time in which the device is kept busy.
QUICK = 10
#: Each candidate gets two probes. If the host was too slow to prepare them in time, the race repeats both. It makes at
#: most this many attempts.
PROBES = 3
#: A choice is not certain before this many rounds. Over 19 rounds, the sum of three stages, two candidates for which a
#: GPU takes 20.3 and 20.7 us were equal. So 19 rounds are too few. The number 30 was chosen.
LEAST_ROUNDS = 30
#: Fewer rounds are enough if the first candidate has the choice. A rival must then be faster by more than a tie.
LEAST_ROUNDS_WITH_CHOICE = 9
#: The race runs at most this many further stages to decide which candidates are as good as the best.
DECIDING = 20
#: A candidate that is this many times slower than the best is not launched a third time.
HOPELESS = 20.0
#: A candidate that is slower than the best by the factor HOPELESS is launched only once if its first probe took longer
#: than this time. A shorter probe may be slow only because the host stalled.
STALL_US = 10_000.0
#: A candidate stays in the race if its fastest probe takes at most 1.5 times as long as the fastest probe of all.
MAY_WIN = 0.5
#: A race runs disturbed stages again at most this often.
REPEATS = 4
#: The reason for which nothing can be raced while CUDA captures a graph.
CAPTURED = "a CUDA graph was being captured during the call"


@dataclass(frozen=True)
class Limits:
    """The limits of a race. Times are in microseconds.

    :param each_us: the launches of a candidate in the stages take at most this time together.
    :param all_us: the stages take at most this time together. Afterwards, the race launches only candidates that were
        timed less often than ``least``.
    :param least: each candidate that may win is timed this often at least.
    :param most: each candidate is timed this often at most.
    """

    each_us: float = 100_000.0
    all_us: float = 1_000_000.0
    least: int = 3
    most: int = 1000


@dataclass(frozen=True)
class Contest:
    """The candidates that a tuner offers for the race of a loaded choice.

    :param candidates: all candidates on offer, without times.
    :param ready: takes some candidates and returns a runner for each that can be launched. It does not hold the device.
    :param expected: errors that a single candidate may raise.
    :param processor: the name of the processor, empty for the current GPU.
    :param spent_s: the seconds that the tuner spent before on making candidates ready.
    :param context: returns a context manager that is entered for the race.
    """

    candidates: Iterable[Candidate]
    ready: Callable[[Sequence[Candidate]], Mapping[Candidate, Runner]]
    make_clock: Callable[[], Clock]
    expected: tuple[type[BaseException], ...] = ()
    processor: str = ""
    spent_s: float = 0.0
    context: Callable[[], AbstractContextManager[object]] = nullcontext


@dataclass(frozen=True)
class RaceOutcome:
    """The outcome of the race of a loaded choice.

    :param candidate_count: the number of candidates that raced, the choice included.
    :param slower: the choice compared with the candidate that beats it; None if no candidate beats it.
    :param best_us: the time of the candidate that beats the choice, in microseconds.
    :param measured_s: the time for which the device was held, in seconds.
    :param entry: the entry with that candidate in place of the choice.
    """

    candidate_count: int
    disturbed: bool = False
    slower: Comparison | None = None
    best_us: float = 0.0
    measured_s: float = 0.0
    entry: Entry | None = None


#: The race of a tuner that has to race its candidates itself. It is called with a share of the best time: a choice that
#: is slower by this share counts as slower. It returns the outcome, or the reason for which there was no race.
TunerRace = Callable[[float], RaceOutcome | str]


@dataclass(frozen=True)
class Standing:
    """A candidate compared with the best.

    :param slower: the share of the best time by which the candidate is slower.
    :param error: the standard error of ``slower``.
    :param tolerated: the candidate may be slower by this share and is still chosen before the best.
    """

    slower: float
    error: float
    tolerated: float

    @property
    def may_be_chosen(self) -> bool:
        """Whether the candidate is perhaps as good as the best."""
        return self.slower - SURE * self.error <= self.tolerated

    def is_surely_chosen(self, certainty: float) -> bool:
        """Whether the candidate is as good as the best, even if ``slower`` is wrong by so many standard errors."""
        return self.slower + certainty * self.error < self.tolerated


@dataclass(frozen=True)
class Standings:
    """The candidates of a race, compared with the best.

    :param best: the number of the best candidate.
    """

    best: int
    by_number: Mapping[int, Standing]


@dataclass(frozen=True)
class _Deciders:
    """The candidates on which the choice depends.

    :param is_open: whether the race cannot tell yet if each of them is as good as the best.
    """

    racers: list[Racer]
    is_open: bool


@dataclass(frozen=True)
class _ScoreErrors:
    """Tells :func:`choose_candidate` how certain the difference of two candidates is."""

    scores: Mapping[int, Score]

    def error_between(self, number: int, best: int) -> float:
        """Return the share of the best time by which the difference of two candidates may be wrong."""
        return SURE * math.hypot(self.scores[number].error, self.scores[best].error)


def _ignore_progress(racing: int, total: int) -> None:
    pass


class Race:
    """A race between candidates that are compiled and loaded; see :class:`Launching`.

    The user of this class calls :meth:`probe` with the candidates, then :meth:`finish`, and reads :attr:`choice`. A
    candidate is known by its number, which is its position among all candidates that were probed.

    The methods that launch raise a :class:`~pytest_autotune.tuners.shared.candidates.LaunchError` if a kernel raises
    an error that is not expected.

    :param threshold: the first candidate keeps the choice unless another candidate saves this share of its own time:
        0.05 is 5 %. None: no candidate has the choice before the race.
    :param now_s: returns the time in seconds.
    :param progress: called while nothing is timed, with the number of candidates that still race, and the number of all
        candidates.
    """

    def __init__(
        self,
        clock: Clock,
        limits: Limits | None = None,
        expected: tuple[type[BaseException], ...] = (),
        seed: int = 0,
        threshold: float | None = None,
        now_s: Callable[[], float] = HostTime.perf_counter,
        progress: Callable[[int, int], object] = _ignore_progress,
    ) -> None:
        self._limits = limits or Limits()
        self._expected = expected
        self._launching = Launching(clock, expected, seed)
        self._threshold = threshold
        self._now_s = now_s
        self._progress = progress
        self._racers: list[Racer] = []
        #: The racer of each candidate that was probed. Candidates with equal code have the same racer.
        self._racer_by_number: list[Racer] = []
        self._finalists: list[Racer] = []
        self._rounds: list[Round] = []
        self._repeats_left = REPEATS
        #: Whether stages still disagreed after the last repetition.
        self.disturbed = False

    def probe(self, runners: Iterable[Runner]) -> Sequence[CandidateResult]:
        """Launch new candidates a few times, and return their results."""
        first_number = len(self._racer_by_number)
        new_racers = self._enter(runners)
        self._progress(len(new_racers), len(self._racers))
        self._probe_without_busy_device(new_racers)
        self._probe_with_busy_device(new_racers)
        return self.results[first_number:]

    def finish(self) -> Sequence[CandidateResult]:
        """Race the candidates that may win. Return the result of every candidate, in the order of the probes.

        The race has three parts: stages in which losers drop out, stages that decide ties, and launches for candidates
        that were timed less often than the limits require.
        """
        began_s = self._now_s()
        racers = self._select_possible_winners()
        racers = self._drop_losers(racers, began_s)
        racers = self._decide_ties(racers, began_s)
        self._finalists = self._launch_least(racers)
        return self.results

    def alone(self, runner: Runner) -> CandidateResult:
        """Time a single candidate, within the limits."""
        self.probe([runner])
        racer = self._racers[0]
        while racer.failed is None:
            count = self._count_rounds([racer], ROUNDS_ALONE, is_over=False)
            if not count:
                break
            self._run_stage([racer], count)
        return racer.result

    @property
    def results(self) -> Sequence[CandidateResult]:
        """The result of every candidate so far, in the order of the probes."""
        results = []
        for number, racer in enumerate(self._racer_by_number):
            result = racer.result
            if racer.number != number:
                # An earlier candidate with equal code was launched in place of this one.
                result = replace(result, same_as=racer.number)
            results.append(result)
        return results

    @property
    def choice(self) -> int:
        """The number of the candidate to choose.

        - After a search, this is the first candidate that is as good as the best: the race cannot tell the two apart.
        - A race with a threshold checks a choice that was made before: the candidate with the number 0. It keeps the
          choice, unless the best candidate is faster by the threshold.

        :raises LookupError: if every candidate failed.
        """
        if not self._finalists:
            raise LookupError("every candidate failed")
        finalist_scores = scores(self._rounds, _list_numbers(self._finalists))
        adjusted_us = {number: score.adjusted_us for number, score in finalist_scores.items()}
        errors = _ScoreErrors(finalist_scores)
        tie = self._tie(self._finalists)
        if self._threshold is not None:
            return choose_candidate(adjusted_us, self._threshold - ALLOWANCE, kept=0, errors=errors, tie=tie)
        noise = NOISE_ON_CPU
        if self._launching.can_keep_busy:
            noise = NOISE
        return choose_candidate(adjusted_us, noise, errors=errors, tie=tie)

    def compare(self, number: int, rival: int) -> Comparison | None:
        """Compare two candidates by the rounds that timed both; None if there is no such round."""
        racer, rival_racer = self._racer_by_number[number], self._racer_by_number[rival]
        return Comparison.from_rounds(self._rounds, racer.number, rival_racer.number)

    # The probes.

    def _enter(self, runners: Iterable[Runner]) -> list[Racer]:
        """Add candidates, and return a racer for each whose code no earlier candidate runs."""
        earlier_count = len(self._racers)
        for runner in runners:
            racer = self._find_racer_with_code(runner)
            if racer is None:
                number = len(self._racer_by_number)
                racer = Racer(number, mark_errors(runner, self._expected))
                self._racers.append(racer)
            self._racer_by_number.append(racer)
        return self._racers[earlier_count:]

    def _find_racer_with_code(self, runner: Runner) -> Racer | None:
        """Return the racer with the same code; None if the code is new or unknown."""
        if runner.code is None:
            return None
        for racer in self._racers:
            if racer.runner.code == runner.code:
                return racer
        return None

    def _probe_without_busy_device(self, racers: Sequence[Racer]) -> None:
        """Probe the racers twice, to learn how long the host takes to prepare a launch."""
        prepared_us: list[float] = []
        for _ in range(2):
            for launch in self._launching.launch_rounds(self._without_hopeless(racers), round_count=1, busy_us=0.0):
                launch.racer.probed_us.append(launch.launch.time_us())
                prepared_us.append(launch.prepared_us)
        # The first launches may load code that the later launches find loaded.
        self._launching.keep_busy(prepared_us[len(prepared_us) // 2 :])

    def _probe_with_busy_device(self, racers: Sequence[Racer]) -> None:
        """Probe quick kernels again, while a busy device hides the host.

        The clock keeps the device busy while the host prepares a launch. The launch then waits for the device, and its
        time is the kernel's. Without that, the time of a quick kernel was the time that the host took to launch it.
        """
        launching = self._launching
        racers = self._without_hopeless(racers)
        if not launching.can_keep_busy:
            # With this clock the host has no launch to prepare in time, so no probe is repeated for a late host.
            self._probe_twice(racers)
            return
        # While a kernel runs that takes longer than this, the host prepares the next launch in time anyway.
        longest_quick_us = QUICK * launching.busy_us
        to_probe = [racer for racer in racers if racer.fastest_probe_us < longest_quick_us]
        for _ in range(PROBES):
            self._probe_twice(to_probe)
            to_probe = [racer for racer in _running(to_probe) if not racer.was_in_time]

    def _probe_twice(self, racers: Sequence[Racer]) -> None:
        """Launch each racer twice, and note its times and whether the host was in time."""
        busy_us = self._launching.busy_us
        for launch in self._launching.launch_rounds(racers, round_count=2, busy_us=busy_us):
            launch.racer.probed_us.append(launch.launch.time_us())
            if launch.prepared_us <= busy_us:
                launch.racer.was_in_time = True

    def _without_hopeless(self, racers: Sequence[Racer]) -> list[Racer]:
        """Return the racers without those that failed, or are certainly much slower than the best."""
        best_us = _find_fastest_probe_us(self._racers)
        hopeful = []
        for racer in _running(racers):
            # A single time of a quick kernel may be the time of a host that stalled.
            is_certain = len(racer.probed_us) > 1 or (bool(racer.probed_us) and racer.fastest_probe_us > STALL_US)
            has_lost = is_certain and racer.fastest_probe_us > best_us * HOPELESS
            if not has_lost:
                hopeful.append(racer)
        return hopeful

    # The stages.

    def _drop_losers(self, racers: list[Racer], began_s: float) -> list[Racer]:
        """Run the stages in which losers drop out. Return the racers that may still win.

        :param began_s: the time at which the first stage began.
        """
        for plan in STAGES:
            count = self._count_rounds(racers, plan.rounds, is_over=self._is_over(began_s))
            if not count:
                break
            self._run_stage(racers, count)
            racers = self._without_losers(_running(racers), plan.margin)
            if len(racers) <= 1 or self._is_decided(racers):
                break
        return racers

    def _launch_least(self, racers: list[Racer]) -> list[Racer]:
        """Launch racers until each was timed as often as the limits require. Return those that did not fail."""
        count = self._count_rounds(racers, 0, is_over=True)
        while count:
            self._run_stage(racers, count)
            # A racer that fails in such a stage leaves the race, and the others may still need launches.
            racers = _running(racers)
            count = self._count_rounds(racers, 0, is_over=True)
        return racers

    def _select_possible_winners(self) -> list[Racer]:
        """Return the racers whose probes were quick, and the racer that holds the choice."""
        best_us = _find_fastest_probe_us(self._racers)
        racers = []
        for racer in _running(self._racers):
            holds_choice = self._threshold is not None and racer.number == 0
            if holds_choice or racer.fastest_probe_us <= best_us * (1 + MAY_WIN):
                racers.append(racer)
        return racers

    def _is_over(self, began_s: float) -> bool:
        """Whether the stages took longer than the limit for all candidates."""
        return (self._now_s() - began_s) * 1e6 > self._limits.all_us

    def _count_rounds(self, racers: Sequence[Racer], wanted_count: int, is_over: bool) -> int:
        """Return the number of rounds of the next stage, within the limits. A round launches each racer once.

        :param wanted_count: the number of rounds in a stage without limits.
        :param is_over: whether only rounds up to the least number of launches are allowed.
        """
        if not racers:
            return 0
        limits = self._limits
        # A stage is as long as the racer needs that was timed the fewest times. The others may exceed `most`.
        timed_count = min(len(racer.timed_us) for racer in racers)
        slowest_us = max(racer.time_us for racer in racers)
        count = 0
        if not is_over:
            count = wanted_count
        if slowest_us > 0:
            remaining_us = limits.each_us - timed_count * slowest_us
            count = min(count, int(remaining_us / slowest_us))
        count = max(count, limits.least - timed_count)
        count = min(count, limits.most - timed_count)
        return max(count, 0)

    def _run_stage(self, racers: Sequence[Racer], round_count: int) -> None:
        """Run some rounds and keep their times."""
        self._progress(len(racers), len(self._racers))
        times = self._launching.time_rounds(racers, round_count)
        # This call may also replace self._rounds.
        times = self._repeat_until_agreed(times, racers, round_count)
        self._rounds += times.rounds
        for racer in _running(racers):
            racer.timed_us = list_times_us(self._rounds, racer.number)

    def _repeat_until_agreed(self, times: RoundTimes, racers: Sequence[Racer], round_count: int) -> RoundTimes:
        """Run a stage again while it disagrees with the stages before, or while the host was late. Return the last run.

        If the earlier stages were disturbed, their rounds are dropped. This run of the stage takes their place, and the
        next run is compared with it. The race has a limited number of repetitions for all its stages.

        :param times: the first run of the stage.
        """
        disturbed_rounds = self._compare_with_earlier_rounds(times, racers)
        while times.is_host_late or disturbed_rounds is not Disturbed.NONE:
            if not self._repeats_left:
                self.disturbed = True
                break
            self._repeats_left -= 1
            if disturbed_rounds is Disturbed.EARLIER:
                self._rounds = times.rounds
            times = self._launching.time_rounds(racers, round_count)
            disturbed_rounds = self._compare_with_earlier_rounds(times, racers)
        return times

    def _compare_with_earlier_rounds(self, times: RoundTimes, racers: Sequence[Racer]) -> Disturbed:
        """Compare the latest stage with the stages before, and return which of the two had disturbed rounds.

        :param times: the times of the latest stage.
        """
        if times.is_host_late:
            # These times include waiting for the host, so they are no use. The caller runs the stage again anyway.
            return Disturbed.NONE
        running = _running(racers)
        if not running:
            # Every candidate has failed, so no times can be compared.
            return Disturbed.NONE
        return find_disturbed_rounds(self._rounds, times.rounds, _list_numbers(running))

    def _tie(self, racers: Sequence[Racer]) -> float:
        """Return the tie: a candidate that is slower by this share of the best time is still as good as the best."""
        if not self._launching.can_keep_busy:
            return TIE
        return tie_on_gpu(min((racer.time_us for racer in racers), default=0.0))

    def _compare_with_best(self, racers: Sequence[Racer]) -> Standings:
        """Compare each racer with the best racer.

        A candidate that has the choice before the race is tolerated up to the threshold, and any other up to a tie.
        """
        scores_by_number = scores(self._rounds, _list_numbers(racers))
        tie = self._tie(racers)
        # Among equal times the lower number wins.
        best = min(sorted(scores_by_number), key=lambda number: scores_by_number[number].adjusted_us)
        best_score = scores_by_number[best]
        standing_by_number = {}
        for number, score in scores_by_number.items():
            tolerated = tie
            if self._threshold is not None and number == 0:
                tolerated = self._threshold - ALLOWANCE
            slower = score.adjusted_us / best_score.adjusted_us - 1
            error = math.hypot(score.error, best_score.error)
            standing_by_number[number] = Standing(slower, error, tolerated)
        return Standings(best, standing_by_number)

    def _without_losers(self, racers: Sequence[Racer], margin: float) -> list[Racer]:
        """Return the racers that may still win.

        :param margin: a racer stays if it is slower than the best by no more than this share.
        """
        if not racers:
            return []
        standings = self._compare_with_best(racers)
        best = self._racer_by_number[standings.best]
        remaining = []
        for racer in racers:
            standing = standings.by_number[racer.number]
            racer.defeat = None
            if racer is not best:
                racer.defeat = Defeat(best, 1 + standing.slower)
            # The measured difference may be wrong by some standard errors.
            largest_winning = standing.tolerated + VERY_SURE * standing.error
            if standing.slower <= max(margin, largest_winning):
                remaining.append(racer)
        return remaining

    # The end of the race.

    def _decide_ties(self, racers: list[Racer], began_s: float) -> list[Racer]:
        """Race the deciders until each is certainly as good as the best, or certainly not."""
        for _ in range(DECIDING):
            if len(racers) < 2:
                break
            deciders = self._select_deciders(racers)
            racers = deciders.racers
            count = self._count_rounds(racers, ROUNDS_TO_DECIDE, self._is_over(began_s))
            if not deciders.is_open or not count:
                break
            self._run_stage(racers, count)
            racers = _running(racers)
        return racers

    def _select_deciders(self, racers: Sequence[Racer]) -> _Deciders:
        """Return the racers on which the choice depends.

        The choice is the first candidate that is as good as the best. The deciders are therefore the best, the first
        racer that surely is as good, and the racers before this racer that perhaps are as good. If the first candidate
        has the choice before the race, only this candidate and the best are deciders.
        """
        standings = self._compare_with_best(racers)
        deciding_numbers = {standings.best}
        is_open = False
        for number in self._list_preferred(standings):
            standing = standings.by_number[number]
            if standing.is_surely_chosen(SURE):
                # This racer is chosen before all racers after it.
                deciding_numbers.add(number)
                break
            if standing.may_be_chosen:
                deciding_numbers.add(number)
                is_open = True
        return _Deciders([racer for racer in racers if racer.number in deciding_numbers], is_open)

    def _list_preferred(self, standings: Standings) -> list[int]:
        """Return the numbers of the candidates that are chosen before the best, if they are as good as the best."""
        numbers = order_of_preference(standings.by_number)
        if self._threshold is not None:
            # Only the first candidate, which has the choice before the race.
            numbers = [number for number in numbers if number in (0, standings.best)]
        return numbers[: numbers.index(standings.best)]

    def _is_decided(self, racers: Sequence[Racer]) -> bool:
        """Whether the first racer is certainly as good as the best, so that it is the choice."""
        if self._threshold is None:
            least_rounds = LEAST_ROUNDS
            certainty = SURE
        else:
            least_rounds = LEAST_ROUNDS_WITH_CHOICE
            certainty = VERY_SURE
        if len(self._rounds) < least_rounds:
            return False
        standings = self._compare_with_best(racers)
        first = order_of_preference(standings.by_number)[0]
        return standings.by_number[first].is_surely_chosen(certainty)


def _running(racers: Sequence[Racer]) -> list[Racer]:
    """Return the racers that have not failed."""
    return [racer for racer in racers if racer.failed is None]


def _list_numbers(racers: Sequence[Racer]) -> list[int]:
    return [racer.number for racer in racers]


def _find_fastest_probe_us(racers: Sequence[Racer]) -> float:
    return min((racer.fastest_probe_us for racer in _running(racers)), default=math.inf)
