"""The Python function inside a kernel: what its decorators made of it, its name, its closure and the names it uses."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import is_dataclass
from types import CodeType, FunctionType, SimpleNamespace
from typing import Any


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
        if hasattr(layer, "_unsafe_update_src"):
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
