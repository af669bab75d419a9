"""Triton's compiler: its target and settings, its call, its pool, its refusals, and its compiled kernels."""

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
from pytest_autotune.tuners.shared.patches import check_signature
from pytest_autotune.tuners.source.functions import closure_cells
from pytest_autotune.tuners.source.source_digest import digest

JIT_MODULE = "triton.runtime.jit"
LANGUAGE_MODULE = "triton.language.core"
_COMPILE_PARAMETERS = ["src", "target", "options"]
#: The names of Triton's errors that say that a kernel cannot be compiled, or needs more than the device has.
_REFUSALS = {"CompilationError", "OutOfResources", "PTXASError", "AutotunerError"}
#: The message with which Triton refuses a kernel that uses a function of another kind. The group is the function's kind
#: and name: ``function f``.
_UNSUPPORTED = re.compile(r"Unsupported function referenced(?:: <([a-z ]+ [\w.<>]+))?")
#: While Triton computes the hash of a function, the hash is a placeholder that begins with this word.
_PLACEHOLDER = "recursion:"
#: Stands in for the lock that Triton holds while it computes a hash, if this Triton has no such lock.
_FALLBACK_LOCK = threading.Lock()
#: The metadata of a compiled kernel that does not change its launch.
_COMPILED_WITH = {"hash", "num_stages", "maxnreg"}
#: Environment variables in Triton's hash that do not change the compiled code: Triton only prints more.
_PRINTING = re.compile("DUMP|TIMING|DEBUG|LINE_INFO|IR_LOC|DI_LOCAL")
#: Settings in ``triton.knobs`` that change the compiled code, but are no environment variables in Triton's hash.
_KNOBS = {
    "runtime": ("debug", "sanitize_overflow"),
    "compilation": ("instrumentation_mode", "override"),
    "nvidia": ("ptxas_options", "mock_ptx_version"),
    "amd": ("scalarize_packed_fops", "buffer_ops_analyze_small_tensor_range"),
}


def find_module(name: str) -> Any:
    """Return a module of Triton; None if it is not imported.

    :param name: the module's name without ``triton.``.
    """
    return sys.modules.get(f"triton.{name}")


# The target and the settings.


def find_target() -> Any:
    """Return the target of the active driver: an object with ``backend`` and ``arch``.

    :raises RuntimeError: if there is no GPU.
    """
    # Triton makes the driver when code first reads the attribute `active`.
    return find_module("runtime.driver").driver.active.get_current_target()


def describe_arch(target: Any) -> str:
    """Return the architecture of a target as a device names it: ``sm_90``, ``gfx942``.

    AMD's names end with settings of the machine, which are left out: ``gfx942:sramecc+:xnack-``.
    """
    if target.backend == "cuda":
        return f"sm_{target.arch}"
    return str(target.arch).split(":")[0]


def build_target(arch: str) -> Any:
    """Return the target of a driver on an NVIDIA GPU of this architecture.

    :param arch: for example ``sm_90``.
    """
    return find_module("backends.compiler").GPUTarget("cuda", int(arch.removeprefix("sm_")), 32)


def list_changed_settings() -> Iterator[str]:
    """Yield the settings that change the compiled code and differ from their defaults, as ``name=value``.

    There are three kinds of such settings:

    - the environment variables in Triton's hash. A path counts only by the name of its file;
    - the settings of ``triton.knobs`` in ``_KNOBS``;
    - a hook that changes the stages of the compiler. The hook returns a key, whose digest counts.
    """
    environment_variables = find_module("_C.libtriton").get_cache_invalidating_env_vars()
    for name, value in sorted(environment_variables.items()):
        if not _PRINTING.search(name):
            yield f"{name}={value.rpartition('/')[2]}"
    yield from _list_changed_knobs()
    hook = getattr(find_module("knobs").runtime, "add_stages_inspection_hook", None)
    if hook is not None:
        key = hook()[0]
        yield f"add_stages_inspection_hook={digest(str(key))}"


