"""The layers of a kernel: what Triton's decorators made of a function, told apart."""

from __future__ import annotations

from typing import Any

from pytest_autotune.tuners.shared.functions import layers
from pytest_autotune.tuners.triton.internals.modules import JIT_MODULE


def is_heuristics(layer: Any) -> bool:
    """Whether a decorator of a kernel is ``triton.heuristics``, or a copy of it."""
    is_named_so = any(base.__name__ == "Heuristics" for base in type(layer).__mro__)
    return is_named_so and isinstance(getattr(layer, "values", None), dict)


def is_interpreted(layer: Any) -> bool:
    """Whether this is a function that Triton's interpreter runs, under its decorators."""
    return type(layer).__name__ == "InterpretedFunction"


def is_of_triton(autotuner: Any) -> bool:
    """Whether what an autotuner launches is a kernel of Triton's, Gluon's too, that ``warmup=True`` only compiles.

    Some autotuners are made around a Python function, which launches what it likes.
    """
    return any(base.__name__ == "JITFunction" for layer in layers(autotuner.fn) for base in type(layer).__mro__)


def jit_function(layer: Any) -> Any:
    """The ``JITFunction`` under decorators of Triton; None where there is none."""
    for _ in range(20):
        if type(layer).__name__ == "JITFunction" and type(layer).__module__ == JIT_MODULE:
            return layer
        layer = vars(layer).get("fn") if hasattr(layer, "__dict__") else None
    return None


def heuristics_under(autotuner: Any) -> list[Any]:
    """The ``triton.heuristics`` between an autotuner and its kernel."""
    return [layer for layer in layers(autotuner.fn) if is_heuristics(layer)]
