"""Names and small functions that the plugin's hooks, the controller and the workers share.

It imports nothing of the package, so that every module of the plugin may import it.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

#: The name of the marker and of the fixture for the caches of a single test.
MARKER = "autotune_cache"
#: The plugin's key in xdist's ``workerinput`` and ``workeroutput``.
INPUT_KEY = "autotune"
_PACKAGE = "pytest_autotune"
#: Whether a run of pytest has ended in this process. The tuners then still hold its choices in their memory.
has_ended = False


def has_marker_or_fixture(item: pytest.Item) -> bool:
    """Whether a test has the marker or the fixture, so that it may load caches of its own."""
    return item.get_closest_marker(MARKER) is not None or MARKER in getattr(item, "fixturenames", ())


def forget_removed_modules() -> None:
    """Delete the attributes of our packages that are modules which ``sys.modules`` no longer has.

    Pytester removes the modules that a run inside a test imported. Their packages stay, if the outer run imported them,
    and ``from package import module`` would still find the removed module.
    """
    for module_name, package in list(sys.modules.items()):
        if module_name.partition(".")[0] != _PACKAGE:
            continue
        for name, value in list(vars(package).items()):
            full_name = f"{package.__name__}.{name}"
            is_submodule = isinstance(value, ModuleType) and value.__name__ == full_name
            if is_submodule and sys.modules.get(full_name) is not value:
                delattr(package, name)


def supply_interpreter_benchmark(undo: list[Callable[[], None]]) -> None:
    """Let Triton's autotuner measure interpreted kernels, as soon as Triton is imported.

    :param undo: gets a function that restores Triton.
    """
    import wrapt

    def supply(module: Any) -> None:
        from pytest_autotune.tuners.triton.interpreter import supply_interpreter_benchmark

        undo.append(supply_interpreter_benchmark(module))

    wrapt.register_post_import_hook(supply, "triton.runtime.autotuner")
