"""Triton's interpreter can tune on a machine without a GPU, also in a run that asks for nothing."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

_TRUE = ("1", "true", "on", "yes", "y")  # as Triton reads it


def is_interpreting() -> bool:
    """Whether Triton would interpret its kernels in this process."""
    return os.environ.get("TRITON_INTERPRET", "0").lower() in _TRUE


def supply_when_imported(undo: list[Callable[[], None]]) -> None:
    """Let Triton measure interpreted kernels, once it is imported.

    :param undo: gets what restores Triton.
    """
    import wrapt

    def supply(module: Any) -> None:
        from pytest_autotune.tuners.triton.interpreter import supply_interpreter_benchmark

        undo.append(supply_interpreter_benchmark(module))

    wrapt.register_post_import_hook(supply, "triton.runtime.autotuner")
