"""Calls of Triton's compiler: what is hooked to see them, what they are given, and how they refuse."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.shared.library import known

_COMPILE_PARAMETERS = ["src", "target", "options"]
_REFUSALS = {"CompilationError", "OutOfResources", "PTXASError", "AutotunerError", "InterpreterError"}


def compile_of(compiler: ModuleType) -> Callable[..., Any]:
    """``triton.compiler.compile``: what kernels compile themselves with.

    :raises HookError: where there is none, or it is called otherwise.
    """
    compile = getattr(compiler, "compile", None)
    return known(compile, "triton.compiler.compile", "triton", _COMPILE_PARAMETERS, and_others=True)


def given_to_compile(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of ``triton.compiler.compile`` by name: ``src``, ``target``, ``options``."""
    return {**dict(zip(_COMPILE_PARAMETERS, args, strict=False)), **kwargs}


def is_refusal(error: BaseException) -> bool:
    """Whether an error is one of Triton's that says: this cannot be compiled, or needs more than the device has."""
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.startswith("triton.")}
    return bool(names & _REFUSALS) or str(error).startswith("PassManager::run failed")


def description_of(source: Any) -> tuple[str, ...]:
    """What is compiled, in words that Triton need not compute anything for: the text of a kernel, and its arguments."""
    function = source.fn
    arguments = source.signature, source.constants, source.attrs
    return f"{function.__module__}.{function.__qualname__}", function.src, *map(str, arguments)
