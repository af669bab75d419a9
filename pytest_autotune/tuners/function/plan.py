"""The options of one search, and the order in which it tries configurations."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any, Protocol, TypeAlias

from pytest_autotune import devices
from pytest_autotune.cache.model import Device
from pytest_autotune.tuners.function import MEMORIES
from pytest_autotune.tuners.function.space import Configuration, InvalidConfiguration, Space, TuningError
from pytest_autotune.tuners.measuring.options import Measuring
from pytest_autotune.tuners.source.functions import find_deferred_kind

#: The kinds of results that have not run yet.
_DEFERRED_TYPES: dict[type, str] = {
    CoroutineType: "a coroutine",
    GeneratorType: "a generator",
    AsyncGeneratorType: "an asynchronous generator",
}
#: The number of times that Optuna is asked for each candidate at most. A strict constraint makes most combinations
#: useless.
ASKED_FOR_EACH = 20


class DeviceOwner(Protocol):
    """A session or a tuning, which can take a device for a measurement."""

    def measuring(self, on: str = "") -> AbstractContextManager[object]:
        """Take the device; ``on`` names the processor, empty for the current GPU."""


@dataclass(frozen=True)
class DeviceLock:
    """The way in which a measurement takes its device.

    :param owner: takes the device; None if nothing else uses it.
    :param processor: the name of the processor; empty for the current GPU.
    """

    owner: DeviceOwner | None = None
    processor: str = ""

    def holding(self) -> AbstractContextManager[object]:
        """Return a context in which no other pytest process measures on the device."""
        if self.owner is None:
            return nullcontext()
        return self.owner.measuring(self.processor)


class Benchmark(Protocol):
    """Measures configurations for a strategy."""

    def measure_us(self, configurations: Sequence[Configuration]) -> Sequence[float | None]:
        """Return the times of configurations in microseconds, in their order; None for a failed configuration."""


@dataclass(frozen=True)
class Random:
    """Some configurations, at most ``trials``, drawn at random. Each run draws the same configurations."""

    trials: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"Random(trials={self.trials}): expected one or more")

    def search(self, space: Space, batch_size: int, benchmark: Benchmark) -> None:
        """Measure configurations, each at most once.

        :param batch_size: the number of configurations that can be compiled at the same time.
        """
        benchmark.measure_us(_draw(space, self.trials, self.seed))

    def __str__(self) -> str:
        return f"random: {self.trials} trials, seed {self.seed}"


@dataclass(frozen=True)
class Optuna:
    """A search by Optuna, for spaces that are larger than ``trials``. At most ``trials`` configurations are measured.

    :param seed: of the default sampler, which draws the same configurations for the same times.
    :param sampler: an ``optuna.samplers.BaseSampler``; None: ``TPESampler`` (a tree-structured Parzen
        estimator: J. Bergstra et al., Algorithms for Hyper-Parameter Optimization, NIPS 2011).
    """

    trials: int = 100
    seed: int = 0
    sampler: Any = None

    def __post_init__(self) -> None:
        if self.trials < 1:
            raise ValueError(f"Optuna(trials={self.trials}): expected one or more")

    def search(self, space: Space, batch_size: int, benchmark: Benchmark) -> None:
        """Measure configurations, each at most once; see :class:`Random`."""
        drawn = _draw(space, self.trials + 1, self.seed)
        if len(drawn) <= self.trials:
            # There are enough trials for the whole space, so there is nothing to search for.
            if space.can_be_listed:
                drawn = list(space)
            benchmark.measure_us(drawn)
            return
        study = _Study(self, space)
        while len(study.times) < self.trials:
            batch = study.ask(min(batch_size, self.trials - len(study.times)))
            if not batch:
                if not study.times:
                    # No combination of the axes is a configuration, as in [{"A": 1}, {"B": 2}].
                    benchmark.measure_us(drawn[: self.trials])
                return
            times = benchmark.measure_us(list(batch))
            for (configuration, trial), time_us in zip(batch.items(), times, strict=True):
                study.times[configuration] = time_us
                study.tell(trial, time_us)

    def __str__(self) -> str:
        sampler = ""
        if self.sampler is not None:
            sampler = f", {type(self.sampler).__qualname__}"
        return f"optuna: {self.trials} trials, seed {self.seed}{sampler}"


class _Study:
    """A study of Optuna over the axes of a space.

    A *trial* of Optuna has the position of a value on each axis: ``{"BLOCK": 0, "warps": 2}``. Optuna proposes the next
    trial by the times of the earlier ones.
    """

    def __init__(self, options: Optuna, space: Space) -> None:
        try:
            optuna: Any = import_module("optuna")
        except ImportError:
            message = "strategy='optuna' needs Optuna: pip install 'pytest-autotune[search]'"
            raise TuningError(message) from None
        sampler = options.sampler or optuna.samplers.TPESampler(seed=options.seed)
        self._study = optuna.create_study(sampler=sampler)
        self._failed_state = optuna.trial.TrialState.FAIL
        self._space = space
        #: Name of an axis -> the positions from which Optuna picks: 0, 1 and 2 for an axis with three values.
        self._distributions: dict[str, Any] = {}
        for name, values in space.axes.items():
            self._distributions[name] = optuna.distributions.CategoricalDistribution(range(len(values)))
        #: How many more trials Optuna may propose. Some of them are no new configuration, so there is a limit.
        self._asks_left = ASKED_FOR_EACH * options.trials
        #: The time of each measured configuration in microseconds; None for a failed configuration.
        self.times: dict[Configuration, float | None] = {}

    def ask(self, number: int) -> dict[Configuration, Any]:
        """Return at most ``number`` configurations that were not measured yet, each with Optuna's trial."""
        batch: dict[Configuration, Any] = {}
        while len(batch) < number and self._asks_left:
            self._asks_left -= 1
            trial = self._study.ask(self._distributions)
            params = tuple(values[trial.params[name]] for name, values in self._space.axes.items())
            configuration = self._space.find(params)
            if configuration is None:
                # The constraint of the space excludes this combination.
                self.tell(trial, None)
            elif configuration in self.times or configuration in batch:
                # Optuna proposes it again, and is told the measured time. A configuration of this batch has no time
                # yet, so the second trial ends as failed. TPESampler leaves failed trials out, and the first trial gets
                # the time.
                self.tell(trial, self.times.get(configuration))
            else:
                batch[configuration] = trial
        return batch

    def tell(self, trial: Any, time_us: float | None) -> None:
        """Tell Optuna the time of a trial; None for a failed trial."""
        state = None
        if time_us is None:
            state = self._failed_state
        self._study.tell(trial, time_us, state=state)


