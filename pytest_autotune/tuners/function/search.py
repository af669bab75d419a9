"""One search: compile, check and measure candidates, and choose the fastest correct candidate."""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from types import ModuleType
from typing import Any, Protocol

from pytest_autotune.cache.model import Candidate
from pytest_autotune.cache.wording import describe_error, error_message, first_line, rounded_us
from pytest_autotune.devices import imported_torch, torch_cuda
from pytest_autotune.run.tuning import MAX_REASON_LENGTH
from pytest_autotune.tuners.function.plan import DeferredCallError, DeviceLock, Plan, check_result
from pytest_autotune.tuners.function.space import Configuration, InvalidConfiguration, TuningError
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.launching import CandidateResult, DeviceLostError
from pytest_autotune.tuners.measuring.options import CallersClock, make_clock
from pytest_autotune.tuners.measuring.race import Race
from pytest_autotune.tuners.measuring.times import Measurement, UnusableTimesError
from pytest_autotune.tuners.shared.candidates import LaunchError, clear_tracebacks
from pytest_autotune.tuners.shared.compile_pool import CompilePool

#: The message of a search without a usable candidate names at most so many candidates.
_MAX_DESCRIBED = 3
#: Matches the first line of an error by which a library or driver says that memory is missing. The second alternative
#: has no ``$``, because these lines go on: "CUDA out of memory. Tried to allocate 2.00 GiB".
_LACK_OF_MEMORY = re.compile(
    r"out of memory$"
    r"|(cuda|hip|xpu|npu|mps backend|error:|resource_exhausted:) out of memory"
    r"|OutOfMemory|cudaErrorMemoryAllocation|error_out_of_(device_|host_)?memory"
    r"|can't allocate memory|failed to allocate request",
    re.IGNORECASE,
)


class SearchProgress(Protocol):
    """Shows the progress of a search to a waiting user. A :class:`~pytest_autotune.run.tuning.Tuning` is one."""

    def report_trial(self, number: int, count: int) -> None:
        """Show which candidate of a batch is tried now; the first number is 1."""

    def report_race(self, remaining: int, count: int) -> None:
        """Show how many candidates still race."""


class NoProgress:
    """Shows nothing."""

    def report_trial(self, number: int, count: int) -> None:
        """Show nothing."""

    def report_race(self, remaining: int, count: int) -> None:
        """Show nothing."""


@dataclass(frozen=True)
class Trial:
    """The result of trying one candidate. Without an error, the candidate can be chosen.

    :param compiled: the result of the caller's ``compile``.
    """

    configuration: Configuration
    compiled: object = None
    measured: Measurement | None = None
    error: BaseException | None = None

    @property
    def median_us(self) -> float:
        """The median time in microseconds; infinite without a measurement."""
        if self.measured is None:
            return float("inf")
        return self.measured.median_us

    @property
    def failed(self) -> str:
        """The error in one line; empty if there is none."""
        if self.error is None:
            return ""
        return _describe_failure(self.error)

    @property
    def candidate(self) -> Candidate:
        """The trial as a cache and reports hold it."""
        params = self.configuration.params
        if self.measured is None:
            return Candidate(params=params, failed=self.failed)
        return Candidate(params=params, time_us=rounded_us(self.median_us), label=str(self.measured))


@dataclass(frozen=True)
class SearchResult:
    """The result of a search.

    :param best: the trial that won.
    :param trials: all trials, in the order of the search.
    :param disturbed: the measurements did not stop disagreeing.
    """

    best: Trial
    trials: Sequence[Trial]
    disturbed: bool


@dataclass(frozen=True)
class Loss:
    """The time that a choice costs if another candidate is faster.

    :param choice: the candidate that is used, with its time.
    :param best: the fastest candidate for the same problem, with its time.
    """

    choice: Candidate
    best: Candidate

    @property
    def share(self) -> float:
        """The additional time of the choice, as a share of the best time: 0.03 is 3 %."""
        if not self.choice.time_us or not self.best.time_us:
            return 0.0
        return max(self.choice.time_us / self.best.time_us - 1, 0.0)


class EveryCandidateFailedError(TuningError):
    """Every candidate of a search failed. An error of a ``tune()`` inside a candidate has another class."""


def search(plan: Plan, lock: DeviceLock, progress: SearchProgress | None = None) -> SearchResult:
    """Search a space for the fastest configuration.

    Each candidate is compiled and run once before anything is measured, because the first run may compile as well.
    Then all candidates race, or the caller's own benchmark measures them.

    :param lock: keeps other pytest processes off the device while candidates are measured.
    :raises EveryCandidateFailedError: if every candidate failed.
    """
    bench = Bench(plan, lock, progress)
    if plan.strategy is None:
        bench.measure_us(list(plan.space))
    else:
        plan.strategy.search(plan.space, plan.workers, bench)
    return bench.finish()


