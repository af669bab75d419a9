"""Compiles a kernel beside the tests: for a type of GPU, without a driver, a launch or a trace in the kernel.

Triton keeps in each kernel the hash of its source, and the values of the globals that the hash rests on. A test that
sets one of these globals before its first launch would be refused. This module therefore compiles a copy of the
kernel. The copy's hash is computed by Triton's own rule from copies of all functions that the kernel calls. The
compiled kernel lies on disk, and a launch finds it there.
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
from pytest_autotune.tuners.shared.library import find_version
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime
from pytest_autotune.tuners.triton.internals.environment import build_target, find_module

_SOURCE_PARAMETERS = ["fn", "signature", "constexprs", "attrs"]
#: Triton's word for "divisible by 16".
_DIVISIBLE = "D"


#: Held while Triton makes code of Python. This makes hashes visible in the functions for a while. Python's lock lets no
#: second thread do it at the same time anyway.
_MAKES_CODE = threading.RLock()


class ChangedMeanwhile(Exception):
    """The launch has to compile the kernel itself: a test has changed a function, or Triton warns of the kernel.

    Changed code would lie on disk under the hash of other code. A warning belongs to the test that launches the kernel.
    """


class _Warning(BaseException):
    """Triton warns of a kernel. Triton would turn an ``Exception`` into an error of the kernel."""


class _WarningsModule:
    """Replaces the module ``warnings`` in Triton's modules. In the thread that made it, a warning is an error."""

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
    :param assumptions: Triton's words for its assumptions of an argument, by position; see :func:`find_assumptions`.
    """

    signature: dict[str, Any] = field(default_factory=dict)
    constants: dict[tuple[int], Any] = field(default_factory=dict)
    assumptions: dict[tuple[int], str] = field(default_factory=dict)


def check_version() -> None:
    """Check that this Triton can compile a kernel in this way.

    :raises HookError: if the Triton is not known to do it.
    """
    compiler, jit = find_module("compiler.compiler"), find_module("runtime.jit")
    is_known = (
        find_module("backends.compiler") is not None
        and list(inspect.signature(compiler.ASTSource).parameters) == _SOURCE_PARAMETERS
        and hasattr(jit.DependenciesFinder, "_update_hash")
        and isinstance(inspect.getattr_static(jit.JITFunction, "cache_key"), property)
    )
    if not is_known:
        raise HookError(f"triton {find_version('triton')} compiles in a way that is not known here")


def find_assumptions(kind: str, parameter: Any, *, divisible: bool) -> str | None:
    """Return Triton's words for its assumptions of an argument; None if Triton does not look at the argument.

    :param kind: the argument's type in Triton's signature.
    :param parameter: Triton's parameter of the kernel.
    :param divisible: whether the argument is divisible by 16.
    """
    is_looked_at = kind.startswith("*") or (kind[0] in "iu" and kind not in ("i1", "u1"))
    if parameter.do_not_specialize or not is_looked_at:
        return None
    if divisible:
        return _DIVISIBLE
    return ""


def find_assumptions_of_constant(value: Any) -> str | None:
    """Return Triton's words for a value that is compiled in. Triton before 3.7 takes a text for such words."""
    if tuple(map(int, find_version("triton").split(".")[:2])) >= (3, 7):
        return ""
    if isinstance(value, str):
        return value
    return None


def compile_apart(function: Any, specialization: Specialization, options: Mapping[str, Any], arch: str) -> bool:
    """Compile a kernel as a launch with these arguments would.

    :param function: Triton's ``JITFunction``.
    :param options: the options of the launch.
    :param arch: for example ``sm_90``.
    :returns: whether the kernel was compiled. It was not if it lies on disk already.
    :raises Exception: Triton's errors, or :class:`ChangedMeanwhile`.
    """
    target = build_target(arch)
    backend = find_module("compiler.compiler").make_backend(target)
    knobs = find_module("knobs")
    launch_options = {**options, "debug": options.get("debug", function.debug) or knobs.runtime.debug}
    if hasattr(knobs.compilation, "instrumentation_mode"):
        launch_options["instrumentation_mode"] = knobs.compilation.instrumentation_mode
    copies = _Copies(function)
    source = _source_class()(
        copies.find_copy(function),
        dict(specialization.signature),
        dict(specialization.constants),
        {path: backend.parse_attr(words) for path, words in specialization.assumptions.items()},
    )
    source.copies = copies
    backend_options = backend.parse_options(launch_options).__dict__
    kernel = find_module("compiler").compile(source, target=target, options=backend_options)
    if not source.was_made:
        return False
    driver = find_module("backends.nvidia.driver")
    if hasattr(driver, "make_launcher"):  # before 3.7 a C compiler makes a launcher for each signature
        with suppress(Exception):  # the launch that builds the launcher raises the error
            driver.CudaLauncher(kernel.src, kernel.metadata)
    return True


