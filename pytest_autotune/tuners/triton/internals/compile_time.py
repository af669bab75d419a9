"""Whether a thread other than the launching thread may compile a kernel, and whether it may do so before the launch.

Triton looks up the names of a kernel's functions when it compiles them, and calls the Python functions that the names
stand for. Most values are in Triton's hash of the kernel: a launch with another value looks for another file. Two kinds
of values restrict the compilation:

- Python code outside Triton's package may read values that a test has set in its thread or its context.
- A value that is not in the hash may have changed when the test launches the kernel.

A kernel with a value of an unknown kind counts as both. This module reads only the class and the name of a value.
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

from pytest_autotune.tuners.shared.functions import closure_cells
from pytest_autotune.tuners.triton.internals.environment import JIT_MODULE, LANGUAGE_MODULE, find_module

#: Triton lets a kernel read any global with one of these names, and leaves it out of the hash.
_UNHASHED_NAMES = frozenset(
    {"float", "getattr", "hasattr", "int", "isinstance", "len", "list", "max", "min", "print", "range"}
)
#: Triton lets a kernel read a global of one of these classes.
_READABLE_CLASSES = ("JITCallable", "JITFunction", "constexpr", "dtype")
#: Triton lets a kernel read a global with one of these marks.
_MARKS = ("__triton_builtin__", "__triton_aggregate__")
#: Triton lets a kernel read a global of these modules, and of the modules inside.
_LANGUAGES = ("triton.language", "triton.experimental.gluon.language")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class CompileTime:
    """Whether only the launching thread, or only the launch itself, may compile a kernel.

    :param needs_launching_thread: only the thread that launches the kernel may compile it. Python code outside Triton's
        package runs, or ``tl.static_print`` prints.
    :param needs_launch: only the launch may compile it. Triton reads a value that is not in its hash of the kernel.
    """

    needs_launching_thread: bool
    needs_launch: bool

    @classmethod
    def of(cls, kernel: Any, constants: Iterable[object] = ()) -> CompileTime:
        """Examine a kernel.

        :param kernel: Triton's ``JITFunction``.
        :param constants: the arguments that are compiled in.
        """
        walk = _NameFollower()
        try:
            walk.add_function(kernel)
            for constant in constants:
                walk.add_constant(constant)
        except Exception:  # nothing is certain about a kernel that cannot be followed
            return cls(needs_launching_thread=True, needs_launch=True)
        return cls(walk.runs_code, walk.runs_code or walk.reads_unhashed)


@dataclass(frozen=True)
class _Names:
    """The names in the source of a function that may stand for values outside of it.

    :param paths: dotted names, as long as they stand in the source: ``("tl", "float32", "name")``.
    :param in_defaults: the dotted names in the defaults of the parameters.
    :param assigned: the names that the function assigns itself.
    """

    paths: frozenset[tuple[str, ...]]
    in_defaults: frozenset[tuple[str, ...]]
    assigned: frozenset[str]


class _NameCollector(ast.NodeVisitor):
    """Collects dotted names, and the names that are assigned."""

    def __init__(self) -> None:
        self.paths: set[tuple[str, ...]] = set()
        self.assigned: set[str] = set()

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self.paths.add((node.id,))
        else:
            self.assigned.add(node.id)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
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
        else:
            self.visit(value)


@lru_cache(maxsize=4096)
def _names_in(source: str) -> _Names:
    """Return the names in the source of a function, which begins with ``def``."""
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    arguments = function.args
    collector = _NameCollector()
    for default in (*arguments.defaults, *arguments.kw_defaults):
        if default is not None:
            collector.visit(default)
    in_defaults = frozenset(collector.paths)
    # Triton evaluates the annotations of variables, and not those of parameters.
    for statement in function.body:
        collector.visit(statement)
    parameters = {node.arg for node in ast.walk(arguments) if isinstance(node, ast.arg)}
    paths = frozenset(path for path in collector.paths if path[0] not in parameters)
    return _Names(paths, in_defaults, frozenset(collector.assigned))


class _NameFollower:
    """Follows the names of a kernel through the functions that it calls."""

    def __init__(self) -> None:
        self.runs_code = False
        self.reads_unhashed = False
        self._functions: dict[int, object] = {}

    def add_function(self, function: Any) -> None:
        """Follow the names of a function of ``triton.jit``."""
        if id(function) in self._functions:
            return
        is_kernel = not self._functions
        self._functions[id(function)] = function
        names = _names_in(function.src)
        cells, scope = closure_cells(function.fn), function.fn.__globals__
        for path in names.paths:
            self._add_path(path, names.assigned, cells, scope)
        if is_kernel:
            self.runs_code |= vars(function).get("_repr") is not None  # Triton calls it for the kernel's name
        else:
            self._add_defaults(function.fn, names, {**scope, **cells})

    def add_constant(self, value: object) -> None:
        """Follow an argument that is compiled in. Triton's key of the kernel holds the argument."""
        value = _unwrapped(value)
        if _is_of_class(value, "JITFunction"):
            self._add_value(value, is_hashed=True)
        elif not _is_plain(value):
            self.runs_code = True

    def _add_defaults(self, function: FunctionType, names: _Names, scope: Mapping[str, object]) -> None:
        """Follow the defaults of a function that a kernel calls: Triton's hash holds only their text."""
        for default in function.__defaults__ or ():
            self.add_constant(default)
        for default in (function.__kwdefaults__ or {}).values():
            self.add_constant(default)
        for path in names.in_defaults:
            self.reads_unhashed |= not _belongs_to_triton(scope.get(path[0]))

    def _add_path(
        self, path: tuple[str, ...], assigned: frozenset[str], cells: Mapping[str, object], scope: Mapping[str, object]
    ) -> None:
        """Follow a dotted name of a function.

        :param assigned: the names that the function assigns: the hash lacks a global of such a name.
        :param cells: the values in the closure of the function.
        :param scope: its globals.
        """
        name, *attributes = path
        if name not in cells and name not in scope:
            return  # the name is a built-in function, which Triton knows, or an error
        value = cells.get(name, scope.get(name))
        if _is_module(value):
            if name not in assigned:  # else a variable of the kernel hides the module
                self._add_path_in_module(value, attributes)
            return
        # If the closure and the globals have the name with two values, the hash holds the global's value.
        is_hidden = name in cells and scope.get(name, value) is not value
        is_hashed = name not in _UNHASHED_NAMES and name not in assigned and not is_hidden
        if name in _UNHASHED_NAMES or _is_readable(value):
            self._add_value(value, is_hashed, is_global=True, has_attributes=bool(attributes))

    def _add_path_in_module(self, value: Any, attributes: list[str]) -> None:
        """Follow a dotted name that begins with a module."""
        owner = value
        while _is_module(value):
            if not attributes:
                self.runs_code = True  # a function that gets a module may use any of its values
                return
            owner, attribute = value, attributes.pop(0)
            if attribute not in vars(owner):
                # The module may compute the attribute; else the kernel is wrong.
                self.runs_code |= "__getattr__" in vars(owner) or type(owner) is not ModuleType
                return
            value = vars(owner)[attribute]
        is_safe = _belongs_to_triton(value) or _is_plain(value) or type(value) is BuiltinFunctionType
        if is_safe and (owner is math or _belongs_to_triton(owner)):
            self.runs_code |= _is_static_print(value)
        else:
            # Triton does not hash the values of its own modules.
            self._add_value(value, not _belongs_to_triton(owner), has_attributes=bool(attributes))

    def _add_value(self, value: Any, is_hashed: bool, *, is_global: bool = False, has_attributes: bool = False) -> None:
        """Follow the value that a name stands for.

        :param is_hashed: the hash holds the value, if it holds values of this kind at all.
        :param is_global: the name is a global, or a variable of a closure.
        :param has_attributes: attributes of the value follow.
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


# The functions below do not use isinstance: it asks proxies for their class, which may run their code.
def _is_of_class(value: object, name: str) -> bool:
    """Whether a value is of a class of Triton with this name, or of a derived class."""
    for cls in type(value).__mro__:
        if cls.__name__ == name and cls.__module__ in (JIT_MODULE, LANGUAGE_MODULE):
            return True
    return False


def _is_module(value: object) -> bool:
    return issubclass(type(value), ModuleType)


def _is_plain(value: Any) -> bool:
    """Whether a value can neither change nor run any code, as the dtypes of all libraries."""
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
    # A decorator of Triton puts a function with Triton's code around a user's function.
    innermost = inspect.unwrap(function)
    folder = os.path.dirname(str(sys.modules["triton"].__file__))
    return type(innermost) is FunctionType and innermost.__code__.co_filename.startswith(folder + os.sep)


def _is_static_print(value: Any) -> bool:
    """Whether a value of Triton is ``static_print`` of ``tl`` or of Gluon."""
    return type(value) is FunctionType and value.__name__ == "static_print"


def _is_readable(value: Any) -> bool:
    """Whether Triton lets a kernel read a global that has this value; otherwise a variable of the kernel hides it."""
    if value is None or any(_is_of_class(value, name) for name in _READABLE_CLASSES):
        return True
    cls = type(value)
    if issubclass(cls, type):
        cls = value
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return True
    if any(_attribute(value, mark) for mark in _MARKS):
        return True
    if str(_attribute(value, "__module__")).startswith(_LANGUAGES):
        return True
    return bool(find_module("knobs").compilation.allow_non_constexpr_globals)


def _attribute(value: Any, name: str) -> object:
    """Return an attribute of a value without running code of its class; None if it has none."""
    if type(value) is FunctionType:
        return getattr(value, name, None)
    return inspect.getattr_static(value, name, None)


@lru_cache(maxsize=1)
def _hashes_constants() -> bool:
    """Whether Triton's hash holds the globals that are ``tl.constexpr``: since 3.5."""
    return hasattr(find_module("runtime.jit"), "JITCallable")
