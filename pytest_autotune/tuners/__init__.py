"""Who tunes: one module for each tuner."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

#: The tuners that come with the plugin: name -> module whose ``Adapter`` hooks it.
TUNERS: dict[str, str] = {
    "triton": "pytest_autotune.tuners.triton.adapter",
    "inductor": "pytest_autotune.tuners.inductor",
    "xla": "pytest_autotune.tuners.xla.adapter",
    "cute": "pytest_autotune.tuners.cute.adapter",
    "cutile": "pytest_autotune.tuners.cutile.adapter",
    "function": "pytest_autotune.tuners.function",
    "helion": "pytest_autotune.tuners.helion.adapter",
}
#: The entry points of packages that bring an adapter of their own: tuner = module:class.
ENTRY_POINTS = "pytest_autotune.tuners"


def adapter_class(name: str) -> Any:
    """The class of the adapter of one of :data:`TUNERS`, which imports nothing of the tuner."""
    return import_module(TUNERS[name]).Adapter


def third_party_tuners() -> list[EntryPoint]:
    """The tuners of other packages, sorted by name; loads none of them."""
    return sorted(entry_points(group=ENTRY_POINTS), key=lambda entry_point: (entry_point.name, entry_point.value))
