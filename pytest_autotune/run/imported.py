"""Which kernels a process could have asked for: those whose module it has imported."""

from __future__ import annotations

import importlib.util
import sys


def module_is_imported(name: str) -> bool:
    """Whether the module that should define a kernel was imported here.

    :param name: ``tuner:kernel``, as a problem is named; the kernel is a qualified name.
    """
    parts = name.partition(":")[2].split(".")
    for end in range(len(parts) - 1, 0, -1):
        module = sys.modules.get(".".join(parts[:end]))
        if module is not None:
            rest_is_module = (
                hasattr(module, "__path__") and end < len(parts) - 1 and _submodule_exists(parts[: end + 1])
            )
            return not rest_is_module
    return False


def _submodule_exists(parts: list[str]) -> bool:
    try:
        return importlib.util.find_spec(".".join(parts)) is not None
    except (ImportError, ValueError):
        return False
