"""One search: compile, check and measure candidates, and choose the fastest that is right."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from pytest_autotune.cache.model import Candidate, Value
from pytest_autotune.run.reasons import REASON_LENGTH
from pytest_autotune.tuners.function.compiling import Compiled, Compiling, compiler
from pytest_autotune.tuners.function.errors import InvalidConfiguration, TuningError
from pytest_autotune.tuners.function.space import Configuration, Space, params_of
from pytest_autotune.tuners.function.strategies import Strategy
from pytest_autotune.tuners.measuring.clocks import Clock, HostClock, Runner
from pytest_autotune.tuners.measuring.how import Measuring, NoClockError, OwnClock, make_clock, measured_by
from pytest_autotune.tuners.measuring.race import DeviceLostError, Limits, Race, Result
from pytest_autotune.tuners.measuring.times import Measurement, UnusableTimesError
from pytest_autotune.tuners.shared.candidates import rounded_us

#: Has a measurement hold the device.
Hold = Callable[[], AbstractContextManager[object]]
_Tries = Callable[[int, int], object]


@dataclass(frozen=True)
class Callbacks:
    """What the caller does with one configuration; ``compile`` makes a second argument of ``run``.

    :param run: one call of the kernel: what is measured.
    :param setup: called before a candidate is checked, and whenever its turn comes.
    :param reset: called before each run and not timed.
    :param verify: gets the configuration and what ``run`` returned; raises or returns False for a wrong result.
    :param invalid: errors of these classes mean that a configuration cannot be used here.
    :param strict: other errors end the search; otherwise they, too, are those of one candidate.
    """

    run: Callable[..., object]
    compile: Callable[[Any], object] | None = None
    setup: Callable[[Any], object] | None = None
    reset: Callable[[Any], object] | None = None
    verify: Callable[[Any, Any], object] | None = None
    invalid: tuple[type[BaseException], ...] = ()
    strict: bool = True

    @property
    def expected(self) -> tuple[type[BaseException], ...]:
        """The errors that are those of one candidate."""
        return (InvalidConfiguration, *self.invalid) if self.strict else (Exception, *self.invalid)


@dataclass(frozen=True)
class Plan:
    """How a space is searched."""

    space: Space
    callbacks: Callbacks
    measuring: Measuring
    compiling: Compiling
    strategy: Strategy


@dataclass(frozen=True)
class Trial:
    """What became of one candidate.

    :param compiled: what the caller's ``compile`` made of it.
    :param failed: why it cannot be chosen; empty where it can.
    :param may_pass: it failed for want of what the next run may have: memory, a file, time.
    """

    configuration: Configuration
    compiled: object = None
    measured: Measurement | None = None
    failed: str = ""
    may_pass: bool = False

    @property
    def median_us(self) -> float:
        return self.measured.median_us if self.measured else float("inf")

    @property
    def candidate(self) -> Candidate:
        """The trial as a cache and reports hold it."""
        params = self.configuration.params
        if self.measured is None:
            return Candidate(params=params, failed=self.failed)
        return Candidate(params=params, time_us=rounded_us(self.median_us), label=str(self.measured))


@dataclass(frozen=True)
class Found:
    """The outcome of a search: the trial that won, and all of them in the order of the space or search.

    :param disturbed: measurements went on to disagree with each other.
    """

    best: Trial
    trials: Sequence[Trial] = field(default_factory=tuple)
    disturbed: bool = False


@dataclass(frozen=True)
class Loss:
    """What a choice costs where another one may be better.

    :param choice: the configuration in question, with its time in microseconds.
    :param best: the fastest one.
    """

    choice: Candidate
    best: Candidate

    @property
    def share(self) -> float:
        """How much longer the choice takes, as a share of the best time: 0.03 is 3 %."""
        if not self.choice.time_us or not self.best.time_us:
            return 0.0
        return max(self.choice.time_us / self.best.time_us - 1, 0.0)


def search(plan: Plan, on_gpu: bool, workers: int, hold: Hold, tries: _Tries = lambda number, of: None) -> Found:
    """Search a space for the fastest configuration.

    Compiling and the first run of a candidate, which may compile as well, take place beside
    what others measure. Then all candidates race. With a benchmark of the caller's own each is
    measured by it as soon as it is compiled.

    :param workers: how many candidates may be compiled at a time.
    :param hold: has the device to itself, as far as other pytest processes go.
    :param tries: called for each candidate of a batch, with its number from 1 and how many there are.
    :raises TuningError: when no candidate could be used, or the device no longer works.
    """
    bench = _bench(plan, on_gpu, hold)
    _try_all(plan, bench, workers, tries)
    return bench.finish()


def compare(plan: Plan, config: object, on_gpu: bool, workers: int, hold: Hold) -> Loss:
    """Compare one configuration with the fastest of its space; takes what :func:`search` takes.

    :raises TuningError: when the configuration cannot be used, or :func:`search` raises it.
    :raises ValueError: when it is not in the space.
    """
    wanted = plan.space.find(params_of(config))
    if wanted is None:
        raise ValueError(f"not in the space: {config!r}")
    found = search(plan, on_gpu, workers, hold)
    choice = next((trial for trial in found.trials if trial.configuration == wanted), None)
    if choice is None:  # the strategy left it out
        compiled = None if plan.callbacks.compile is None else plan.callbacks.compile(wanted.config)
        choice = Trial(wanted, compiled)
    if choice.failed:
        raise TuningError(f"{wanted} cannot be used here: {choice.failed}")
    bench = _bench(plan, on_gpu, hold)
    pair = [choice] if choice.configuration == found.best.configuration else [choice, found.best]
    bench.measure([replace(trial, measured=None) for trial in pair])
    choice, *others = bench.finish().trials
    if choice.failed:
        raise TuningError(f"{wanted} cannot be used here: {choice.failed}")
    best = min([choice, *others], key=lambda trial: trial.median_us)
    return Loss(choice.candidate, best.candidate)


def why_unusable(plan: Plan, configuration: Configuration, on_gpu: bool) -> str:
    """Why a search would leave a configuration out, which is compiled and run once for that; empty where it would not.

    :raises TuningError: when the device no longer works.
    """
    return "; ".join(trial.failed for trial, _ in _checked(plan, [configuration], on_gpu, 1))


def runners(
    plan: Plan, configurations: Sequence[Configuration], on_gpu: bool, workers: int
) -> dict[tuple[Value, ...], Runner]:
    """What launches those of some configurations that a search would not leave out, by their params.

    :raises TuningError: when the device no longer works.
    """
    found = {}
    for trial, runner in _checked(plan, configurations, on_gpu, workers):
        if not trial.failed:
            found[trial.configuration.params] = runner
    return {one.params: found[one.params] for one in configurations if one.params in found}


def _checked(
    plan: Plan, configurations: Sequence[Configuration], on_gpu: bool, workers: int
) -> Iterator[tuple[Trial, Runner]]:
    bench = _bench(plan, on_gpu, nullcontext)
    with ExitStack() as stack:
        compiled_of: Callable[[Iterable[Configuration]], Iterator[Compiled]] = _nothing_to_compile
        if plan.callbacks.compile is not None:
            compiling = compiler(plan.callbacks.compile, plan.compiling, workers, False, bench.use_device())
            compiled_of = stack.enter_context(compiling)
        for configuration, compiled in compiled_of(configurations):
            trial = bench.usable(configuration, compiled)
            yield trial, bench.runner(trial)


def _try_all(plan: Plan, bench: _Bench, workers: int, tries: _Tries) -> None:
    """Compile, check and measure what the strategy names.

    :raises TuningError: when nothing can be used.
    """
    workers = plan.compiling.workers or workers
    with ExitStack() as stack:
        compiled_of: Callable[[Iterable[Configuration]], Iterator[Compiled]] = _nothing_to_compile
        if plan.callbacks.compile is not None:
            overlap = plan.compiling.overlap
            overlap = bench.times_events if overlap is None else overlap
            begin_thread = bench.use_device()
            compiling = compiler(plan.callbacks.compile, plan.compiling, workers, overlap, begin_thread)
            compiled_of = stack.enter_context(compiling)
        batches = stack.enter_context(closing(plan.strategy.batches(plan.space, workers)))
        batch = next(batches, None)
        while batch is not None:
            numbers = {configuration: number for number, configuration in enumerate(batch)}
            checked = [Trial(configuration) for configuration in batch]
            for number, (configuration, compiled) in enumerate(compiled_of(batch), 1):
                tries(number, len(batch))
                checked[numbers[configuration]] = bench.check(configuration, compiled)
            measured = bench.measure(checked)
            try:
                batch = batches.send([_time_us(trial) for trial in measured])
            except StopIteration:
                batch = None


def _nothing_to_compile(configurations: Iterable[Configuration]) -> Iterator[Compiled]:
    return ((configuration, None) for configuration in configurations)


def _time_us(trial: Trial) -> float | None:
    return None if trial.measured is None else trial.measured.median_us


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


def _bench(plan: Plan, on_gpu: bool, hold: Hold) -> _Bench:
    how = plan.measuring
    try:
        clock = make_clock(how.clock, on_gpu, how.flush_l2)
    except NoClockError as error:
        raise TuningError(str(error)) from None
    if callable(how.clock):
        return _OwnBench(plan.callbacks, clock, hold, how.clock)
    return _RaceBench(plan.callbacks, clock, hold, how.limits)


class _Bench(ABC):
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
            raise InvalidConfiguration(f"wrong result: {_first_line(error) or 'AssertionError'}") from error
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
        return Trial(configuration, failed=_reason(error), may_pass=_may_pass(error))


class _OwnBench(_Bench):
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


class _RaceBench(_Bench):
    """A race between all candidates; the device is held while they race, and not while they are checked."""

    def __init__(self, callbacks: Callbacks, clock: Clock, hold: Hold, limits: Limits) -> None:
        super().__init__(callbacks, clock, hold)
        self._race = Race(clock, limits, self._expected)
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
            self._take(new, self._results(lambda: self._race.look([self.runner(self._trials[one]) for one in new])))
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
    return TuningError(f"the device no longer works after {configuration} ({_reason(error)}): {_first_line(broken)}")


def _reason(error: BaseException) -> str:
    """What a candidate failed with, in one line."""
    line = _first_line(error)[:REASON_LENGTH]
    named = isinstance(error, (InvalidConfiguration, UnusableTimesError)) and bool(line)
    return line if named else f"{type(error).__name__}: {line}".removesuffix(": ")


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
