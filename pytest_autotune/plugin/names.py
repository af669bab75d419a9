"""Everything that imports pytest; here is what the plugin, the controller and its workers spell alike."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

#: The marker, and the fixture, of one test's caches.
MARKER = "autotune_cache"
#: What is ours in xdist's ``workerinput`` and ``workeroutput``.
INPUT_KEY = "autotune"
_PACKAGE = "pytest_autotune"
#: Whether a session has ended in this process: what it has tuned is in memory, and nobody's fault.
has_ended = False


def asks_for_cache(item: pytest.Item) -> bool:
    """Whether a test has the marker or the fixture, and so may load caches of its own."""
    return item.get_closest_marker(MARKER) is not None or MARKER in getattr(item, "fixturenames", ())


def forget_removed_modules() -> None:
    """Take modules that are gone off their packages, where ``from package import module`` would still find them.

    Pytester removes what a run inside a test has imported, and the packages that the run around it imported stay.
    """
    ours = [module for name, module in list(sys.modules.items()) if name.partition(".")[0] == _PACKAGE]
    for package in ours:
        for name, value in list(vars(package).items()):
            full = f"{package.__name__}.{name}"
            if isinstance(value, ModuleType) and value.__name__ == full and sys.modules.get(full) is not value:
                delattr(package, name)


def supply_interpreter_benchmark(undo: list[Callable[[], None]]) -> None:
    """Let Triton measure interpreted kernels, also in a run that asks for nothing; ``undo`` gets what restores it."""
    import wrapt

    def supply(module: Any) -> None:
        from pytest_autotune.tuners.triton.interpreter import supply_interpreter_benchmark

        undo.append(supply_interpreter_benchmark(module))

    wrapt.register_post_import_hook(supply, "triton.runtime.autotuner")
