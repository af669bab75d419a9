"""The launches of a race: the candidates take turns, and many launches are queued before the host waits.

The host needs longer to prepare a launch than a kernel of a few microseconds runs. The device is therefore kept busy
while the host prepares. If the host needs longer than the device is busy, the launch does not count.
:mod:`~pytest_autotune.tuners.measuring.race` decides which candidates are launched, and how often.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_autotune.tuners.measuring.clocks import Clock, Launch, Runner
from pytest_autotune.tuners.measuring.times import Measurement, Round, measurement
from pytest_autotune.tuners.shared.candidates import LaunchError, clear_tracebacks

#: The host queues this many launches before it waits for the device. The device's queue holds about 1,000 operations.
QUEUED = 100
#: The longest time for which a device is kept busy before a launch. If the preparation of a launch takes longer, the
#: launch probably waits for the device itself.
LONGEST_BUSY_US = 2000.0
SHORTEST_BUSY_US = 20.0
#: The device is kept busy for this factor times the preparation time of most launches.
BUSY_MARGIN = 1.3


class DeviceLostError(LaunchError):
    """The device no longer works after a candidate failed, so every later candidate would fail, too.

    The test gets the device's error, as it would from the next launch.

    :param number: the number of the candidate that failed.
    :param candidate_error: the error of this candidate.
    :param device_error: the error that the device raises since then.
    """

    def __init__(self, number: int, candidate_error: BaseException, device_error: Exception) -> None:
        super().__init__(device_error)
        self.number = number
        self.candidate_error = candidate_error


@dataclass(frozen=True)
class KernelCall:
    """A function of a runner, which raises the kernel's errors as a :class:`LaunchError`.

    The user sees these errors. Other errors in a race are errors of the plugin, which the plugin catches.

    :param expected: the types of errors by which a single candidate fails. They are raised unchanged.
    """

    function: Callable[..., object]
    expected: tuple[type[BaseException], ...]

    def __call__(self, *args: Any) -> object:
        try:
            return self.function(*args)
        except self.expected:
            raise
        except Exception as error:
            raise LaunchError(error) from error

    def after_launch(self, error: Exception | None) -> object:
        """Call the function with a launch's error, or with None."""
        if isinstance(error, LaunchError):
            error = error.kernel_error
        return self(error)


def mark_errors(runner: Runner, expected: tuple[type[BaseException], ...]) -> Runner:
    """Return a runner that raises the kernel's errors as a :class:`LaunchError`."""
    set_up = None
    if runner.set_up is not None:
        set_up = KernelCall(runner.set_up, expected)
    return replace(
        runner,
        run=KernelCall(runner.run, expected),
        before_launch=KernelCall(runner.before_launch, expected),
        after_launch=KernelCall(runner.after_launch, expected).after_launch,
        set_up=set_up,
    )


@dataclass(frozen=True)
class CandidateResult:
    """The result of racing one candidate.

    :param failed: the error of the candidate.
    :param same_as: the number of the candidate that was launched instead, because it runs the same code.
    """

    measured: Measurement | None = None
    failed: BaseException | None = None
    same_as: int | None = None

    @property
    def time_us(self) -> float:
        """The median time; infinite for a candidate that failed."""
        if self.measured is None:
            return float("inf")
        return self.measured.median_us


@dataclass(frozen=True)
class Defeat:
    """A comparison that a candidate lost.

    :param best: the candidate that was the fastest then.
    :param factor: the loser's time, divided by the time of the best.
    """

    best: Racer
    factor: float


@dataclass
class Racer:
    """A candidate that is launched, with the times of its launches.

    :param number: the position of the candidate among all that were probed.
    """

    number: int
    runner: Runner
    #: Times of the probes. No time is too short. All may be too long.
    probed_us: list[float] = field(default_factory=list)
    #: Whether the device was kept busy long enough during a probe.
    was_in_time: bool = False
    timed_us: list[float] = field(default_factory=list)
    failed: BaseException | None = None
    #: The last comparison that the candidate lost. A defeat never leads back to its own racer. Such a circle would
    #: keep all tensors of the launches after the race.
    defeat: Defeat | None = None

    @property
    def fastest_probe_us(self) -> float:
        return min(self.probed_us, default=float("inf"))

    @property
    def time_us(self) -> float:
        """The median time. A beaten candidate's time is computed as if it had been timed for as long as the best."""
        if self.defeat is not None:
            return self.defeat.best.time_us * self.defeat.factor
        return self._measurement.median_us

    @property
    def result(self) -> CandidateResult:
        if self.failed is not None:
            return CandidateResult(failed=self.failed)
        return CandidateResult(replace(self._measurement, median_us=self.time_us))

    @property
    def _measurement(self) -> Measurement:
        return measurement(self.timed_us or [self.fastest_probe_us])


@dataclass(frozen=True)
class Turn:
    """A launch to be made.

    :param round_number: from 0.
    :param needs_set_up: whether the launch directly before this one may be of another candidate.
    """

    racer: Racer
    round_number: int
    needs_set_up: bool


@dataclass(frozen=True)
class RacerLaunch:
    """A launch that was made of a racer, in the round of this number."""

    racer: Racer
    round_number: int
    launch: Launch

    @property
    def prepared_us(self) -> float:
        return self.launch.prepared_us


@dataclass(frozen=True)
class RoundTimes:
    """The times of some rounds.

    :param is_host_late: the host was late so often that the times are of no use.
    """

    rounds: list[Round]
    is_host_late: bool


