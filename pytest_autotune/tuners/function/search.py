"""One search: compile, check and measure candidates, and choose the fastest that is right."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, as_completed, wait
from contextlib import ExitStack, closing, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from pytest_autotune.devices import torch_cuda
from pytest_autotune.run.tuning import REASON_LENGTH
from pytest_autotune.tuners.function.plan import Found, Hold, Loss, Plan, Trial
from pytest_autotune.tuners.function.space import Configuration, InvalidConfiguration, TuningError, params_of
from pytest_autotune.tuners.measuring.clocks import HostClock, Runner
from pytest_autotune.tuners.measuring.how import NoClockError, make_clock, measured_by
from pytest_autotune.tuners.measuring.launching import DeviceLostError, Result
from pytest_autotune.tuners.measuring.race import Race
from pytest_autotune.tuners.measuring.times import UnusableTimesError
from pytest_autotune.tuners.shared.candidates import clear_tracebacks, first_line
from pytest_autotune.tuners.shared.compile_pool import CompilePool

#: Gets a number, and out of how many it is.
Tells = Callable[[int, int], object]
#: A configuration, and what is made of it; None where nothing is compiled.
_Compiled = tuple[Configuration, "Future[object] | None"]


def tells_nobody(number: int, of: int) -> None:
    """Nobody wants to know how far it is."""


def search(plan: Plan, workers: int, hold: Hold, tries: Tells = tells_nobody, races: Tells = tells_nobody) -> Found:
    """Search a space for the fastest configuration.

    Compiling and the first run of a candidate, which may compile as well, take place beside
    what others measure. Then all candidates race, or are measured by a benchmark of the caller's own.

    :param workers: how many candidates may be compiled at a time.
    :param hold: has the device to itself, as far as other pytest processes go.
    :param tries: called for each candidate of a batch, with its number from 1 and how many there are.
    :param races: called with how many candidates are still in the race, and how many there are.
    :raises TuningError: when no candidate could be used, or the device no longer works.
    """
    bench = Bench(plan, hold, races)
    with ExitStack() as stack:
        compiled_of = stack.enter_context(_compiler(plan, bench, workers))
        batches = stack.enter_context(closing(plan.strategy.batches(plan.space, workers)))
        batch = next(batches, None)
        while batch is not None:
            numbers = {configuration: number for number, configuration in enumerate(batch)}
            checked = [Trial(configuration) for configuration in batch]
            for number, (configuration, compiled) in enumerate(compiled_of(batch), 1):
                tries(number, len(batch))
                checked[numbers[configuration]] = bench.check(configuration, compiled, bench.runs_before_measuring)
            times = [None if one.measured is None else one.median_us for one in bench.measure(checked)]
            try:
                batch = batches.send(times)
            except StopIteration:
                batch = None
    return bench.finish()


def compare(plan: Plan, config: object, workers: int, hold: Hold) -> Loss:
    """Compare one configuration with the fastest of its space; takes what :func:`search` takes.

    :raises TuningError: when the configuration cannot be used, or :func:`search` raises it.
    :raises ValueError: when it is not in the space.
    """
    wanted = plan.space.find(params_of(config))
    if wanted is None:
        raise ValueError(f"not in the space: {config!r}")
    found = search(plan, workers, hold)
    choice = next((trial for trial in found.trials if trial.configuration == wanted), None)
    if choice is None:  # the strategy left it out
        choice = Trial(wanted, None if plan.callbacks.compile is None else plan.callbacks.compile(wanted.config))
    others: list[Trial] = []
    if not choice.failed:
        bench = Bench(plan, hold)
        pair = [choice] if choice.configuration == found.best.configuration else [choice, found.best]
        bench.measure([replace(trial, measured=None) for trial in pair])
        choice, *others = bench.finish().trials
    if choice.failed:
        raise TuningError(f"{wanted} cannot be used here: {choice.failed}")
    best = min([choice, *others], key=lambda trial: trial.median_us)
    return Loss(choice.candidate, best.candidate)


def check(plan: Plan, configurations: Sequence[Configuration], workers: int) -> Iterator[tuple[Trial, Runner]]:
    """Compile configurations, run each once and verify it, as a search does; with what launches it.

    :raises TuningError: when the device no longer works.
    """
    bench = Bench(plan, nullcontext)
    with _compiler(plan, bench, workers) as compiled_of:
        for configuration, compiled in compiled_of(configurations):
            trial = bench.check(configuration, compiled)
            yield trial, bench.runner(trial)


@contextmanager
def _compiler(
    plan: Plan, bench: Bench, workers: int
) -> Iterator[Callable[[Iterable[Configuration]], Iterator[_Compiled]]]:
    """What compiles configurations side by side, in threads, for one search.

    Each comes back as soon as it is done, or failed; where the host takes the times, which compilers would lengthen,
    when all are.
    """
    compile = plan.callbacks.compile
    if compile is None:
        yield lambda configurations: ((configuration, None) for configuration in configurations)
        return
    with CompilePool(workers, bench.use_device()) as pool:

        def compiled_of(configurations: Iterable[Configuration]) -> Iterator[_Compiled]:
            futures = {pool.submit(compile, one.config): one for one in configurations}
            if not bench.times_events:
                wait(futures)
            for future in as_completed(futures) if bench.times_events else list(futures):
                yield futures[future], future

        yield compiled_of


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Give the generators of Python, numpy and torch (on the CPU and CUDA) their state back afterwards.

    So what a test draws does not depend on whether a search took place before.

    A library that is first imported inside is left as it is, and so are generators of the caller's own.
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
    """Where the candidates of one search are checked and measured.

    :param hold: has the device to itself, as far as other pytest processes go; not while candidates are checked.
    :param races: called with how many candidates are still in a race, and how many there are.
    :raises TuningError: when nothing here can time the device.
    """

    def __init__(self, plan: Plan, hold: Hold, races: Tells = tells_nobody) -> None:
        how = plan.measuring
        try:
            self._clock = make_clock(how.clock, plan.processor.on_gpu, how.flush_l2)
        except NoClockError as error:
            raise TuningError(str(error)) from None
        self._callbacks = plan.callbacks
        self._hold = hold
        self._expected: tuple[type[BaseException], ...] = (*plan.callbacks.expected, UnusableTimesError)
        #: The caller's own benchmark, which is taken as it is: it measures each candidate once.
        self._own = how.clock if callable(how.clock) else None
        self._race = Race(self._clock, how.limits, self._expected, progress=races)
        self._trials: list[Trial] = []
        #: The trials by the numbers that they have in the race.
        self._racing: list[int] = []

    def use_device(self) -> Callable[[], object]:
        """What a thread of the compilers calls to work on the device of this one."""
        return self._clock.use_device()

    @property
    def times_events(self) -> bool:
        """Whether the device takes the times, so that a busy host does not lengthen them much."""
        return not isinstance(self._clock, HostClock)

    @property
    def runs_before_measuring(self) -> bool:
        """Whether a candidate is run once before; with a benchmark of the caller's own only to look at its result."""
        return self._own is None or self._callbacks.verify is not None

    def check(self, configuration: Configuration, compiled: Future[object] | None, run: bool = True) -> Trial:
        """Set up one candidate, run it once and check its result."""
        try:
            trial = Trial(configuration, None if compiled is None else compiled.result())
            if run:
                self._run(trial)
            return trial
        except self._expected as error:
            return self._failed(configuration, error)

    def measure(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        """Take in what was checked; returns it with a time, where it did not fail."""
        first = len(self._trials)
        if self._own is not None:
            self._trials += [trial if trial.failed else self._measured(trial) for trial in trials]
            return self._trials[first:]
        self._trials += trials
        new = [number for number, trial in enumerate(self._trials) if number >= first and not trial.failed]
        self._racing += new
        with self._hold():
            self._take(new, lambda: self._race.probe([self.runner(self._trials[one]) for one in new]))
        return self._trials[first:]

    def finish(self) -> Found:
        """The outcome, once everything was taken in.

        :raises TuningError: when nothing can be used.
        """
        if self._own is None and any(trial.measured for trial in self._trials):
            with self._hold():
                self._take(self._racing, self._race.finish)
        usable = [trial for trial in self._trials if not trial.failed]
        if not usable:
            raise _none_left(self._trials)
        if self._own is not None:
            return Found(min(usable, key=lambda trial: trial.median_us), tuple(self._trials))
        return Found(self._trials[self._racing[self._race.choice]], tuple(self._trials), self._race.disturbed)

    def runner(self, trial: Trial) -> Runner:
        """What launches a candidate."""
        callbacks, config = self._callbacks, trial.configuration.config
        compiled = () if callbacks.compile is None else (trial.compiled,)
        runner = Runner(partial(callbacks.run, config, *compiled))
        if callbacks.reset is not None:
            runner = replace(runner, before=partial(callbacks.reset, config))
        if callbacks.setup is not None:
            runner = replace(runner, set_up=partial(callbacks.setup, config))
        return runner

    def _run(self, trial: Trial) -> None:
        """Run a candidate once and look at its result; a kernel that compiles when it is called does so here.

        :raises InvalidConfiguration: when the result is wrong.
        """
        runner = self.runner(trial)
        if runner.set_up is not None:
            runner.set_up()
        runner.before()
        result = runner.run()
        self._clock.synchronise()
        if self._callbacks.verify is None:
            return
        try:
            passed = self._callbacks.verify(trial.configuration.config, result)
        except AssertionError as error:
            raise InvalidConfiguration(f"wrong result: {first_line(str(error)) or 'AssertionError'}") from error
        if passed is not None and not passed:
            raise InvalidConfiguration("wrong result")

    def _measured(self, trial: Trial) -> Trial:
        assert self._own is not None
        try:
            runner = self.runner(trial)
            if runner.set_up is not None:
                runner.set_up()
            with self._hold():
                runner.before()
                return replace(trial, measured=measured_by(self._own, runner.run))
        except self._expected as error:
            return self._failed(trial.configuration, error)

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

    def _take(self, numbers: Sequence[int], race: Callable[[], Sequence[Result]]) -> None:
        try:
            results = race()
        except DeviceLostError as lost:
            configuration = self._trials[self._racing[lost.number]].configuration
            raise _device_lost(configuration, lost.error, lost.__cause__ or lost) from lost.error
        for number, result in zip(numbers, results, strict=True):
            error = result.failed
            failed, may_pass = ("", False) if error is None else (_reason(error), _may_pass(error))
            self._trials[number] = replace(
                self._trials[number], measured=result.measured, failed=failed, may_pass=may_pass
            )


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


def _may_pass(error: BaseException) -> bool:
    return isinstance(error, (MemoryError, OSError, UnusableTimesError)) or "OutOfMemory" in type(error).__name__


def _none_left(trials: Sequence[Trial]) -> TuningError:
    failed = [trial for trial in trials if trial.failed]
    if not failed:
        return TuningError("the search came to no candidate")
    reasons = "; ".join(f"{trial.configuration}: {trial.failed}" for trial in failed[:3])
    more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    number = "the only candidate" if len(failed) == 1 else f"all {len(failed)} candidates"
    will_again = not any(trial.may_pass for trial in failed)
    return TuningError(f"{number} failed: {reasons}{more}", tuple(one.failed for one in failed) if will_again else ())
