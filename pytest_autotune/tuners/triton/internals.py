"""Triton's internals, 3.4 to 3.9: no other module here names a module, a class or a private member of Triton's.

What a user of Triton sees of an autotuner and its candidates (``configs``, ``keys``, ``cache``, ``fn``, ``pre_hook``,
``all_kwargs()``) is used by its name. Where a Triton is not what is known here, what hooks it raises HookError, and
what asks it says that there is none.
"""

from __future__ import annotations

import gc
import hashlib
import inspect
import os
import sys
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from types import CodeType, FrameType, ModuleType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.signatures import known
from pytest_autotune.tuners.shared.source.functions import closure_cells, layers
from pytest_autotune.tuners.shared.versions import version_of

AUTOTUNER_MODULE = "triton.runtime.autotuner"
#: Triton imports it after its autotuner.
COMPILER_MODULE = "triton.compiler"
JIT_MODULE = "triton.runtime.jit"
LANGUAGE_MODULE = "triton.language.core"
DISK_CACHE, PRUNE = "check_disk_cache", "prune_configs"
_CHECK_PARAMETERS = ["self", "tuning_key", "configs", "bench_fn"]
_PRUNE_PARAMETERS = ["self", "kwargs"]
_PARAMETERS = {DISK_CACHE: _CHECK_PARAMETERS, PRUNE: _PRUNE_PARAMETERS}
#: How a ``run`` calls the key of its memory: Triton's own and those made after it.
_KEYS = ("key", "config_key", "cache_key", "tuning_key")
#: What Triton's ``run``, and those made after it, set in any call.
_SET_BY_RUN = {"nargs", "best_config"}
#: What ``triton.testing.do_bench`` takes by itself, in milliseconds.
_WARMUP_MS, _REP_MS = 25, 100
_BENCH_PARAMETERS = ["self", "args", "config", "meta"]
_COMPILE_PARAMETERS = ["src", "target", "options"]
_SUBMIT_PARAMETERS = ["self", "key", "compile_fn", "finalize_fn"]
#: How the file begins that Triton writes last of those of a compilation.
_WHOLE = "__grp__"
_BENCHMARK_NEEDS = ("get_device_interface", "get_empty_cache_for_benchmark", "clear_cache")
#: Those of ``triton.knobs`` that change what a kernel is compiled to.
_SETTINGS = {
    "language": ("fp32_default", "default_fp_fusion"),
    "runtime": ("debug", "sanitize_overflow"),
    "compilation": ("instrumentation_mode", "enable_asan", "override"),
    "nvidia": ("disable_ptxas_opt", "ptxas_options"),
    "amd": (
        "use_buffer_ops",
        "use_block_pingpong",
        "use_in_thread_transpose",
        "use_async_copy",
        "scalarize_packed_fops",
    ),
}
#: What says only how a kernel was compiled, not how it is launched.
_COMPILED_WITH = {"hash", "num_stages", "maxnreg"}
#: What launches a kernel, its module, and what calls the GPU, by backend.
_OF_BACKEND = {
    "cuda": ("CudaLauncher", "backends.nvidia.driver", "CudaUtils"),
    "hip": ("HIPLauncher", "backends.amd.driver", "HIPUtils"),
}
_REFUSALS = {"CompilationError", "OutOfResources", "PTXASError", "AutotunerError", "InterpreterError"}


def _module(name: str) -> Any:
    return sys.modules.get(f"triton.{name}")


# What is hooked


def disk_cache_check(autotuner_class: Any) -> Callable[..., Any]:
    """``Autotuner.check_disk_cache``: called with the candidates that pruning left, and what benchmarks them.

    :raises HookError: where there is none, or it is called otherwise.
    """
    check = autotuner_class.__dict__.get("check_disk_cache")
    return known(check, "Autotuner.check_disk_cache", "triton", _CHECK_PARAMETERS, needed="triton >= 3.4 is needed")


def pruning(autotuner_class: Any) -> Callable[..., Any]:
    """``Autotuner.prune_configs``: called where a search begins, with the keyword arguments of the call.

    :raises HookError: where there is none, or it is called otherwise.
    """
    prune = autotuner_class.__dict__.get("prune_configs")
    return known(prune, "Autotuner.prune_configs", "triton", _PRUNE_PARAMETERS)


