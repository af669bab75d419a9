"""The launches of a race: candidates in turn, many of them before the host waits for the device.

A kernel of a few microseconds is shorter than what the host needs to prepare its launch, so the device is kept busy
meanwhile; a launch for which the host was late all the same does not count.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from pytest_autotune.tuners.measuring.clocks import Clock, Launch, Runner
from pytest_autotune.tuners.measuring.times import Measurement, Round, measurement
from pytest_autotune.tuners.shared.candidates import clear_tracebacks

#: So many launches are queued before the host waits for the device; its queue holds about 1,000 operations.
QUEUED = 100
#: The longest that a device is kept busy before a launch: what takes longer waits for its kernels itself.
LONGEST_BUSY_US = 2000.0
SHORTEST_BUSY_US = 20.0
#: How much longer than most launches took to prepare.
BUSY_MARGIN = 1.3


class DeviceLostError(Exception):
    """The device no longer works after the candidate of this number failed; every later one would, too."""

    def __init__(self, number: int, error: BaseException) -> None:
        super().__init__(f"the device no longer works after candidate {number}: {error}")
        self.number = number
        self.error = error


@dataclass(frozen=True)
class CandidateResult:
    """What became of one candidate; ``same_as`` is who was launched in its place, since it runs the same code."""

    measured: Measurement | None = None
    failed: BaseException | None = None
    same_as: int | None = None

    @property
    def time_us(self) -> float:
        return self.measured.median_us if self.measured else float("inf")


@dataclass
class Racing:
    """A candidate that is launched, with what its launches took."""

    number: int
    runner: Runner
    #: Times of the probes: none is too short, all may be too long.
    probed_us: list[float] = field(default_factory=list)
    #: One of the probes was in time: the device was kept busy for as long as the host needed.
    in_time: bool = False
    timed_us: list[float] = field(default_factory=list)
    failed: BaseException | None = None
    #: Who was the best when this one was last compared, if another was, and how many times its time this one took.
    #: Never leads back to this one: a circle would keep what is launched, all tensors of the call, after the race.
    behind: tuple[Racing, float] | None = None

    @property
    def least_us(self) -> float:
        return min(self.probed_us, default=float("inf"))

    @property
    def time_us(self) -> float:
        """The median; for one that was beaten, as if it had been timed for as long as the best."""
        if self.behind is not None:
            return self.behind[0].time_us * self.behind[1]
        return measurement(self.timed_us or [self.least_us]).median_us

    @property
    def result(self) -> CandidateResult:
        if self.failed is not None:
            return CandidateResult(failed=self.failed)
        return CandidateResult(replace(measurement(self.timed_us or [self.least_us]), median_us=self.time_us))


#: A launch that was made of a candidate, in the round of this number.
Launched = tuple[Racing, int, Launch]


class Launching:
    """Launches candidates in turn, and times them.

    :param expected: errors that are a candidate's own: it fails, and the others go on.
    :param seed: of the order in which they take turns; no other random state is touched.
    """

    def __init__(self, clock: Clock, expected: tuple[type[BaseException], ...], seed: int) -> None:
        self._clock = clock
        self._expected = expected
        self._random = random.Random(seed)
        #: Whether the device can be kept busy while a launch is prepared.
        self.can_keep_busy = clock.can_keep_busy
        #: How long it is kept busy before a launch that counts, in microseconds.
        self.busy_us = 0.0

    def timed(self, candidates: Sequence[Racing], rounds: int, busy_us: float) -> list[Launched]:
        """The launches of some rounds, of each candidate once in each round, without those of candidates that fail."""
        turns = list(self._turns(candidates, rounds))
        made: list[Launched] = []
        for first in range(0, len(turns), QUEUED):
            for candidate, number, is_first in turns[first : first + QUEUED]:
                if candidate.failed is not None:
                    continue
                try:
                    if is_first and candidate.runner.set_up is not None:
                        candidate.runner.set_up()
                    made.append((candidate, number, self._clock.launch(candidate.runner, busy_us)))
                except self._expected as error:
                    self._fails(candidate, error)
            self._clock.synchronise()
        return [one for one in made if one[0].failed is None]

    def rounds(self, left: Sequence[Racing], launches: int) -> tuple[list[Round], bool]:
        """The times of some rounds, without those of launches that the device had to wait for.

        :returns: them, and whether the host was late so often that they are of no use.
        """
        timed = self.timed(left, launches, self.busy_us)
        in_time = [one for one in timed if one[2].prepared_us <= self.busy_us]
        running = [one for one in left if one.failed is None]
        all_of, of = (Counter(one.number for one, _, _ in some) for some in (timed, in_time))
        enough = all(2 * of[one.number] >= all_of[one.number] for one in running)
        if not self.can_keep_busy or not enough:
            in_time = timed
        late = self.can_keep_busy and not enough and self.busy_us < LONGEST_BUSY_US
        if late:
            self.keep_busy([launch.prepared_us for _, _, launch in timed])
        rounds: list[Round] = [{} for _ in range(launches)]
        for one, number, launch in in_time:
            rounds[number][one.number] = launch.time_us()
        return rounds, late

    def keep_busy(self, prepared_us: Sequence[float]) -> None:
        """Have the device kept busy for as long as almost every launch takes to prepare."""
        if self.can_keep_busy and prepared_us:
            most = sorted(prepared_us)[int(len(prepared_us) * 0.9)]
            self.busy_us = max(self.busy_us, min(LONGEST_BUSY_US, max(SHORTEST_BUSY_US, most * BUSY_MARGIN)))

    def _turns(self, candidates: Sequence[Racing], rounds: int) -> Iterator[tuple[Racing, int, bool]]:
        """Who is launched, in order, in which round, and whether it is to be set up before."""
        shuffled = list(candidates)
        if any(one.runner.set_up for one in candidates):  # then whoever has its turn is launched for all rounds
            self._random.shuffle(shuffled)
            yield from ((one, number, number == 0) for one in shuffled for number in range(rounds))
            return
        for number in range(rounds):
            self._random.shuffle(shuffled)
            yield from [(one, number, False) for one in shuffled]

    def _fails(self, candidate: Racing, error: BaseException) -> None:
        # Its frames hold the call's tensors and this candidate, which holds the error: a circle.
        candidate.failed = clear_tracebacks(error)
        try:
            self._clock.synchronise()
        except Exception as broken:
            raise DeviceLostError(candidate.number, error) from broken