def compare(plan: Plan, config: object, lock: DeviceLock) -> Loss:
    """Compare a configuration of a space with the fastest configuration; see :func:`search`.

    :param config: the configuration whose loss is computed, as the space holds it.
    :raises ValueError: if the configuration is not in the space.
    :raises TuningError: if the configuration fails.
    """
    configuration = plan.space.find(plan.space.params_of(config))
    if configuration is None:
        raise ValueError(f"not in the space: {config!r}")
    result = search(plan, lock)
    # A second bench, which measures only the two that race. Its first trial is the choice: a check adds no trial.
    bench = Bench(plan, lock)
    choice = _find_trial(result.trials, configuration)
    if choice is None:
        # The strategy selects only some configurations, and did not select this configuration.
        choice = bench.check([configuration])[0]
    _refuse_failed(choice)
    # The search drops slow candidates after a few launches. Only a race of the two alone gives both the same launches.
    racers = [replace(choice, measured=None)]
    if choice is not result.best:
        racers.append(replace(result.best, measured=None))
    bench.measure(racers)
    raced_trials = bench.finish().trials
    raced_choice = raced_trials[0]
    _refuse_failed(raced_choice)
    fastest = min(raced_trials, key=lambda trial: trial.median_us)
    return Loss(raced_choice.candidate, fastest.candidate)


def _find_trial(trials: Sequence[Trial], configuration: Configuration) -> Trial | None:
    """Return the trial of a configuration; None if it was not tried."""
    for trial in trials:
        if trial.configuration == configuration:
            return trial
    return None


