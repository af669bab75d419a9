"""Whether code is a library's own, by where its file lies and not by its name alone."""

from __future__ import annotations

import sys
import sysconfig
from functools import lru_cache
from pathlib import Path
from types import FunctionType, ModuleType

#: Packages whose functions are left out of a digest: their versions are not the kernel's.
_PACKAGES = {"triton", "torch", "numpy", "cupy", "numba", "pyopencl", "jax", "cutlass", "cuda", "pytest"}
_PACKAGES |= {"_pytest", "pytest_autotune"}
#: Nothing of a suite can stand in their place: they are what it is tuned with, wherever they lie.
_UNMISTAKABLE = ("triton", "torch", "pytest_autotune")
_STANDARD = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}


def of_library(value: FunctionType | type | ModuleType) -> bool:
    """Whether a function, class or module belongs to Python's own library or to a known package.

    A module of the suite that is named like one of those, ``queue.py`` or ``cuda.py``, does not.
    """
    if isinstance(value, FunctionType):
        return _is_library(value.__module__ or "", value.__code__.co_filename)
    if isinstance(value, ModuleType):
        return _is_library(value.__name__, _file_of(value))
    return _is_library(value.__module__, _file_of(sys.modules.get(value.__module__)))


def _file_of(module: ModuleType | None) -> str:
    return getattr(module, "__file__", None) or ""


@lru_cache(maxsize=4096)
def _is_library(module: str, filename: str) -> bool:
    root = module.split(".")[0]
    path = Path(filename)
    if not filename or not path.is_file():  # built in, frozen, or made by exec(): there is only the name
        return root in _PACKAGES or (root in sys.stdlib_module_names and root not in ("test", "__main__"))
    path = path.resolve()
    if _INSTALLED.isdisjoint(path.parts) and any(str(path).startswith(f"{folder}/") for folder in _STANDARD):
        return True
    if root not in _PACKAGES:
        return False
    top = _file_of(sys.modules.get(root))
    if root in _UNMISTAKABLE and top and Path(top).resolve().parent in path.parents:
        return True
    if not _INSTALLED.isdisjoint(path.parts):
        return True
    # Where `pip install --target` put it, with what pip knows of it beside it.
    above = path.parents[module.count(".") + (path.stem == "__init__")]
    return any(above.glob(f"{root}*.dist-info"))
