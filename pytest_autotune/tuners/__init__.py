"""The tuners: one package for each, and the tuners of other packages."""

from __future__ import annotations

import time
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points

#: The time at which the plugin was loaded, before pytest imported a module of the suite. If a file is older, it was not
#: edited after its import.
STARTED_S = time.time()


@dataclass(frozen=True)
class BuiltInTuner:
    """A tuner that comes with the plugin.

    The plugin imports the adapter when the tuner's library is imported, because most suites use few of these libraries.

    :param adapter_module: the module whose class ``Adapter`` hooks the tuner.
    :param module: equals the attribute of the adapter: the module whose import makes the tuner available.
    :param acts_without_entries: equals the attribute of the adapter; see :class:`.protocol.Adapter`.
    :param names_candidates: equals the attribute of the adapter, if the adapter has one.
    """

    adapter_module: str
    module: str
    acts_without_entries: bool = True
    names_candidates: bool = False


#: The tuners that come with the plugin, by name.
TUNERS: dict[str, BuiltInTuner] = {
    "triton": BuiltInTuner("pytest_autotune.tuners.triton.adapter", "triton.runtime.autotuner"),
    "inductor": BuiltInTuner(
        "pytest_autotune.tuners.inductor",
        "torch._inductor.config",
        acts_without_entries=False,
        names_candidates=True,
    ),
    "xla": BuiltInTuner("pytest_autotune.tuners.xla.adapter", "jax", acts_without_entries=False),
    "cute": BuiltInTuner("pytest_autotune.tuners.cute.adapter", "cutlass.cute.testing"),
    "cutile": BuiltInTuner("pytest_autotune.tuners.cutile.adapter", "cuda.tile.tune"),
    # The tuner is a part of the plugin: its library is the module of the adapter.
    "function": BuiltInTuner("pytest_autotune.tuners.function", "pytest_autotune.tuners.function"),
    "helion": BuiltInTuner("pytest_autotune.tuners.helion.adapter", "helion.autotuner"),
}
#: The group of entry points of packages that bring an adapter of their own: ``tuner = module:class``.
ENTRY_POINTS = "pytest_autotune.tuners"


def list_third_party_tuners() -> list[EntryPoint]:
    """Return the tuners of other packages, sorted by name, without loading them."""
    return sorted(entry_points(group=ENTRY_POINTS), key=_name_and_value)


def _name_and_value(entry_point: EntryPoint) -> tuple[str, str]:
    return entry_point.name, entry_point.value
