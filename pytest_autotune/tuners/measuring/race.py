"""The race: all candidates take turns on the device, in random order, and losers drop out early.

Each candidate is probed with a few launches. Those that may win go on to rounds, in each of which every candidate is
launched once; after a stage of some rounds those that are clearly slower are out. The device waits for the host once
for many launches. What disturbs a stage (kernels of another process, a clock that ramps, a host that stalls) disturbs
all candidates alike, since they take turns; a stage that disagrees with those before it is run again.

The stages were found by measuring 61 problems of public suites on an H200, kernels of 4 to 90 us, against 200 to
300 launches of every candidate: the choice was 0.3 % slower than the best on average.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry
from pytest_autotune.cache.ties import NOISE, NOISE_ON_CPU, TIE, choose_candidate, order_of_preference, tie_on_gpu
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.launching import CandidateResult, Launching, Racing
from pytest_autotune.tuners.measuring.times import ALLOWANCE, SURE, VERY_SURE, Comparison, Round, disagree, scores

#: (launches of each that is left, those more than this share slower than the best drop out afterwards).
STAGES = ((4, 0.30), (5, 0.15), (10, 0.08), (20, 0.04), (40, 0.02), (40, 0.0))
#: So often two launches are made again of candidates for which the host was late.
PROBES = 3
#: A choice is not clear before so many: over 19 rounds, two candidates for which a GPU takes 20.3 and 20.7 us were
#: equal.
LEAST_ROUNDS = 30
#: That a choice is held is clear sooner: what counts then is more than a tie.
LEAST_ROUNDS_HELD = 9
#: So many more stages at most decide who is as good as the best.
DECIDING = 20
#: A candidate that is this many times slower than the best is launched no third time.
HOPELESS = 20.0
#: The first probe is the only one of such a candidate where it took longer than a host stalls.
STALL_US = 10_000.0
#: Candidates within this share of the fastest one in the probes may win.
MAY_WIN = 0.5
#: How often a stage is run again in one race.
REPEATS = 4
#: Why nothing can be raced then.
CAPTURED = "a CUDA graph was captured"


@dataclass(frozen=True)
class Limits:
    """What a race may cost. Times are in microseconds.

    :param each_us: how long each candidate is timed in the stages.
    :param all_us: after this time, stages included, candidates that were launched ``least`` times drop no further.
    :param least: how often each candidate that may win is timed.
    :param most: how often at most.
    """

    each_us: float = 100_000.0
    all_us: float = 1_000_000.0
    least: int = 3
    most: int = 1000


@dataclass(frozen=True)
class Contest:
    """What a tuner brings to the race of a loaded choice.

    :param candidates: all that are on offer now, without times.
    :param ready: makes some of them ready to be launched, without holding the device, and leaves out what cannot be.
    :param expected: errors that are a candidate's own.
    :param processor: names the processor where it is not the current GPU.
    :param spent_s: seconds that were spent before on making candidates ready.
    :param context: entered around the race.
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
    """What the race of a loaded choice came to.

    :param number: how many candidates raced, the choice among them.
    :param slower: how the choice compares with the one that beats it; None where it is as good as any.
    :param best_us: the time of that one, in microseconds.
    :param measured_s: how long the device was held, in seconds.
    :param entry: what holds that one in place of the choice.
    """

    number: int
    disturbed: bool = False
    slower: Comparison | None = None
    best_us: float = 0.0
    measured_s: float = 0.0
    entry: Entry | None = None


#: What a tuner brings that has to race its candidates itself: is given by which share of the other's time a choice has
#: to be slower to be called so; what came of it, or why there was none.
OwnRace = Callable[[float], RaceOutcome | str]


