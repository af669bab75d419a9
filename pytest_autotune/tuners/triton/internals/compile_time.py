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
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

from pytest_autotune.tuners.source.compiled_code import parse
from pytest_autotune.tuners.source.functions import closure_cells
from pytest_autotune.tuners.triton.internals.compiler import JIT_MODULE, LANGUAGE_MODULE, find_module

#: A kernel may use a global with one of these names, whatever its value is. Triton's hash does not contain the value.
_UNHASHED_NAMES = frozenset(
    {"float", "getattr", "hasattr", "int", "isinstance", "len", "list", "max", "min", "print", "range"}
)
#: A kernel may use a global of one of these classes.
_USABLE_CLASSES = ("JITCallable", "JITFunction", "constexpr", "dtype")
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
        """Return the restrictions on the compilation of a kernel, as they are now. A global may change later.

        :param kernel: Triton's ``JITFunction``.
        :param constants: the arguments that are compiled in.
        """
        follower = _NameFollower()
        try:
            follower.add_function(kernel)
            for constant in constants:
                follower.add_constant(constant)
        except Exception:
            # This module cannot follow the names of the kernel, so both restrictions hold.
            return cls(needs_launching_thread=True, needs_launch=True)
        return cls(
            needs_launching_thread=follower.runs_code,
            needs_launch=follower.runs_code or follower.reads_unhashed,
        )


#: A dotted name, split at the dots: ``tl.float32.name`` is ``("tl", "float32", "name")``.
_Path = tuple[str, ...]


@dataclass(frozen=True)
class _Names:
    """The names in the source of a function that may stand for values outside the function.

    :param paths: the dotted names in the body.
    :param paths_in_defaults: the dotted names in the defaults of the parameters.
    :param variables: the names of the function's own variables.
    """

    paths: frozenset[_Path]
    paths_in_defaults: frozenset[_Path]
    variables: frozenset[str]


class NameUse(NamedTuple):
    """How the source of a function uses a name, and whether Triton's hash covers the name.

    :param is_seen_by_hash: whether Triton looks at the value when it computes the hash. It then adds values of some
        kinds to the hash, and leaves others out.
    :param is_global: whether the name is a global, or a variable of a closure, and not an attribute.
    :param has_attributes: whether the source reads an attribute of the value.
    """

    is_seen_by_hash: bool
    is_global: bool = False
    has_attributes: bool = False


class _NameCollector(ast.NodeVisitor):
    """Collects the dotted names that a syntax tree reads, and the names that it assigns."""

    def __init__(self) -> None:
        self.paths: set[_Path] = set()
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
def _find_names(source: str) -> _Names:
    """Return the names in the source of a function that may stand for values outside the function.

    :param source: the source as Triton keeps it: it begins with ``def``, without decorators.
    """
    function = parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    collector = _NameCollector()
    for default in (*function.args.defaults, *function.args.kw_defaults):
        if default is not None:  # None stands for a keyword parameter without a default
            collector.visit(default)
    paths_in_defaults = frozenset(collector.paths)
    # Triton evaluates the annotations of variables, but not those of parameters, so only the body is visited. The
    # collector adds its names to the names in the defaults.
    for statement in function.body:
        collector.visit(statement)
    parameters = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
    paths = frozenset(path for path in collector.paths if path[0] not in parameters)
    return _Names(paths, paths_in_defaults, variables=frozenset(collector.assigned))


