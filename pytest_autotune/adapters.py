"""What an adapter for another tuner may use; names that stay, wherever they come from.

An adapter is a class that fits :class:`Adapter`, named by an entry point of the group
``pytest_autotune.tuners``. ``docs/adapters.md`` walks through one.
"""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType

from pytest_autotune.cache.made_of import of_candidates, of_parts
from pytest_autotune.cache.model import (
    Candidate,
    Device,
    Digest,
    Entry,
    Problem,
    UnportableError,
    Value,
    Versions,
    plain_value,
)
from pytest_autotune.devices import cpu, current_gpu
from pytest_autotune.run.abilities import Abilities
from pytest_autotune.run.door import Tuning, TuningRun
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.policy import Policy
from pytest_autotune.run.verify import Verdict
from pytest_autotune.tuners.measuring.clocks import Clock, HostClock, Launch, Runner, torch_clock
from pytest_autotune.tuners.measuring.verifying import Contest, verify
from pytest_autotune.tuners.protocol import Adapter, HookError, Suite
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.guard import guarded
from pytest_autotune.tuners.shared.source import source_digest as source_digests
from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.values import constant_text, stable_value

__all__ = [
    "Abilities",
    "Adapter",
    "Candidate",
    "Clock",
    "Contest",
    "Device",
    "Digest",
    "Entry",
    "HookError",
    "HostClock",
    "Launch",
    "Lookup",
    "Outcome",
    "Policy",
    "Problem",
    "Runner",
    "Suite",
    "Tuning",
    "TuningRun",
    "UnportableError",
    "Value",
    "Verdict",
    "Versions",
    "cpu",
    "current_gpu",
    "digest",
    "guarded",
    "of_candidates",
    "of_parts",
    "plain_value",
    "python_function",
    "qualified_name",
    "source_digest",
    "source_parts",
    "stable_value",
    "torch_clock",
    "verify",
]


def source_digest(function: FunctionType, constant: Callable[[object], str | None] = constant_text) -> str:
    """The digest of a function's source with everything of its own that it uses, the same on every machine.

    :param constant: the stable text of a constant that it uses, or None for what is none.
    :raises UnportableError: when the source of a function cannot be read.
    """
    return source_digests.source_digest(function, constant)


def source_parts(function: FunctionType, constant: Callable[[object], str | None] = constant_text) -> dict[str, str]:
    """The functions, classes and constants in :func:`source_digest`, by name, each with a digest of it alone.

    :raises UnportableError: when the source of a function cannot be read.
    """
    return source_digests.source_parts(function, constant)
