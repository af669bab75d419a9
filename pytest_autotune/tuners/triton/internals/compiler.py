"""Triton's compiler: how it is called, here and in a pool, how it refuses; what it made, and loading that."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Executor
from contextlib import contextmanager
from traceback import walk_tb
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.shared.candidates import chained_errors, clear_tracebacks
from pytest_autotune.tuners.shared.functions import closure_cells
from pytest_autotune.tuners.shared.library import check_signature
from pytest_autotune.tuners.triton.internals.environment import module

_COMPILE_PARAMETERS = ["src", "target", "options"]
_REFUSALS = {"CompilationError", "OutOfResources", "PTXASError", "AutotunerError"}
#: The message of a RuntimeError that refuses a kernel for a function in it; kind and name of the function.
_UNSUPPORTED = re.compile(r"Unsupported function referenced(?:: <([a-z ]+ [\w.<>]+))?")
#: The hash of a function begins so while Triton computes it.
_PLACEHOLDER = "recursion:"
_NO_LOCK = threading.Lock()
#: What says only how a kernel was compiled, not how it is launched.
_COMPILED_WITH = {"hash", "num_stages", "maxnreg"}


def imported() -> Any:
    """``triton.compiler``; None where it is not imported yet."""
    return sys.modules.get("triton.compiler")


def compile_of(compiler: ModuleType) -> Callable[..., Any]:
    """``triton.compiler.compile``: what kernels compile themselves with.

    :raises HookError: where there is none, or it is called otherwise.
    """
    return check_signature(
        getattr(compiler, "compile", None), "triton.compiler.compile", "triton", _COMPILE_PARAMETERS, and_others=True
    )


def given_to_compile(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of ``triton.compiler.compile`` by name: ``src``, ``target``, ``options``."""
    return {**dict(zip(_COMPILE_PARAMETERS, args, strict=False)), **kwargs}


def is_refusal(error: BaseException) -> bool:
    """Whether an error is one of Triton's that says: this cannot be compiled, or needs more than the device has."""
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.startswith("triton.")}
    text = str(error)
    return bool(names & _REFUSALS) or text.startswith("PassManager::run failed") or bool(_UNSUPPORTED.match(text))


def message_of(error: BaseException) -> str:
    """Return the part of an error's message that says what is wrong; empty if all of it does."""
    if match := _UNSUPPORTED.match(str(error)):
        # The rest is the text of an object, such as all variables of the environment.
        return f"Unsupported function referenced: {match[1] or 'an object'}"
    return str(getattr(error, "error_message", None) or "")


@contextmanager
def refusals_undone() -> Iterator[None]:
    """Leave no trace of an error that Triton raises inside while it computes the hash of a function.

    Triton (3.5 and later) writes a placeholder into the function first, and leaves it there after an error. The next
    launch takes the placeholder for the hash: it passes, and runs the code of any kernel that has the same name.
    A launch of the test's own leaves the placeholder as it does without us.
    """
    try:
        yield
    except BaseException as error:
        for function in _unfinished_hashes(error):
            with getattr(function, "_hash_lock", _NO_LOCK):  # another thread may have computed it since
                if str(function.hash).startswith(_PLACEHOLDER):
                    function.hash = None
        raise


def _unfinished_hashes(error: BaseException) -> list[Any]:
    """Return the functions whose hash Triton was computing when an error was raised."""
    cache_key = inspect.getattr_static(module("runtime.jit").JITFunction, "cache_key", None)
    code = getattr(getattr(cache_key, "fget", None), "__code__", None)
    functions = []
    for linked in chained_errors(error):
        for frame, _ in walk_tb(linked.__traceback__):
            if frame.f_code is code:
                functions.append(frame.f_locals["self"])
    return functions


def is_of_kernel(source: Any) -> bool:
    """Whether what is compiled is a kernel and its arguments, ``ASTSource``, and no file of one of Triton's stages."""
    return all(hasattr(source, name) for name in ("fn", "signature", "constants", "attrs"))


def description_of(source: Any) -> tuple[str, ...]:
    """What is compiled, in words that Triton need not compute anything for: the text of a kernel, and its arguments."""
    function = source.fn
    arguments = source.signature, source.constants, source.attrs
    return f"{function.__module__}.{function.__qualname__}", function.src, *map(str, arguments)


def parameters_of(source: Any) -> Iterator[tuple[str, object, object, dict[str, object]]]:
    """The parameters of what was compiled: name, type, what is compiled in, what was assumed (``tt.divisibility``).

    :param source: Triton's ``ASTSource``.
    """
    for number, (name, kind) in enumerate(source.signature.items()):
        path = (number,)
        yield name, kind, source.constants.get(path), dict(source.attrs.get(path) or ())


def load(kernel: Any) -> None:
    """Load a compiled kernel onto the device, as its first launch does.

    :raises Exception: what Triton raises, without its frames: one of them holds the error, which would keep them, and
        with them the tensors of the call, until the garbage collector comes.
    """
    load = getattr(kernel, "_init_handles", None)
    if load is not None:
        try:
            load()
        except Exception as error:
            raise error.with_traceback(None)  # noqa: B904


def machine_code(kernel: Any) -> Hashable:
    """The code of a compiled kernel, with how it is launched; None where a Triton has it in another way.

    :param kernel: ``CompiledKernel``, loaded.
    """
    binary: Any = getattr(kernel, "kernel", None)
    metadata: Any = getattr(kernel, "metadata", None)
    if not isinstance(binary, bytes) or not hasattr(metadata, "_asdict"):
        return None
    launched = {name: value for name, value in metadata._asdict().items() if name not in _COMPILED_WITH}
    return hashlib.sha256(binary).hexdigest(), repr(sorted(launched.items()))


def source_compiled_by(job: Callable[..., object]) -> Any:
    """Return the kernel and arguments that a job of a pool compiles, Triton's ``ASTSource``; None if it is not known.

    :param job: what Triton submits to the pool of :func:`compiling_by`.
    """
    source = closure_cells(job).get("src") if inspect.isfunction(job) else None
    return source if source is not None and is_of_kernel(source) else None


def compiles_in_pools() -> bool:
    """Whether this Triton has the mode: since 3.6 without leaving itself active after an error."""
    mode = getattr(module("runtime._async_compile"), "AsyncCompileMode", None)
    return mode is not None and "ignore_errors" in inspect.signature(mode).parameters


def collects_what_is_compiled() -> bool:
    """Whether a mode for compiling in a pool is active: what ``warmup=True`` compiles is not compiled yet then."""
    active = getattr(module("runtime._async_compile"), "active_mode", None)
    return active is not None and active.get() is not None


@contextmanager
def compiling_by(pool: Executor, kernel: Any) -> Iterator[None]:
    """Have a pool compile what ``warmup=True`` asks for inside; leaving it waits for that, whether it failed or not.

    What failed is forgotten: Triton's memory of a kernel would raise the same error again, and with the error go the
    frames that it was raised in, with the tensors of the call in them.

    :param kernel: what is compiled.
    """
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
