"""The tuners: one package for each, and the tuners of other packages."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

#: The tuners that come with the plugin, each with the module whose ``Adapter`` hooks it.
TUNERS: dict[str, str] = {
    "triton": "pytest_autotune.tuners.triton.adapter",
    "inductor": "pytest_autotune.tuners.inductor",
    "xla": "pytest_autotune.tuners.xla.adapter",
    "cute": "pytest_autotune.tuners.cute.adapter",
    "cutile": "pytest_autotune.tuners.cutile.adapter",
    "function": "pytest_autotune.tuners.function",
    "helion": "pytest_autotune.tuners.helion.adapter",
}
#: The group of entry points of packages that bring an adapter of their own: ``tuner = module:class``.
ENTRY_POINTS = "pytest_autotune.tuners"


def adapter_class(name: str) -> Any:
    """Return the class of the adapter of one of :data:`TUNERS`. This imports nothing of the tuner."""
    return import_module(TUNERS[name]).Adapter


def list_third_party_tuners() -> list[EntryPoint]:
    """Return the tuners of other packages, sorted by name, without loading them."""
    return sorted(entry_points(group=ENTRY_POINTS), key=_name_and_value)


def _name_and_value(entry_point: EntryPoint) -> tuple[str, str]:
    return entry_point.name, entry_point.value
