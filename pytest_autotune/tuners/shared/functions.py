"""The Python function inside a kernel: what its decorators made of it, its name, its closure, and whose code it is."""

from __future__ import annotations

import sys
import sysconfig
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from functools import cached_property, lru_cache, partialmethod
from pathlib import Path
from types import CodeType, FunctionType, ModuleType, SimpleNamespace
from typing import Any

from pytest_autotune.tuners.shared.distributions import file_of, find_distribution_of_file

#: Packages whose functions are left out of a digest: their versions are not the kernel's.
_PACKAGES = {"triton", "torch", "numpy", "cupy", "numba", "pyopencl", "jax", "cutlass", "cuda", "pytest"}
_PACKAGES |= {"jaxlib", "_pytest", "pytest_autotune"}
#: Nothing of a suite can stand in their place: they are what it is tuned with, wherever they lie.
_UNMISTAKABLE = ("triton", "torch", "jax", "jaxlib", "pytest_autotune")
_SCALARS = frozenset({int, str, bool, float, type(None)})
_STANDARD = tuple({str(Path(sysconfig.get_path(name)).resolve()) for name in ("stdlib", "platstdlib")})
_INSTALLED = {"site-packages", "dist-packages"}


def layers(value: object) -> Iterator[object]:
    """A kernel or helper, then what each of its decorators wraps, down to the Python function."""
    for _ in range(16):  # deeper than any stack of decorators
        if value is None:
            return
        yield value
        if isinstance(value, FunctionType):
            return
        value = _wrapped_in(value)


def _wrapped_in(value: object) -> object:
    """Return what a decorator has wrapped: under Triton's name for it, Numba's, cuTile's, or functools.wraps()'s."""
    if type(value).__name__ == "tuple":  # that of Triton looks for a field of every name, and raises ValueError
        return None
    if not _is_data(value):
        for name in ("fn", "py_func", "_pyfunc"):
            inner = getattr(value, name, None)
            if inner is not None:
                return inner
    return getattr(value, "__wrapped__", None)


def _is_data(value: object) -> bool:
    """Whether a value with an attribute ``fn`` only names a function, beside other things, and is no kernel."""
    if isinstance(value, (tuple, SimpleNamespace)):
        return True
    return is_dataclass(value) and not callable(value) and not hasattr(type(value), "__getitem__")


def python_function(value: object) -> FunctionType | None:
    """The Python function inside a kernel, a helper or the wrappers around them."""
    if isinstance(value, FunctionType):
        return value
    if type(value) in _SCALARS:  # most of what is asked for; they wrap nothing
        return None
    for layer in layers(value):
        if isinstance(layer, FunctionType):
            return layer
    return None


def plain_function(value: Any) -> object:
    """The function inside what a class holds."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, (cached_property, partialmethod)):
        return value.func
    return getattr(value, "__func__", value)


def kept_source(kernel: object) -> str:
    """The source that Triton keeps of a kernel since it was made, or was given for it; empty where it keeps none."""
    for layer in layers(kernel):
        if hasattr(layer, "_unsafe_update_src") and hasattr(layer, "run"):  # not what Python runs: constexpr_function
            jit: Any = layer
            lines = "".join(getattr(jit, "raw_src", ()))  # since Triton 3.5
            return lines if _is_source_of(lines, jit.src) else str(jit.src)
    return ""


@lru_cache(maxsize=256)
def _is_source_of(lines: str, source: str) -> bool:
    """Whether Triton's source of a kernel is what its file has, and was not given for it."""
    return textwrap.dedent(lines).endswith(source)


def is_dsl_wrapper(function: FunctionType) -> bool:
    """Whether a function is the wrapper that ``@cute.jit`` or ``@cute.kernel`` puts around the user's function.

    The values in the closure of the wrapper, such as ``executor_name``, are CuTe's own.
    """
    module = function.__globals__.get("__name__", "")
    return str(module).startswith("cutlass.") and hasattr(function, "__wrapped__")


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
        return is_library_module(value.__module__ or "", value.__code__.co_filename)
    if isinstance(value, ModuleType):
        return is_library_module(value.__name__, file_of(value))
    module = value.__module__ or ""  # of classes that sympy makes of undefined functions it is None
    return is_library_module(module, file_of(sys.modules.get(module)))


def is_library_module(module: str, filename: str) -> bool:
    """Whether a module is of Python's own library or a known package; see :func:`of_library`."""
    if _is_known(module, filename):
        return True
    # Also where pip has installed it with --target, which leaves no folder of a known name.
    return module.partition(".")[0] in _PACKAGES and find_distribution_of_file(filename) is not None


@lru_cache(maxsize=4096)
def _is_known(module: str, filename: str) -> bool:
    root = module.split(".")[0]
    path = Path(filename)
    if not filename or not path.is_file():  # built in, frozen, or made by exec(): there is only the name
        return root in _PACKAGES or (root in sys.stdlib_module_names and root not in ("test", "__main__"))
    if is_standard(filename):
        return True
    path = path.resolve()
    return root in _UNMISTAKABLE or (root in _PACKAGES and not _INSTALLED.isdisjoint(path.parts))


@lru_cache(maxsize=4096)
def is_standard(filename: str) -> bool:
    """Whether a file is of Python's own library."""
    path = Path(filename).resolve()
    return _INSTALLED.isdisjoint(path.parts) and any(str(path).startswith(f"{folder}/") for folder in _STANDARD)
