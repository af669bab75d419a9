"""What stands in Triton's memory of compiled kernels for one that ends whatever process compiles it."""

from __future__ import annotations

import signal
from collections.abc import Callable
from functools import partial
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


def crashed(code: int) -> Any:
    """What is to be taken for a kernel whose compilation would end this process: a launch of it is an error.

    :param code: see :func:`crash`.
    """
    return _NoKernel(partial(crash, code))


def crash(code: int) -> Exception:
    """The error of what would end this process; Triton's own benchmark takes it for a failure of one candidate.

    :param code: how others have ended that compiled it: an exit status, or the negative number of a signal.
    """
    words = how_it_ended(code)

    class CompilerCrash(module("runtime.errors").PTXASError):  # type: ignore[misc]
        def __str__(self) -> str:
            return words

    error: Exception = CompilerCrash(words)
    error.__cause__ = MemoryError() if code == -signal.SIGKILL else None
    return error


def how_it_ended(code: int) -> str:
    """How a compiler ended the processes that it compiled in, as a reason of a candidate that fails.

    :param code: see :func:`crash`.
    """
    if code >= 0:
        return f"the compiler ended its process (exit status {code})"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    if code == -signal.SIGKILL:
        return f"the compiler was killed ({name}), as where there is no memory left"
    return f"the compiler crashed ({name})"


def is_crash(error: BaseException) -> bool:
    """Whether an error is a :func:`crash`."""
    return type(error).__name__ == "CompilerCrash"
