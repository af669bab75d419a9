"""Triton's mode for compiling in a pool, and what it leaves behind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

from pytest_autotune.tuners.shared.candidates import clear_tracebacks
from pytest_autotune.tuners.triton.internals.modules import module


def compiles_in_pools() -> bool:
    """Whether this Triton has the mode: since 3.6 without leaving itself active after an error."""
    mode = getattr(module("runtime._async_compile"), "AsyncCompileMode", None)
    return mode is not None and "ignore_errors" in inspect.signature(mode).parameters


def collects_what_is_compiled() -> bool:
    """Whether a mode for compiling in a pool is active: what ``warmup=True`` compiles is not compiled yet then."""
    active = getattr(module("runtime._async_compile"), "active_mode", None)
    return active is not None and active.get() is not None


@contextmanager
def compiling_by(submit: Callable[[Callable[[], Any]], Future[Any]], kernel: Any) -> Iterator[None]:
    """Have a pool compile what ``warmup=True`` asks for inside; leaving it waits for that, whether it failed or not.

    What failed is forgotten: Triton's memory of a kernel would raise the same error again, and with the error go the
    frames that it was raised in, with the tensors of the call in them.

    :param submit: the pool's.
    :param kernel: what is compiled.
    """
    pool = SimpleNamespace(submit=submit)
    mode = module("runtime._async_compile").AsyncCompileMode(pool, ignore_errors=True)
    try:
        with mode:
            yield
    finally:
        _forget_failures(kernel)
        for future in mode.raw_futures:
            if future.done() and not future.cancelled() and (error := future.exception()) is not None:
                clear_tracebacks(error)


@contextmanager
def compiling_at_once() -> Iterator[None]:
    """Compile inside what is asked for, although a pool compiles outside: the hook of a candidate may launch it."""
    active = getattr(module("runtime._async_compile"), "active_mode", None)
    if active is None:
        yield
        return
    token = active.set(None)
    try:
        yield
    finally:
        active.reset(token)


def _forget_failures(kernel: Any) -> None:
    while kernel is not None and not hasattr(kernel, "device_caches"):
        kernel = getattr(kernel, "fn", None)
    for caches in getattr(kernel, "device_caches", {}).values():
        compiled = caches[0]
        for key, future in list(compiled.items()):
            if type(future).__name__ == "FutureKernel" and future.kernel is None:
                del compiled[key]