class Race:
    """A race between candidates that are compiled and loaded; see :class:`Launching`.

    :param worth: the first candidate holds the choice, until another one saves this share of that one's time; None
        where none holds it.
    :param now_s: tells the time, in seconds.
    :param progress: called, while nothing is timed, with how many candidates are still in the race, and of how many.
    """

    def __init__(
        self,
        clock: Clock,
        limits: Limits | None = None,
        expected: tuple[type[BaseException], ...] = (),
        seed: int = 0,
        worth: float | None = None,
        now_s: Callable[[], float] = HostTime.perf_counter,
        progress: Callable[[int, int], object] = lambda left, of: None,
    ) -> None:
        self._limits = limits or Limits()
        self._launching = Launching(clock, expected, seed)
        self._worth = worth
        self._now_s = now_s
        self._progress = progress
        self._candidates: list[Racing] = []
        #: Who is launched for each candidate that was probed: of those with the same code, the first.
        self._launched_for: list[Racing] = []
        self._left: list[Racing] = []
        self._rounds: list[Round] = []
        self._repeats = REPEATS
        #: Stages went on to disagree until they were no longer run again.
        self.disturbed = False

    def probe(self, runners: Iterable[Runner]) -> Sequence[CandidateResult]:
        """Launch new candidates a few times; returns what became of these."""
        launching, first = self._launching, len(self._launched_for)
        new = self._entered(runners)
        self._progress(len(new), len(self._candidates))
        prepared_us: list[float] = []
        for _ in range(2):
            for one, _, launch in launching.timed(self._hopeful(new), 1, 0.0):
                one.probed_us.append(launch.time_us())
                prepared_us.append(launch.prepared_us)
        # The first launches may load what the later ones find.
        launching.keep_busy(prepared_us[len(prepared_us) // 2 :])
        quick = [
            one for one in self._hopeful(new) if one.least_us < 10 * launching.busy_us or not launching.can_keep_busy
        ]
        for _ in range(PROBES):
            for one, _, launch in launching.timed(quick, 2, launching.busy_us):
                one.probed_us.append(launch.time_us())
                one.in_time |= launch.prepared_us <= launching.busy_us
            # Of the others only the host's times are known.
            quick = [one for one in quick if one.failed is None and not one.in_time and launching.can_keep_busy]
        return self.results[first:]

    def finish(self) -> Sequence[CandidateResult]:
        """Race those that may win; returns what became of every candidate, in the order of the probes."""
        began_s = self._now_s()
        best_us = min((one.least_us for one in _running(self._candidates)), default=math.inf)
        left = [
            one
            for one in _running(self._candidates)
            if one.least_us <= best_us * (1 + MAY_WIN) or (self._worth is not None and one.number == 0)
        ]
        for launches, margin in STAGES:
            wanted = self._launches(left, launches, over=self._is_over(began_s))
            if not wanted:
                break
            self._stage(left, wanted)
            left = self._without_losers(_running(left), margin)
            if len(left) <= 1 or self._is_decided(left):
                break
        left = self._decide_ties(left, began_s)
        while wanted := self._launches(left, 0, over=True):
            self._stage(left, wanted)
            left = _running(left)
        self._left = left
        return self.results

    def alone(self, runner: Runner) -> CandidateResult:
        """Time one candidate, within the limits; there is none to take turns with."""
        self.probe([runner])
        (one,) = self._candidates
        while one.failed is None and (wanted := self._launches([one], STAGES[2][0], over=False)):
            self._stage([one], wanted)
        return one.result

    @property
    def results(self) -> Sequence[CandidateResult]:
        """What became of every candidate so far, in the order of the probes."""
        results = {one.number: one.result for one in self._candidates}
        found = []
        for number, launched in enumerate(self._launched_for):
            result = results[launched.number]
            found.append(result if launched.number == number else replace(result, same_as=launched.number))
        return found

    @property
    def choice(self) -> int:
        """The number of the candidate to choose: of those that the race cannot tell apart, the first."""
        if not self._left:
            raise LookupError("every candidate failed")
        found = scores(self._rounds, [one.number for one in self._left])
        noise = NOISE if self._launching.can_keep_busy else NOISE_ON_CPU
        return choose_candidate(
            {number: score.share for number, score in found.items()},
            noise if self._worth is None else self._worth - ALLOWANCE,
            kept=None if self._worth is None else 0,
            error=lambda number, best: SURE * math.hypot(found[number].error, found[best].error),
            tie=self._tie(self._left),
        )

    def compared(self, number: int, other: int) -> Comparison | None:
        """How a candidate compares with another one; None where they were never timed in one round."""
        return Comparison.of(self._rounds, self._launched_for[number].number, self._launched_for[other].number)

    def _entered(self, runners: Iterable[Runner]) -> list[Racing]:
        """New candidates, without those that run the same code as one before."""
        before = len(self._candidates)
        for runner in runners:
            alike = (one for one in self._candidates if runner.code is not None and runner.code == one.runner.code)
            candidate = next(alike, None)
            if candidate is None:
                candidate = Racing(len(self._launched_for), runner)
                self._candidates.append(candidate)
            self._launched_for.append(candidate)
        return self._candidates[before:]

    def _hopeful(self, candidates: Sequence[Racing]) -> list[Racing]:
        best_us = min((one.least_us for one in _running(self._candidates)), default=math.inf)

        def has_lost(one: Racing) -> bool:
            # A single time of a quick kernel may be that of a host that stalled.
            known = len(one.probed_us) > 1 or (bool(one.probed_us) and one.least_us > STALL_US)
            return known and one.least_us > best_us * HOPELESS

        return [one for one in _running(candidates) if not has_lost(one)]

    def _is_over(self, began_s: float) -> bool:
        return (self._now_s() - began_s) * 1e6 > self._limits.all_us

    def _launches(self, left: Sequence[Racing], wanted: int, over: bool) -> int:
        """How often to launch each in the next stage, within the limits."""
        if not left:
            return 0
        limits = self._limits
        have = min(len(one.timed_us) for one in left)
        each_us = max(one.time_us for one in left)
        if each_us > 0:
            wanted = min(wanted, int((limits.each_us - have * each_us) / each_us))
        return min(max(limits.least - have, 0 if over else wanted, 0), limits.most - have)

    def _stage(self, left: Sequence[Racing], launches: int) -> None:
        """Run some rounds, again where they disagree with those before, and keep their times."""
        self._progress(len(left), len(self._candidates))
        while True:
            rounds, late = self._launching.rounds(left, launches)
            running = _running(left)
            slower = "" if late or not running else disagree(self._rounds, rounds, [one.number for one in running])
            if not late and not slower:
                break
            if not self._repeats:
                self.disturbed = True
                break
            self._repeats -= 1
            if slower == "old":  # what came before was the disturbed part
                self._rounds = rounds
        self._rounds += rounds
        for one in running:
            one.timed_us = [times[one.number] for times in self._rounds if one.number in times]

    def _tie(self, left: Sequence[Racing]) -> float:
        """The share of the best time by which another may be slower and still is as good."""
        best_us = min((one.time_us for one in left), default=0.0)
        return tie_on_gpu(best_us) if self._launching.can_keep_busy else TIE

    def _behind(self, left: Sequence[Racing]) -> tuple[int, dict[int, tuple[float, float, float]]]:
        """The number of the best, and of each how it compares with that one.

        :returns: by number, by which share of the best time it is slower, how wrong that may be, and by how much it
            may be slower and still is chosen before the best.
        """
        by_number, tie = scores(self._rounds, [one.number for one in left]), self._tie(left)
        best = min(by_number, key=lambda number: (by_number[number].share, number))
        found = {
            number: (
                score.share / by_number[best].share - 1,
                math.hypot(score.error, by_number[best].error),
                tie if self._worth is None or number else self._worth - ALLOWANCE,
            )
            for number, score in by_number.items()
        }
        return best, found

    def _without_losers(self, left: Sequence[Racing], margin: float) -> list[Racing]:
        if not left:
            return []
        best, found = self._behind(left)
        stay = []
        for one in left:
            behind, error, tolerated = found[one.number]
            one.behind = (self._launched_for[best], 1 + behind) if one.number != best else None
            if behind <= max(margin, tolerated + VERY_SURE * error):
                stay.append(one)
        return stay

    def _decide_ties(self, left: list[Racing], began_s: float) -> list[Racing]:
        """Race those on whom the choice depends, until it is clear for each whether it is as good as the best.

        That is the best, the first in the list that surely is as good, and those before it of which it is not known.
        Where the first candidate holds the choice, it is that one and the best.
        """
        for _ in range(DECIDING):
            if len(left) < 2:
                break
            best, found = self._behind(left)
            deciding, is_open = [best], False
            for number in order_of_preference(found) if self._worth is None else sorted({0, best}):
                behind, error, tolerated = found.get(number, (math.inf, 0.0, 0.0))
                if number != best and behind - SURE * error <= tolerated:
                    deciding.append(number)
                if behind + SURE * error < tolerated or number == best:
                    break
                is_open |= behind - SURE * error <= tolerated
            left = [one for one in left if one.number in deciding]
            wanted = self._launches(left, STAGES[-1][0], self._is_over(began_s))
            if not is_open or not wanted:
                break
            self._stage(left, wanted)
            left = _running(left)
        return left

    def _is_decided(self, left: Sequence[Racing]) -> bool:
        """Whether the first that is left is as good as the best for certain, and so is the choice."""
        if len(self._rounds) < (LEAST_ROUNDS if self._worth is None else LEAST_ROUNDS_HELD):
            return False
        _, found = self._behind(left)
        behind, error, tolerated = found[order_of_preference(found)[0]]
        return behind + (SURE if self._worth is None else VERY_SURE) * error < tolerated


def _running(candidates: Sequence[Racing]) -> list[Racing]:
    return [one for one in candidates if one.failed is None]
