"""Triton's mode for compiling in a pool: what it takes from disk, and what it leaves behind."""

from __future__ import annotations

import hashlib
import inspect
import os
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Any

from pytest_autotune.tuners.triton.internals.frames import is_wanted_at_once
from pytest_autotune.tuners.triton.internals.modules import module

_SUBMIT_PARAMETERS = ["self", "key", "compile_fn", "finalize_fn"]
#: How the file begins that Triton writes last of those of a compilation.
_WHOLE = "__grp__"


def async_compile_mode() -> Any:
    """Triton's mode for compiling in a pool: since 3.6 without leaving itself active after an error.

    What is in Triton's cache on disk is read at once, in the thread that asks for it: threads that read a few files
    each take turns at the interpreter, and take longer together. What is launched meanwhile, or asked for by
    ``warmup()``, as by the hook of a candidate, is compiled at once, too: who looks at it would wait for what nobody
    compiles before all are submitted.
    """
    mode = getattr(module("runtime._async_compile"), "AsyncCompileMode", None)
    if mode is None or "ignore_errors" not in inspect.signature(mode).parameters:
        return None
    if collects_what_is_compiled():
        return None
    parameters = list(inspect.signature(mode.submit).parameters)  # 3.9 has one more
    is_known = parameters[: len(_SUBMIT_PARAMETERS)] == _SUBMIT_PARAMETERS
    return _mode_that_reads_at_once(mode) if is_known else mode


def collects_what_is_compiled() -> bool:
    """Whether a mode for compiling in a pool is active: what ``warmup=True`` compiles is not compiled yet then."""
    active = getattr(module("runtime._async_compile"), "active_mode", None)
    return active is not None and active.get() is not None


@cache
def _mode_that_reads_at_once(mode: Any) -> Any:
    class Reading(mode):  # type: ignore[misc]
        def submit(
            self, key: str, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], object], *others: Any
        ) -> Any:
            if not (is_wanted_at_once() or _is_on_disk(key)):
                return super().submit(key, compile_fn, finalize_fn, *others)
            kernel = compile_fn()
            finalize_fn(kernel)
            return kernel

    return Reading


def _is_on_disk(key: str) -> bool:
    """Whether a compilation is in Triton's cache on disk, and would be taken from there."""
    with suppress(Exception):
        if not module("knobs").compilation.always_compile:
            manager = module("runtime.cache").get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
            return any(name.startswith(_WHOLE) for name in os.listdir(manager.cache_dir))
    return False


def forget_failures(kernel: Any) -> None:
    """Remove from Triton's memory of compiled kernels what failed in the pool: it would raise that error again."""
    while kernel is not None and not hasattr(kernel, "device_caches"):
        kernel = getattr(kernel, "fn", None)
    for caches in getattr(kernel, "device_caches", {}).values():
        compiled = caches[0]
        for key, future in list(compiled.items()):
            if type(future).__name__ == "FutureKernel" and future.kernel is None:
                del compiled[key]
