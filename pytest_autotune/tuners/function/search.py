"""One search: compile, check and measure candidates, and choose the fastest that is right."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from pytest_autotune.cache.foreign_text import describe_error, first_line
from pytest_autotune.cache.model import Candidate
from pytest_autotune.devices import torch_cuda
from pytest_autotune.run.tuning import MAX_REASON_LENGTH
from pytest_autotune.tuners.function.plan import Hold, Plan
from pytest_autotune.tuners.function.space import Configuration, InvalidConfiguration, TuningError, params_of
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.launching import CandidateResult, DeviceLostError
from pytest_autotune.tuners.measuring.options import CallersClock, make_clock
from pytest_autotune.tuners.measuring.race import Race
from pytest_autotune.tuners.measuring.times import Measurement, UnusableTimesError
from pytest_autotune.tuners.shared.candidates import clear_tracebacks, rounded_us
from pytest_autotune.tuners.shared.compile_pool import CompilePool

#: Gets a number, and out of how many it is.
Tells = Callable[[int, int], object]


def tells_nobody(number: int, of: int) -> None:
    """Nobody wants to know how far it is."""


@dataclass(frozen=True)
class Trial:
    """What became of one candidate, and of what ``compile`` made of it; without an error it can be chosen."""

    configuration: Configuration
    compiled: object = None
    measured: Measurement | None = None
    error: BaseException | None = None

    @property
    def median_us(self) -> float:
        return self.measured.median_us if self.measured else float("inf")

    @property
    def failed(self) -> str:
        """What it failed with, in one line; empty where it did not."""
        return "" if self.error is None else _reason(self.error)

    @property
    def candidate(self) -> Candidate:
        """The trial as a cache and reports hold it."""
        params = self.configuration.params
        if self.measured is None:
            return Candidate(params=params, failed=self.failed)
        return Candidate(params=params, time_us=rounded_us(self.median_us), label=str(self.measured))


@dataclass(frozen=True)
class Found:
    """The trial that won, and all of them in order; disturbed where measurements went on to disagree."""

    best: Trial
    trials: Sequence[Trial]
    disturbed: bool


@dataclass(frozen=True)
class Loss:
    """What a choice costs where another candidate is the best; both have their times in microseconds."""

    choice: Candidate
    best: Candidate

    @property
    def share(self) -> float:
        """How much longer the choice takes, as a share of the best time: 0.03 is 3 %."""
        if not self.choice.time_us or not self.best.time_us:
            return 0.0
        return max(self.choice.time_us / self.best.time_us - 1, 0.0)


def search(plan: Plan, hold: Hold, tries: Tells = tells_nobody, races: Tells = tells_nobody) -> Found:
    """Search a space for the fastest configuration, while ``hold`` keeps other pytest processes off the device.

    Compiling and the first run of a candidate, which may compile as well, come before anything is measured. Then all
    candidates race, or are measured by a benchmark of the caller's own.

    :param tries: called for each candidate of a batch, with its number from 1 and how many there are.
    """
    bench = Bench(plan, hold, races)
    # With a benchmark of the caller's own it is run only to look at its result.
    run = plan.verify is not None or not callable(plan.measuring.clock)

    def times_of(batch: Sequence[Configuration]) -> list[float | None]:
        measured = bench.measure(bench.checked(batch, tries, run))
        return [None if one.measured is None else one.median_us for one in measured]

    if plan.strategy is None:
        times_of(list(plan.space))
    else:
        plan.strategy.search(plan.space, plan.workers, times_of)
    return bench.finish()


def compare(plan: Plan, config: object, hold: Hold) -> Loss:
    """Compare one configuration of a space, if it can be used, with the fastest; see :func:`search`."""
    wanted = plan.space.find(params_of(config))
    if wanted is None:
        raise ValueError(f"not in the space: {config!r}")
    found, bench = search(plan, hold), Bench(plan, hold)
    # The strategy may have left it out.
    choice = next((one for one in found.trials if one.configuration == wanted), None) or bench.checked([wanted])[0]
    best = choice
    if not choice.failed:
        pair = [choice] if choice is found.best else [choice, found.best]
        bench.measure([replace(trial, measured=None) for trial in pair])
        trials = bench.finish().trials
        choice, best = trials[0], min(trials, key=lambda trial: trial.median_us)
    if choice.failed:
        raise TuningError(f"{wanted} cannot be used here: {choice.failed}")
    return Loss(choice.candidate, best.candidate)


@dataclass(frozen=True)
class _InThisThread:
    """A candidate that is compiled in the thread that asks for the result."""

    compile: Callable[[Any], object]
    config: object

    def result(self) -> object:
        """Compile the candidate."""
        return self.compile(self.config)


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Give the generators of Python, numpy and torch (on the CPU and CUDA) their state back afterwards.

    So what a test draws does not depend on whether a search took place. Libraries first imported inside are left alone.
    """
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        numpy: Any = sys.modules.get("numpy.random")
        if numpy is not None:
            stack.callback(numpy.set_state, numpy.get_state())
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            # The state of a GPU cannot be read while it captures a graph; nothing can be tuned then.
            if (cuda := torch_cuda()) is not None:
                stack.callback(cuda.set_rng_state_all, cuda.get_rng_state_all())
        yield