class Launching:
    """Launches candidates in turn, and times them.

    :param expected: the types of errors that a single candidate may raise. The candidate fails, and the others go on.
    :param seed: determines the order of the turns. No other random state is touched.
    """

    def __init__(self, clock: Clock, expected: tuple[type[BaseException], ...], seed: int) -> None:
        self._clock = clock
        self._expected = expected
        self._random = random.Random(seed)
        #: Whether the device can be kept busy while a launch is prepared.
        self.can_keep_busy = clock.can_keep_busy
        #: The time for which the device is kept busy before a launch that counts, in microseconds.
        self.busy_us = 0.0

    def launch_rounds(self, racers: Sequence[Racer], round_count: int, busy_us: float) -> list[RacerLaunch]:
        """Launch each racer once in each round, and return the launches of the racers that did not fail.

        The host waits for the device after each ``QUEUED`` launches. A racer that fails is not launched again.

        :param busy_us: the time for which the device is kept busy before each launch; 0.0: not at all.
        :raises LaunchError: if a kernel raises an error that is not expected, or the device no longer works.
        """
        turns = self._list_turns(racers, round_count)
        launches: list[RacerLaunch] = []
        for first in range(0, len(turns), QUEUED):
            for turn in turns[first : first + QUEUED]:
                launch = self._launch(turn, busy_us)
                if launch is not None:
                    launches.append(launch)
            self._wait_for_device()
        # A racer may have failed after launches of earlier rounds.
        return [launch for launch in launches if launch.racer.failed is None]

    def _launch(self, turn: Turn, busy_us: float) -> RacerLaunch | None:
        """Launch the racer of a turn; return None if the racer fails, or has failed before."""
        racer = turn.racer
        if racer.failed is not None:
            return None
        try:
            if turn.needs_set_up and racer.runner.set_up is not None:
                racer.runner.set_up()
            launch = self._clock.launch(racer.runner, busy_us)
        except self._expected as error:
            self._fail(racer, error)
            return None
        return RacerLaunch(racer, turn.round_number, launch)

    def time_rounds(self, racers: Sequence[Racer], round_count: int) -> RoundTimes:
        """Launch each racer once in each round, and return the times of the launches that count.

        A launch counts if the host was in time for it: the device was still busy when the host had prepared the launch,
        so the time is the kernel's time. If the host was late for most launches of a racer, all launches count.
        """
        launches = self.launch_rounds(racers, round_count, self.busy_us)
        if not self.can_keep_busy:
            return RoundTimes(_list_round_times(launches, round_count), is_host_late=False)
        in_time = [launch for launch in launches if launch.prepared_us <= self.busy_us]
        if _are_enough(in_time, launches):
            return RoundTimes(_list_round_times(in_time, round_count), is_host_late=False)
        # If the device can be kept busy for longer, the caller repeats these rounds.
        is_host_late = self.busy_us < LONGEST_BUSY_US
        if is_host_late:
            self.keep_busy([launch.prepared_us for launch in launches])
        return RoundTimes(_list_round_times(launches, round_count), is_host_late)

    def keep_busy(self, prepared_us: Sequence[float]) -> None:
        """Have the device kept busy for as long as the host needs to prepare almost every launch.

        :param prepared_us: the times that the host needed for launches, in microseconds.
        """
        if not self.can_keep_busy or not prepared_us:
            return
        # 90 % of the preparations took no longer. The rest may be stalls of the host.
        longest_us = sorted(prepared_us)[int(len(prepared_us) * 0.9)]
        wanted_us = min(LONGEST_BUSY_US, max(SHORTEST_BUSY_US, longest_us * BUSY_MARGIN))
        self.busy_us = max(self.busy_us, wanted_us)

    def _list_turns(self, racers: Sequence[Racer], round_count: int) -> list[Turn]:
        """Return the launches of some rounds in their order, which is drawn at random."""
        shuffled = list(racers)
        turns = []
        if any(racer.runner.set_up for racer in racers):
            # A set-up may take long. Each racer is therefore launched for all rounds, before the next racer begins.
            self._random.shuffle(shuffled)
            for racer in shuffled:
                for round_number in range(round_count):
                    turns.append(Turn(racer, round_number, needs_set_up=round_number == 0))
            return turns
        for round_number in range(round_count):
            self._random.shuffle(shuffled)
            for racer in shuffled:
                turns.append(Turn(racer, round_number, needs_set_up=False))
        return turns

    def _wait_for_device(self) -> None:
        """Wait until the device has finished all launches.

        :raises LaunchError: if a kernel broke the device.
        """
        try:
            self._clock.synchronise()
        except Exception as error:
            raise LaunchError(error) from error

    def _fail(self, racer: Racer, error: BaseException) -> None:
        """Note the error of a racer.

        :raises DeviceLostError: if the device no longer works.
        """
        # The frames in the error's traceback refer to the tensors of the call and to this racer. The racer refers to
        # the error, and this circle would keep the tensors alive.
        racer.failed = clear_tracebacks(error)
        try:
            self._clock.synchronise()
        except Exception as device_error:
            raise DeviceLostError(racer.number, error, device_error) from device_error


def _list_round_times(launches: Sequence[RacerLaunch], round_count: int) -> list[Round]:
    """Return the times of launches, by round and by the number of the candidate."""
    rounds: list[Round] = [{} for _ in range(round_count)]
    for launch in launches:
        rounds[launch.round_number][launch.racer.number] = launch.launch.time_us()
    return rounds


def _are_enough(in_time: Sequence[RacerLaunch], launches: Sequence[RacerLaunch]) -> bool:
    """Whether the host was in time for at least half of the launches of each racer."""
    in_time_counts = Counter(launch.racer.number for launch in in_time)
    counts = Counter(launch.racer.number for launch in launches)
    return all(2 * in_time_counts[number] >= count for number, count in counts.items())
