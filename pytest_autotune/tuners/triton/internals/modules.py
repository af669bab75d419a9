"""Where things are in Triton: its modules, as far as they are imported, and classes that only have to be found."""

from __future__ import annotations

import sys
from typing import Any

AUTOTUNER_MODULE = "triton.runtime.autotuner"
#: Triton imports it after its autotuner.
COMPILER_MODULE = "triton.compiler"
JIT_MODULE = "triton.runtime.jit"
LANGUAGE_MODULE = "triton.language.core"


def module(name: str) -> Any:
    """A module of Triton's by its name without ``triton.``; None where it is not imported."""
    return sys.modules.get(f"triton.{name}")
