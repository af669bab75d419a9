"""The Python values that Triton reads while it compiles a kernel: may another thread, or an earlier time, read them?

Triton looks up the names of a kernel's functions when it compiles them, and calls Python functions that it finds. Most
values are in Triton's hash of the kernel: a launch with another value looks for another file. The others decide where
a kernel may be compiled:

- Python code outside Triton's package may read what a test has set, in its thread or its context.
- A value that is not in the hash may be another one when the test launches the kernel.

A kernel with a value that is not known here counts as both. No value is asked for anything but its class and its name.
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
from pytest_autotune.tuners.triton.internals.environment import JIT_MODULE, LANGUAGE_MODULE, module

#: Triton lets a kernel read any global of such a name, and leaves it out of the hash.
_UNHASHED_NAMES = frozenset(
    {"float", "getattr", "hasattr", "int", "isinstance", "len", "list", "max", "min", "print", "range"}
)
#: Triton lets a kernel read a global of one of these classes of Triton's,
_READABLE_CLASSES = ("JITCallable", "JITFunction", "constexpr", "dtype")
#: with one of these marks,
_MARKS = ("__triton_builtin__", "__triton_aggregate__")
#: and of a module whose name begins so.
_LANGUAGES = ("triton.language", "triton.experimental.gluon.language")
_PLAIN = (bool, int, float, complex, str, bytes, type(None))


@dataclass(frozen=True)
class CompileTime:
    """How the compilation of a kernel depends on its thread and its time.

    :param needs_thread: only the thread that launches the kernel may compile it: Python code outside Triton's package
        runs, or ``tl.static_print`` prints.
    :param needs_time: only the launch may compile it: Triton reads a value that is not in its hash of the kernel.
    """

    needs_thread: bool
    needs_time: bool

    @classmethod
    def of(cls, kernel: Any, constants: Iterable[object] = ()) -> CompileTime:
        """Return how the compilation of a kernel depends on its thread and its time.

        :param kernel: Triton's ``JITFunction``.
        :param constants: the arguments that are compiled in.
        """
        walk = _Walk()
        try:
            walk.add_function(kernel)
            for constant in constants:
                walk.add_constant(constant)
        except Exception:  # nothing is sure of a kernel that cannot be followed
            return cls(needs_thread=True, needs_time=True)
        return cls(walk.runs_code, walk.runs_code or walk.reads_unhashed)


@dataclass(frozen=True)
class _Names:
    """The names in the source of a function that may stand for values outside of it.

    :param paths: dotted names, as long as they stand in the source: ``("tl", "float32", "name")``.
    :param in_defaults: those in the defaults of the parameters.
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


class _Walk:
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
        """Follow an argument that is compiled in, and is in the key of the kernel."""
        value = _unwrapped(value)
        if _is_of_class(value, "JITFunction"):
            self._add_value(value, is_hashed=True)
        elif not _is_plain(value):
            self.runs_code = True

    def _add_defaults(self, function: FunctionType, names: _Names, scope: Mapping[str, object]) -> None:
        """Follow the defaults of a function that a kernel calls: in Triton's hash is only their text."""
        for default in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
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
            return  # it is a function of Python's, which Triton knows, or an error
        value = cells.get(name, scope.get(name))
        if _is_module(value):
            if name not in assigned:  # else a variable of the kernel hides the module
                self._add_path_in_module(value, attributes)
            return
        # The hash has the global where the closure has another value of the same name.
        is_hidden = name in cells and scope.get(name, value) is not value
        is_hashed = name not in _UNHASHED_NAMES and name not in assigned and not is_hidden
        if name in _UNHASHED_NAMES or _is_readable(value):
            self._add_value(value, is_hashed, is_global=True, has_attributes=bool(attributes))

    def _add_path_in_module(self, value: Any, attributes: list[str]) -> None:
        """Follow a dotted name that begins with a module."""
        owner = value
        while _is_module(value):
            if not attributes:
                self.runs_code = True  # whoever is handed a module may take anything from it
                return
            owner, attribute = value, attributes.pop(0)
            if attribute not in vars(owner):
                # The module may compute it; else the kernel is wrong.
                self.runs_code |= "__getattr__" in vars(owner) or type(owner) is not ModuleType
                return
            value = vars(owner)[attribute]
        is_own = _belongs_to_triton(value) or _is_plain(value) or type(value) is BuiltinFunctionType
        if is_own and (owner is math or _belongs_to_triton(owner)):
            self.runs_code |= _is_static_print(value)
        else:
            # Triton does not look into its own modules for what belongs into the hash.
            self._add_value(value, not _belongs_to_triton(owner), has_attributes=bool(attributes))

    def _add_value(self, value: Any, is_hashed: bool, *, is_global: bool = False, has_attributes: bool = False) -> None:
        """Follow the value that a name stands for.

        :param is_hashed: the hash has the value if it has values of this kind.
        :param is_global: the name is that of a global or of a variable of a closure.
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


# Not isinstance, here and below: it asks proxies for their class, which may run code of theirs.
def _is_of_class(value: object, name: str) -> bool:
    """Whether a value is of a class of Triton with this name, or of one that is derived from it."""
    return any(cls.__name__ == name and cls.__module__ in (JIT_MODULE, LANGUAGE_MODULE) for cls in type(value).__mro__)


def _is_module(value: object) -> bool:
    return issubclass(type(value), ModuleType)


def _is_plain(value: Any) -> bool:
    """Whether a value can neither change nor run any code; dtypes of all libraries are such values."""
    if type(value) is tuple:
        return all(map(_is_plain, value))
    return type(value) in _PLAIN or type(value).__name__ == "dtype"


def _belongs_to_triton(value: Any) -> bool:
    """Whether a module, a class, a function or a dtype is of Triton's own package."""
    if _is_module(value):
        return str(value.__name__).partition(".")[0] == "triton"
    if issubclass(type(value), type):
        return str(value.__module__).partition(".")[0] == "triton"
    if _is_of_class(value, "dtype"):
        return True
    function = value.fn if _is_of_class(value, "JITCallable") or _is_of_class(value, "JITFunction") else value
    if type(function) is not FunctionType:
        return False
    # Around a user's function, a decorator of Triton's has put one that has Triton's code.
    innermost = inspect.unwrap(function)
    folder = os.path.dirname(str(sys.modules["triton"].__file__))
    return type(innermost) is FunctionType and innermost.__code__.co_filename.startswith(folder + os.sep)


def _is_static_print(value: Any) -> bool:
    """Whether a value of Triton's is ``tl.static_print``, or Gluon's."""
    return type(value) is FunctionType and value.__name__ == "static_print"


def _is_readable(value: Any) -> bool:
    """Whether Triton lets a kernel read a global that has this value; otherwise a variable of the kernel hides it."""
    if value is None or any(_is_of_class(value, name) for name in _READABLE_CLASSES):
        return True
    cls = value if issubclass(type(value), type) else type(value)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return True
    if any(_attribute(value, mark) for mark in _MARKS) or str(_attribute(value, "__module__")).startswith(_LANGUAGES):
        return True
    return bool(module("knobs").compilation.allow_non_constexpr_globals)


def _attribute(value: Any, name: str) -> object:
    """Return an attribute of a value without running code of its class; None if it has none."""
    if type(value) is FunctionType:
        return getattr(value, name, None)
    return inspect.getattr_static(value, name, None)


@lru_cache(maxsize=1)
def _hashes_constants() -> bool:
    """Whether Triton's hash has the globals that are ``tl.constexpr``: since 3.5."""
    return hasattr(module("runtime.jit"), "JITCallable")