class _NameFollower:
    """Follows the names of a kernel to their values, also in the functions that the kernel calls.

    Each value may set :attr:`runs_code` or :attr:`reads_unhashed`.
    """

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
        names = _find_names(function.src)
        closure = closure_cells(function.fn)
        module_globals = function.fn.__globals__
        for path in names.paths:
            self._add_path(path, names.variables, closure, module_globals)
        if not is_kernel:
            self._add_defaults(function.fn, names, {**module_globals, **closure})
        # Triton calls the user's function in repr= to get the name of the kernel.
        elif vars(function).get("_repr") is not None:
            self.runs_code = True

    def add_constant(self, value: object) -> None:
        """Follow an argument that is compiled in. Triton's hash contains the value of such an argument."""
        value = _unwrapped(value)
        if _is_of_class(value, "JITFunction"):
            self._add_value(value, NameUse(is_seen_by_hash=True))
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
        for path in names.paths_in_defaults:
            if not _belongs_to_triton(scope.get(path[0])):
                self.reads_unhashed = True

    def _add_path(
        self,
        path: _Path,
        variables: frozenset[str],
        closure: Mapping[str, object],
        module_globals: Mapping[str, object],
    ) -> None:
        """Follow a dotted name of a function to its value.

        :param variables: the names of the function's own variables.
        :param closure: the values in the closure of the function, by name.
        :param module_globals: the globals of the function.
        """
        name, *attributes = path
        # The name is a built-in function, which Triton knows, or the kernel is wrong.
        if name not in closure and name not in module_globals:
            return
        value = closure.get(name, module_globals.get(name))
        if _is_module(value):
            # A variable with the name of a module hides the module.
            if name not in variables:
                self._add_path_in_module(value, attributes)
            return
        may_use_value = name in _UNHASHED_NAMES or _is_usable_in_kernel(value)
        if not may_use_value:
            # Triton refuses the kernel, or the name is a variable of the kernel, and the compilation reads no global.
            return
        # Triton hashes no global with the name of a variable, or with one of the unhashed names.
        is_hashed_name = name not in _UNHASHED_NAMES and name not in variables
        # The compilation uses the value in the closure. If a global has the same name, Triton hashes the global.
        is_other_value_hashed = name in closure and module_globals.get(name, value) is not value
        is_seen_by_hash = is_hashed_name and not is_other_value_hashed
        self._add_value(value, NameUse(is_seen_by_hash, is_global=True, has_attributes=bool(attributes)))

    def _add_path_in_module(self, module: Any, attributes: Sequence[str]) -> None:
        """Follow a dotted name that begins with a module.

        :param attributes: the names after the module: ``["core", "float32"]`` for ``tl.core.float32``. If ``core`` is a
            module as well, the method follows ``["float32"]`` in it.
        """
        if not attributes:
            # The kernel passes the module to a function, which may use any value of the module.
            self.runs_code = True
            return
        name, *further_attributes = attributes
        if name not in vars(module):
            # The module computes the attribute by its own code. If it has no such code, the kernel is wrong.
            if "__getattr__" in vars(module) or type(module) is not ModuleType:
                self.runs_code = True
            return
        value = vars(module)[name]
        if _is_module(value):
            self._add_path_in_module(value, further_attributes)
        else:
            self._add_module_attribute(module, value, has_attributes=bool(further_attributes))

    def _add_module_attribute(self, module: Any, value: Any, has_attributes: bool) -> None:
        """Follow the value of a module's attribute, such as ``tl.float32``.

        :param has_attributes: whether the source reads an attribute of the value, as in ``tl.float32.name``.
        """
        # The values of Triton's modules and of math do not change, unless user code has put them there.
        is_fixed = _belongs_to_triton(value) or _is_plain(value) or type(value) is BuiltinFunctionType
        if is_fixed and (module is math or _belongs_to_triton(module)):
            if _is_static_print(value):
                self.runs_code = True
            return
        # Triton's hash contains no values of Triton's modules.
        is_seen_by_hash = not _belongs_to_triton(module)
        self._add_value(value, NameUse(is_seen_by_hash, has_attributes=has_attributes))

    def _add_value(self, value: Any, use: NameUse) -> None:
        """Note the restrictions that follow from the value of a name. They depend on the class of the value."""
        if _is_of_class(value, "constexpr"):
            self._add_constexpr(value, use)
        elif _is_of_class(value, "JITFunction"):
            self._add_jit_function(value, use)
        elif _belongs_to_triton(value):
            self._add_part_of_triton(value, use)
        elif _is_plain(value):
            # A number or a text runs no code, and Triton's hash does not contain it.
            self.reads_unhashed = True
        else:
            self.runs_code = True

    def _add_constexpr(self, constexpr: Any, use: NameUse) -> None:
        """Note the restrictions of a ``tl.constexpr``. Since Triton 3.5, the hash contains a plain one in a global."""
        inner = _unwrapped(constexpr)
        is_plain = _is_plain(inner)
        is_in_hash = use.is_seen_by_hash and use.is_global and _hashes_constants() and is_plain
        if not is_in_hash:
            self.reads_unhashed = True
        if not is_plain:
            self._add_value(inner, NameUse(is_seen_by_hash=False, has_attributes=use.has_attributes))

    def _add_jit_function(self, function: Any, use: NameUse) -> None:
        """Note the restrictions of a function that ``triton.jit`` decorates. The names in its source also count."""
        if use.has_attributes:
            # The attribute of a function is of an unknown kind.
            self.runs_code = True
        if not use.is_seen_by_hash:
            self.reads_unhashed = True
        if not _belongs_to_triton(function):
            self.add_function(function)

    def _add_part_of_triton(self, part: Any, use: NameUse) -> None:
        """Note the restrictions that follow from a class, function or dtype in Triton's own modules.

        Only ``tl.static_print`` needs the launching thread, because it prints. The hash contains the functions that
        Triton's ``constexpr_function`` decorates, and leaves out all other parts of Triton.
        """
        if _is_static_print(part):
            self.runs_code = True
        is_in_hash = use.is_seen_by_hash and _is_of_class(part, "ConstexprFunction")
        if not is_in_hash:
            self.reads_unhashed = True


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
    """Whether a module, a class, a function or a dtype belongs to Triton's package. Other values never do."""
    if _is_module(value):
        return str(value.__name__).partition(".")[0] == "triton"
    if issubclass(type(value), type):
        return str(value.__module__).partition(".")[0] == "triton"
    if _is_of_class(value, "dtype"):
        return True
    function = value
    # The Python function under triton.jit.
    if _is_of_class(value, "JITCallable") or _is_of_class(value, "JITFunction"):
        function = value.fn
    if type(function) is not FunctionType:
        return False
    # A decorator of Triton can put a function with Triton's code around a user's function. The inner function decides.
    innermost = inspect.unwrap(function)
    if type(innermost) is not FunctionType:
        return False
    triton_folder = os.path.dirname(str(sys.modules["triton"].__file__))
    return innermost.__code__.co_filename.startswith(triton_folder + os.sep)