#: Selects the configurations to measure; None: all of them.
Strategy: TypeAlias = "Random | Optuna | None"
_STRATEGIES: dict[object, Strategy] = {"exhaustive": None, "random": Random(), "optuna": Optuna()}


def _draw(space: Space, number: int, seed: int) -> list[Configuration]:
    """Return so many configurations of a space, or all, in an order that the seed decides."""
    configurations = space.sample(number, str(seed))
    return random.Random(seed).sample(configurations, min(number, len(configurations)))


def parse_strategy(strategy: object) -> Strategy:
    """Return the strategy for the argument ``strategy=``.

    :raises TypeError: if it is none.
    """
    if isinstance(strategy, (Random, Optuna)):
        return strategy
    if isinstance(strategy, str) and strategy in _STRATEGIES:
        return _STRATEGIES[strategy]
    raise TypeError(f"strategy= takes 'exhaustive', 'random', 'optuna', a Random(…) or an Optuna(…), not {strategy!r}")


@dataclass(frozen=True)
class Processor:
    """A device, and the name that a measurement on it locks; empty for the current GPU."""

    device: Device
    lock: str = ""

    @property
    def on_gpu(self) -> bool:
        """Whether the device is a GPU that torch or CuPy can time."""
        return not self.lock


def find_processor(device: object) -> Processor:
    """Return the processor for the argument ``device=``. For None: the current GPU if the process uses one, or the CPU.

    :raises TuningError: if the caller asks for a GPU and the process uses none.
    :raises TypeError: for an argument of another type.
    """
    if isinstance(device, Device):
        return _find_processor_of_device(device)
    # str(): torch.device("cpu") counts, too.
    if str(device) == "cpu":
        return Processor(devices.cpu(), "cpu")
    gpu = devices.current_gpu()
    if device is not None and str(device) != "cuda":
        raise TypeError(f"device= takes 'cpu', 'cuda' or a pytest_autotune.Device, not {device!r}")
    if gpu is not None:
        return Processor(gpu)
    if device is not None:
        raise TuningError("device='cuda': no library of this process uses a GPU yet (allocate the inputs first)")
    return Processor(devices.cpu(), "cpu")


