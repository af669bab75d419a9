"""How a search checks and measures its candidates: with a benchmark of the caller's own, or in a race."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from pytest_autotune.run.reasons import REASON_LENGTH
from pytest_autotune.tuners.function.errors import InvalidConfiguration, TuningError
from pytest_autotune.tuners.function.plan import Callbacks, Found, Hold, Plan, Trial
from pytest_autotune.tuners.function.space import Configuration
from pytest_autotune.tuners.measuring.clocks import Clock, HostClock, Runner
from pytest_autotune.tuners.measuring.how import NoClockError, OwnClock, make_clock, measured_by
from pytest_autotune.tuners.measuring.launching import DeviceLostError, Result
from pytest_autotune.tuners.measuring.race import Limits, Race
from pytest_autotune.tuners.measuring.times import UnusableTimesError
from pytest_autotune.tuners.shared.candidates import clear_tracebacks, first_line


def bench_of(
    plan: Plan, on_gpu: bool, hold: Hold, races: Callable[[int, int], object] = lambda left, of: None
) -> Bench:
    """What measures the candidates of a search.

    :param hold: has the device to itself, as far as other pytest processes go.
    :param races: called with how many candidates are still in a race, and how many there are.
    :raises TuningError: when nothing here can time the device.
    """
    how = plan.measuring
    try:
        clock = make_clock(how.clock, on_gpu, how.flush_l2)
    except NoClockError as error:
        raise TuningError(str(error)) from None
    if callable(how.clock):
        return _OwnBench(plan.callbacks, clock, hold, how.clock)
    return _RaceBench(plan.callbacks, clock, hold, how.limits, races)


class Bench(ABC):
    """Where candidates are checked and measured."""

    def __init__(self, callbacks: Callbacks, clock: Clock, hold: Hold) -> None:
        self._callbacks = callbacks
        self._clock = clock
        self._hold = hold
        self._expected: tuple[type[BaseException], ...] = (*callbacks.expected, UnusableTimesError)
        self._trials: list[Trial] = []

    def use_device(self) -> Callable[[], object]:
        """What a thread of the compilers calls to work on the device of this one."""
        return self._clock.use_device()

    @property
    def times_events(self) -> bool:
        """Whether the device takes the times, so that a busy host does not lengthen them much."""
        return not isinstance(self._clock, HostClock)

    @abstractmethod
    def check(self, configuration: Configuration, compiled: Future[object] | None) -> Trial:
        """Set up and check one candidate, as soon as it is compiled."""

    @abstractmethod
    def measure(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        """Take in what was checked; returns it with a time, where it did not fail."""

    @abstractmethod
    def finish(self) -> Found:
        """The outcome, once everything was taken in.

        :raises TuningError: when nothing can be used.
        """

    def usable(self, configuration: Configuration, compiled: Future[object] | None) -> Trial:
        """Set up and run one candidate that is not measured here, and check its result."""
        try:
            return self._checked(self._prepared(configuration, compiled))
        except self._expected as error:
            return self._failed(configuration, error)

    def _prepared(self, configuration: Configuration, compiled: Future[object] | None) -> Trial:
        trial = Trial(configuration)
        if compiled is not None:
            trial = replace(trial, compiled=compiled.result())
        if self._callbacks.setup is not None:
            self._callbacks.setup(configuration.config)
        return trial

    def runner(self, trial: Trial) -> Runner:
        """What launches a candidate."""
        callbacks, config = self._callbacks, trial.configuration.config
        run = (
            partial(callbacks.run, config)
            if callbacks.compile is None
            else partial(callbacks.run, config, trial.compiled)
        )
        runner = Runner(run)
        if callbacks.reset is not None:
            runner = replace(runner, before=partial(callbacks.reset, config))
        if callbacks.setup is not None:
            runner = replace(runner, set_up=partial(callbacks.setup, config))
        return runner

    def _checked(self, trial: Trial) -> Trial:
        """Run a candidate once and look at its result; a kernel that compiles when it is called does so here.

        :raises InvalidConfiguration: when the result is wrong.
        """
        runner = self.runner(trial)
        runner.before()
        result = runner.run()
        self._clock.synchronise()
        if self._callbacks.verify is None:
            return trial
        try:
            passed = self._callbacks.verify(trial.configuration.config, result)
        except AssertionError as error:
            raise InvalidConfiguration(f"wrong result: {first_line(str(error)) or 'AssertionError'}") from error
        if passed is not None and not passed:
            raise InvalidConfiguration("wrong result")
        return trial

    def _failed(self, configuration: Configuration, error: BaseException) -> Trial:
        """A candidate that failed.

        :raises TuningError: when the device no longer works: then every later candidate would fail as well.
        """
        try:
            self._clock.synchronise()
        except Exception as broken:
            raise _device_lost(configuration, error, broken) from error
        # What was compiled, and is held by whoever asked for it, holds the error.
        clear_tracebacks(error)
        return Trial(configuration, failed=_reason(error), may_pass=_may_pass(error))


class _OwnBench(Bench):
    """The caller's own benchmark, which is taken as it is: each candidate is measured by it once, in its turn."""

    def __init__(self, callbacks: Callbacks, clock: Clock, hold: Hold, own: OwnClock) -> None:
        super().__init__(callbacks, clock, hold)
        self._own = own

    def check(self, configuration: Configuration, compiled: Future[object] | None) -> Trial:
        try:
            trial = self._prepared(configuration, compiled)
            # Where there is nothing to verify, its one call is the one that is measured.
            return self._measured(trial if self._callbacks.verify is None else self._checked(trial))
        except self._expected as error:
            return self._failed(configuration, error)

    def measure(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        taken_in = []
        for trial in trials:
            if trial.measured is None and not trial.failed:
                try:
                    if self._callbacks.setup is not None:
                        self._callbacks.setup(trial.configuration.config)
                    trial = self._measured(trial)
                except self._expected as error:
                    trial = self._failed(trial.configuration, error)
            taken_in.append(trial)
        self._trials += taken_in
        return taken_in

    def finish(self) -> Found:
        usable = [trial for trial in self._trials if not trial.failed]
        if not usable:
            raise _none_left(self._trials)
        return Found(min(usable, key=lambda trial: trial.median_us), tuple(self._trials))

    def _measured(self, trial: Trial) -> Trial:
        runner = self.runner(trial)
        with self._hold():
            runner.before()
            return replace(trial, measured=measured_by(self._own, runner.run))


class _RaceBench(Bench):
    """A race between all candidates; the device is held while they race, and not while they are checked."""

    def __init__(
        self, callbacks: Callbacks, clock: Clock, hold: Hold, limits: Limits, races: Callable[[int, int], object]
    ) -> None:
        super().__init__(callbacks, clock, hold)
        self._race = Race(clock, limits, self._expected, told=races)
        #: The trials by the numbers that they have in the race.
        self._racing: list[int] = []

    def check(self, configuration: Configuration, compiled: Future[object] | None) -> Trial:
        return self.usable(configuration, compiled)

    def measure(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        first = len(self._trials)
        self._trials += trials
        new = [number for number, trial in enumerate(self._trials) if number >= first and not trial.failed]
        self._racing += new
        with self._hold():
            self._take(new, self._results(lambda: self._race.probe([self.runner(self._trials[one]) for one in new])))
        return self._trials[first:]

    def finish(self) -> Found:
        if not any(trial.measured for trial in self._trials):
            raise _none_left(self._trials)
        with self._hold():
            self._take(self._racing, self._results(self._race.finish))
        try:
            best = self._trials[self._racing[self._race.choice]]
        except LookupError:
            raise _none_left(self._trials) from None
        return Found(best, tuple(self._trials), self._race.disturbed)

    def _take(self, numbers: Sequence[int], results: Sequence[Result]) -> None:
        for number, result in zip(numbers, results, strict=True):
            trial = self._trials[number]
            error = result.failed
            failed, may_pass = ("", False) if error is None else (_reason(error), _may_pass(error))
            self._trials[number] = replace(trial, measured=result.measured, failed=failed, may_pass=may_pass)

    def _results(self, race: Callable[[], Sequence[Result]]) -> Sequence[Result]:
        try:
            return race()
        except DeviceLostError as lost:
            configuration = self._trials[self._racing[lost.number]].configuration
            raise _device_lost(configuration, lost.error, lost.__cause__ or lost) from lost.error


def _device_lost(configuration: Configuration, error: BaseException, broken: BaseException) -> TuningError:
    return TuningError(
        f"the device no longer works after {configuration} ({_reason(error)}): {first_line(str(broken))}"
    )


def _reason(error: BaseException) -> str:
    """What a candidate failed with, in one line."""
    # An entry keeps less of it, once paths and the like are out of it, which are not as long in each run.
    line = first_line(str(error))[: 4 * REASON_LENGTH]
    named = isinstance(error, (InvalidConfiguration, UnusableTimesError)) and bool(line)
    return line if named else f"{type(error).__name__}: {line}".removesuffix(": ")


def _none_left(trials: Sequence[Trial]) -> TuningError:
    again = not any(trial.may_pass for trial in trials)
    return TuningError(_why_none(trials), tuple(trial.failed for trial in trials) if again else ())


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, OSError, UnusableTimesError)) or "OutOfMemory" in type(error).__name__


def _why_none(trials: Sequence[Trial]) -> str:
    failed = [trial for trial in trials if trial.failed]
    reasons = "; ".join(f"{trial.configuration}: {trial.failed}" for trial in failed[:3])
    more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    number = "the only candidate" if len(trials) == 1 else f"all {len(failed)} candidates"
    return f"{number} failed: {reasons}{more}" if trials else "the search came to no candidate"
