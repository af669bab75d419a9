"""Triton's compiler: its call, its pool, its refusals, its compiled kernels, and how a kernel is loaded."""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import threading
from collections.abc import Callable, Hashable, Iterator, Mapping
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from dataclasses import dataclass
from traceback import walk_tb
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.shared.candidates import chained_errors, clear_tracebacks
from pytest_autotune.tuners.shared.functions import closure_cells
from pytest_autotune.tuners.shared.library import check_signature
from pytest_autotune.tuners.triton.internals.environment import find_module

_COMPILE_PARAMETERS = ["src", "target", "options"]
_REFUSALS = {"CompilationError", "OutOfResources", "PTXASError", "AutotunerError"}
#: The message of a RuntimeError that refuses a kernel for a function in it; kind and name of the function.
_UNSUPPORTED = re.compile(r"Unsupported function referenced(?:: <([a-z ]+ [\w.<>]+))?")
#: The hash of a function begins with this word while Triton computes it.
_PLACEHOLDER = "recursion:"
_NO_LOCK = threading.Lock()
#: The metadata that tells only how a kernel was compiled, not how it is launched.
_COMPILED_WITH = {"hash", "num_stages", "maxnreg"}


def find_compiler() -> Any:
    """Return ``triton.compiler``; None if it is not imported yet."""
    return sys.modules.get("triton.compiler")


def find_compile_function(compiler: ModuleType) -> Callable[..., Any]:
    """Return ``triton.compiler.compile``, by which kernels compile themselves.

    :raises HookError: if Triton has no such function, or it has other parameters.
    """
    return check_signature(
        getattr(compiler, "compile", None), "triton.compiler.compile", "triton", _COMPILE_PARAMETERS, and_others=True
    )


def name_compile_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of ``triton.compiler.compile`` by name: ``src``, ``target``, ``options``."""
    return {**dict(zip(_COMPILE_PARAMETERS, args, strict=False)), **kwargs}


def is_refusal(error: BaseException) -> bool:
    """Whether Triton says by an error that a kernel cannot be compiled, or needs more than the device has."""
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.startswith("triton.")}
    text = str(error)
    return bool(names & _REFUSALS) or text.startswith("PassManager::run failed") or bool(_UNSUPPORTED.match(text))


def find_message(error: BaseException) -> str:
    """Return the part of an error's message that names the fault; empty if the whole message does."""
    if match := _UNSUPPORTED.match(str(error)):
        # The rest is the text of an object, such as all variables of the environment.
        return f"Unsupported function referenced: {match[1] or 'an object'}"
    return str(getattr(error, "error_message", None) or "")


@contextmanager
def remove_unfinished_hashes() -> Iterator[None]:
    """Remove the placeholder for a function's hash, if Triton raises an error while it computes the hash.

    Triton (3.5 and later) writes a placeholder into the function first, and leaves it there after an error. The next
    launch takes the placeholder for the hash: it passes, and runs the code of any kernel that has the same name.
    A test's own launch without the plugin leaves the placeholder, too.
    """
    try:
        yield
    except BaseException as error:
        for function in _list_unfinished_functions(error):
            with getattr(function, "_hash_lock", _NO_LOCK):  # another thread may have computed the hash meanwhile
                if str(function.hash).startswith(_PLACEHOLDER):
                    function.hash = None
        raise


def _list_unfinished_functions(error: BaseException) -> list[Any]:
    """Return the functions whose hash Triton was computing when an error was raised."""
    cache_key = inspect.getattr_static(find_module("runtime.jit").JITFunction, "cache_key", None)
    code = getattr(getattr(cache_key, "fget", None), "__code__", None)
    functions = []
    for linked in chained_errors(error):
        for frame, _ in walk_tb(linked.__traceback__):
            if frame.f_code is code:
                functions.append(frame.f_locals["self"])
    return functions


def is_kernel_source(source: Any) -> bool:
    """Whether a source is a kernel and its arguments, ``ASTSource``, and not a file of one of Triton's stages."""
    return all(hasattr(source, name) for name in ("fn", "signature", "constants", "attrs"))


def describe_source(source: Any) -> tuple[str, ...]:
    """Describe a kernel and its arguments by texts for which Triton computes nothing.

    :param source: Triton's ``ASTSource``.
    """
    function = source.fn
    arguments = source.signature, source.constants, source.attrs
    return f"{function.__module__}.{function.__qualname__}", function.src, *map(str, arguments)


