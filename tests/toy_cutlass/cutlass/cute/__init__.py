"""The decorators, and ``compile``, which comes after the import of the tuners as in CuTe."""

from __future__ import annotations

from functools import wraps
from typing import Any

from cutlass.base_dsl.compiler import CompileCallable


class Tensor:
    pass


def decorate(function: Any, executor_name: str) -> Any:
    @wraps(function)
    def jit_wrapper(*args: Any, **kwargs: Any) -> Any:
        return (executor_name, function)

    return jit_wrapper


def jit(function: Any) -> Any:
    return decorate(function, "_func")


def kernel(function: Any) -> Any:
    return decorate(function, "_kernel_helper")


from cutlass.cute import runtime as runtime  # noqa: E402
from cutlass.cute import testing as testing  # noqa: E402

compile = CompileCallable()
