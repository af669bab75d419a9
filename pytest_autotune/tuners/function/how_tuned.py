"""How a choice was measured and searched, as far as that decides which candidate wins."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from pytest_autotune.cache.model import Value
from pytest_autotune.tuners.function.carried import carried_by, frozen_text
from pytest_autotune.tuners.function.source_text import source_text
from pytest_autotune.tuners.function.space import Space
from pytest_autotune.tuners.function.strategies import Exhaustive, Optuna, Strategy
from pytest_autotune.tuners.measuring.how import Measuring
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.source.source_digest import class_digest


def how_measured(measuring: Measuring, on_gpu: bool) -> Iterator[Value]:
    """What is measured, where it is not the usual: with the L2 cache flushed, by another clock.

    How often and how long decides how exact the times are, and is left out.
    """
    if measuring.flush_l2:
        yield Value("flush_l2", True)
    clock = measuring.clock
    if callable(clock):
        yield Value("clock", _text_of(clock, clock), "function")
    elif on_gpu and clock == "host":
        yield Value("clock", clock)


def how_searched(strategy: Strategy, space: Space) -> Iterator[Value]:
    """Which part of a space is measured, where it is not all of it."""
    if isinstance(strategy, Exhaustive):
        return
    if not isinstance(strategy, Optuna):
        yield Value("strategy", _text_of(strategy, strategy.batches), "function")
    elif space.size > strategy.trials:
        sampler = "" if strategy.sampler is None else f", {type(strategy.sampler).__qualname__}"
        yield Value("strategy", f"optuna: {strategy.trials} trials, seed {strategy.seed}{sampler}")


def _text_of(own: Any, call: Callable[..., object]) -> str:
    """A digest of something of the caller's own, and of what the function that is called carries."""
    cls = own if isinstance(own, type) else type(own)
    name = getattr(own, "__qualname__", cls.__qualname__)
    try:
        source = source_text(own)
    except TypeError:  # an object, or a function of another language
        source = class_digest(cls, frozen_text)
    return digest(f"{name.rpartition('.')[2]}\n{source}\n{carried_by([call]).digest}")
