"""One call of an autotuned kernel."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.tuners.triton.internals import benchmark, kernel_layers

#: The functions of ``triton.heuristics``, by the name of the value that each makes.
Heuristics = list[tuple[str, Callable[..., object]]]


@dataclass(frozen=True)
class Call:
    """One call that found no choice in Triton's memory."""

    autotuner: Any
    tuning_key: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    heuristics: Heuristics

    @classmethod
    def of(cls, autotuner: Any, tuning_key: Any, bench_fn: Callable[[], None], over: Iterable[Any]) -> Call:
        """The call that a benchmark function of Triton's is for.

        :param over: the ``triton.heuristics`` over the autotuner.
        :raises LookupError: when it is not the function that Triton is known to pass.
        """
        found = [*kernel_layers.heuristics_under(autotuner), *over]
        heuristics = [pair for one in found for pair in one.values.items()]
        return cls(autotuner, tuning_key, *benchmark.arguments_of(bench_fn), heuristics)

    @property
    def named(self) -> dict[str, Any]:
        """Every argument by its name, with Triton's own ``grid`` and ``warmup`` among them."""
        return {**dict(zip(self.autotuner.arg_names, self.args, strict=False)), **self.kwargs}

    def arguments(self, config: Any) -> dict[str, Any]:
        """What Triton's hooks get to see when ``config`` is used."""
        return {**self.named, **config.all_kwargs()}

    def adopt(self, config: Any, time_ms: float) -> None:
        """Leave the autotuner as a benchmark would have left it that chose this candidate."""
        self.autotuner.cache[self.tuning_key] = config
        self.autotuner.configs_timings = {config: [time_ms] * 3}
        self.autotuner.bench_time = 0.0
        if not stream_is_capturing():
            self.autotuner.pre_hook(self.arguments(config), reset_only=True)
