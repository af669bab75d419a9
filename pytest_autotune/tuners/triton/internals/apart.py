"""Triton's compiler, asked beside the tests: for a type of GPU, without a driver, a launch or a trace in a kernel.

Triton keeps in each kernel the hash of its source, and the globals that this rests on: a test that sets one of them
before its first launch would be refused. So what is compiled here is a copy of the kernel, and its hash is that of
copies of all that it calls, by Triton's own rule. What that makes lies on disk where a launch looks for it.
"""

from __future__ import annotations

import inspect
import sys
import threading
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from importlib import import_module
from types import FunctionType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.library import find_version
from pytest_autotune.tuners.triton.internals.compile_time import CompileTime
from pytest_autotune.tuners.triton.internals.environment import module, target_of

_SOURCE_PARAMETERS = ["self", "fn", "signature", "constexprs", "attrs"]
#: How Triton's kernels say that they assume something of an argument.
_DIVISIBLE = "D"


#: Held while code is made of Python: what that hashes is seen, and Python's lock allows no more of it at a time.
_MAKES_CODE = threading.RLock()


class ChangedMeanwhile(Exception):
    """The launch is to compile this itself: a test has changed what is compiled, or Triton warns of it.

    What a test has changed would lie under a hash that is not its own; and only the launch warns in its test.
    """


class _Warning(BaseException):
    """Triton warns of what it compiles; no ``Exception``, which Triton would make an error of the kernel."""


class _WarningsModule:
    """Stands for the module ``warnings`` in Triton's modules: in the thread that has made it, a warning is an error."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("warn") and threading.get_ident() == self._thread:
            raise _Warning
        return getattr(warnings, name)


def check_version() -> None:
    """See whether kernels can be compiled so.

    :raises HookError: where this Triton is not known to do it.
    """
    compiler, jit = module("compiler.compiler"), module("runtime.jit")
    is_known = (
        module("backends.compiler") is not None
        and list(inspect.signature(compiler.ASTSource).parameters) == _SOURCE_PARAMETERS[1:]
        and hasattr(jit.DependenciesFinder, "_update_hash")
        and isinstance(inspect.getattr_static(jit.JITFunction, "cache_key"), property)
    )
    if not is_known:
        raise HookError(f"triton {find_version('triton')} compiles in a way that is not known here")


def assumptions(kind: str, parameter: Any, *, divisible: bool) -> str | None:
    """What a launch assumes of an argument of this type, in Triton's words; None where it does not look at it.

    :param parameter: Triton's, of the kernel.
    """
    is_looked_at = kind.startswith("*") or (kind[0] in "iu" and kind not in ("i1", "u1"))
    if parameter.do_not_specialize or not is_looked_at:
        return None
    return _DIVISIBLE * divisible


def assumptions_of_constant(value: Any) -> str | None:
    """The same of what is compiled in; Triton before 3.7 takes a text for such words."""
    if tuple(map(int, find_version("triton").split(".")[:2])) >= (3, 7):
        return ""
    return value if isinstance(value, str) else None


def compile_apart(
    function: Any,
    signature: Mapping[str, Any],
    constants: Mapping[tuple[int], Any],
    assumed: Mapping[tuple[int], str],
    options: Mapping[str, Any],
    arch: str,
) -> bool:
    """Compile a kernel as a launch would whose arguments are as told.

    :param function: Triton's ``JITFunction``.
    :param signature: the type of each parameter.
    :param constants: what is compiled in, by its place among the parameters.
    :param assumed: see :func:`assumptions`.
    :param arch: ``sm_90``.
    :returns: whether that was to be done: it may be on disk.
    :raises Exception: what Triton raises, or :class:`ChangedMeanwhile`.
    """
    target = target_of(arch)
    backend = module("compiler.compiler").make_backend(target)
    knobs = module("knobs")
    given = {**options, "debug": options.get("debug", function.debug) or knobs.runtime.debug}
    if hasattr(knobs.compilation, "instrumentation_mode"):
        given["instrumentation_mode"] = knobs.compilation.instrumentation_mode
    copies = _Copies(function)
    source = _source_class()(
        copies.of(function),
        dict(signature),
        dict(constants),
        {path: backend.parse_attr(words) for path, words in assumed.items()},
    )
    source.copies = copies
    kernel = module("compiler").compile(source, target=target, options=backend.parse_options(given).__dict__)
    if source.was_made:
        driver = module("backends.nvidia.driver")
        if hasattr(driver, "make_launcher"):  # before 3.7 a C compiler makes one for each signature
            with suppress(Exception):  # the launch that builds it raises the error
                driver.CudaLauncher(kernel.src, kernel.metadata)
    return bool(source.was_made)


@cache
def _source_class() -> Any:
    class Source(module("compiler.compiler").ASTSource):  # type: ignore[misc]
        copies: Any = None
        was_made = False

        def make_ir(self, *args: Any, **kwargs: Any) -> Any:
            with _MAKES_CODE, _leaving_unhashed(self.copies.originals), _refusing_warnings():
                if CompileTime.of(self.fn, self.constants.values()).needs_time:
                    raise ChangedMeanwhile
                code = super().make_ir(*args, **kwargs)
                if _Copies(self.copies.originals[0]).state != self.copies.state:
                    raise ChangedMeanwhile
            self.was_made = True
            return code

    return Source


@contextmanager
def _leaving_unhashed(functions: Iterable[Any]) -> Iterator[None]:
    """Compile functions, which hashes what a kernel calls, and let those that have no hash have none afterwards."""
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
def _refusing_warnings() -> Iterator[None]:
    """Refuse to compile what Triton warns of, in this thread.

    :raises ChangedMeanwhile: where it warns.
    """
    import_module("triton.compiler.code_generator")  # Triton does so at its first compilation
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
    """A copy of a kernel and of each function that it calls, hashed by Triton's own rule as those have none yet."""

    def __init__(self, function: Any) -> None:
        copies = self

        class Finder(module("runtime.jit").DependenciesFinder):  # type: ignore[misc]
            def _update_hash(self, called: Any) -> None:
                if not isinstance(getattr(type(called), "cache_key", None), property):  # Triton 3.4 asks for all names
                    return
                is_new = id(called) not in copies._copies
                copy = copies.of(called)
                used = copy.used_global_vals
                # Triton takes over what a function uses only where that is hashed already.
                copy.used_global_vals = {} if is_new else used
                super()._update_hash(copy)
                copy.used_global_vals = used

        key: Any = inspect.getattr_static(type(function), "cache_key").fget
        scope = {**key.__globals__, "DependenciesFinder": Finder}
        self._hash = FunctionType(key.__code__, scope, closure=key.__closure__)
        self._copies: dict[int, Any] = {}
        self.originals: list[Any] = []
        self.of(function)

    def of(self, function: Any) -> Any:
        """The copy of a function, with its hash."""
        if id(function) not in self._copies:
            self.originals.append(function)
            copy = self._copies[id(function)] = object.__new__(type(function))
            vars(copy).update(vars(function), hash=None, used_global_vals={}, _hash_lock=threading.RLock())
            self._hash(copy)
        return self._copies[id(function)]

    @property
    def state(self) -> list[object]:
        """What is compiled, and the globals that it uses: Triton 3.4 has none of these in its hash."""
        copies = self._copies.values()
        return [(one.hash, *(repr(value) for value, _ in one.used_global_vals.values())) for one in copies]
