"""The race: all candidates take turns on the device, in random order, and losers drop out early.

Each candidate is looked at with a few launches. Those that may win go on to rounds in which each is launched
some times; after a round those that are clearly slower are out. The device waits for the host once for many
launches. What disturbs a round (kernels of another process, a clock that ramps, a host that stalls) disturbs
all candidates alike, since they take turns; a round that disagrees with those before it is run again.

The rounds were found by measuring 61 problems of public suites on an H200, kernels of 4 to 90 us, against 200 to
300 launches of every candidate: the choice was 0.3 % slower than the best on average.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pytest_autotune.cache.ties import NOISE, NOISE_ON_CPU, TIE, settle, tie_on_gpu
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.laps import (
    SURE,
    VERY_SURE,
    Challenge,
    Lap,
    Score,
    compared,
    disagree,
    of_both,
    scores,
)
from pytest_autotune.tuners.measuring.launching import Entrant, Launching, Result
from pytest_autotune.tuners.measuring.times import Measurement, measurement

#: (launches of each that is left, those more than this share slower than the best drop out afterwards).
ROUNDS = ((4, 0.30), (5, 0.15), (10, 0.08), (20, 0.04), (40, 0.02), (40, 0.0))
#: So often two launches are made again of candidates for which the host was late.
LOOKS = 3
#: A choice is not clear before so many: over 19 laps, two candidates for which a GPU takes 20.3 and 20.7 us were equal.
LEAST_LAPS = 30
#: So many more rounds at most decide who is as good as the best.
DECIDING = 20
#: A candidate that is this many times slower than the best is launched no third time.
HOPELESS = 20.0
#: The first look is the only one at such a candidate where it took longer than a host stalls.
STALL_US = 10_000.0
#: Candidates within this share of the fastest one at the first look may win.
MAY_WIN = 0.5
#: How often a round is run again in one race.
REPEATS = 4
#: Whoever was this share slower than the defender at the first look does not challenge it.
NO_CHALLENGE = 0.25


@dataclass(frozen=True)
class Limits:
    """What a race may cost. Times are in microseconds.

    :param warm_up_us: how long candidates take turns before they are timed, all of them together.
    :param each_us: how long each candidate is timed in the rounds.
    :param all_us: after this time, rounds included, candidates that were launched ``least`` times drop no further.
    :param least: how often each candidate that may win is timed.
    :param most: how often at most.
    """

    warm_up_us: float = 0.0
    each_us: float = 100_000.0
    all_us: float = 1_000_000.0
    least: int = 3
    most: int = 1000


class Race:
    """A race between candidates that are compiled and loaded.

    :param expected: errors that are a candidate's own: it fails, and the others go on.
    :param seed: of the order in which candidates take turns, which touches no random state but its own.
    :param now_s: tells the time, in seconds.
    :param told: called, while nothing is timed, with how many candidates are still in the race, and how many there are.
    """

    def __init__(
        self,
        clock: Clock,
        limits: Limits | None = None,
        expected: tuple[type[BaseException], ...] = (),
        seed: int = 0,
        now_s: Callable[[], float] = time.perf_counter,
        told: Callable[[int, int], object] = lambda left, of: None,
    ) -> None:
        self._limits = limits or Limits()
        self._launching = Launching(clock, expected, seed)
        self._now_s = now_s
        self._told = told
        self._entrants: list[Entrant] = []
        #: Who is launched for each candidate that was looked at: of those with the same code, the first.
        self._launched_for: list[Entrant] = []
        self._left: list[Entrant] = []
        self._laps: list[Lap] = []
        self._repeats = REPEATS
        #: Rounds went on to disagree until they were no longer run again.
        self.disturbed = False

    def look(self, runners: Iterable[Runner]) -> Sequence[Result]:
        """Launch new candidates a few times; returns what became of these."""
        launching, first = self._launching, len(self._launched_for)
        new = self._entered(runners)
        self._told(len(new), len(self._entrants))
        prepared_us: list[float] = []
        for _ in range(2):
            for timed in launching.timed(self._hopeful(new), 1, 0.0):
                timed.turn.entrant.looked_us.append(timed.time_us)
                prepared_us.append(timed.prepared_us)
        # The first launches may load what the later ones find.
        launching.keep_busy(prepared_us[len(prepared_us) // 2 :])
        quick = [
            one for one in self._hopeful(new) if one.least_us < 10 * launching.busy_us or not launching.can_keep_busy
        ]
        for _ in range(LOOKS):
            for timed in launching.timed(quick, 2, launching.busy_us):
                timed.turn.entrant.looked_us.append(timed.time_us)
                timed.turn.entrant.seen |= timed.prepared_us <= launching.busy_us
            # Of the others only the host's times are known.
            quick = [one for one in quick if one.failed is None and not one.seen and launching.can_keep_busy]
        looked = {
            one.number: Result(measurement([one.least_us])) if one.failed is None else one.result
            for one in self._entrants
        }
        return self._for_all(looked)[first:]

    def finish(self) -> Sequence[Result]:
        """Race those that may win; returns what became of every candidate, in the order of the looks."""
        limits, began_s = self._limits, self._now_s()
        best_us = min((one.least_us for one in self._entrants if one.failed is None), default=float("inf"))
        left = [one for one in self._entrants if one.failed is None and one.least_us <= best_us * (1 + MAY_WIN)]
        self._warm_up(left)
        for launches, margin in ROUNDS:
            left = [one for one in left if one.failed is None]
            spent_us = (self._now_s() - began_s) * 1e6
            wanted = self._launches(left, launches, over=spent_us > limits.all_us)
            if not wanted:
                break
            self._round(left, wanted)
            left = self._without_losers([one for one in left if one.failed is None], margin)
            if len(left) <= 1 or self._is_decided(left):
                break
        left = self._decide_ties([one for one in left if one.failed is None], began_s)
        while wanted := self._launches(left, 0, over=True):
            self._round(left, wanted)
            left = [one for one in left if one.failed is None]
        self._left = left
        return self.results

    def challenge(self, worth: float) -> Challenge | None:
        """Race the first candidate against the others that were looked at, while these may be faster by a share.

        :param worth: the share that counts.
        :returns: how it compares with the fastest of those that may be; None where there is none left.
        :raises Exception: what the first candidate failed with.
        """
        limits, began_s = self._limits, self._now_s()
        defender = self._launched_for[0]
        left = [one for one in self._entrants if one.least_us <= defender.least_us * (1 + NO_CHALLENGE)]
        self._warm_up(left)
        found = None
        for launches, margin in ROUNDS:
            left = [one for one in left if one.failed is None or one is defender]
            if defender.failed is not None:
                raise defender.failed
            spent_us = (self._now_s() - began_s) * 1e6
            wanted = self._launches(left, launches, over=spent_us > limits.all_us) if len(left) > 1 else 0
            if not wanted:
                break
            self._round(left, wanted)
            left, found = self._challengers(left, defender, worth, margin)
        return found

    def _challengers(
        self, left: list[Entrant], defender: Entrant, worth: float, margin: float
    ) -> tuple[list[Entrant], Challenge | None]:
        """Those that may still be faster by a share that counts, the defender among them; and the fastest of them."""
        scores = self._scores(left)
        rivals = {
            number: one for number in scores if (one := compared(self._laps, defender.number, number)) is not None
        }
        rivals = {number: one for number, one in rivals.items() if one.may_be_slower(worth, len(self._laps))}
        if not rivals:
            return [defender], None
        best = min(rivals, key=lambda number: (-rivals[number].slower, number))

        def may_be_the_fastest(number: int) -> bool:
            behind = scores[number].share / scores[best].share - 1
            return behind <= max(margin, TIE + SURE * of_both(scores[number].error, scores[best].error))

        stay = {defender.number, *filter(may_be_the_fastest, rivals)}
        return [one for one in left if one.number in stay], rivals[best]

    def alone(self) -> Result:
        """Time the only candidate that was looked at, within the limits; there is none to take turns with."""
        (one,) = self._entrants
        while one.failed is None and (wanted := self._launches([one], ROUNDS[2][0], over=False)):
            self._round([one], wanted)
        return one.result

    @property
    def results(self) -> Sequence[Result]:
        """What became of every candidate so far, in the order of the looks."""
        return self._for_all({one.number: one.result for one in self._entrants})

    def _entered(self, runners: Iterable[Runner]) -> list[Entrant]:
        """New candidates, without those that run the same code as one before."""
        known = {one.runner.code: one for one in self._entrants if one.runner.code is not None}
        new = []
        for runner in runners:
            entrant = known.get(runner.code)
            if entrant is None:
                entrant = Entrant(len(self._launched_for), runner)
                new.append(entrant)
                if runner.code is not None:
                    known[runner.code] = entrant
            self._launched_for.append(entrant)
        self._entrants += new
        return new

    def _for_all(self, results: Mapping[int, Result]) -> list[Result]:
        """What became of every candidate, by what became of those that were launched."""
        found = []
        for number, entrant in enumerate(self._launched_for):
            result = results[entrant.number]
            found.append(result if entrant.number == number else replace(result, same_as=entrant.number))
        return found

    @property
    def choice(self) -> int:
        """The number of the candidate to choose, after the race: of those that it cannot tell apart, the first.

        :raises LookupError: when every candidate failed.
        """
        if not self._left:
            raise LookupError("every candidate failed")
        scores = self._scores(self._left)
        return settle(
            {number: score.share for number, score in scores.items()},
            NOISE if self._launching.can_keep_busy else NOISE_ON_CPU,
            error=lambda number, best: SURE * of_both(scores[number].error, scores[best].error),
            tie=self._tie(self._left),
        )

    def beats(self, number: int, other: int) -> bool:
        """Whether a candidate is faster than another one: for certain, and by more than a tie."""
        one, two = self._launched_for[number], self._launched_for[other]
        if one is two:
            return False
        if one.failed is not None or two.failed is not None:
            return one.failed is None
        laps = sum(one.number in lap and two.number in lap for lap in self._laps)
        found = compared(self._laps, two.number, one.number)
        if found is None or laps < ROUNDS[0][0]:  # one of them had lost at the first look
            return two.least_us > one.least_us * (1 + NO_CHALLENGE)
        return found.slower > max(self._tie([one, two]), SURE * found.error_over(laps))

    def _hopeful(self, entrants: Sequence[Entrant]) -> list[Entrant]:
        best_us = min((one.least_us for one in self._entrants if one.failed is None), default=float("inf"))

        def has_lost(one: Entrant) -> bool:
            # A single time of a quick kernel may be that of a host that stalled.
            known = len(one.looked_us) > 1 or (bool(one.looked_us) and one.least_us > STALL_US)
            return known and one.least_us > best_us * HOPELESS

        return [one for one in entrants if one.failed is None and not has_lost(one)]

    def _warm_up(self, left: Sequence[Entrant]) -> None:
        until_s = self._now_s() + self._limits.warm_up_us / 1e6
        while left and self._now_s() < until_s and any(one.failed is None for one in left):
            self._launching.timed(left, 1, self._launching.busy_us)

    def _launches(self, left: Sequence[Entrant], wanted: int, over: bool) -> int:
        """How often to launch each in the next round, within the limits."""
        if not left:
            return 0
        limits = self._limits
        have = min(len(one.timed_us) for one in left)
        each_us = max(one.time_us for one in left)
        if each_us > 0:
            wanted = min(wanted, int((limits.each_us - have * each_us) / each_us))
        missing = limits.least - have
        return min(max(missing, 0 if over else wanted, 0), limits.most - have)

    def _round(self, left: Sequence[Entrant], launches: int) -> None:
        """Run one round, again where it disagrees with those before it, and keep its times."""
        self._told(len(left), len(self._entrants))
        while True:
            laps, late = self._launching.laps(left, launches)
            running = [one for one in left if one.failed is None]
            slower = "" if late else disagree(self._laps, laps, [one.number for one in running])
            if not late and not slower:
                break
            if not self._repeats:
                self.disturbed = True
                break
            self._repeats -= 1
            if slower == "old":  # what came before was the disturbed part
                self._laps = laps
        self._laps += laps
        for one in running:
            one.timed_us = [lap[one.number] for lap in self._laps if one.number in lap]

    def _scores(self, entrants: Sequence[Entrant]) -> dict[int, Score]:
        return scores(self._laps, [one.number for one in entrants if one.failed is None])

    def _tie(self, left: Sequence[Entrant]) -> float:
        """The share of the best time by which another may be slower and still is as good."""
        best_us = min((one.time_us for one in left), default=0.0)
        return tie_on_gpu(best_us) if self._launching.can_keep_busy else TIE

    def _without_losers(self, left: Sequence[Entrant], margin: float) -> list[Entrant]:
        scores, tie = self._scores(left), self._tie(left)
        if not scores:
            return []
        best = min(scores, key=lambda number: (scores[number].share, number))

        def has_lost(one: Entrant) -> bool:
            score = scores[one.number]
            behind = score.share / scores[best].share - 1
            one.behind = (self._launched_for[best], 1 + behind) if one.number != best else None
            return behind > margin and behind > tie + VERY_SURE * of_both(score.error, scores[best].error)

        return [one for one in left if not has_lost(one)]

    def _decide_ties(self, left: list[Entrant], began_s: float) -> list[Entrant]:
        """Race those on whom the choice depends, until it is clear for each whether it is as good as the best.

        That is the best, the first in the list that surely is as good, and those before it of which it is not known.
        """
        for _ in range(DECIDING):
            scores, tie = self._scores(left), self._tie(left)
            if len(scores) < 2:
                break
            best = min(scores, key=lambda number: (scores[number].share, number))
            deciding, open_ones = [best], 0
            for number in sorted(scores):
                behind = scores[number].share / scores[best].share - 1
                doubt = SURE * of_both(scores[number].error, scores[best].error)
                if number != best and behind - doubt <= tie:
                    deciding.append(number)
                if behind + doubt < tie or number == best:
                    break
                open_ones += behind - doubt <= tie
            left = [one for one in left if one.number in deciding]
            over = (self._now_s() - began_s) * 1e6 > self._limits.all_us
            wanted = self._launches(left, ROUNDS[-1][0], over)
            if not open_ones or not wanted:
                break
            self._round(left, wanted)
            left = [one for one in left if one.failed is None]
        return left

    def _is_decided(self, left: Sequence[Entrant]) -> bool:
        """Whether the first that is left is as good as the best for certain, and so is the choice."""
        if len(self._laps) < LEAST_LAPS:
            return False
        scores, tie = self._scores(left), self._tie(left)
        first, best = scores[min(scores)], min(scores.values(), key=lambda score: score.share)
        return first.share / best.share - 1 + SURE * of_both(first.error, best.error) < tie


def time_alone(clock: Clock, runner: Runner, limits: Limits) -> Measurement:
    """How long one call takes, where there is none to take turns with.

    :raises Exception: what the call raises.
    """
    race = Race(clock, limits)
    race.look([runner])
    measured = race.alone().measured
    assert measured is not None  # no error is taken for the candidate's own
    return measured
