"""Compiles a kernel in a thread while tests run, without a launch, and without a change of the kernel itself.

Triton's usual way would change the kernel: a compilation stores the hash of the kernel's source in it, together with
the values of the globals that the source uses. If a test then sets such a global, Triton refuses the test's launch.

This module therefore copies the kernel and all functions that it calls, and computes the hashes of the copies by
Triton's own rule. It compiles the copy into Triton's cache on disk. The kernel has the same hash at its launch, so the
launch finds the compiled copy there. No driver is needed, because the caller names the architecture.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.source.libraries import find_version
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime
from pytest_autotune.tuners.triton.internals.compiler import build_target, find_module

_SOURCE_PARAMETERS = ["fn", "signature", "constexprs", "attrs"]
#: Triton's word for "divisible by 16".
_DIVISIBLE = "D"


#: A thread holds this lock while Triton turns Python source into its IR. In this step Triton stores hashes in the
#: functions, which are removed afterwards. The lock costs no time: Python's own lock lets only one thread do this step.
_IR_LOCK = threading.RLock()


class ChangedMeanwhile(Exception):
    """The kernel cannot be compiled apart, so its launch compiles it. There are two reasons:

    - A test has changed a function. The compiled code would lie on disk under the hash of the earlier function.
    - Triton warns of the kernel. The user must see the warning in the test that launches the kernel.
    """


class _Warning(BaseException):
    """Triton warns of a kernel.

    This is a ``BaseException``, because Triton would turn an ``Exception`` into a ``CompilationError`` of the kernel.
    """


class _WarningsModule:
    """Replaces the module ``warnings`` in Triton's modules.

    In the thread that made this object, a warning raises :class:`_Warning`. In other threads it is a usual warning.
    """

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("warn") and threading.get_ident() == self._thread:
            raise _Warning
        return getattr(warnings, name)


@dataclass(frozen=True)
class Specialization:
    """The arguments that a kernel is compiled for.

    :param signature: the type of each parameter, by name.
    :param constants: the values that are compiled in, by the position of the parameter: ``{(2,): 16}``.
    :param assumptions: Triton's word for its assumption about an argument, by position; see :func:`find_assumptions`.
    """

    signature: dict[str, Any] = field(default_factory=dict)
    constants: dict[tuple[int], Any] = field(default_factory=dict)
    assumptions: dict[tuple[int], str] = field(default_factory=dict)


def check_version() -> None:
    """Check that this module knows how the installed Triton compiles.

    :raises HookError: if it does not know.
    """
    compiler = find_module("compiler.compiler")
    jit = find_module("runtime.jit")
    has_targets = find_module("backends.compiler") is not None
    has_known_sources = list(inspect.signature(compiler.ASTSource).parameters) == _SOURCE_PARAMETERS
    # These two members compute the hash of a kernel.
    has_finder = hasattr(jit.DependenciesFinder, "_update_hash")
    has_cache_key = isinstance(inspect.getattr_static(jit.JITFunction, "cache_key"), property)
    if not (has_targets and has_known_sources and has_finder and has_cache_key):
        raise HookError(f"triton {find_version('triton')} compiles in a way that is not known here")


def find_assumptions(kind: str, parameter: Any, *, divisible: bool) -> str | None:
    """Return Triton's word for its assumption about an argument.

    ================================================= ========
    argument                                          word
    ================================================= ========
    a pointer or integer that is divisible by 16      ``"D"``
    any other pointer or integer                      ``""``
    a boolean, a float, or any other type             None
    a parameter that is marked ``do_not_specialize``  None
    ================================================= ========

    :param kind: the argument's type in Triton's signature, such as ``*fp16`` (a pointer) or ``i32``.
    :param parameter: Triton's parameter of the kernel.
    :param divisible: whether the argument is divisible by 16.
    """
    if parameter.do_not_specialize:
        return None
    is_pointer = kind.startswith("*")
    is_integer = kind[0] in "iu" and kind not in ("i1", "u1")
    if not is_pointer and not is_integer:
        return None
    if divisible:
        return _DIVISIBLE
    return ""


def find_assumptions_of_constant(value: Any) -> str | None:
    """Return Triton's word for its assumption about a value that is compiled in.

    The word is a part of Triton's hash, so it must be the word of a launch. In Triton 3.7 and later, the word is empty.
    Earlier versions have no word for most values. But a launch of theirs takes a text, such as the value of
    ``ACTIVATION="relu"``, for the word itself.
    """
    major, minor = map(int, find_version("triton").split(".")[:2])
    if (major, minor) >= (3, 7):
        return ""
    if isinstance(value, str):
        return value
    return None


def compile_apart(function: Any, specialization: Specialization, options: Mapping[str, Any], arch: str) -> bool:
    """Compile a kernel into Triton's cache on disk, as a launch with these arguments would.

    :param function: the kernel, Triton's ``JITFunction``.
    :param specialization: the arguments of the launch.
    :param options: the options of the launch, such as ``num_warps``.
    :param arch: the architecture, for example ``sm_90``.
    :returns: whether this call compiled the kernel. It did not if Triton's cache on disk already has the kernel.
    :raises Exception: Triton's errors, or :class:`ChangedMeanwhile`.
    """
    target = build_target(arch)
    backend = find_module("compiler.compiler").make_backend(target)
    # A copy has the hash of its function, by which a later launch of the function finds the compiled copy on disk.
    copies = _Copies(function)
    source = _find_source_class()(
        fn=copies.find_copy(function),
        signature=dict(specialization.signature),
        constexprs=dict(specialization.constants),
        attrs={path: backend.parse_attr(word) for path, word in specialization.assumptions.items()},
    )
    # Triton calls make_ir() of the source, which compares the copies with the functions as they are then.
    source.copies = copies
    backend_options = backend.parse_options(_complete_options(function, options)).__dict__
    kernel = find_module("compiler").compile(source, target=target, options=backend_options)
    # Triton found the kernel on disk.
    if not source.was_turned_into_ir:
        return False
    _build_launcher(kernel)
    return True


def _complete_options(function: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of a launch with those that Triton's own launch takes from its settings."""
    knobs = find_module("knobs")
    launch_options = {**options, "debug": options.get("debug", function.debug) or knobs.runtime.debug}
    if hasattr(knobs.compilation, "instrumentation_mode"):
        launch_options["instrumentation_mode"] = knobs.compilation.instrumentation_mode
    return launch_options


