"""Whether a thread other than the launching thread may compile a kernel, and whether it may do so before the launch.

When Triton compiles a kernel, it looks up the values of the names in its source, and calls Python functions among them.
Triton's hash of the kernel contains most of these values. If such a value changes, the launch has another hash and does
not find the code that was compiled with the earlier value. Two kinds of values are different:

- A Python function outside Triton's package may read values that a test has set for its thread or its context. Only the
  thread that launches the kernel may compile it.
- A value that the hash does not contain may change before the test launches the kernel. The launch would then find code
  with the earlier value. Only the launch itself may compile the kernel.

If a kernel uses a value of an unknown kind, both restrictions hold. This module runs no code of the values: it reads
only their classes and names.
"""

from __future__ import annotations

import ast
import inspect
import math
import os
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any

from pytest_autotune.tuners.source.functions import closure_cells
from pytest_autotune.tuners.triton.internals.compiler import JIT_MODULE, LANGUAGE_MODULE, find_module

#: A kernel may use a global with one of these names, whatever its value is. Triton's hash does not contain the value.
_UNHASHED_NAMES = frozenset(
    {"float", "getattr", "hasattr", "int", "isinstance", "len", "list", "max", "min", "print", "range"}
)
#: A kernel may use a global of one of these classes.
_READABLE_CLASSES = ("JITCallable", "JITFunction", "constexpr", "dtype")
#: A kernel may use a global that has one of these attributes.
_MARKS = ("__triton_builtin__", "__triton_aggregate__")
#: A kernel may use a global that comes from one of these packages.
_LANGUAGES = ("triton.language", "triton.experimental.gluon.language")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class CompileTime:
    """The restrictions on the compilation of a kernel.

    :param needs_launching_thread: only the thread that launches the kernel may compile it, because the compilation runs
        Python code outside Triton's package, or prints by ``tl.static_print``.
    :param needs_launch: only the launch may compile it, because Triton's hash of the kernel lacks a value.
    """

    needs_launching_thread: bool
    needs_launch: bool

    @classmethod
    def from_kernel(cls, kernel: Any, constants: Iterable[object] = ()) -> CompileTime:
        """Examine a kernel.

        :param kernel: Triton's ``JITFunction``.
        :param constants: the arguments that are compiled in.
        """
        walk = _NameFollower()
        try:
            walk.add_function(kernel)
            for constant in constants:
                walk.add_constant(constant)
        except Exception:
            # This module cannot follow the names of the kernel, so both restrictions hold.
            return cls(needs_launching_thread=True, needs_launch=True)
        return cls(
            needs_launching_thread=walk.runs_code,
            needs_launch=walk.runs_code or walk.reads_unhashed,
        )


@dataclass(frozen=True)
class _Names:
    """The names in the source of a function that may stand for values outside the function.

    :param paths: the dotted names in the body, split at the dots: ``tl.float32.name`` is ``("tl", "float32", "name")``.
    :param in_defaults: the dotted names in the defaults of the parameters.
    :param assigned: the names of the function's own variables.
    """

    paths: frozenset[tuple[str, ...]]
    in_defaults: frozenset[tuple[str, ...]]
    assigned: frozenset[str]


