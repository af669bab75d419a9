"""Persisted autotuning for test suites, and a tuner for hand-written kernels; imported when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_autotune.cache.model import Device as Device
    from pytest_autotune.production.use import use as use
    from pytest_autotune.tuners.function.identity import multiple_of as multiple_of
    from pytest_autotune.tuners.function.identity import power_of_two as power_of_two
    from pytest_autotune.tuners.function.plan import Optuna as Optuna
    from pytest_autotune.tuners.function.plan import Random as Random
    from pytest_autotune.tuners.function.space import InvalidConfiguration as InvalidConfiguration
    from pytest_autotune.tuners.function.space import TuningError as TuningError
    from pytest_autotune.tuners.function.space import product as product
    from pytest_autotune.tuners.function.tuner import loss as loss
    from pytest_autotune.tuners.function.tuner import tune as tune
    from pytest_autotune.tuners.function.tuner import tuned as tuned
    from pytest_autotune.tuners.measuring.options import Measuring as Measuring

__version__ = "0.1.0"

_ROOM = "pytest_autotune.tuners.function"
_MODULES = {
    "pytest_autotune.cache.model": ("Device",),
    "pytest_autotune.production.use": ("use",),
    "pytest_autotune.tuners.measuring.options": ("Measuring",),
    f"{_ROOM}.identity": ("multiple_of", "power_of_two"),
    f"{_ROOM}.plan": ("Optuna", "Random"),
    f"{_ROOM}.space": ("InvalidConfiguration", "TuningError", "product"),
    f"{_ROOM}.tuner": ("loss", "tune", "tuned"),
}
_PUBLIC = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