def _build_launcher(kernel: Any) -> None:
    """Build the launcher of a compiled kernel. Before Triton 3.7, a C compiler builds one for each signature."""
    driver = find_module("backends.nvidia.driver")
    if hasattr(driver, "make_launcher"):
        # After an error, the launch builds the launcher again and raises the error.
        with suppress(Exception):
            driver.CudaLauncher(kernel.src, kernel.metadata)


class _ApartSource:
    """A kernel that is compiled apart, and its arguments. A class of this base and of Triton's ``ASTSource`` is used.

    :param fn: the copy of the kernel, from ``ASTSource``.
    :param constants: the values that are compiled in, from ``ASTSource``.
    :param copies: the copies of the kernel and of the functions that it calls.
    :param was_turned_into_ir: whether Triton compiled the source. If Triton finds the kernel on disk, it does not.
    """

    fn: Any
    constants: Mapping[Any, Any]
    copies: _Copies
    was_turned_into_ir = False

    def make_ir(self, *args: Any, **kwargs: Any) -> Any:
        """Turn the source into Triton's IR. Triton calls this method if it does not find the kernel on disk.

        :raises ChangedMeanwhile: if a test changed a function or a global before or during this step. The hash, which
            was computed earlier, would then be wrong.
        """
        with _IR_LOCK, _remove_new_hashes(self.copies.originals), _refuse_warnings():
            # The kernel uses a value now that Triton's hash does not contain.
            if CompileTime.from_kernel(self.fn, self.constants.values()).needs_launch:
                raise ChangedMeanwhile
            ir = super().make_ir(*args, **kwargs)  # type: ignore[misc]
            # New copies of the functions, as they are now, differ from the copies that were hashed.
            kernel = self.copies.originals[0]
            if _Copies(kernel).state != self.copies.state:
                raise ChangedMeanwhile
        self.was_turned_into_ir = True
        return ir


@cache
def _find_source_class() -> Any:
    """Return the class of :class:`_ApartSource` and Triton's ``ASTSource``.

    The first call makes the class, because Triton is not imported yet when this module is.
    """
    return type("ApartSource", (_ApartSource, find_module("compiler.compiler").ASTSource), {})


@contextmanager
def _remove_new_hashes(functions: Iterable[Any]) -> Iterator[None]:
    """Remove the hashes that functions get in this context. Triton hashes each function that a kernel calls.

    :param functions: the user's own functions, and not the copies.
    """
    unhashed = [function for function in functions if function.hash is None]
    try:
        yield
    finally:
        for function in unhashed:
            # A test has launched the function as a kernel in the meantime. The hash belongs to this launch, and stays.
            if getattr(function, "device_caches", None):
                continue
            # Triton's lock for the hash. If this Triton has none, the caller's lock is taken a second time.
            with getattr(function, "_hash_lock", _IR_LOCK):
                function.hash = None
                function.used_global_vals = {}


