"""The versions of libraries that are imported, as environments tell them."""

from __future__ import annotations

import sys
from typing import Any


def version_of(library: str) -> str:
    """The version of an imported library, without what it was built for; ``"?"`` where it tells none."""
    return str(getattr(sys.modules.get(library), "__version__", "?")).split("+")[0]


def versions_of(*libraries: str) -> str:
    """``triton 3.6.0, torch 2.11.0, cuda 13.0``: of libraries that are imported, and what torch was built for."""
    parts = [f"{library} {version_of(library)}" for library in libraries if library in sys.modules]
    torch: Any = sys.modules.get("torch")
    for name in ("cuda", "hip") if "torch" in libraries and torch is not None else ():
        if version := getattr(torch.version, name, None):
            parts.append(f"{name} {version}")
    return ", ".join(parts)
