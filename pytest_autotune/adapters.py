"""What an adapter for another tuner may use; names that stay, wherever they come from.

An adapter is a class that fits :class:`Adapter`, named by an entry point of the group
``pytest_autotune.tuners``. ``docs/adapters.md`` walks through one.
"""

from __future__ import annotations

from pytest_autotune.cache.digest_parts import of_candidates, of_parts
from pytest_autotune.cache.model import (
    Candidate,
    Device,
    Digest,
    Entry,
    Problem,
    UncacheableError,
    Value,
    Versions,
    plain_value,
)
from pytest_autotune.devices import cpu, current_gpu
from pytest_autotune.run.lookup import Lookup, Outcome, Policy
from pytest_autotune.run.mode import Suite
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.measuring.clocks import Clock, HostClock, Launch, Runner, torch_clock
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.protocol import Adapter, HookError
from pytest_autotune.tuners.shared.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.library import guarded
from pytest_autotune.tuners.shared.source_digest import digest, source_digest, source_parts, stable_value

__all__ = [
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
    "Session",
    "Suite",
    "Tuning",
    "UncacheableError",
    "Value",
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
]
