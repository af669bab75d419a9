"""The decorators, and ``compile``, which comes after the import of the tuners as in CuTe."""

from __future__ import annotations

from functools import wraps
from typing import Any

from cutlass.base_dsl.compiler import CompileCallable


class Tensor:
    pass


class SymInt:
    """A size or stride of a fake tensor that a kernel gets at its launch."""

    def __init__(self, width: int = 32, *, divisibility: int = 1, symbol: str | None = None) -> None:
        self.symbol = symbol
        self.properties = f"div={divisibility}" if width == 32 else f"i{width} div={divisibility}"

    def __str__(self) -> str:
        prefix = f"{self.symbol} " if self.symbol else ""
        return f"{prefix}?{{{self.properties}}}"


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