class Bench:
    """Where the candidates of one search are checked, and measured while the device is held."""

    def __init__(self, plan: Plan, hold: Hold = nullcontext, races: Tells = tells_nobody) -> None:
        how = plan.measuring
        self._plan, self._hold = plan, hold
        self._clock = make_clock(how.clock, plan.processor.on_gpu, how.flush_l2)
        self._expected: tuple[type[BaseException], ...] = (*plan.expected, UnusableTimesError)
        self._race = Race(self._clock, how.limits, self._expected, progress=races)
        self._trials: list[Trial] = []
        #: The trials by the numbers that they have in the race.
        self._racing: list[int] = []

    def checked(
        self, configurations: Sequence[Configuration], tries: Tells = tells_nobody, run: bool = True
    ) -> list[Trial]:
        """Compile candidates side by side, in threads; set up each, run it once and check its result."""
        compile = self._plan.compile
        trials: list[Trial] = []
        with CompilePool(self._plan.workers, self._clock.use_device()) as pool:
            compilations: list[Future[object] | _InThisThread | None] = []
            for configuration in configurations:
                if compile is None:
                    compilations.append(None)
                elif self._plan.compile_threads == 1:
                    compilations.append(_InThisThread(compile, configuration.config))
                else:
                    compilations.append(pool.submit(compile, configuration.config))
            for number, (one, compilation) in enumerate(zip(configurations, compilations, strict=True), 1):
                tries(number, len(configurations))
                trials.append(self._check(one, compilation, run))
        return trials

    def _check(
        self, configuration: Configuration, compilation: Future[object] | _InThisThread | None, run: bool
    ) -> Trial:
        try:
            trial = Trial(configuration, None if compilation is None else compilation.result())
            if run:
                self._run(trial)
            return trial
        except self._expected as error:
            return self._failed(configuration, error)

    def _run(self, trial: Trial) -> None:
        """Run a candidate once and look at its result; a kernel that compiles when it is called does so here."""
        runner = self.runner(trial)
        if runner.set_up is not None:
            runner.set_up()
        runner.before_launch()
        result = runner.run()
        self._clock.synchronise()
        if self._plan.verify is None:
            return
        try:
            passed = self._plan.verify(trial.configuration.config, result)
        except AssertionError as error:
            raise InvalidConfiguration(f"wrong result: {first_line(str(error)) or 'AssertionError'}") from error
        if passed is not None and not passed:
            raise InvalidConfiguration("wrong result")

    def measure(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        """Take in what was checked; returns it with a time, where it did not fail."""
        first, clock = len(self._trials), self._clock
        if isinstance(clock, CallersClock):  # it is taken as it is, and measures each candidate once
            self._trials += [one if one.failed else self._measured(one, clock) for one in trials]
            return self._trials[first:]
        self._trials += trials
        new = [number for number, trial in enumerate(self._trials) if number >= first and not trial.failed]
        self._racing += new
        with self._hold():
            self._take(new, lambda: self._race.probe([self.runner(self._trials[one]) for one in new]))
        return self._trials[first:]

    def _measured(self, trial: Trial, clock: CallersClock) -> Trial:
        try:
            runner = self.runner(trial)
            if runner.set_up is not None:
                runner.set_up()
            with self._hold():
                return replace(trial, measured=clock.measure(runner))
        except self._expected as error:
            return self._failed(trial.configuration, error)

    def finish(self) -> Found:
        """The outcome, once everything was taken in."""
        if any(not self._trials[number].failed for number in self._racing):
            with self._hold():
                self._take(self._racing, self._race.finish)
        usable = [trial for trial in self._trials if not trial.failed]
        if not usable:
            raise _none_left(self._trials)
        if self._racing:
            best = self._trials[self._racing[self._race.choice]]
        else:
            best = min(usable, key=lambda trial: trial.median_us)
        return Found(best, tuple(self._trials), self._race.disturbed)

    def runner(self, trial: Trial) -> Runner:
        """What launches a candidate."""
        plan, config = self._plan, trial.configuration.config
        compiled = () if plan.compile is None else (trial.compiled,)
        runner = Runner(partial(plan.run, config, *compiled))
        if plan.reset is not None:
            runner = replace(runner, before_launch=partial(plan.reset, config))
        if plan.setup is not None:
            runner = replace(runner, set_up=partial(plan.setup, config))
        return runner

    def _failed(self, configuration: Configuration, error: BaseException) -> Trial:
        """A candidate that failed, and left the device working: else every later one would fail as well."""
        try:
            self._clock.synchronise()
        except Exception as broken:
            raise _device_lost(configuration, error, broken) from error
        # What was compiled, and is held by whoever asked for it, holds the error.
        return Trial(configuration, error=clear_tracebacks(error))

    def _take(self, numbers: Sequence[int], race: Callable[[], Sequence[CandidateResult]]) -> None:
        try:
            results = race()
        except DeviceLostError as lost:
            configuration = self._trials[self._racing[lost.number]].configuration
            raise _device_lost(configuration, lost.error, lost.__cause__ or lost) from lost.error
        for number, result in zip(numbers, results, strict=True):
            self._trials[number] = replace(self._trials[number], measured=result.measured, error=result.failed)


def _device_lost(configuration: Configuration, error: BaseException, broken: BaseException) -> TuningError:
    return TuningError(
        f"the device no longer works after {configuration} ({_reason(error)}): {first_line(str(broken))}"
    )


def _reason(error: BaseException) -> str:
    """What a candidate failed with, in one line."""
    # An entry keeps less of it, once paths and the like are out of it, which are not as long in each run.
    named = str(error) if isinstance(error, (InvalidConfiguration, UnusableTimesError)) else ""
    return (first_line(named) or describe_error(error))[: 4 * MAX_REASON_LENGTH]


def _may_pass(error: BaseException | None) -> bool:
    """Whether it is want of what the next run may have: memory, a file, time."""
    return isinstance(error, (MemoryError, OSError, UnusableTimesError)) or "OutOfMemory" in type(error).__name__


def _none_left(failed: Sequence[Trial]) -> TuningError:
    if not failed:
        return TuningError("the search came to no candidate")
    reasons = "; ".join(f"{trial.configuration}: {trial.failed}" for trial in failed[:3])
    more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    number = "the only candidate" if len(failed) == 1 else f"all {len(failed)} candidates"
    will_again = not any(_may_pass(trial.error) for trial in failed)
    return TuningError(f"{number} failed: {reasons}{more}", tuple(one.failed for one in failed) if will_again else ())
