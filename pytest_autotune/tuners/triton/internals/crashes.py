"""What stands in Triton's memory of compiled kernels for one that ends whatever process compiles it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_autotune.tuners.triton.internals.modules import module


class _NoKernel:
    """Stands in for a compiled kernel: whoever asks it for anything gets an error."""

    def __init__(self, error: Callable[[], Exception]) -> None:
        self._error = error

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._error()  # a new one: with an error goes the stack that it was raised on


def crashed(words: str, *, is_lack_of_memory: bool) -> Any:
    """What is to be taken for a kernel whose compilation would end this process.

    Whoever loads or launches it gets an error, which Triton's own benchmark takes for a failure of one candidate.

    :param words: how it would end it.
    """

    class CompilerCrash(module("runtime.errors").PTXASError):  # type: ignore[misc]
        def __str__(self) -> str:
            return words

    def error() -> Exception:
        made: Exception = CompilerCrash(words)
        made.__cause__ = MemoryError() if is_lack_of_memory else None
        return made

    return _NoKernel(error)


def is_crash(error: BaseException) -> bool:
    """Whether an error is that of what :func:`crashed`."""
    return type(error).__name__ == "CompilerCrash"
