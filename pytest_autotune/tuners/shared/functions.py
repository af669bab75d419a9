"""The Python function inside a kernel: what its decorators made of it, its name, its closure, and whose code it is."""

from __future__ import annotations

import inspect
import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import lru_cache
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

#: Packages whose functions are left out of a digest: their versions are not the kernel's.
_PACKAGES = {"triton", "torch", "numpy", "cupy", "numba", "pyopencl", "jax", "cutlass", "cuda", "pytest"}
_PACKAGES |= {"jaxlib", "_pytest", "pytest_autotune"}
#: Nothing of a suite can stand in their place: they are what it is tuned with, wherever they lie.
_UNMISTAKABLE = ("triton", "torch", "jax", "jaxlib", "pytest_autotune")
_STANDARD = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}


def layers(value: object) -> Iterator[object]:
    """A kernel or helper, then what each of its decorators wraps, down to the Python function."""
    for _ in range(16):  # deeper than any stack of decorators
        if value is None:
            return
        yield value
        if inspect.isfunction(value):
            return
        # Triton's name for it, Numba's, and that of functools.lru_cache().
        names = ("__wrapped__",) if _is_data(value) else ("fn", "py_func", "__wrapped__")
        inner = (getattr(value, name, None) for name in names)
        value = next((one for one in inner if one is not None), None)


def _is_data(value: object) -> bool:
    """Whether a value with an attribute ``fn`` only names a function, beside other things, and is no kernel."""
    if isinstance(value, (tuple, SimpleNamespace)):
        return True
    return is_dataclass(value) and not callable(value) and not hasattr(type(value), "__getitem__")


def python_function(value: object) -> FunctionType | None:
    """The Python function inside a kernel, a helper or the wrappers around them."""
    if inspect.isfunction(value):
        return value
    for layer in layers(value):
        if inspect.isfunction(layer):
            return layer
    return None


def kept_source(kernel: object) -> str:
    """The source that Triton keeps of a kernel since it was made, or was given for it; empty where it keeps none."""
    for layer in layers(kernel):
        if hasattr(layer, "_unsafe_update_src") and hasattr(layer, "run"):  # not what Python runs: constexpr_function
            jit: Any = layer
            lines = "".join(getattr(jit, "raw_src", ()))  # since Triton 3.5
            return lines if textwrap.dedent(lines).endswith(jit.src) else str(jit.src)
    return ""


def qualified_name(function: FunctionType) -> str:
    """``module.qualname`` of a function."""
    return f"{function.__module__}.{function.__qualname__}"


def closure_cells(function: FunctionType) -> dict[str, object]:
    """The values that a function has taken from the functions around it, by name."""
    cells = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            cells[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return cells


def names_in(code: CodeType) -> Iterator[str]:
    """The names of globals and attributes that code uses, functions inside it included."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_in(constant)


def of_library(value: FunctionType | type | ModuleType) -> bool:
    """Whether code is of Python's own library or a known package; the suite's ``queue.py`` or ``cuda.py`` is not."""
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
    return root in _UNMISTAKABLE or (root in _PACKAGES and not _INSTALLED.isdisjoint(path.parts))