def _is_static_print(value: Any) -> bool:
    """Whether a value of Triton is ``static_print`` of ``tl`` or of Gluon."""
    return type(value) is FunctionType and value.__name__ == "static_print"


def _is_usable_in_kernel(value: Any) -> bool:
    """Whether Triton lets a kernel use a global with this value.

    Otherwise the global never matters: either a local variable of the kernel has the same name, or Triton refuses the
    kernel.
    """
    if value is None or any(_is_of_class(value, name) for name in _USABLE_CLASSES):
        return True
    # A named tuple, or its class.
    cls = type(value)
    if issubclass(cls, type):
        cls = value
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return True
    # A part of Triton's languages, or a class or function that a decorator of Triton has marked.
    if any(_find_attribute(value, mark) for mark in _MARKS):
        return True
    if str(_find_attribute(value, "__module__")).startswith(_LANGUAGES):
        return True
    # With this setting, Triton lets a kernel use every global.
    return bool(find_module("knobs").compilation.allow_non_constexpr_globals)


def _find_attribute(value: Any, name: str) -> object:
    """Return an attribute of a value without running code of the value's class; None if there is no such attribute."""
    if type(value) is FunctionType:
        return getattr(value, name, None)
    return inspect.getattr_static(value, name, None)


@lru_cache(maxsize=1)
def _hashes_constants() -> bool:
    """Whether Triton's hash contains globals of the class ``tl.constexpr``, as it does since 3.5."""
    return hasattr(find_module("runtime.jit"), "JITCallable")