def _list_changed_knobs() -> Iterator[str]:
    """Yield the settings in ``_KNOBS`` that differ from their defaults: ``runtime.debug=True``."""
    knobs = find_module("knobs")
    for group_name, names in _KNOBS.items():
        group = getattr(knobs, group_name, None)
        for name in names:
            value = getattr(group, name, None)
            # The class of the group has a descriptor for the setting, which knows the default.
            default = getattr(vars(type(group)).get(name), "default", None)
            if callable(default):  # Triton 3.4 has a function that returns the default
                default = default()
            # None, False and an empty text all mean that the setting is off.
            if (value or None) != (default or None):
                yield f"{group_name}.{name}={value}"


def find_cache_folder() -> str:
    """Return the folder in which Triton keeps compiled kernels; empty if it is not known."""
    return str(getattr(find_module("knobs").cache, "dir", ""))


def uses_disk_cache() -> bool:
    """Whether Triton reads kernels from its usual cache on disk, where other threads and processes write them.

    Triton does not read it if user code has set another cache manager or ``always_compile``. A listener of compilations
    counts as well: it would observe a kernel from disk in place of a compilation.
    """
    try:
        knobs = find_module("knobs")
        usual_manager = find_module("runtime.cache").FileCacheManager
        manager = knobs.cache.manager_class or usual_manager
        has_usual_cache = manager is usual_manager and not knobs.compilation.always_compile
        return has_usual_cache and knobs.compilation.listener is None
    except AttributeError:
        # This Triton has the settings in another place.
        return False


# The compilation of a kernel.


def find_compiler() -> Any:
    """Return ``triton.compiler``; None if it is not imported yet."""
    return sys.modules.get("triton.compiler")


def find_compile_function(compiler: ModuleType) -> Callable[..., Any]:
    """Return ``triton.compiler.compile``, by which kernels compile themselves.

    :raises HookError: if Triton has no such function, or it has other parameters.
    """
    return check_signature(
        getattr(compiler, "compile", None),
        "triton.compiler.compile",
        "triton",
        _COMPILE_PARAMETERS,
        allow_more_parameters=True,
    )