def in_the_place_of(cls: Any, name: str) -> Callable[..., Any] | None:
    """What a subclass of Triton's autotuner has in the place of ``check_disk_cache`` or ``prune_configs``.

    :returns: None where it has none, one that is called otherwise, or one that goes on to Triton's.
    """
    own = vars(cls).get(name)
    if not inspect.isfunction(own) or list(inspect.signature(own).parameters) != _PARAMETERS[name]:
        return None
    return None if name in _names_in(inspect.unwrap(own).__code__) else own


def compile_of(compiler: ModuleType) -> Callable[..., Any]:
    """``triton.compiler.compile``: what kernels compile themselves with.

    :raises HookError: where there is none, or it is called otherwise.
    """
    compile = getattr(compiler, "compile", None)
    return known(compile, "triton.compiler.compile", "triton", _COMPILE_PARAMETERS, and_others=True)


def given_to_compile(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call of ``triton.compiler.compile`` by name: ``src``, ``target``, ``options``."""
    return {**dict(zip(_COMPILE_PARAMETERS, args, strict=False)), **kwargs}


def is_flagtree() -> bool:
    """Whether this Triton is FlagTree's, with what FlagGems' tuner uses of it."""
    return _module("flagtune") is not None


# Layers of a kernel


def is_heuristics(layer: Any) -> bool:
    """Whether a decorator of a kernel is ``triton.heuristics``, or a copy of it, whatever its name."""
    values = vars(layer).get("values") if hasattr(layer, "__dict__") else None
    if not isinstance(values, dict):
        return False
    return _is_heuristics_class(type(layer)) or ("fn" in vars(layer) and all(map(callable, values.values())))


def _is_heuristics_class(cls: type) -> bool:
    return any(base.__name__ == "Heuristics" for base in cls.__mro__)


def is_interpreted(layer: Any) -> bool:
    """Whether this is a function that Triton's interpreter runs, under its decorators."""
    return type(layer).__name__ == "InterpretedFunction"


def is_of_triton(autotuner: Any) -> bool:
    """Whether what an autotuner launches is a kernel of Triton's, Gluon's too, that ``warmup=True`` only compiles.

    Some autotuners are made around a Python function, which launches what it likes.
    """
    return any(base.__name__ == "JITFunction" for layer in layers(autotuner.fn) for base in type(layer).__mro__)


def jit_function(layer: Any) -> Any:
    """The ``JITFunction`` under decorators of Triton; None where there is none."""
    for _ in range(20):
        if type(layer).__name__ == "JITFunction" and type(layer).__module__ == JIT_MODULE:
            return layer
        layer = vars(layer).get("fn") if hasattr(layer, "__dict__") else None
    return None


def live_autotuners(autotuner_class: Any) -> list[Any]:
    """The autotuners that there are in this process, those of factories too."""
    return _live(_with_subclasses(autotuner_class))


def live_kernels(autotuner_class: Any) -> tuple[list[Any], list[Any]]:
    """Two lists of what there is in this process: autotuners, those of factories too, and the functions that Triton
    compiles, kernels and what they call; and the decorators ``triton.heuristics``.
    """
    functions = getattr(_module("runtime.jit"), "JITFunction", None)
    kernels = _with_subclasses(autotuner_class) + ([] if functions is None else [functions])
    heuristics = list(filter(_is_heuristics_class, _with_subclasses(object)))
    found = _live([*kernels, *heuristics])
    of_kernels = set(map(id, kernels))
    return (
        [one for one in found if id(type(one)) in of_kernels],
        [one for one in found if is_heuristics(one) and hasattr(one, "fn")],
    )


def live_launchers(name: str) -> list[Any]:
    """The objects of a class of this name that launch kernels as Triton's own do."""
    cls = getattr(_module("runtime.jit"), "KernelInterface", None)
    return [] if cls is None else _live(one for one in _with_subclasses(cls) if one.__name__ == name)


def _live(classes: Iterable[type]) -> list[Any]:
    """The objects in this process that are of these classes."""
    # isinstance would ask proxies for their class, which may run code of theirs. A list of all objects, of which there
    # may be a million, counts a reference to each: in a forked child that copies the memory of all of them.
    wanted = {id(cls): cls for cls in classes}
    return [one for one in gc.get_referrers(*wanted.values()) if id(type(one)) in wanted]


def _with_subclasses(cls: type) -> list[type]:
    found = {id(cls): cls}
    queue = [cls]
    while queue:
        below: list[type] = type.__subclasses__(queue.pop())
        queue += [one for one in below if id(one) not in found]
        found |= {id(one): one for one in below}
    return list(found.values())


def tuned_copies(autotuner_class: Any) -> list[Any]:
    """The objects in this process that are tuned as Triton's autotuners are, by classes that were copied from it."""
    copies = [
        cls
        for cls in _with_subclasses(object)
        if {PRUNE, "_bench"} <= vars(cls).keys() and not type.__subclasscheck__(autotuner_class, cls)
    ]
    found = _live(copies) if copies else []
    return [one for one in found if _holds_choices(one) and isinstance(getattr(one, "configs", None), (list, tuple))]


def _holds_choices(autotuner: Any) -> bool:
    """Whether an autotuner that was called holds choices, and not only what was read from a file for later calls."""
    held = getattr(autotuner, "__dict__", {})  # a copy may have slots
    if not held.keys() & _SET_BY_RUN and _SET_BY_RUN & _names_in_run(type(autotuner)):
        return False
    try:
        return len(held.get("cache", ())) > 0
    except TypeError:  # a memory of its own class's, which may be a file: has it chosen in this process?
        return "best_config" in held


def _names_in_run(cls: type) -> set[str]:
    run = inspect.unwrap(getattr(cls, "run", None) or cls.__call__)
    return set(_names_in(run.__code__)) if inspect.isfunction(run) else set()


def was_tuned(autotuner: Any, autotuner_class: Any) -> bool:
    """Whether an autotuner holds a choice that some search made."""
    holds_choices = _holds_choices(autotuner)
    if type(autotuner).run is autotuner_class.run:
        # Triton >= 3.8 takes the only candidate left after pruning without asking: nothing was tuned.
        return holds_choices and hasattr(autotuner, "bench_time")
    return holds_choices


# Calls that are under way


def arguments_of(bench_fn: Callable[[], None]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a call, which only the closure of its benchmark function holds.

    :raises LookupError: when it is not the function that Triton is known to pass.
    """
    cells = closure_cells(bench_fn) if inspect.isfunction(bench_fn) else {}
    args, kwargs = cells["args"], cells["kwargs"]
    if not (isinstance(args, tuple) and isinstance(kwargs, dict)):
        raise LookupError("args")
    return args, kwargs


def measures_all(bench_fn: Callable[[], None]) -> bool:
    """Whether a benchmark function measures the candidates itself, as Triton's does, and leaves that to no search."""
    return "_bench" in _names_in(inspect.unwrap(bench_fn).__code__)


def candidate_of(kernel_call: Callable[[], object]) -> Any:
    """The candidate that Triton's benchmark launches; None where that is not known."""
    return closure_cells(kernel_call).get("config") if inspect.isfunction(kernel_call) else None


def heuristics_under(autotuner: Any) -> list[Any]:
    """The ``triton.heuristics`` between an autotuner and its kernel."""
    return [layer for layer in layers(autotuner.fn) if is_heuristics(layer)]


def heuristics_over(autotuner: Any) -> Iterator[Any]:
    """The ``triton.heuristics`` over an autotuner that is called: only the calls that are under way know them."""
    return (caller for caller in callers_of(autotuner) if is_heuristics(caller))


def callers_of(autotuner: Any) -> Iterator[Any]:
    """What has an autotuner inside and launches it now by a ``run`` of its own, from the inside out."""
    frame = sys._getframe()
    while frame.f_back is not None and not _runs(frame, autotuner):
        frame = frame.f_back
    while frame.f_back is not None and (frame.f_back.f_code.co_name == "run" or _wraps_run(frame.f_back, autotuner)):
        frame = frame.f_back
        caller = frame.f_locals.get("self")
        if caller is not autotuner and hasattr(caller, "fn") and any(layer is autotuner for layer in layers(caller)):
            yield caller


def _wraps_run(frame: FrameType, autotuner: Any) -> bool:
    """Whether this is what a library has put around ``run``, such as a lock, whatever its name."""
    return any(value is autotuner for value in frame.f_locals.values())


def _runs(frame: FrameType, autotuner: Any) -> bool:
    return frame.f_code.co_name == "run" and frame.f_locals.get("self") is autotuner


def launching_autotuner(autotuner_class: Any) -> tuple[Any, Any, dict[str, Any]] | None:
    """The autotuner that launches a kernel now, its key and the call's keyword arguments; None where none does."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not _is_run_of(frame, autotuner_class):
        frame = frame.f_back
    key = _key_in(frame) if frame is not None else None
    if frame is None or key is None or "kwargs" not in frame.f_locals:
        return None
    return frame.f_locals["self"], key, frame.f_locals["kwargs"]


def _is_run_of(frame: FrameType, autotuner_class: Any) -> bool:
    return frame.f_code.co_name == "run" and issubclass(type(frame.f_locals.get("self")), autotuner_class)


def _key_in(run: FrameType) -> Any:
    """The key of a ``run`` that is under way; None before it has made one."""
    held = run.f_locals
    return next(
        (held[name] for name in _KEYS if isinstance(held.get(name), Hashable) and held.get(name) is not None), None
    )


@dataclass(frozen=True)
class OwnSearch:
    """A search that a subclass of Triton's autotuner makes in a ``run`` of its own.

    :param uses: the names of all that its code uses.
    :param key: of its memory; None where that is not known.
    """

    uses: frozenset[str]
    key: Any


def own_search(autotuner: Any, autotuner_class: Any) -> OwnSearch | None:
    """The search that prunes its candidates now, where a subclass makes it and Triton will not be asked."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_is_ours(frame) or frame.f_code.co_name == "prune_configs"):
        frame = frame.f_back
    if frame is None or not _runs(frame, autotuner):
        return None
    uses = frozenset(_names_in(frame.f_code))
    return None if "check_disk_cache" in uses else OwnSearch(uses, _key_in(frame))


def key_of_tritons_run(autotuner: Any) -> Any:
    """The key of a call that prunes its candidates now in Triton's own ``run``; None where it is another one."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and (_is_ours(frame) or frame.f_code.co_name == "prune_configs"):
        frame = frame.f_back
    is_tritons = frame is not None and frame.f_globals.get("__name__") == AUTOTUNER_MODULE
    return _key_in(frame) if frame is not None and is_tritons and _runs(frame, autotuner) else None


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__", "")).startswith("pytest_autotune.")


def _names_in(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names_in(constant)


def is_under_way(code: CodeType, autotuner_class: Any) -> Any:
    """The autotuner whose ``run`` has this code and is under way; None where there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    held = frame.f_locals.get("self") if frame is not None else None
    return held if isinstance(held, autotuner_class) else None


def launches_alone() -> bool:
    """Whether a kernel is launched now, rather than compiled in a pool or by another compiler."""
    return _launching_frame() is not None


def launched_function() -> tuple[Any, dict[str, Any]] | None:
    """The ``JITFunction`` that is launched now, and the keyword arguments of its caller, who is Triton's; else None."""
    frame = _launching_frame()
    caller = frame.f_back if frame is not None else None
    if frame is None or caller is None or caller.f_globals.get("__name__") not in (JIT_MODULE, AUTOTUNER_MODULE):
        return None
    kwargs = caller.f_locals.get("kwargs")
    return (frame.f_locals["self"], dict(kwargs)) if isinstance(kwargs, dict) else None


def _launching_frame() -> FrameType | None:
    run = getattr(_module("runtime.jit"), "JITFunction", None)
    code = getattr(getattr(run, "run", None), "__code__", None)
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not code:
        frame = frame.f_back
    return frame


# Compiling


def read_triton() -> None:
    """Have Triton read its own files, which it does once in a process, to know what is on disk: half a second and more.

    Forks of this process need not.
    """
    key = getattr(_module("runtime.cache"), "triton_key", None) or _module("compiler.compiler").triton_key
    key()


def read_compiler(arch: str) -> None:
    """Have Triton read its own files, and ask for the assembler's version, which it does once in a process, too.

    :param arch: ``sm_90``, ``gfx942``.
    """
    read_triton()
    _module("compiler.compiler").make_backend(_target(_module("backends.compiler"), arch)).hash()


@contextmanager
def seeing_work(source: Any) -> Iterator[list[bool]]:
    """A list that has something in it if Triton compiles a source, rather than find it on disk.

    Only then it asks the source for its intermediate code.
    """
    begun: list[bool] = []
    original, held = getattr(source, "make_ir", None), getattr(source, "__dict__", None)
    if original is None or held is None or "make_ir" in held:
        yield begun
        return

    def make_ir(*args: Any, **kwargs: Any) -> Any:
        begun.append(True)
        return original(*args, **kwargs)

    source.make_ir = make_ir
    try:
        yield begun
    finally:
        del source.make_ir


def compile_kernel(function: Any, arguments: Mapping[str, Any]) -> Any:
    """Compile a kernel as a launch with these arguments would; for children that tests never run in.

    :param function: Triton's ``JITFunction``.
    :returns: Triton's compiled kernel.
    :raises HookError: where this Triton is not known to do so.
    """
    if not {"grid", "warmup"} <= inspect.signature(type(function).run).parameters.keys():
        raise HookError(f"JITFunction.run of triton {version_of('triton')} has another signature")
    function.pre_run_hooks = []  # they are for launches
    return function.run(grid=(1,), warmup=True, **arguments)


def launcher_of(kernel: Any) -> str:
    """What tells apart what launches kernels, which Triton before 3.7 has a C compiler build; else empty."""
    if not hasattr(_module(_OF_BACKEND[current_target().backend][1]), "make_launcher") or _builds_otherwise():
        return ""
    kinds = ["*" if str(kind).startswith("*") else kind for kind in kinds_of(source_of(kernel)).values()]
    return repr(("launcher", kinds, getattr(kernel.metadata, "tensordesc_meta", None)))


def build_launcher(kernel: Any) -> None:
    """Build what launches a compiled kernel, as its first launch does; for children that tests never run in.

    Triton keeps it on disk. It is loaded here, and that asks no GPU for anything.
    """
    launcher, module = _OF_BACKEND[current_target().backend][:2]
    getattr(_module(module), launcher)(source_of(kernel), kernel.metadata)


def build_driver() -> None:
    """Build what Triton's driver calls the GPU with, as the first launch does; for children that tests never run in.

    A C compiler makes it, and Triton keeps it on disk. It is loaded here, and that asks no GPU for anything.
    """
    _, module, utils = _OF_BACKEND[current_target().backend]
    cls = getattr(_module(module), utils, None)
    if cls is not None and not hasattr(cls, "instance") and not _builds_otherwise():
        cls()


def _builds_otherwise() -> bool:
    """Whether something of the user's own builds in the place of a C compiler."""
    return getattr(getattr(_module("knobs"), "build", None), "impl", None) is not None


def kinds_of(source: Any) -> Mapping[str, Any]:
    """The type of each parameter of what was compiled, by name, in order; a tuple has one for each of its parts.

    :param source: Triton's ``ASTSource``.
    """
    kinds: Mapping[str, Any] = source.signature
    return kinds


def constant_at(source: Any, path: tuple[int, ...]) -> Any:
    """What was compiled in for a parameter, or a part of one, whose type is ``constexpr``."""
    return source.constants[path]


def attributes_at(source: Any, path: tuple[int, ...]) -> dict[str, Any]:
    """What was assumed of a parameter, or a part of one: ``tt.divisibility``, ``tt.pointer_range``."""
    return dict(source.attrs.get(path) or ())


def source_of(kernel: Any) -> Any:
    """The ``ASTSource`` that a compiled kernel was made of."""
    return kernel.src


def option_of(kernel: Any, name: str) -> Any:
    """An option that a kernel was compiled with: ``num_warps``."""
    return getattr(kernel.metadata, name)


def load(kernel: Any) -> None:
    """Load a compiled kernel onto the device, as its first launch does."""
    load = getattr(kernel, "_init_handles", None)
    if load is not None:
        load()


def async_compile_mode() -> Any:
    """Triton's mode for compiling in a pool: since 3.6 without leaving itself active after an error.

    What is in Triton's cache on disk is read at once, in the thread that asks for it: threads that read a few files
    each take turns at the interpreter, and take longer together. What is launched meanwhile, or asked for by
    ``warmup()``, as by the hook of a candidate, is compiled at once, too: who looks at it would wait for what nobody
    compiles before all are submitted.
    """
    module = _module("runtime._async_compile")
    mode = getattr(module, "AsyncCompileMode", None)
    if mode is None or "ignore_errors" not in inspect.signature(mode).parameters:
        return None
    if collects_what_is_compiled():
        return None
    parameters = list(inspect.signature(mode.submit).parameters)  # 3.9 has one more
    is_known = parameters[: len(_SUBMIT_PARAMETERS)] == _SUBMIT_PARAMETERS
    return partial(_mode_that_reads_at_once, mode) if is_known else mode


def collects_what_is_compiled() -> bool:
    """Whether a mode for compiling in a pool is active: what ``warmup=True`` compiles is not compiled yet then."""
    active = getattr(_module("runtime._async_compile"), "active_mode", None)
    return active is not None and active.get() is not None


def _mode_that_reads_at_once(mode: Any, *args: Any, **kwargs: Any) -> Any:
    made = mode(*args, **kwargs)
    submit = made.submit

    def read_or_submit(
        key: str, compile_fn: Callable[[], Any], finalize_fn: Callable[[Any], object], *others: Any
    ) -> Any:
        if not (_is_wanted_at_once() or _is_on_disk(key)):
            return submit(key, compile_fn, finalize_fn, *others)
        kernel = compile_fn()
        finalize_fn(kernel)
        return kernel

    made.submit = read_or_submit
    return made


def _is_wanted_at_once() -> bool:
    """Whether a kernel is compiled now because it is launched, or by a hook that asks for it by ``warmup()``."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_name != "_do_compile":
        frame = frame.f_back
    if frame is None or frame.f_locals.get("warmup") is False:
        return frame is not None
    while frame is not None and not _is_ours(frame) and frame.f_code.co_name != "warmup":
        frame = frame.f_back
    return frame is not None and frame.f_code.co_name == "warmup"


def _is_on_disk(key: str) -> bool:
    """Whether a compilation is in Triton's cache on disk, and would be taken from there."""
    with suppress(Exception):
        if not _module("knobs").compilation.always_compile:
            manager = _module("runtime.cache").get_cache_manager(hashlib.sha256(key.encode()).hexdigest())
            return any(name.startswith(_WHOLE) for name in os.listdir(manager.cache_dir))
    return False


def reads_what_others_compile() -> bool:
    """Whether this process finds what another one compiles, in Triton's own cache on disk, and nothing listens here."""
    with suppress(Exception):
        knobs = _module("knobs")
        manager = knobs.cache.manager_class or _module("runtime.cache").FileCacheManager
        is_own = manager is _module("runtime.cache").FileCacheManager and not knobs.compilation.always_compile
        return is_own and knobs.compilation.listener is None
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


def expected_failures() -> tuple[type[BaseException], ...]:
    """What Triton's own benchmark takes for a failure of one candidate."""
    errors, compiler = _module("runtime.errors"), _module("compiler.errors")
    return errors.OutOfResources, errors.PTXASError, compiler.CompileTimeAssertionFailure


def is_refusal(error: BaseException) -> bool:
    """Whether an error is one of Triton's that says: this cannot be compiled, or needs more than the device has."""
    names = {cls.__name__ for cls in type(error).__mro__ if cls.__module__.startswith("triton.")}
    return bool(names & _REFUSALS) or str(error).startswith("PassManager::run failed")


def descriptor_class() -> Any:
    """``TensorDescriptor``; None where none is in use."""
    return getattr(_module("tools.tensor_descriptor"), "TensorDescriptor", None)


# The driver


def _driver() -> Any:
    return getattr(_module("runtime.driver"), "driver", None)


def current_target() -> Any:
    """What the active driver compiles for: ``backend`` and ``arch``.

    :raises RuntimeError: where there is no GPU.
    """
    return _driver().active.get_current_target()


def arch_of(target: Any) -> str:
    """The architecture of what a driver of Triton compiles for, as a device has it: without settings of a machine."""
    return f"sm_{target.arch}" if target.backend == "cuda" else str(target.arch).split(":")[0]


def foreign_target() -> str:
    """The architecture that a driver compiles for which is not Triton's own; empty where there is none such.

    Triton's own is not asked: it would initialise CUDA.
    """
    driver = _driver()
    held = vars(driver) if driver is not None else {}
    active = held.get("_active", held.get("active"))  # Triton 3.4 has it under the latter
    if active is None or type(active).__module__.startswith("triton."):
        return ""
    return arch_of(active.get_current_target())


def benchmark_driver(autotuner: Any, is_known: bool = False) -> Any:
    """The active driver, with what Triton's own benchmark needs of it; None where another benchmark is to be used.

    That is one that a kernel's author brings, one with another ``warmup=`` or ``rep=`` than by itself or with
    ``use_cuda_graph=``, one that another package has put in its place, and that of a backend without events.

    :param is_known: the benchmark is one that may be replaced, although it is not Triton's own.
    """
    bench = getattr(type(autotuner), "_bench", None)
    # What is put around Triton's by functools.wraps has its __module__.
    if getattr(bench, "__globals__", {}).get("__name__") != AUTOTUNER_MODULE or "_bench" in vars(autotuner):
        return None
    if list(inspect.signature(type(autotuner)._bench).parameters) != _BENCH_PARAMETERS:
        return None
    if not (is_known or _is_own_benchmark(autotuner)):
        return None
    driver = _driver().active
    return driver if all(hasattr(driver, name) for name in _BENCHMARK_NEEDS) else None


def _is_own_benchmark(autotuner: Any) -> bool:
    benchmark = autotuner.do_bench
    named = getattr(benchmark, "__module__", ""), getattr(benchmark, "__qualname__", "")
    if autotuner._do_bench is None:
        return named == ("triton.testing", "do_bench")
    given = getattr(autotuner, "num_warmups", None), getattr(autotuner, "num_reps", None)
    spelt_out = all(number in (None, usual) for number, usual in zip(given, (_WARMUP_MS, _REP_MS), strict=True))
    is_made_by_triton = named == (AUTOTUNER_MODULE, "Autotuner.__init__.<locals>.<lambda>")
    return spelt_out and is_made_by_triton and not getattr(autotuner, "use_cuda_graph", False)


class _AbsentGpu:
    """Stands in for Triton's driver where nothing is loaded or launched."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return -1  # what kernels have in memory for real devices is not for this one

    def get_current_stream(self, device: int) -> int:
        return 0


def compile_only(arch: str, listener: Callable[..., object]) -> None:
    """Let this process compile for a type of GPU, and no longer launch anything; for children that tests never run in.

    :param arch: ``sm_90``, ``gfx942``.
    :param listener: called as ``triton.knobs.compilation.listener``, in the place of the tests' own.
    :raises HookError: where this Triton is not known to do so.
    """
    backends, driver, knobs = _module("backends.compiler"), _driver(), _module("knobs")
    if backends is None or knobs is None or not hasattr(driver, "set_active"):
        raise HookError(f"triton {version_of('triton')} has no driver that can be set")
    driver.set_active(_AbsentGpu(_target(backends, arch)))
    knobs.compilation.listener = listener
    for hook in ("jit_cache_hook", "jit_post_compile_hook"):
        setattr(knobs.runtime, hook, None)


def _target(backends: Any, arch: str) -> Any:
    kind, number = arch[:3], arch[3:]
    if kind == "sm_" and number.isdigit():
        return backends.GPUTarget("cuda", int(number), 32)
    if kind == "gfx":
        return backends.GPUTarget("hip", arch, 64 if number.startswith("9") else 32)
    raise HookError(f"{arch} is an architecture that is not known here")


# What is compiled


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


# Settings


def cache_folder() -> str:
    """Where Triton keeps what it compiled."""
    return str(getattr(_module("knobs").cache, "dir", ""))


def changed_settings() -> Iterator[str]:
    """The settings that change what is compiled, where they are not at their defaults: ``group.name=value``."""
    knobs = _module("knobs")
    for group_name, names in _SETTINGS.items():
        group = getattr(knobs, group_name, None)
        for name in names:
            value = getattr(group, name, None)
            default = getattr(vars(type(group)).get(name), "default", None)
            default = default() if callable(default) else default  # as in Triton 3.4
            if (value or None) != (default or None):
                yield f"{group_name}.{name}={value}"
