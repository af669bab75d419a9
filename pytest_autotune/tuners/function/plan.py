"""What one search is asked for, and in which order it tries what."""

from __future__ import annotations

import os
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, TypeAlias

from pytest_autotune import devices
from pytest_autotune.cache.model import Device
from pytest_autotune.tuners.function import MEMORIES
from pytest_autotune.tuners.function.space import Configuration, InvalidConfiguration, Space, TuningError
from pytest_autotune.tuners.measuring.options import Measuring

#: How often Optuna is asked for each candidate, all in all: a strict constraint makes most combinations useless.
ASKED_FOR_EACH = 20

#: Measures configurations; returns their times in microseconds, in the same order, with None for those that failed.
TimesOf = Callable[[Sequence[Configuration]], Sequence["float | None"]]
#: Has a measurement hold the device.
Hold = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Random:
    """Some configurations, at most ``trials``, drawn at random: the same ones in every run."""

    trials: int = 100
    seed: int = 0

    def search(self, space: Space, at_a_time: int, times_of: TimesOf) -> None:
        """Measure configurations, each at most once; ``at_a_time`` can be compiled side by side."""
        times_of(_drawn(space, self.trials, self.seed))

    def __str__(self) -> str:
        return f"random: {self.trials} trials, seed {self.seed}"


@dataclass(frozen=True)
class Optuna:
    """A search by Optuna for spaces that are larger than ``trials``, which is how many are measured at most.

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

    def search(self, space: Space, at_a_time: int, times_of: TimesOf) -> None:
        """See :class:`Random`."""
        some = _drawn(space, self.trials + 1, self.seed)
        if len(some) <= self.trials:
            times_of(list(space) if space.can_be_listed else some)
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

        times: dict[Configuration | None, float | None] = {}
        asks = iter(range(ASKED_FOR_EACH * self.trials))
        while len(times) < self.trials:
            batch: dict[Configuration, Any] = {}
            wanted = min(at_a_time, self.trials - len(times))
            while len(batch) < wanted and next(asks, None) is not None:
                trial = study.ask(distributions)
                found = space.find(tuple(values[trial.params[name]] for name, values in axes.items()))
                if found is None or found in times or found in batch:
                    tell(trial, times.get(found))
                else:
                    batch[found] = trial
            if not batch:
                return
            for (one, trial), time_us in zip(batch.items(), times_of(list(batch)), strict=True):
                times[one] = time_us
                tell(trial, time_us)

    def __str__(self) -> str:
        sampler = "" if self.sampler is None else f", {type(self.sampler).__qualname__}"
        return f"optuna: {self.trials} trials, seed {self.seed}{sampler}"


#: Names the configurations to measure; None: all of them.
Strategy: TypeAlias = "Random | Optuna | None"
_NAMED: dict[object, Strategy] = {"exhaustive": None, "random": Random(), "optuna": Optuna()}


def _drawn(space: Space, number: int, seed: int) -> list[Configuration]:
    """So many configurations of a space, or all, in an order that the seed says."""
    found = space.sample(number, str(seed))
    return random.Random(seed).sample(found, min(number, len(found)))


def as_strategy(strategy: object) -> Strategy:
    """What a caller passed as ``strategy=``."""
    if isinstance(strategy, (Random, Optuna)):
        return strategy
    if isinstance(strategy, str) and strategy in _NAMED:
        return _NAMED[strategy]
    raise TypeError(f"strategy= takes 'exhaustive', 'random', 'optuna', a Random(…) or an Optuna(…), not {strategy!r}")


@dataclass(frozen=True)
class Processor:
    """A device, and the name of what a measurement holds to have it to itself; empty for the current GPU."""

    device: Device
    lock: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether it is a GPU that torch or CuPy may time."""
        return not self.lock


def processor_of(device: object) -> Processor:
    """What a caller passed as ``device=``; for None, the current GPU where the process uses one, else the CPU.

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


def as_compile_threads(number: object) -> int | None:
    """Return what a caller passed as ``compile_threads=``; None for as many as this process has cores."""
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"compile_threads= takes a number of threads, not {number!r}")
    if number < 1:
        raise ValueError(f"compile_threads={number}: expected 1 or more")
    return number


@dataclass(frozen=True)
class Plan:
    """How a space is searched, and what the caller does with one configuration: the arguments of ``tune()``.

    :param compile_threads: how many configurations are compiled at a time; 1: in the thread that tunes. None: as many
        as this process has cores.
    """

    space: Space
    strategy: Strategy
    measuring: Measuring
    processor: Processor
    run: Callable[..., object]
    invalid: tuple[type[BaseException], ...] = ()
    compile: Callable[[Any], object] | None = None
    setup: Callable[[Any], object] | None = None
    reset: Callable[[Any], object] | None = None
    verify: Callable[[Any, Any], object] | None = None
    strict: bool = True
    compile_threads: int | None = None

    @property
    def workers(self) -> int:
        """How many configurations may be compiled at a time."""
        if self.compile_threads is not None:
            return self.compile_threads
        session = MEMORIES[-1].session
        return (os.cpu_count() or 1) if session is None else session.policy.compile_threads

    @property
    def expected(self) -> tuple[type[BaseException], ...]:
        """The errors that are those of one candidate."""
        return (InvalidConfiguration, *self.invalid) if self.strict else (Exception, *self.invalid)