class DeferredCallError(TypeError):
    """A callback is an ``async def`` or generator function. Its call runs nothing, so it cannot be timed or checked."""

    def __init__(self, callback: str, kind: str) -> None:
        remedy = "iterates over it"
        if kind == "a coroutine":
            remedy = "runs it, such as lambda config: asyncio.run(launch(config))"
        super().__init__(f"{callback} returns {kind}, which has not run yet: pass a function that {remedy}")


def check_callbacks(callbacks: Mapping[str, object]) -> None:
    """Check that a call of each callback runs it.

    :param callbacks: the callbacks by the names of their parameters; None for a callback that the user did not pass.
    :raises DeferredCallError: for an ``async def`` or generator function.
    """
    for parameter, callback in callbacks.items():
        if callback is None:
            continue
        kind = find_deferred_kind(callback)
        if kind:
            raise DeferredCallError(f"{parameter}=", kind)


def check_result(parameter: str, result: object) -> None:
    """Check that a callback has run: a plain function such as a lambda may return the coroutine of another function.

    :param parameter: the name of the callback's parameter.
    :raises DeferredCallError: for a coroutine or generator.
    """
    kind = _DEFERRED_TYPES.get(type(result))
    if kind is None:
        return
    if isinstance(result, (CoroutineType, GeneratorType)):
        result.close()  # otherwise Python warns that nobody awaited it
    raise DeferredCallError(f"{parameter}=", kind)


def _find_processor_of_device(device: Device) -> Processor:
    """Return the processor for a device that the user described. Only the current GPU can be timed as a GPU."""
    if device == devices.current_gpu():
        return Processor(device)
    if device == devices.cpu():
        return Processor(device, "cpu")
    return Processor(device, device.id)


def parse_compile_threads(number: object) -> int | None:
    """Return the argument ``compile_threads=``; None stands for the number of the process's cores.

    :raises TypeError: for anything but a number.
    :raises ValueError: for a number below 1.
    """
    if number is None:
        return None
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"compile_threads= takes a number of threads, not {number!r}")
    if number < 1:
        raise ValueError(f"compile_threads={number}: expected 1 or more")
    return number


@dataclass(frozen=True)
class Plan:
    """The arguments of ``tune()`` for a search: how to search, and what to do with a configuration.

    :param compile_threads: the number of configurations that are compiled at the same time. 1: in the thread that
        tunes. None: as many as this process has cores to use; a worker of xdist has its share of them.
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
        """The number of configurations that may be compiled at the same time."""
        if self.compile_threads is not None:
            return self.compile_threads
        session = MEMORIES[-1].session
        if session is None:
            return devices.count_usable_cores()
        return session.policy.compile_threads

    @property
    def expected(self) -> tuple[type[BaseException], ...]:
        """The errors that a single candidate may raise."""
        if self.strict:
            return (InvalidConfiguration, *self.invalid)
        return (Exception, *self.invalid)