@dataclass(frozen=True)
class CompiledParameter:
    """A parameter of a compiled kernel.

    :param kind: the type in Triton's signature.
    :param constant: the value that is compiled in.
    :param attributes: what Triton assumed of the value (``tt.divisibility``).
    """

    name: str
    kind: object
    constant: object
    attributes: dict[str, object]


def list_parameters(source: Any) -> list[CompiledParameter]:
    """Return the parameters of a compiled kernel.

    :param source: Triton's ``ASTSource``.
    """
    parameters = []
    for number, (name, kind) in enumerate(source.signature.items()):
        path = (number,)
        attributes = dict(source.attrs.get(path) or ())
        parameters.append(CompiledParameter(name, kind, source.constants.get(path), attributes))
    return parameters


def load(kernel: Any) -> None:
    """Load a compiled kernel onto the device, as its first launch does.

    :raises Exception: Triton's error, without its frames. One of the frames holds the error, so that the frames and
        the tensors of the call would stay until the garbage collector runs.
    """
    init_handles = getattr(kernel, "_init_handles", None)
    if init_handles is None:
        return
    try:
        init_handles()
    except Exception as error:
        raise error.with_traceback(None)  # noqa: B904


def find_machine_code(kernel: Any) -> Hashable:
    """Return the digest of a compiled kernel's code, and the metadata of its launch; None if a Triton has no such code.

    :param kernel: ``CompiledKernel``, loaded.
    """
    binary: Any = getattr(kernel, "kernel", None)
    metadata: Any = getattr(kernel, "metadata", None)
    if not isinstance(binary, bytes) or not hasattr(metadata, "_asdict"):
        return None
    launched_with = {name: value for name, value in metadata._asdict().items() if name not in _COMPILED_WITH}
    return hashlib.sha256(binary).hexdigest(), repr(sorted(launched_with.items()))


def find_job_source(job: Callable[..., object]) -> Any:
    """Return the kernel and arguments that a job of a pool compiles, Triton's ``ASTSource``; None if it is not known.

    :param job: the function that Triton submits to the pool of :func:`compile_in_pool`.
    """
    if not inspect.isfunction(job):
        return None
    source = closure_cells(job).get("src")
    if source is None or not is_kernel_source(source):
        return None
    return source


def compiles_in_pools() -> bool:
    """Whether this Triton can compile in a pool. Since 3.6 an error inside does not leave the mode active."""
    mode = getattr(find_module("runtime._async_compile"), "AsyncCompileMode", None)
    return mode is not None and "ignore_errors" in inspect.signature(mode).parameters


def is_pool_active() -> bool:
    """Whether a pool compiles now. ``warmup=True`` then only submits a kernel to the pool."""
    active = getattr(find_module("runtime._async_compile"), "active_mode", None)
    return active is not None and active.get() is not None


@contextmanager
def compile_in_pool(pool: Executor, kernel: Any) -> Iterator[None]:
    """Have a pool compile each kernel that ``warmup=True`` asks for. The exit waits for all of them.

    Kernels that failed are forgotten. Triton's memory of a kernel would raise the same error again. The error would
    also keep the frames in which it was raised, with the tensors of the call.

    :param kernel: the kernel that is compiled.
    """
    mode = find_module("runtime._async_compile").AsyncCompileMode(pool, ignore_errors=True)
    try:
        with mode:
            yield
    finally:
        _forget_failures(kernel)
        for future in mode.raw_futures:
            _clear_error(future)


def _clear_error(future: Future[Any]) -> None:
    if not future.done() or future.cancelled():
        return
    error = future.exception()
    if error is not None:
        clear_tracebacks(error)


@contextmanager
def compile_at_once() -> Iterator[None]:
    """Compile in this thread although a pool compiles outside: a candidate's hook may launch the kernel."""
    active = getattr(find_module("runtime._async_compile"), "active_mode", None)
    if active is None:
        yield
        return
    token = active.set(None)
    try:
        yield
    finally:
        active.reset(token)


def _forget_failures(kernel: Any) -> None:
    """Delete the kernels whose compilation failed from the memory of a kernel."""
    while kernel is not None and not hasattr(kernel, "device_caches"):
        kernel = getattr(kernel, "fn", None)
    for caches in getattr(kernel, "device_caches", {}).values():
        compiled = caches[0]
        for key, future in list(compiled.items()):
            if type(future).__name__ == "FutureKernel" and future.kernel is None:
                del compiled[key]
