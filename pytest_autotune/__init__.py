"""Persisted autotuning for test suites, and a tuner for hand-written kernels.

Each public name is imported from its module when it is first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_autotune.cache.model import Device as Device
    from pytest_autotune.production.use import use as use
    from pytest_autotune.run import ACTIVE_RUNS as ACTIVE_RUNS
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

#: The module of each public name.
_PUBLIC = {
    # Modules that ``pytest-autotune export`` wrote look up this name here, so it never changes.
    "ACTIVE_RUNS": "pytest_autotune.run",
    "Device": "pytest_autotune.cache.model",
    "InvalidConfiguration": "pytest_autotune.tuners.function.space",
    "Measuring": "pytest_autotune.tuners.measuring.options",
    "Optuna": "pytest_autotune.tuners.function.plan",
    "Random": "pytest_autotune.tuners.function.plan",
    "TuningError": "pytest_autotune.tuners.function.space",
    "loss": "pytest_autotune.tuners.function.tuner",
    "multiple_of": "pytest_autotune.tuners.function.identity",
    "power_of_two": "pytest_autotune.tuners.function.identity",
    "product": "pytest_autotune.tuners.function.space",
    "tune": "pytest_autotune.tuners.function.tuner",
    "tuned": "pytest_autotune.tuners.function.tuner",
    "use": "pytest_autotune.production.use",
}


def __getattr__(name: str) -> object:
    if name not in _PUBLIC:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_PUBLIC])
