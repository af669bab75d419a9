"""In which order a space is searched, and how much of it."""

from __future__ import annotations

import random
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from pytest_autotune.cache.model import Value
from pytest_autotune.tuners.function.space import Configuration, Space, TuningError

#: How often Optuna is asked for each candidate, all in all: a strict constraint makes most combinations useless.
ASKED_FOR_EACH = 20

Batches = Generator[Sequence[Configuration], Sequence[float | None], None]


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
