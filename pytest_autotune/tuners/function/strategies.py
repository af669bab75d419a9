"""In which order a space is searched, and how much of it."""

from __future__ import annotations

import random
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any, Protocol

from pytest_autotune.cache.model import Value
from pytest_autotune.tuners.function.errors import TuningError
from pytest_autotune.tuners.function.space import ENUMERABLE, Configuration, ListedSpace, Space

#: How often a search asks for a configuration, for each that it may measure, before it gives up
#: finding new ones: a strict constraint makes most combinations useless.
ASKED_FOR_EACH = 20
#: So often in a row a search may ask for what it cannot use; then it gets one that nobody asked for.
USELESS_IN_A_ROW = 3

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
        rest = self._to_choose_from(space)
        if rest is not None and len(rest) <= self.trials:
            yield rest
            return
        try:
            optuna: Any = import_module("optuna")
        except ImportError:
            message = "strategy='optuna' needs Optuna: pip install 'pytest-autotune[search]'"
            raise TuningError(message) from None
        with _quiet(optuna):
            study = optuna.create_study(sampler=self.sampler or optuna.samplers.TPESampler(seed=self.seed))
        random.Random(self.seed).shuffle(rest or [])
        numbers = {name: {value: number for number, value in enumerate(values)} for name, values in space.axes.items()}
        choices = {name: dict(enumerate(values)) for name, values in space.axes.items()}
        distributions = {name: optuna.distributions.CategoricalDistribution(list(own)) for name, own in choices.items()}
        failed = optuna.trial.TrialState.FAIL
        times: dict[tuple[Value, ...], float | None] = {}
        asked = useless = 0
        while len(times) < min(self.trials, space.size) and asked < self.trials * ASKED_FOR_EACH:
            batch: dict[tuple[Value, ...], tuple[Any, Configuration]] = {}
            while len(batch) < min(at_a_time, self.trials - len(times)) and asked < self.trials * ASKED_FOR_EACH:
                asked += 1
                if useless >= USELESS_IN_A_ROW and rest:
                    given = next(one for one in iter(rest.pop, None) if one.params not in {**times, **batch})
                    study.enqueue_trial({value.name: numbers[value.name][value] for value in given.params})
                trial = study.ask(distributions)
                params = tuple(choices[name][trial.params[name]] for name in choices)
                configuration = space.find(params)
                useless += 1
                if params in times and times[params] is not None:
                    study.tell(trial, times[params])
                elif configuration is None or params in times or params in batch:
                    study.tell(trial, state=failed)
                else:
                    batch[params] = trial, configuration
                    useless = 0
            if not batch:
                return
            measured = yield [configuration for _, configuration in batch.values()]
            for (params, (trial, _)), time_us in zip(batch.items(), measured, strict=True):
                times[params] = time_us
                study.tell(trial, time_us, state=failed if time_us is None else None)

    def _to_choose_from(self, space: Space) -> list[Configuration] | None:
        """The whole space; None where it is too large to be listed."""
        return list(space) if isinstance(space, ListedSpace) or space.size <= ENUMERABLE else None


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Leave out that a study was made: a test may look at what is logged."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)


_NAMED: dict[str, Strategy] = {"exhaustive": Exhaustive(), "optuna": Optuna()}


def as_strategy(strategy: object) -> Strategy:
    """What a caller passed as ``strategy=``.

    :raises TypeError: when it is neither a name nor has batches.
    """
    if isinstance(strategy, str) and strategy in _NAMED:
        return _NAMED[strategy]
    if hasattr(strategy, "batches"):
        found: Strategy = strategy
        return found
    raise TypeError(f"strategy= takes 'exhaustive', 'optuna' or an Optuna(…), not {strategy!r}")
