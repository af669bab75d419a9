"""What one search is asked for, and in which order it tries what; and what comes of it."""

from __future__ import annotations

import random
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Protocol

from pytest_autotune import devices
from pytest_autotune.cache.model import Candidate, Device, Value
from pytest_autotune.tuners.function.space import Configuration, InvalidConfiguration, Space, TuningError
from pytest_autotune.tuners.measuring.how import Measuring
from pytest_autotune.tuners.measuring.times import Measurement
from pytest_autotune.tuners.shared.candidates import rounded_us

#: How often Optuna is asked for each candidate, all in all: a strict constraint makes most combinations useless.
ASKED_FOR_EACH = 20

Batches = Generator[Sequence[Configuration], Sequence[float | None], None]
#: Has a measurement hold the device.
Hold = Callable[[], AbstractContextManager[object]]


class Strategy(Protocol):
    """Names the configurations to measure, batch by batch."""

    def batches(self, space: Space, at_a_time: int) -> Batches:
        """Yield configurations that are to be measured, each at most once.

        What is sent back are their times in microseconds, in the same order, with None for those that failed.

        :param at_a_time: how many can be compiled side by side.
        """


class Exhaustive:
    """Every configuration."""

    def batches(self, space: Space, at_a_time: int) -> Batches:
        yield list(space)


@dataclass(frozen=True)
class Random:
    """Some configurations, drawn at random: the same ones in every run.

    :param trials: how many are measured at most.
    """

    trials: int = 100
    seed: int = 0

    def batches(self, space: Space, at_a_time: int) -> Batches:
        yield _drawn(space, self.trials, self.seed)

    def __str__(self) -> str:
        return f"random: {self.trials} trials, seed {self.seed}"


@dataclass(frozen=True)
class Optuna:
    """A search by Optuna, for spaces that are too large to measure as a whole.

    A space of no more configurations than ``trials`` is measured as a whole, without Optuna.

    :param trials: how many configurations are measured at most.
    :param seed: of the default sampler, which draws the same for the same times.
    :param sampler: an ``optuna.samplers.BaseSampler``; None: ``TPESampler`` (a tree-structured Parzen
        estimator: J. Bergstra et al., Algorithms for Hyper-Parameter Optimization, NIPS 2011).
    """

    trials: int = 100
    seed: int = 0
    sampler: Any = None

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"Optuna(trials={self.trials}): expected one or more")

    def batches(self, space: Space, at_a_time: int) -> Batches:
        some = _drawn(space, self.trials + 1, self.seed)
        if len(some) <= self.trials:
            yield list(space) if space.can_be_listed else some
            return
        try:
            optuna: Any = import_module("optuna")
        except ImportError:
            message = "strategy='optuna' needs Optuna: pip install 'pytest-autotune[search]'"
            raise TuningError(message) from None
        study = optuna.create_study(sampler=self.sampler or optuna.samplers.TPESampler(seed=self.seed))
        axes = space.axes
        categorical = optuna.distributions.CategoricalDistribution
        distributions = {name: categorical(range(len(values))) for name, values in axes.items()}

        def tell(trial: Any, time_us: float | None) -> None:
            study.tell(trial, time_us, state=optuna.trial.TrialState.FAIL if time_us is None else None)

        times: dict[tuple[Value, ...], float | None] = {}
        asks = iter(range(ASKED_FOR_EACH * self.trials))
        while len(times) < self.trials:
            batch: dict[tuple[Value, ...], tuple[Any, Configuration]] = {}
            wanted = min(at_a_time, self.trials - len(times))
            while len(batch) < wanted and next(asks, None) is not None:
                trial = study.ask(distributions)
                params = tuple(values[trial.params[name]] for name, values in axes.items())
                configuration = space.find(params)
                if configuration is None or params in times or params in batch:
                    tell(trial, times.get(params))
                else:
                    batch[params] = trial, configuration
            if not batch:
                return
            measured = yield [configuration for _, configuration in batch.values()]
            for (params, (trial, _)), time_us in zip(batch.items(), measured, strict=True):
                times[params] = time_us
                tell(trial, time_us)

    def __str__(self) -> str:
        sampler = "" if self.sampler is None else f", {type(self.sampler).__qualname__}"
        return f"optuna: {self.trials} trials, seed {self.seed}{sampler}"


def _drawn(space: Space, number: int, seed: int) -> list[Configuration]:
    """So many configurations of a space, or all, in an order that the seed says."""
    found = space.sample(number, str(seed))
    return random.Random(seed).sample(found, min(number, len(found)))


_NAMED: dict[str, Strategy] = {"exhaustive": Exhaustive(), "random": Random(), "optuna": Optuna()}


def as_strategy(strategy: object) -> Strategy:
    """What a caller passed as ``strategy=``.

    :raises TypeError: when it is neither a name nor has batches.
    """
    if isinstance(strategy, str) and strategy in _NAMED:
        return _NAMED[strategy]
    if hasattr(strategy, "batches"):
        found: Strategy = strategy
        return found
    raise TypeError(f"strategy= takes 'exhaustive', 'random', 'optuna', a Random(…) or an Optuna(…), not {strategy!r}")


@dataclass(frozen=True)
class Processor:
    """A device, and what a measurement holds to have it to itself.

    :param lock: the processor's name; empty for the current GPU.
    """

    device: Device
    lock: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU that torch or CuPy may time."""
        return not self.lock


def processor_of(device: object) -> Processor:
    """What a caller passed as ``device=``.

    :param device: a :class:`Device`; ``"cpu"``, or ``"cuda"`` for the current GPU, also as a
        ``torch.device``; None for the current GPU where the process uses one, else the CPU.
    :raises TuningError: when the process uses no GPU, and that was asked for.
    """
    name = None if device is None or isinstance(device, Device) else str(device)
    if name == "cpu":
        return Processor(devices.cpu(), "cpu")
    gpu = devices.current_gpu()
    if isinstance(device, Device):
        if device == gpu:
            return Processor(device)
        return Processor(device, "cpu" if device == devices.cpu() else device.id)
    if name not in (None, "cuda"):
        raise TypeError(f"device= takes 'cpu', 'cuda' or a pytest_autotune.Device, not {device!r}")
    if gpu is not None:
        return Processor(gpu)
    if name == "cuda":
        raise TuningError("device='cuda': no library of this process uses a GPU yet (allocate the inputs first)")
    return Processor(devices.cpu(), "cpu")


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
    strategy: Strategy
    processor: Processor


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
