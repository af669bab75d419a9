"""One call of an autotuned kernel, and what selects its problem: arguments by name, dtypes, closure cells."""

from __future__ import annotations

import enum
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pytest_autotune.cache.model import Value, plain_value
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.tuners.shared.functions import closure_cells, python_function
from pytest_autotune.tuners.shared.source_digest import DtypeName, is_code, stable_value, unwrapped
from pytest_autotune.tuners.triton.internals import autotuners

#: The functions of ``triton.heuristics``, by the name of the value that each makes.
Heuristics = list[tuple[str, Callable[..., object]]]

#: How values are named that are in no key of Triton's: they are compiled in as they are.
_CELLS = ("closure.", "heuristics.")


@dataclass(frozen=True)
class Call:
    """One call that found no choice in Triton's memory."""

    autotuner: Any
    tuning_key: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    heuristics: Heuristics

    @classmethod
    def of(cls, autotuner: Any, tuning_key: Any, bench_fn: Callable[[], None], over: Iterable[Any] = ()) -> Call:
        """The call that a benchmark function of Triton's is for.

        :param over: the ``triton.heuristics`` over the autotuner.
        :raises LookupError: when it is not the function that Triton is known to pass.
        """
        found = [*autotuners.heuristics_under(autotuner), *over]
        heuristics = [pair for one in found for pair in one.values.items()]
        return cls(autotuner, tuning_key, *autotuners.arguments_of(bench_fn), heuristics)

    @property
    def named(self) -> dict[str, Any]:
        """Every argument by its name, with Triton's own ``grid`` and ``warmup`` among them."""
        return {**dict(zip(self.autotuner.arg_names, self.args, strict=False)), **self.kwargs}

    def arguments(self, config: Any) -> dict[str, Any]:
        """What Triton's hooks get to see when ``config`` is used."""
        return {**self.named, **config.all_kwargs()}

    def adopt(self, config: Any, times_ms: Mapping[Any, float], seconds: float = 0.0) -> None:
        """Leave the autotuner as a benchmark would have left it that chose this candidate.

        The last launch may have been another candidate's: what it left in the tensors must not differ.
        """
        if not stream_is_capturing():  # first: with arguments that it refuses, nothing was chosen
            self.autotuner.pre_hook(self.arguments(config), reset_only=True)
        self.autotuner.cache[self.tuning_key] = config
        self.autotuner.configs_timings = {one: [time_ms] * 3 for one, time_ms in times_ms.items()}
        self.autotuner.bench_time = seconds


def key_values(call: Call, function: FunctionType) -> Iterator[tuple[str, object]]:
    """What a tuning depends on, by name: positions shift with defaults and keyword arguments."""
    autotuner = call.autotuner
    named = {name: value for name, value in call.named.items() if name in autotuner.arg_names}
    yield from ((name, named[name]) for name in dict.fromkeys(autotuner.keys) if name in named)
    for name, value in named.items():
        yield from _compiled_in(name, value, is_key=name in autotuner.keys)
    yield from _cells("closure", function)
    for name, heuristic in call.heuristics:
        if (inner := python_function(heuristic)) is not None:
            yield from _cells(f"heuristics.{name}", inner)


def _compiled_in(name: str, value: Any, is_key: bool) -> Iterator[tuple[str, object]]:
    """The dtypes of an argument, in tuples and descriptors too, and functions that the key does not name."""
    if hasattr(value, "dtype"):
        yield f"{name}.dtype", DtypeName(str(value.dtype))
    elif isinstance(value, tuple):
        for position, part in enumerate(value):
            yield from _compiled_in(f"{name}.{position}", part, is_key)
    elif hasattr(getattr(value, "base", None), "dtype"):
        yield f"{name}.base.dtype", DtypeName(str(value.base.dtype))
    elif not is_key and python_function(unwrapped(value)) is not None:
        yield name, value


def _cells(prefix: str, function: FunctionType) -> Iterator[tuple[str, object]]:
    for name, value in closure_cells(function).items():
        if not is_code(value):
            yield f"{prefix}.{name}", value


def key_value(name: str, value: object) -> Value:
    """Encode a part of a key as Triton compares it: True, 1 and 1.0 are one key there; in a closure they are three."""
    value = unwrapped(value)
    if name.startswith(_CELLS):
        return stable_value(name, value, dtype_apart=True)
    if isinstance(value, numbers.Integral) and not isinstance(value, enum.Enum):
        return plain_value(name, int(value))
    if isinstance(value, numbers.Real):
        number = float(value)
        return plain_value(name, int(number) if number.is_integer() else number)
    return stable_value(name, value, dtype_apart=not isinstance(value, DtypeName))
