"""Compilation: a compiled kernel knows its configuration, and how long a launch takes."""

from __future__ import annotations

import inspect
import threading
from typing import Any

from cutlass import Constexpr


class ExecutionArgs:
    """The parameters that are compiled in: ``self``, those under ``Constexpr``, and those that are a class or None."""

    def __init__(self, function: Any, arguments: dict[str, Any]) -> None:
        self.names = []
        for index, (name, parameter) in enumerate(inspect.signature(function, eval_str=True).parameters.items()):
            value = arguments[name]
            if name == "self" or parameter.annotation is Constexpr or value is None or isinstance(value, type):
                self.names.append({"argument_index": index, "argument_name": name})

    def get_constexpr_args(self) -> list[dict[str, Any]]:
        return self.names


class Compiled:
    """A compiled kernel. Like that of CuTe, it takes no argument that was compiled in.

    The time of a launch, in microseconds, is the product of the integers that were compiled in. With a ``V`` of 3 no
    launch works.
    """

    def __init__(self, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        bound = inspect.signature(function).bind_partial(*args, **kwargs)
        bound.apply_defaults()
        self.execution_args = ExecutionArgs(function, bound.arguments)
        compiled_in = [argument["argument_name"] for argument in self.execution_args.names]
        self.constants = {name: bound.arguments[name] for name in compiled_in}
        self.most = len(inspect.signature(function).parameters) - len(compiled_in)
        self.time_us = 1.0
        for value in self.constants.values():
            if isinstance(value, int):
                self.time_us *= value

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        if len(args) + len(kwargs) > self.most:
            raise TypeError(f"the kernel takes {self.most} arguments")
        if self.constants.get("V") == 3:
            raise RuntimeError("misaligned address")
        Compiled.launched = self


class CompileCallable:
    """``cute.compile``; two at a time are an error."""

    compilations: list[Compiled] = []  # noqa: RUF012
    _busy = threading.Lock()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._compile(*args, **kwargs)

    def _compile(self, func: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._busy.acquire(blocking=False):
            raise RuntimeError("two threads compile at a time")
        try:
            if kwargs.get("V") == 5:
                raise ValueError("V must be a power of two")
            compiled = Compiled(func, args, kwargs)
            self.compilations.append(compiled)
            return compiled
        finally:
            self._busy.release()