def name_compile_arguments(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call of ``triton.compiler.compile`` by name: ``src``, ``target``, ``options``."""
    return {**dict(zip(_COMPILE_PARAMETERS, args, strict=False)), **kwargs}


def is_refusal(error: BaseException) -> bool:
    """Whether an error says that Triton cannot compile a kernel, or that the kernel needs more than the device has."""
    for cls in type(error).__mro__:
        if cls.__name__ in _REFUSALS and cls.__module__.startswith("triton."):
            return True
    # Triton raises two refusals as a plain RuntimeError.
    text = str(error)
    return text.startswith("PassManager::run failed") or _UNSUPPORTED.match(text) is not None


def find_message(error: BaseException) -> str:
    """Return the part of an error's message that names the fault; empty if the message has no other part.

    Triton's ``CompilationError`` keeps this part in ``error_message``. Its whole message also shows the source.
    """
    if match := _UNSUPPORTED.match(str(error)):
        # The rest is the text of an object, such as all variables of the environment.
        return f"Unsupported function referenced: {match[1] or 'an object'}"
    return str(getattr(error, "error_message", None) or "")


@contextmanager
def remove_unfinished_hashes() -> Iterator[None]:
    """Remove the placeholder for a function's hash, if Triton raises an error while it computes the hash.

    Triton (3.5 and later) first writes a placeholder into the function, and leaves it there after an error. The next
    launch takes the placeholder for the hash: it raises no error, and may run the code of another kernel that has the
    same name. This is a bug of Triton. The plugin must not cause it in a function that only the plugin hashes.
    """
    try:
        yield
    except BaseException as error:
        for function in _list_unfinished_functions(error):
            # Another thread may have computed the hash in the meantime, so check it under Triton's lock.
            with getattr(function, "_hash_lock", _FALLBACK_LOCK):
                if str(function.hash).startswith(_PLACEHOLDER):
                    function.hash = None
        raise


def _list_unfinished_functions(error: BaseException) -> list[Any]:
    """Return the functions whose hash Triton was computing when an error was raised.

    Triton computes a hash in the property ``cache_key``, so the traceback has a frame of this property's code for each
    such function.
    """
    cache_key = inspect.getattr_static(find_module("runtime.jit").JITFunction, "cache_key", None)
    code = getattr(getattr(cache_key, "fget", None), "__code__", None)
    functions = []
    for chained_error in chained_errors(error):
        for frame, _ in walk_tb(chained_error.__traceback__):
            if frame.f_code is code:
                functions.append(frame.f_locals["self"])
    return functions


def is_kernel_source(source: Any) -> bool:
    """Whether a source is Triton's ``ASTSource``, a kernel with its arguments. It can also be a file of Triton's IR."""
    return all(hasattr(source, name) for name in ("fn", "signature", "constants", "attrs"))


def describe_source(source: Any) -> tuple[str, ...]:
    """Return texts that describe a kernel and its arguments. The texts do not use Triton's hash.

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
    :param attributes: Triton's assumptions about the value: ``{"tt.divisibility": 16}``.
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

    :raises Exception: Triton's error without its traceback. A frame of the traceback refers to the error, and others
        hold the tensors of the call. The tensors would stay in memory until the garbage collector finds the circle.
    """
    init_handles = getattr(kernel, "_init_handles", None)
    # This Triton loads its kernels in another way.
    if init_handles is None:
        return
    try:
        init_handles()
    except Exception as error:
        raise error.with_traceback(None)  # noqa: B904


def find_machine_code(kernel: Any) -> Hashable:
    """Return a value that is equal for compiled kernels with equal machine code and equal metadata of their launches.

    :param kernel: Triton's ``CompiledKernel``, already loaded.
    :returns: None if this Triton keeps the code in another place.
    """
    binary: Any = getattr(kernel, "kernel", None)
    metadata: Any = getattr(kernel, "metadata", None)
    if not isinstance(binary, bytes) or not hasattr(metadata, "_asdict"):
        return None
    launched_with = {name: value for name, value in metadata._asdict().items() if name not in _COMPILED_WITH}
    return hashlib.sha256(binary).hexdigest(), repr(sorted(launched_with.items()))


def find_job_source(job: Callable[..., object]) -> Any:
    """Return the kernel and the arguments that a job compiles, Triton's ``ASTSource``; None if the job does not tell.

    :param job: the function that Triton submits to the pool of :func:`compile_in_pool`. Its closure has the source.
    """
    if not inspect.isfunction(job):
        return None
    source = closure_cells(job).get("src")
    if source is None or not is_kernel_source(source):
        return None
    return source


def compiles_in_pools() -> bool:
    """Whether this Triton can compile in a pool, as 3.6 and later can.

    Earlier versions also have the mode, but without ``ignore_errors``: after an error, the mode stays active.
    """
    mode = getattr(find_module("runtime._async_compile"), "AsyncCompileMode", None)
    return mode is not None and "ignore_errors" in inspect.signature(mode).parameters


def is_pool_active() -> bool:
    """Whether a pool compiles now. ``warmup=True`` then only submits a kernel to the pool."""
    active = getattr(find_module("runtime._async_compile"), "active_mode", None)
    return active is not None and active.get() is not None


@contextmanager
def compile_in_pool(pool: Executor, kernel: Any) -> Iterator[None]:
    """Have a pool compile each kernel that is launched with ``warmup=True`` in this context.

    The context ends when all compilations have ended. Triton then forgets the compilations that failed. Else its memory
    would raise the same error at the next launch, and the error's traceback would keep the tensors of the call.

    :param kernel: the kernel that is compiled, perhaps with decorators around it.
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
    """Turn the mode for pools off in this context, so that Triton compiles a kernel in the thread that asks for it.

    A candidate's hook may launch a kernel, which must be compiled before the launch returns.
    """
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
    """Delete failed compilations from a kernel's memory. Such a compilation is a ``FutureKernel`` without a kernel.

    :param kernel: the kernel, perhaps with decorators around it.
    """
    # Only Triton's JITFunction, the innermost layer, has the memory.
    while kernel is not None and not hasattr(kernel, "device_caches"):
        kernel = getattr(kernel, "fn", None)
    for caches in getattr(kernel, "device_caches", {}).values():
        compiled_kernels = caches[0]
        for key, compiled_kernel in list(compiled_kernels.items()):
            if type(compiled_kernel).__name__ == "FutureKernel" and compiled_kernel.kernel is None:
                del compiled_kernels[key]