class _NameCollector(ast.NodeVisitor):
    """Collects the dotted names that a syntax tree reads, and the names that it assigns."""

    def __init__(self) -> None:
        self.paths: set[tuple[str, ...]] = set()
        self.assigned: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.paths.add((node.id,))
        else:
            self.assigned.add(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        # ``x += 1`` also reads x, but the parser marks the name only as assigned.
        if isinstance(node.target, ast.Name):
            self.paths.add((node.target.id,))
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        attributes: list[str] = []
        value: ast.AST = node
        while isinstance(value, ast.Attribute):
            attributes.insert(0, value.attr)
            value = value.value
        if isinstance(value, ast.Name):
            self.paths.add((value.id, *attributes))
        else:  # the attribute of an expression, such as f(x).dtype
            self.visit(value)


@lru_cache(maxsize=4096)
def _names_in(source: str) -> _Names:
    """Return the names in the source of a function.

    :param source: the source as Triton keeps it: it begins with ``def``, without decorators.
    """
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    collector = _NameCollector()
    for default in (*function.args.defaults, *function.args.kw_defaults):
        if default is not None:  # None stands for a keyword parameter without a default
            collector.visit(default)
    in_defaults = frozenset(collector.paths)
    # Triton evaluates the annotations of variables, but not those of parameters, so only the body is visited.
    for statement in function.body:
        collector.visit(statement)
    parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    paths = frozenset(path for path in collector.paths if path[0] not in parameters)
    return _Names(paths, in_defaults, frozenset(collector.assigned))


class _NameFollower:
    """Follows the names of a kernel to their values, also in the functions that the kernel calls."""

    def __init__(self) -> None:
        #: Whether the compilation may run Python code outside Triton's package, or prints.
        self.runs_code = False
        #: Whether the compilation reads a value that Triton's hash does not contain.
        self.reads_unhashed = False
        #: The functions that were followed, by ``id``. The first is the kernel.
        self._functions: dict[int, object] = {}

    def add_function(self, function: Any) -> None:
        """Follow the names in a function that ``triton.jit`` decorates. The first such function is the kernel."""
        if id(function) in self._functions:
            return
        is_kernel = not self._functions
        self._functions[id(function)] = function
        names = _names_in(function.src)
        cells, scope = closure_cells(function.fn), function.fn.__globals__
        for path in names.paths:
            self._add_path(path, names.assigned, cells, scope)
        if is_kernel:
            # Triton calls the user's function in repr= to get the name of the kernel.
            self.runs_code |= vars(function).get("_repr") is not None
        else:
            self._add_defaults(function.fn, names, {**scope, **cells})

    def add_constant(self, value: object) -> None:
        """Follow an argument that is compiled in. Triton's hash contains the value of such an argument."""
        value = _unwrapped(value)
        if _is_of_class(value, "JITFunction"):
            self._add_value(value, is_hashed=True)
        elif not _is_plain(value):
            self.runs_code = True

    def _add_defaults(self, function: FunctionType, names: _Names, scope: Mapping[str, object]) -> None:
        """Follow the defaults of a function that a kernel calls.

        Triton's hash contains only the text of a default. If the text names a value, the hash lacks this value.
        """
        for default in function.__defaults__ or ():
            self.add_constant(default)
        for default in (function.__kwdefaults__ or {}).values():
            self.add_constant(default)
        for path in names.in_defaults:
            self.reads_unhashed |= not _belongs_to_triton(scope.get(path[0]))

    def _add_path(
        self, path: tuple[str, ...], assigned: frozenset[str], cells: Mapping[str, object], scope: Mapping[str, object]
    ) -> None:
        """Follow a dotted name of a function to its value.

        :param assigned: the names of the function's own variables.
        :param cells: the values in the closure of the function.
        :param scope: the globals of the function.
        """
        name, *attributes = path
        # The name is a built-in function, which Triton knows, or the kernel is wrong.
        if name not in cells and name not in scope:
            return
        value = cells.get(name, scope.get(name))
        if _is_module(value):
            # A variable with the name of a module hides the module.
            if name not in assigned:
                self._add_path_in_module(value, attributes)
            return
        # The compilation uses the value in the closure. If a global has the same name, Triton hashes the global.
        is_other_hashed = name in cells and scope.get(name, value) is not value
        # Triton hashes no global with the name of a variable.
        is_hashed = name not in _UNHASHED_NAMES and name not in assigned and not is_other_hashed
        if name in _UNHASHED_NAMES or _is_readable(value):
            self._add_value(value, is_hashed, is_global=True, has_attributes=bool(attributes))

    def _add_path_in_module(self, value: Any, attributes: list[str]) -> None:
        """Follow a dotted name that begins with a module.

        :param value: the module.
        :param attributes: the names after the first dot: ``["core", "float32"]`` for ``tl.core.float32``.
        """
        owner = value
        while _is_module(value):
            # The kernel passes the module to a function, which may use any value of the module.
            if not attributes:
                self.runs_code = True
                return
            owner = value
            attribute = attributes.pop(0)
            # The module computes the attribute by its own code. If it does not, the kernel is wrong.
            if attribute not in vars(owner):
                self.runs_code |= "__getattr__" in vars(owner) or type(owner) is not ModuleType
                return
            value = vars(owner)[attribute]
        # The values of Triton's modules and of math do not change.
        is_safe = _belongs_to_triton(value) or _is_plain(value) or type(value) is BuiltinFunctionType
        if is_safe and (owner is math or _belongs_to_triton(owner)):
            self.runs_code |= _is_static_print(value)
        else:
            # The module is the user's, or user code has put a value into a module of Triton. Triton's hash contains no
            # values of Triton's modules.
            self._add_value(value, not _belongs_to_triton(owner), has_attributes=bool(attributes))

    def _add_value(self, value: Any, is_hashed: bool, *, is_global: bool = False, has_attributes: bool = False) -> None:
        """Note the restrictions that follow from the value of a name.

        ======================== ==================================================================================
        value                    restriction
        ======================== ==================================================================================
        ``tl.constexpr``         the hash contains a plain value in a global since Triton 3.5
        function of triton.jit   the names in its source decide; an attribute of the function is unknown code
        a part of Triton         only ``static_print`` runs code; the hash contains functions of constexpr_function
        number, text, dtype      the hash does not contain it
        any other value          may run code
        ======================== ==================================================================================

        :param is_hashed: whether Triton looks at the value when it computes the hash. The hash does not contain values
            of all kinds.
        :param is_global: whether the name is a global, or a variable of a closure, and not an attribute.
        :param has_attributes: whether the source reads an attribute of the value.
        """
        if _is_of_class(value, "constexpr"):
            inner = _unwrapped(value)
            self.reads_unhashed |= not (is_hashed and is_global and _hashes_constants() and _is_plain(inner))
            if not _is_plain(inner):
                self._add_value(inner, is_hashed=False, has_attributes=has_attributes)
        elif _is_of_class(value, "JITFunction"):
            self.runs_code |= has_attributes
            self.reads_unhashed |= not is_hashed
            if not _belongs_to_triton(value):
                self.add_function(value)
        elif _belongs_to_triton(value):
            self.runs_code |= _is_static_print(value)
            self.reads_unhashed |= not (is_hashed and _is_of_class(value, "ConstexprFunction"))
        elif _is_plain(value):
            self.reads_unhashed = True
        else:
            self.runs_code = True


def _unwrapped(value: Any) -> object:
    """Return the value inside a ``tl.constexpr``."""
    while _is_of_class(value, "constexpr"):
        value = value.value
    return value


# The functions below do not use isinstance: it asks a proxy for the class of its object, which may run code.


def _is_of_class(value: object, name: str) -> bool:
    """Whether a value is of a class of Triton with this name, or of a derived class."""
    for cls in type(value).__mro__:
        if cls.__name__ == name and cls.__module__ in (JIT_MODULE, LANGUAGE_MODULE):
            return True
    return False


def _is_module(value: object) -> bool:
    return issubclass(type(value), ModuleType)


def _is_plain(value: Any) -> bool:
    """Whether a value cannot change and runs no code: a number, a text, a dtype of any library, a tuple of these."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or type(value).__name__ == "dtype"


def _belongs_to_triton(value: Any) -> bool:
    """Whether a module, a class, a function or a dtype belongs to Triton's package."""
    if _is_module(value):
        return str(value.__name__).partition(".")[0] == "triton"
    if issubclass(type(value), type):
        return str(value.__module__).partition(".")[0] == "triton"
    if _is_of_class(value, "dtype"):
        return True
    function = value
    if _is_of_class(value, "JITCallable") or _is_of_class(value, "JITFunction"):
        function = value.fn
    if type(function) is not FunctionType:
        return False
    # A decorator of Triton can put a function with Triton's code around a user's function. The inner function decides.
    innermost = inspect.unwrap(function)
    folder = os.path.dirname(str(sys.modules["triton"].__file__))
    return type(innermost) is FunctionType and innermost.__code__.co_filename.startswith(folder + os.sep)


def _is_static_print(value: Any) -> bool:
    """Whether a value of Triton is ``static_print`` of ``tl`` or of Gluon."""
    return type(value) is FunctionType and value.__name__ == "static_print"


def _is_readable(value: Any) -> bool:
    """Whether Triton lets a kernel use a global with this value.

    Otherwise the global never matters: either a local variable of the kernel has the same name, or Triton refuses the
    kernel.
    """
    if value is None or any(_is_of_class(value, name) for name in _READABLE_CLASSES):
        return True
    cls = type(value)
    if issubclass(cls, type):
        cls = value
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):  # a named tuple
        return True
    if any(_attribute(value, mark) for mark in _MARKS):
        return True
    if str(_attribute(value, "__module__")).startswith(_LANGUAGES):
        return True
    return bool(find_module("knobs").compilation.allow_non_constexpr_globals)


def _attribute(value: Any, name: str) -> object:
    """Return an attribute of a value without running code of the value's class; None if there is no such attribute."""
    if type(value) is FunctionType:
        return getattr(value, name, None)
    return inspect.getattr_static(value, name, None)


@lru_cache(maxsize=1)
def _hashes_constants() -> bool:
    """Whether Triton's hash contains globals of the class ``tl.constexpr``, as it does since 3.5."""
    return hasattr(find_module("runtime.jit"), "JITCallable")
