"""The launches of a race: candidates in turn, many of them before the host waits for the device.

A kernel of a few microseconds is shorter than what the host needs to prepare its launch, so the device is kept busy
meanwhile; a launch for which the host was late all the same does not count.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from pytest_autotune.tuners.measuring.clocks import Clock, Launch, Runner
from pytest_autotune.tuners.measuring.laps import Lap
from pytest_autotune.tuners.measuring.times import Measurement, measurement
from pytest_autotune.tuners.shared.frameless import without_frames

#: So many launches are queued before the host waits for the device; its queue holds about 1,000 operations.
QUEUED = 100
#: The longest that a device is kept busy before a launch: what takes longer waits for its kernels itself.
LONGEST_BUSY_US = 2000.0
SHORTEST_BUSY_US = 20.0
#: How much longer than most launches took to prepare.
BUSY_MARGIN = 1.3


class DeviceLostError(Exception):
    """The device no longer works after a candidate failed; every later one would fail as well.

    :param number: the candidate's, in the order in which they were looked at.
    :param error: what it raised.
    """

    def __init__(self, number: int, error: BaseException) -> None:
        super().__init__(f"the device no longer works after candidate {number}: {error}")
        self.number = number
        self.error = error


@dataclass(frozen=True)
class Result:
    """What became of one candidate: its times, or the error that it failed with.

    :param same_as: the number of the candidate that was launched in its place, since it runs the same code.
    """

    measured: Measurement | None = None
    failed: BaseException | None = None
    same_as: int | None = None

    @property
    def time_us(self) -> float:
        return self.measured.median_us if self.measured else float("inf")


@dataclass
class Entrant:
    """A candidate that is launched, with what its launches took."""

    number: int
    runner: Runner
    #: Times of the first looks: none is too short, all may be too long.
    looked_us: list[float] = field(default_factory=list)
    #: One of the first looks was in time: the device was kept busy for as long as the host needed.
    seen: bool = False
    timed_us: list[float] = field(default_factory=list)
    failed: BaseException | None = None
    #: Who was the best when this one was last compared, if another was, and how many times its time this one took.
    #: Never leads back to this one: a circle would keep what is launched, all tensors of the call, after the race.
    behind: tuple[Entrant, float] | None = None

    @property
    def least_us(self) -> float:
        return min(self.looked_us, default=float("inf"))

    @property
    def time_us(self) -> float:
        """The median; for one that was beaten, as if it had been timed for as long as the best."""
        if self.behind is not None:
            return self.behind[0].time_us * self.behind[1]
        return measurement(self.timed_us or [self.least_us]).median_us

    @property
    def result(self) -> Result:
        if self.failed is not None:
            return Result(failed=self.failed)
        return Result(replace(measurement(self.timed_us or [self.least_us]), median_us=self.time_us))


@dataclass(frozen=True)
class _Turn:
    """One launch that is to be made: whose, in which lap, and whether it is to be set up before."""

    entrant: Entrant
    lap: int
    set_up: bool = False


@dataclass(frozen=True)
class Timed:
    """A launch that was made: how long the host prepared it, and how long the device took, in microseconds."""

    turn: _Turn
    prepared_us: float
    time_us: float


class Launching:
    """Launches candidates in turn, and times them.

    :param expected: errors that are a candidate's own: it fails, and the others go on.
    :param seed: of the order in which candidates take turns, which touches no random state but its own.
    """

    def __init__(self, clock: Clock, expected: tuple[type[BaseException], ...], seed: int) -> None:
        self._clock = clock
        self._expected = expected
        self._random = random.Random(seed)
        #: How long the device is kept busy before a launch that counts, in microseconds.
        self.busy_us = 0.0

    @property
    def can_keep_busy(self) -> bool:
        """Whether the device can be kept busy while a launch is prepared."""
        return self._clock.can_keep_busy

    def timed(self, entrants: Sequence[Entrant], laps: int, busy_us: float) -> list[Timed]:
        """The launches of some laps, in which each candidate is launched once, without those of candidates that fail.

        :param busy_us: how long the device is kept busy before each launch.
        :raises DeviceLostError: when a candidate failed and left the device broken.
        """
        turns = self._turns(entrants, laps)
        timed: list[Timed] = []
        for first in range(0, len(turns), QUEUED):
            queued: list[tuple[_Turn, Launch]] = []
            for turn in turns[first : first + QUEUED]:
                entrant = turn.entrant
                if entrant.failed is not None:
                    continue
                try:
                    if turn.set_up and entrant.runner.set_up is not None:
                        entrant.runner.set_up()
                    queued.append((turn, self._clock.launch(entrant.runner, busy_us)))
                except self._expected as error:
                    self._fails(entrant, error)
            self._clock.synchronise()
            timed += [Timed(turn, launch.prepared_us, launch.time_us()) for turn, launch in queued]
        return [one for one in timed if one.turn.entrant.failed is None]

    def laps(self, left: Sequence[Entrant], launches: int) -> tuple[list[Lap], bool]:
        """The times of one round, without those of launches that the device had to wait for.

        :returns: them, and whether the host was late so often that the round is of no use.
        """
        timed = self.timed(left, launches, self.busy_us)
        in_time = [one for one in timed if one.prepared_us <= self.busy_us]
        running = [one.number for one in left if one.failed is None]
        enough = all(2 * _times_of(number, in_time) >= _times_of(number, timed) for number in running)
        if not self.can_keep_busy or not enough:
            in_time = timed
        late = self.can_keep_busy and not enough and self.busy_us < LONGEST_BUSY_US
        if late:
            self.keep_busy([one.prepared_us for one in timed])
        laps: list[Lap] = [{} for _ in range(launches)]
        for one in in_time:
            laps[one.turn.lap][one.turn.entrant.number] = one.time_us
        return laps, late

    def keep_busy(self, prepared_us: Sequence[float]) -> None:
        """Have the device kept busy for as long as almost every launch takes to prepare."""
        if self.can_keep_busy and prepared_us:
            most = sorted(prepared_us)[int(len(prepared_us) * 0.9)]
            self.busy_us = max(self.busy_us, min(LONGEST_BUSY_US, max(SHORTEST_BUSY_US, most * BUSY_MARGIN)))

    def _turns(self, entrants: Sequence[Entrant], laps: int) -> list[_Turn]:
        """Who is launched, in order: everyone once in each lap."""
        shuffled = list(entrants)
        if any(one.runner.set_up for one in entrants):
            self._random.shuffle(shuffled)
            return [_Turn(one, lap, lap == 0) for one in shuffled for lap in range(laps)]
        turns = []
        for lap in range(laps):
            self._random.shuffle(shuffled)
            turns += [_Turn(one, lap) for one in shuffled]
        return turns

    def _fails(self, entrant: Entrant, error: BaseException) -> None:
        # Its frames hold the call's tensors and this entrant, which holds the error: a circle.
        entrant.failed = without_frames(error)
        try:
            self._clock.synchronise()
        except Exception as broken:
            raise DeviceLostError(entrant.number, error) from broken


def _times_of(number: int, timed: Sequence[Timed]) -> int:
    return sum(one.turn.entrant.number == number for one in timed)