@contextmanager
def _refuse_warnings() -> Iterator[None]:
    """Raise an error in place of a warning of Triton, in this thread.

    :raises ChangedMeanwhile: if Triton warns.
    """
    # Triton imports this module at its first compilation. Its warnings must be replaced, too.
    import_module("triton.compiler.code_generator")
    warning_modules = []
    for name, module in sys.modules.copy().items():
        if name.startswith("triton.") and getattr(module, "warnings", None) is warnings:
            warning_modules.append(module)
    for module in warning_modules:
        vars(module)["warnings"] = _WarningsModule()
    try:
        yield
    except _Warning:
        raise ChangedMeanwhile from None
    finally:
        for module in warning_modules:
            vars(module)["warnings"] = warnings


class _Copies:
    """Copies of a kernel and of each function that it calls. Each copy has a hash by Triton's own rule.

    Triton computes the hash of a function in the property ``cache_key``, which uses a ``DependenciesFinder``: this
    object visits the functions that the function calls and asks for their hashes. The class runs the code of the
    property with another finder, which visits copies; see :func:`_build_finder_class`.

    :param function: the kernel, Triton's ``JITFunction``.
    """

    def __init__(self, function: Any) -> None:
        cache_key: Any = inspect.getattr_static(type(function), "cache_key").fget
        # The code of the property finds the name DependenciesFinder in its globals.
        scope = {**cache_key.__globals__, "DependenciesFinder": _build_finder_class(self)}
        self._compute_hash = FunctionType(cache_key.__code__, scope, closure=cache_key.__closure__)
        #: The copies by the ``id`` of their original.
        self._copies: dict[int, Any] = {}
        #: The functions that were copied. The first is the kernel.
        self.originals: list[Any] = []
        self.find_copy(function)

    def has_copy(self, function: Any) -> bool:
        return id(function) in self._copies

    def find_copy(self, function: Any) -> Any:
        """Return the copy of a function, with its hash. The first call makes the copy."""
        if id(function) not in self._copies:
            self.originals.append(function)
            copy = object.__new__(type(function))
            # The copy is kept before it is hashed, because the function may call itself.
            self._copies[id(function)] = copy
            vars(copy).update(vars(function), hash=None, used_global_vals={}, _hash_lock=threading.RLock())
            self._compute_hash(copy)
        return self._copies[id(function)]

    @property
    def state(self) -> list[object]:
        """The hashes of all copies, and the values of their globals, which Triton 3.4 leaves out of its hash.

        If a later state differs, a test has changed a function or a global.
        """
        state: list[object] = []
        for copy in self._copies.values():
            # Triton keeps each global with the dict in which it found it.
            globals_text = [repr(value) for value, _ in copy.used_global_vals.values()]
            state.append((copy.hash, *globals_text))
        return state


class _CopyFinder:
    """Finds the functions that a function calls, and hashes their copies in place of the functions.

    A class of this base and of Triton's ``DependenciesFinder`` is used, which finds the functions.
    """

    copies: _Copies

    def _update_hash(self, called: Any) -> None:
        """Add the hash of a called function to the hash of the function that calls it. Triton calls this method."""
        has_hash = isinstance(getattr(type(called), "cache_key", None), property)
        if not has_hash:
            # Triton 3.4 calls this method for every value that the function names.
            return
        is_known = self.copies.has_copy(called)
        copy = self.copies.find_copy(called)
        if is_known:
            super()._update_hash(copy)  # type: ignore[misc]
            return
        # Triton's method first merges the globals of the called function. It then hashes the function, and only this
        # step finds its globals. So Triton merges no globals of a function that it meets for the first time. The copy
        # is already hashed and has its globals, so they are taken away for the merge.
        used_globals = copy.used_global_vals
        copy.used_global_vals = {}
        super()._update_hash(copy)  # type: ignore[misc]
        copy.used_global_vals = used_globals


def _build_finder_class(copies: _Copies) -> Any:
    """Return the class to use in place of Triton's ``DependenciesFinder`` while functions are copied.

    Triton makes objects of this class, so the class itself has the copies.
    """
    return type("CopyFinder", (_CopyFinder, find_module("runtime.jit").DependenciesFinder), {"copies": copies})