def _refuse_failed(trial: Trial) -> None:
    """Check that a trial did not fail.

    :raises TuningError: if it failed; the message has the configuration and the reason.
    """
    if trial.failed:
        raise TuningError(f"{trial.configuration} cannot be used here: {trial.failed}")


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Restore the state of the random generators of Python, numpy and torch (CPU and CUDA) afterwards.

    A test then draws the same random numbers, whether or not a search took place. The context does not restore the
    generators of a library that is first imported inside it.
    """
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        numpy: Any = sys.modules.get("numpy.random")
        # A test may have put a mock or stub in the place of numpy.random.
        if isinstance(numpy, ModuleType) and "get_state" in vars(numpy):
            stack.callback(numpy.set_state, numpy.get_state())
        torch = imported_torch()
        if torch is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            # This fails while the GPU captures a graph. Callers check before that none is captured.
            cuda = torch_cuda()
            if cuda is not None:
                stack.callback(cuda.set_rng_state_all, cuda.get_rng_state_all())
        yield


@dataclass(frozen=True)
class _CompilationInThisThread:
    """A candidate that is compiled in the thread that asks for the result."""

    compile: Callable[[Any], object]
    config: object

    def result(self) -> object:
        """Compile the candidate."""
        return self.compile(self.config)


#: The compilation of a candidate; None if the caller passed no ``compile``.
_Compilation = Future[object] | _CompilationInThisThread | None


class Bench:
    """Compiles, checks and measures the candidates of one search.

    :param lock: keeps other processes off the device while candidates are measured; None if no other process uses it.
    :param progress: shows how far the search is; None shows nothing.
    """

    def __init__(self, plan: Plan, lock: DeviceLock | None = None, progress: SearchProgress | None = None) -> None:
        measuring = plan.measuring
        self._plan = plan
        self._lock = lock or DeviceLock()
        self._progress = progress or NoProgress()
        self._clock = make_clock(measuring.clock, plan.processor.on_gpu, measuring.flush_l2)
        self._expected: tuple[type[BaseException], ...] = (*plan.expected, UnusableTimesError)
        self._race = Race(self._clock, measuring.limits, self._expected, progress=self._progress.report_race)
        self._trials: list[Trial] = []
        #: The position in ``_trials`` of each candidate of the race.
        self._raced_positions: list[int] = []

    def measure_us(self, configurations: Sequence[Configuration]) -> list[float | None]:
        """Check and measure configurations; return their times in microseconds, None for a failed configuration."""
        has_own_benchmark = callable(self._plan.measuring.clock)
        # A benchmark of the user runs the kernel itself. An earlier run is only needed to verify the result.
        runs_once = self._plan.verify is not None or not has_own_benchmark
        times: list[float | None] = []
        for trial in self.measure(self.check(configurations, runs_once)):
            if trial.measured is None:
                times.append(None)
            else:
                times.append(trial.median_us)
        return times

    def check(self, configurations: Sequence[Configuration], runs_once: bool = True) -> list[Trial]:
        """Compile candidates in threads, and run each candidate once to check its result.

        :param runs_once: False: only compile the candidates.
        """
        trials: list[Trial] = []
        with CompilePool(self._plan.workers, self._clock.use_device()) as pool:
            compilations = [self._begin_compilation(configuration, pool) for configuration in configurations]
            for configuration, compilation in zip(configurations, compilations, strict=True):
                self._progress.report_trial(len(trials) + 1, len(configurations))
                trials.append(self._check_one(configuration, compilation, runs_once))
        return trials

    def _begin_compilation(self, configuration: Configuration, pool: CompilePool) -> _Compilation:
        """Return the compilation of a candidate, which may already run in a thread; None without ``compile=``."""
        compile = self._plan.compile
        if compile is None:
            return None
        if self._plan.compile_threads == 1:
            return _CompilationInThisThread(compile, configuration.config)
        return pool.submit(compile, configuration.config)

    def _check_one(self, configuration: Configuration, compilation: _Compilation, runs_once: bool) -> Trial:
        """Return the trial of one candidate, with an error if the candidate cannot be used."""
        try:
            compiled = None
            if compilation is not None:
                compiled = compilation.result()
                check_result("compile", compiled)
            trial = Trial(configuration, compiled)
            if runs_once:
                self._run_once(trial)
            return trial
        except DeferredCallError:
            # No candidate would run.
            raise
        except self._expected as error:
            return self._build_failed_trial(configuration, error)

    def _run_once(self, trial: Trial) -> None:
        """Run a candidate once and check its result. A kernel that compiles at its first call compiles here."""
        runner = self.build_runner(trial)
        if runner.set_up is not None:
            check_result("setup", runner.set_up())
        check_result("reset", runner.before_launch())
        result = runner.run()
        check_result("run", result)
        self._clock.synchronise()
        if self._plan.verify is None:
            return
        try:
            # The user's function raises, returns False, or returns None for a right result.
            passed = self._plan.verify(trial.configuration.config, result)
        except AssertionError as error:
            raise InvalidConfiguration(f"wrong result: {first_line(str(error)) or 'AssertionError'}") from error
        check_result("verify", passed)
        if passed is not None and not passed:
            raise InvalidConfiguration("wrong result")

    def measure(self, trials: Sequence[Trial]) -> Sequence[Trial]:
        """Measure checked candidates; return their trials with a time, unless they failed."""
        first_position = len(self._trials)
        if isinstance(self._clock, CallersClock):
            self._measure_with_callers_clock(trials, self._clock)
        else:
            self._probe(trials)
        return self._trials[first_position:]

    def _measure_with_callers_clock(self, trials: Sequence[Trial], clock: CallersClock) -> None:
        """Measure each candidate once with the user's benchmark. There is no race."""
        for trial in trials:
            if trial.failed:
                self._trials.append(trial)
                continue
            try:
                self._trials.append(self._measure_one_with_callers_clock(trial, clock))
            except self._expected as error:
                self._trials.append(self._build_failed_trial(trial.configuration, error))

    def _measure_one_with_callers_clock(self, trial: Trial, clock: CallersClock) -> Trial:
        """Return a checked trial with the time that the user's benchmark measures."""
        runner = self.build_runner(trial)
        if runner.set_up is not None:
            runner.set_up()
        with self._lock.holding():
            return replace(trial, measured=clock.measure(runner))

    def _probe(self, trials: Sequence[Trial]) -> None:
        """Launch candidates a few times. The candidates that may win race in :meth:`finish`.

        Candidates that failed the check only get a place among the trials.
        """
        positions = []
        for position, trial in enumerate(trials, start=len(self._trials)):
            if not trial.failed:
                positions.append(position)
        self._trials += trials
        self._raced_positions += positions
        runners = [self.build_runner(self._trials[position]) for position in positions]
        self._take_results(positions, partial(self._race.probe, runners))

    def finish(self) -> SearchResult:
        """Race all candidates that were measured, and return the result.

        :raises EveryCandidateFailedError: if every candidate failed.
        """
        has_racers = any(not self._trials[position].failed for position in self._raced_positions)
        if has_racers:
            self._take_results(self._raced_positions, self._race.finish)
        usable_trials = [trial for trial in self._trials if not trial.failed]
        if not usable_trials:
            raise _build_error_without_candidate(self._trials)
        if self._raced_positions:
            # The race may prefer an earlier candidate that is as good as the fastest.
            best = self._trials[self._raced_positions[self._race.choice]]
        else:
            # The user's benchmark measured the candidates.
            best = min(usable_trials, key=lambda trial: trial.median_us)
        return SearchResult(best, tuple(self._trials), self._race.disturbed)

    def build_runner(self, trial: Trial) -> Runner:
        """Return a runner that launches a candidate, with the user's callbacks for its configuration."""
        plan = self._plan
        config = trial.configuration.config
        if plan.compile is None:
            runner = Runner(partial(plan.run, config))
        else:
            runner = Runner(partial(plan.run, config, trial.compiled))
        if plan.reset is not None:
            runner = replace(runner, before_launch=partial(plan.reset, config))
        if plan.setup is not None:
            runner = replace(runner, set_up=partial(plan.setup, config))
        return runner

    def _build_failed_trial(self, configuration: Configuration, error: BaseException) -> Trial:
        """Return the trial of a candidate that failed.

        :raises TuningError: if the device no longer works, because every later candidate would fail, too.
        """
        try:
            self._clock.synchronise()
        except Exception as device_error:
            raise _build_lost_device_error(configuration, error, device_error) from error
        # The caller may keep the error. With its traceback, the error would keep the compiled kernel in memory.
        return Trial(configuration, error=clear_tracebacks(error))

    def _take_results(self, positions: Sequence[int], race: Callable[[], Sequence[CandidateResult]]) -> None:
        """Run a part of the race, and put its results into the trials at these positions.

        :raises TuningError: if the device no longer works; the message names the candidate.
        :raises BaseException: an error of the kernel, as the kernel raised it.
        """
        # Not a context manager with yield: it would turn a StopIteration of the kernel into a RuntimeError.
        try:
            with self._lock.holding():
                results = race()
        except DeviceLostError as lost:
            configuration = self._trials[self._raced_positions[lost.number]].configuration
            error = _build_lost_device_error(configuration, lost.candidate_error, lost.kernel_error)
            raise error from lost.candidate_error
        except LaunchError as launch_error:
            launch_error.raise_kernel_error()
        for position, result in zip(positions, results, strict=True):
            trial = self._trials[position]
            self._trials[position] = replace(trial, measured=result.measured, error=result.failed)


