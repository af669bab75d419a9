"""The versions of libraries that are imported."""

from __future__ import annotations

import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from pytest_autotune.cache.model import Versions


def version_of(library: str) -> str:
    """The version of an imported or installed library, without what it was built for; ``"?"`` where there is none."""
    found = getattr(sys.modules.get(library), "__version__", None)
    if found is None:
        with suppress(PackageNotFoundError):
            found = version(library)
    return str(found or "?").split("+")[0]


def versions_of(*libraries: str) -> Versions:
    """``triton 3.6.0, torch 2.11.0, cuda 13.0``: of libraries that are imported, and what torch was built for."""
    pairs = [(library, version_of(library)) for library in libraries if library in sys.modules]
    torch: Any = sys.modules.get("torch")
    for name in ("cuda", "hip") if "torch" in libraries and torch is not None else ():
        if built_for := getattr(torch.version, name, None):
            pairs.append((name, str(built_for)))
    return Versions(tuple(pairs))