@cache
def _source_class() -> Any:
    class ApartSource(find_module("compiler.compiler").ASTSource):  # type: ignore[misc]
        """A kernel that is compiled apart.

        :param was_made: whether Triton made code of the source. It did not if it found the kernel on disk.
        """

        copies: Any = None
        was_made = False

        def make_ir(self, *args: Any, **kwargs: Any) -> Any:
            with _MAKES_CODE, _remove_new_hashes(self.copies.originals), _refuse_warnings():
                if CompileTime.of(self.fn, self.constants.values()).needs_launch:
                    raise ChangedMeanwhile
                code = super().make_ir(*args, **kwargs)
                if _Copies(self.copies.originals[0]).state != self.copies.state:
                    raise ChangedMeanwhile
            self.was_made = True
            return code

    return ApartSource


@contextmanager
def _remove_new_hashes(functions: Iterable[Any]) -> Iterator[None]:
    """Remove the hashes that functions get inside: a compilation hashes the functions that a kernel calls."""
    unhashed = [function for function in functions if function.hash is None]
    try:
        yield
    finally:
        for function in unhashed:
            if getattr(function, "device_caches", None):  # a test has launched it meanwhile: the hash is of the launch
                continue
            with getattr(function, "_hash_lock", _MAKES_CODE):
                function.hash, function.used_global_vals = None, {}


@contextmanager
def _refuse_warnings() -> Iterator[None]:
    """Refuse kernels that Triton warns of, in this thread.

    :raises ChangedMeanwhile: if Triton warns.
    """
    import_module("triton.compiler.code_generator")  # Triton imports it at its first compilation
    namespaces = []
    for name, imported in sys.modules.copy().items():
        if name.startswith("triton.") and getattr(imported, "warnings", None) is warnings:
            namespaces.append(vars(imported))
    for namespace in namespaces:
        namespace["warnings"] = _WarningsModule()
    try:
        yield
    except _Warning:
        raise ChangedMeanwhile from None
    finally:
        for namespace in namespaces:
            namespace["warnings"] = warnings


class _Copies:
    """Copies of a kernel and of each function that it calls, hashed by Triton's own rule.

    :param function: the kernel, Triton's ``JITFunction``.
    """

    def __init__(self, function: Any) -> None:
        copies = self

        class Finder(find_module("runtime.jit").DependenciesFinder):  # type: ignore[misc]
            """Finds the functions that a function calls, and hashes their copies."""

            def _update_hash(self, called: Any) -> None:
                if not isinstance(getattr(type(called), "cache_key", None), property):  # Triton 3.4 asks for all names
                    return
                is_new = not copies.has_copy(called)
                copy = copies.find_copy(called)
                used_globals = copy.used_global_vals
                # Triton merges the globals of a called function only if the function was hashed before.
                if is_new:
                    copy.used_global_vals = {}
                super()._update_hash(copy)
                copy.used_global_vals = used_globals

        key: Any = inspect.getattr_static(type(function), "cache_key").fget
        scope = {**key.__globals__, "DependenciesFinder": Finder}
        self._hash = FunctionType(key.__code__, scope, closure=key.__closure__)
        self._copies: dict[int, Any] = {}
        self.originals: list[Any] = []
        self.find_copy(function)

    def has_copy(self, function: Any) -> bool:
        return id(function) in self._copies

    def find_copy(self, function: Any) -> Any:
        """Return the copy of a function, with its hash. The first call makes the copy."""
        if id(function) not in self._copies:
            self.originals.append(function)
            copy = object.__new__(type(function))
            self._copies[id(function)] = copy
            vars(copy).update(vars(function), hash=None, used_global_vals={}, _hash_lock=threading.RLock())
            self._hash(copy)
        return self._copies[id(function)]

    @property
    def state(self) -> list[object]:
        """The hashes of all copies, and the values of their globals: Triton 3.4 does not hash these values."""
        state: list[object] = []
        for copy in self._copies.values():
            globals_text = [repr(value) for value, _ in copy.used_global_vals.values()]
            state.append((copy.hash, *globals_text))
        return state
