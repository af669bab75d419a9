"""One search: compile, check and measure candidates, and choose the fastest that is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager, ExitStack, closing
from dataclasses import dataclass, field, replace
from typing import Any

from pytest_autotune.cache.model import Candidate
from pytest_autotune.tuners.function.clocks import Clock, HostClock, make_clock
from pytest_autotune.tuners.function.compiling import CompilePool, Compiling
from pytest_autotune.tuners.function.errors import InvalidConfiguration, TuningError
from pytest_autotune.tuners.function.measuring import Measurement, Measuring, measure
from pytest_autotune.tuners.function.space import Configuration, Space, params_of
from pytest_autotune.tuners.function.strategies import Strategy
from pytest_autotune.tuners.narrowing import CLOSE, FINALISTS, MAY_WIN

#: How often a choice and the best one are measured in turn to tell what the choice costs.
ROUNDS = 3
#: A reason why a candidate failed is told up to this many characters.
REASON_LENGTH = 200

_Hold = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Callbacks:
    """What the caller does with one configuration; ``compile`` makes a second argument of ``run``.

    :param run: one call of the kernel: what is measured.
    :param setup: called before a candidate is checked, and again before it is measured once more.
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
    """

    configuration: Configuration
    compiled: object = None
    measured: Measurement | None = None
    failed: str = ""

    @property
    def median_us(self) -> float:
        return self.measured.median_us if self.measured else float("inf")

    @property
    def candidate(self) -> Candidate:
        """The trial as a cache and reports hold it, with four digits of its time."""
        params = self.configuration.params
        if self.measured is None:
            return Candidate(params=params, failed=self.failed)
        return Candidate(params=params, time_us=float(f"{self.median_us:.4g}"), label=str(self.measured))


@dataclass(frozen=True)
class Found:
    """The outcome of a search: the trial that won, and all of them in the order of the space or search."""

    best: Trial
    trials: Sequence[Trial] = field(default_factory=tuple)


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


def search(plan: Plan, on_gpu: bool, workers: int, hold: _Hold) -> Found:
    """Search a space for the fastest configuration.

    Compiling and the first run of a candidate, which may compile as well, take place beside
    what others measure. Each candidate gets a short look. Those that may win are measured in
    full, and those close to the best once more; the lower median counts.

    :param workers: how many candidates may be compiled at a time.
    :param hold: has the device to itself, as far as other pytest processes go.
    :raises TuningError: when no candidate could be used, or the device no longer works.
    """
    bench = _Bench(plan, on_gpu, hold)
    return _finish(_first_looks(plan, bench, workers), bench)


def compare(plan: Plan, config: object, on_gpu: bool, workers: int, hold: _Hold) -> Loss:
    """Compare one configuration with the fastest of its space; takes what :func:`search` takes.

    :raises TuningError: when the configuration cannot be used, or :func:`search` raises it.
    :raises ValueError: when it is not in the space.
    """
    wanted = plan.space.find(params_of(config))
    if wanted is None:
        raise ValueError(f"not in the space: {config!r}")
    bench = _Bench(plan, on_gpu, hold)
    trials = _first_looks(plan, bench, workers)
    choice = next((trial for trial in trials if trial.configuration == wanted), None)
    if choice is None:  # the strategy left it out
        compiled = None if plan.callbacks.compile is None else plan.callbacks.compile(wanted.config)
        choice = bench.once_more(Trial(wanted, compiled))
    best = _finish(trials, bench).best
    # Both in turn, so that a change of clocks meets both.
    pairs = [(bench.once_more(choice), bench.once_more(best)) for _ in range(ROUNDS)] if not choice.failed else []
    choice = min((one for one, _ in pairs), key=lambda trial: trial.median_us, default=choice)
    if choice.failed:
        raise TuningError(f"{wanted} cannot be used here: {choice.failed}")
    best = min((other for _, other in pairs), key=lambda trial: trial.median_us)
    return Loss(choice.candidate, best.candidate)


def _first_looks(plan: Plan, bench: _Bench, workers: int) -> list[Trial]:
    """Compile, check and briefly measure what the strategy names.

    :raises TuningError: when nothing can be used.
    """
    trials: dict[int, Trial] = {}
    with ExitStack() as stack:
        pool = None
        workers = plan.compiling.workers or workers
        if plan.callbacks.compile is not None:
            overlap = plan.compiling.overlap
            overlap = bench.times_events if overlap is None else overlap
            begin_thread = bench.use_device()
            pool = CompilePool(plan.callbacks.compile, plan.compiling, workers, overlap, begin_thread)
            stack.enter_context(pool)
        batches = stack.enter_context(closing(plan.strategy.batches(plan.space, workers)))
        batch = next(batches, None)
        while batch is not None:
            first = len(trials)
            numbers = {configuration: first + i for i, configuration in enumerate(batch)}
            for configuration, compiled in _compiled(pool, batch):
                trials[numbers[configuration]] = bench.first_look(configuration, compiled)
            try:
                batch = batches.send([_time_us(trials[numbers[configuration]]) for configuration in batch])
            except StopIteration:
                batch = None
    ordered = [trials[number] for number in sorted(trials)]
    if all(trial.failed for trial in ordered):
        raise TuningError(_why_none(ordered))
    return ordered


def _compiled(
    pool: CompilePool | None, batch: Sequence[Configuration]
) -> Iterable[tuple[Configuration, Future[object] | None]]:
    return [(configuration, None) for configuration in batch] if pool is None else pool.ahead(batch)


def _time_us(trial: Trial) -> float | None:
    return None if trial.measured is None else trial.measured.median_us


def _finish(trials: list[Trial], bench: _Bench) -> Found:
    """Measure again those that may be the best."""
    # While others compile, the host may be late between two runs: the fastest run is the one to go by.
    least = min(map(_minimum, trials))
    in_full = {place for place, trial in enumerate(trials) if bench.takes_times_as_they_are or trial.failed}
    may_win = {place for place, trial in enumerate(trials) if _minimum(trial) <= least * (1 + MAY_WIN)}
    while left := sorted(may_win - in_full):
        # A candidate without a rival is the choice already.
        for place in left if len(may_win) > 1 else ():
            trials[place] = bench.once_more(trials[place])
        in_full.update(left)
        may_win.add(_best(trials))
    best_us = trials[_best(trials)].median_us
    close = [place for place, trial in enumerate(trials) if trial.median_us <= best_us * (1 + CLOSE)]
    close = sorted(close, key=lambda place: trials[place].median_us)[:FINALISTS]
    for place in close if len(close) > 1 else ():
        again = bench.once_more(trials[place])
        if again.failed or again.median_us < trials[place].median_us:
            trials[place] = again
    best = trials[_best(trials)]
    if best.failed:
        raise TuningError(_why_none(trials))
    return Found(best, tuple(trials))


def _best(trials: Sequence[Trial]) -> int:
    return min(range(len(trials)), key=lambda place: trials[place].median_us)


def _minimum(trial: Trial) -> float:
    return trial.measured.minimum_us if trial.measured else float("inf")


def _why_none(trials: Sequence[Trial]) -> str:
    failed = [trial for trial in trials if trial.failed]
    reasons = "; ".join(f"{trial.configuration}: {trial.failed}" for trial in failed[:3])
    more = f"; and {len(failed) - 3} more" if len(failed) > 3 else ""
    number = "the only candidate" if len(trials) == 1 else f"all {len(failed)} candidates"
    return f"{number} failed: {reasons}{more}" if trials else "the search came to no candidate"


class _Bench:
    """Where single candidates are checked and measured."""

    def __init__(self, plan: Plan, on_gpu: bool, hold: _Hold) -> None:
        self._callbacks = plan.callbacks
        self._how = how = plan.measuring
        self._hold = hold
        self._clock: Clock = make_clock(how.clock, on_gpu, how.flush_l2)

    @property
    def takes_times_as_they_are(self) -> bool:
        """Whether the caller's own benchmark is used: then there is no shorter one for a first look."""
        return callable(self._how.clock)

    def use_device(self) -> Callable[[], object]:
        """What a thread of the compilers calls to work on the device of this one."""
        return self._clock.use_device()

    @property
    def times_events(self) -> bool:
        """Whether the device tells the times, so that a busy host does not lengthen them much."""
        return not isinstance(self._clock, HostClock)

    def first_look(self, configuration: Configuration, compiled: Future[object] | None) -> Trial:
        """Check one candidate, and measure it briefly."""
        trial = Trial(configuration)
        try:
            if compiled is not None:
                trial = replace(trial, compiled=compiled.result())
            self._set_up(configuration)
            if not self.takes_times_as_they_are or self._callbacks.verify is not None:
                self._check(trial)
            return self._measured(trial, self._how.brief)
        except self._callbacks.expected as error:
            return self._failed(configuration, error)

    def once_more(self, trial: Trial) -> Trial:
        """Measure one candidate in full."""
        try:
            self._set_up(trial.configuration)
            return self._measured(trial, self._how)
        except self._callbacks.expected as error:
            return self._failed(trial.configuration, error)

    def _set_up(self, configuration: Configuration) -> None:
        if self._callbacks.setup is not None:
            self._callbacks.setup(configuration.config)

    def _reset(self, configuration: Configuration) -> None:
        if self._callbacks.reset is not None:
            self._callbacks.reset(configuration.config)

    def _run(self, trial: Trial) -> object:
        compiled = () if self._callbacks.compile is None else (trial.compiled,)
        return self._callbacks.run(trial.configuration.config, *compiled)

    def _check(self, trial: Trial) -> None:
        """Run a candidate once and look at its result; a kernel that compiles when it is called does so here.

        :raises InvalidConfiguration: when the result is wrong.
        """
        self._reset(trial.configuration)
        result = self._run(trial)
        self._clock.synchronise()
        if self._callbacks.verify is None:
            return
        try:
            passed = self._callbacks.verify(trial.configuration.config, result)
        except AssertionError as error:
            raise InvalidConfiguration(f"wrong result: {_first_line(error) or 'AssertionError'}") from error
        if passed is not None and not passed:
            raise InvalidConfiguration("wrong result")

    def _measured(self, trial: Trial, how: Measuring) -> Trial:
        with self._hold():
            measured = measure(lambda: self._run(trial), lambda: self._reset(trial.configuration), how, self._clock)
        return replace(trial, measured=measured)

    def _failed(self, configuration: Configuration, error: BaseException) -> Trial:
        """A candidate that failed.

        :raises TuningError: when the device no longer works: then every later candidate would fail as well.
        """
        line = _first_line(error)[:REASON_LENGTH]
        named = isinstance(error, InvalidConfiguration) and bool(line)
        reason = line if named else f"{type(error).__name__}: {line}".removesuffix(": ")
        try:
            self._clock.synchronise()
        except Exception as broken:
            told = f"the device no longer works after {configuration} ({reason}): {_first_line(broken)}"
            raise TuningError(told) from error
        return Trial(configuration, failed=reason)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