def _build_lost_device_error(
    configuration: Configuration, error: BaseException, device_error: BaseException
) -> TuningError:
    """Return the error of a device that no longer works.

    :param error: the error of the candidate that was launched last.
    :param device_error: the error that the device has raised after that launch.
    """
    reason = f"after {configuration} ({_describe_failure(error)}): {first_line(str(device_error))}"
    return TuningError(f"the device no longer works {reason}")


def _describe_failure(error: BaseException) -> str:
    """Return the error of a candidate in one line."""
    text = ""
    if isinstance(error, (InvalidConfiguration, UnusableTimesError)):
        text = first_line(str(error))
    # An entry keeps fewer characters, after it has replaced paths and other text that differs between runs.
    return (text or describe_error(error))[: 4 * MAX_REASON_LENGTH]


def _is_transient(error: BaseException | None) -> bool:
    """Whether the error may be absent in the next run: memory or a file was missing, or the times were unusable."""
    if error is None:
        return False
    if isinstance(error, (MemoryError, OSError, UnusableTimesError)):
        return True
    if "outofmemory" in type(error).__name__.lower():
        return True
    # Not every lack of memory has a class of its own: torch also raises AcceleratorError("CUDA error: out of memory").
    return _LACK_OF_MEMORY.search(first_line(error_message(error))) is not None


def _build_error_without_candidate(failed: Sequence[Trial]) -> EveryCandidateFailedError:
    """Return the error of a search in which every candidate failed.

    Only an error with reasons is recorded. An error has reasons unless one is transient: the next run may then see
    another result.
    """
    if not failed:
        return EveryCandidateFailedError("the search tried no candidate")
    descriptions = []
    for trial in failed[:_MAX_DESCRIBED]:
        descriptions.append(f"{trial.configuration}: {trial.failed}")
    if len(failed) > _MAX_DESCRIBED:
        descriptions.append(f"and {len(failed) - _MAX_DESCRIBED} more")
    subject = "the only candidate"
    if len(failed) > 1:
        subject = f"all {len(failed)} candidates"
    message = f"{subject} failed: {'; '.join(descriptions)}"
    if any(_is_transient(trial.error) for trial in failed):
        return EveryCandidateFailedError(message)
    return EveryCandidateFailedError(message, tuple(trial.failed for trial in failed))
