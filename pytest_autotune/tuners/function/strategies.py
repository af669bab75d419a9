"""In which order a space is searched, and how much of it."""

from __future__ import annotations

import random
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from pytest_autotune.cache.model import Value
from pytest_autotune.tuners.function.errors import TuningError
from pytest_autotune.tuners.function.space import Configuration, Space

#: How often Optuna is asked for each candidate of a batch: a strict constraint makes most combinations useless.
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
        rest = _drawn(space, self.trials + 1, self.seed)
        if len(rest) <= self.trials:
            yield list(space) if space.can_be_listed else rest
            return
        try:
            optuna: Any = import_module("optuna")
        except ImportError:
            message = "strategy='optuna' needs Optuna: pip install 'pytest-autotune[search]'"
            raise TuningError(message) from None
        study = optuna.create_study(sampler=self.sampler or optuna.samplers.TPESampler(seed=self.seed))
        asking = _Asking(optuna, study, space, rest)
        times: dict[tuple[Value, ...], float | None] = {}
        while len(times) < self.trials:
            batch: dict[tuple[Value, ...], tuple[Any, Configuration]] = {}
            while len(batch) < min(at_a_time, self.trials - len(times)):
                asked = asking.one(times, batch)
                if asked is None:
                    break
                batch[asked[1].params] = asked
            if not batch:
                return
            measured = yield [configuration for _, configuration in batch.values()]
            for (params, (trial, _)), time_us in zip(batch.items(), measured, strict=True):
                times[params] = time_us
                asking.tell(trial, time_us)

    def __str__(self) -> str:
        sampler = "" if self.sampler is None else f", {type(self.sampler).__qualname__}"
        return f"optuna: {self.trials} trials, seed {self.seed}{sampler}"


class _Asking:
    """Optuna's study of a space.

    :param rest: configurations that it gets where it asks for none that can be used.
    """

    def __init__(self, optuna: Any, study: Any, space: Space, rest: list[Configuration]) -> None:
        self._study = study
        self._space = space
        self._rest = rest
        self._failed = optuna.trial.TrialState.FAIL
        categorical = optuna.distributions.CategoricalDistribution
        self._distributions = {name: categorical(range(len(values))) for name, values in space.axes.items()}

    def one(
        self, times: Mapping[tuple[Value, ...], float | None], batch: Collection[tuple[Value, ...]]
    ) -> tuple[Any, Configuration] | None:
        """A configuration that was neither measured before nor is in the batch, as a trial; None where none is left."""
        for _ in range(ASKED_FOR_EACH):
            trial = self._study.ask(self._distributions)
            params = tuple(values[trial.params[name]] for name, values in self._space.axes.items())
            configuration = self._space.find(params)
            if configuration is not None and params not in times and params not in batch:
                return trial, configuration
            self.tell(trial, times.get(params))
        while self._rest:
            given = self._rest.pop()
            if given.params not in times and given.params not in batch:
                axes = self._space.axes
                self._study.enqueue_trial({value.name: axes[value.name].index(value) for value in given.params})
                return self._study.ask(self._distributions), given
        return None

    def tell(self, trial: Any, time_us: float | None) -> None:
        """How long what was asked for took; None where it failed."""
        self._study.tell(trial, time_us, state=self._failed if time_us is None else None)


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
