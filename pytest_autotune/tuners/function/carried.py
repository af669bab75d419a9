"""What the functions of a key or of a space carry: two functions of one factory differ in nothing else.

A function carries the values of its closure, defaults that its source does not write out, and what the functions among
these carry. It carries, too, the arguments of a ``partial``, the object of a method, and the attributes of an object of
the suite's own that wraps it. Left out are functions and classes of the suite that carry nothing: the digest of the
source has them (:mod:`pytest_autotune.tuners.shared.source_digest`).

A function that its module has under its own name is made once. Its name tells it from others, so it may carry anything.
"""

from __future__ import annotations

import ast
import builtins
import dataclasses
import dis
import enum
import inspect
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, ModuleType
from typing import Any

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.shared.code_text import find_definition
from pytest_autotune.tuners.shared.functions import (
    closure_cells,
    is_library_code,
    list_layers,
    python_function,
    qualified_name,
)
from pytest_autotune.tuners.shared.scalars import unwrapped
from pytest_autotune.tuners.shared.source_digest import class_digest, immutable_text, source_digest


class CarriedError(TypeError):
    """A function carries a value without a stable form, so it cannot be told from others of its factory."""


def carried_text(value: object) -> str:
    """Return what a function carries, as text that is the same in every process; empty where it carries nothing.

    :param value: the function, or what its decorators made of it.
    :raises CarriedError: for a value without a stable form.
    """
    function = python_function(value)
    return _CarriedReader("" if function is None else qualified_name(function)).carried(value, "")


class _CarriedReader:
    """The way through all that one function carries.

    :param name: of the function, for messages.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        #: Number of a function or class -> what it carries; empty while that is being read.
        self._texts: dict[int, str] = {}
        #: Holds them: the number of an object that has gone might be another's.
        self._seen: list[object] = []

    def carried(self, value: object, path: str) -> str:
        """Return what a function or a class carries, also by what its decorators made of it.

        :param path: the names that lead to it, each with a dot at its end.
        """
        if id(value) not in self._texts:
            self._seen.append(value)
            self._texts[id(value)] = ""
            lines = self._of_class(value, path) if isinstance(value, type) else self._of_layers(value, path)
            try:
                self._texts[id(value)] = "\n".join(lines)
            except CarriedError:
                if not _public_name(value):
                    raise
        return self._texts[id(value)]

    def _of_class(self, cls: type, path: str) -> Iterator[str]:
        for name, member in sorted(vars(cls).items()):
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(function, FunctionType) and (text := self.carried(function, f"{path}{name}.")):
                yield f"{name}: {text}"

    def _of_layers(self, value: object, path: str) -> Iterator[str]:
        wrapped = list(list_layers(value))
        for layer in wrapped:
            if isinstance(layer, FunctionType):
                yield from self._of_function(layer, path)
            elif isinstance(layer, partial) or inspect.ismethod(layer):
                yield self._text(layer, path)
            elif not is_library_code(type(layer)):
                for name, attribute in _attributes(layer):
                    if not any(attribute is inner for inner in wrapped):
                        yield f"{name}={self._text(attribute, path + name)}"

    def _of_function(self, function: FunctionType, path: str) -> Iterator[str]:
        rebound = set(_rebound(function.__code__))
        for name, value in [*closure_cells(function).items(), *_unwritten_defaults(function)]:
            if name in rebound:
                raise self._error(path + name, "which the function sets itself")
            if not self._is_in_source_digest(value, f"{path}{name}."):
                yield f"{name}={self._text(value, path + name)}"

    def _is_in_source_digest(self, value: object, path: str) -> bool:
        """Whether the source of a function that names a value says all of it."""
        code = python_function(value) or value
        return isinstance(code, (FunctionType, type)) and not is_library_code(code) and not self.carried(value, path)

    def _text(self, value: object, path: str) -> str:
        """Return the stable form of a value.

        :raises CarriedError: where it has none.
        """
        value = unwrapped(value)
        if isinstance(value, ModuleType):
            return f"module {value.__name__}"
        if isinstance(value, partial):
            return self._of_partial(value, path)
        if inspect.ismethod(value) and not _public_name(value):
            return f"{self._text(value.__func__, path)} of {self._text(value.__self__, f'{path}.__self__')}"
        if isinstance(value, type) or python_function(value) is not None:
            return self._of_code(value, path)
        text = _public_name(value) or self._of_data(value, path)
        if not text:
            raise self._error(path, f"a {type(value).__qualname__}, which has no stable form")
        return text

    def _of_partial(self, value: partial[Any], path: str) -> str:
        parts = [self._text(value.func, path), *self._items(value.args, path)]
        for name, part in sorted(value.keywords.items()):
            parts.append(f"{name}={self._text(part, f'{path}.{name}')}")
        return f"partial({', '.join(parts)})"

    def _of_code(self, value: Any, path: str) -> str:
        code = python_function(value) or value
        name = f"{code.__module__}.{code.__qualname__}"
        if is_library_code(code):
            return _public_name(value) or f"{name}({self.carried(value, f'{path}.')})"
        try:
            digest = class_digest(code) if isinstance(code, type) else source_digest(value, carried=False)
        except UncacheableError as error:
            raise self._error(path, str(error)) from None
        return f"{name}@{digest}({self.carried(value, f'{path}.')})"

    def _of_data(self, value: Any, path: str) -> str | None:
        """Return the form of a value that cannot change; None for any other."""
        cls: Any = type(value)
        name = f"{cls.__module__}.{cls.__qualname__}"
        if isinstance(value, enum.Enum):
            return f"{name}.{value.name}={immutable_text(value.value)}"
        if isinstance(value, tuple):
            return f"{name}({', '.join(self._items(value, path))})"
        if isinstance(value, frozenset):
            return f"{name}({', '.join(sorted(self._items(value, path)))})"
        if dataclasses.is_dataclass(value) and cls.__dataclass_params__.frozen:
            parts = [
                self._text(getattr(value, field.name), f"{path}.{field.name}") for field in dataclasses.fields(cls)
            ]
            return f"{name}({', '.join(parts)})"
        return immutable_text(value)

    def _items(self, values: Iterable[object], path: str) -> list[str]:
        return [self._text(value, path) for value in values]

    def _error(self, path: str, why: str) -> CarriedError:
        mend = "carry numbers, text, dtypes, enum members, tuples or functions, or define it at the top of its module"
        return CarriedError(f"the function {self._name} carries {path.strip('.')}, {why} ({mend})")


def _attributes(wrapper: object) -> Iterator[tuple[str, object]]:
    """Yield the attributes of an object but those that describe what it wraps, sorted."""
    names = set(getattr(wrapper, "__dict__", ()))
    for cls in type(wrapper).__mro__:
        slots = vars(cls).get("__slots__", ())
        names.update([slots] if isinstance(slots, str) else slots)
    for name in sorted(names):
        if not name.startswith("__") and hasattr(wrapper, name):
            yield name, getattr(wrapper, name)


def _rebound(code: CodeType) -> Iterator[str]:
    """Yield the names of a closure that code sets, functions inside it included."""
    for instruction in dis.get_instructions(code):
        if instruction.opname in ("STORE_DEREF", "DELETE_DEREF") and instruction.argval in code.co_freevars:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _rebound(constant)


def _unwritten_defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the defaults of a function that its source does not write out: those of a factory, or of a loop."""
    positional = function.__code__.co_varnames[: function.__code__.co_argcount]
    values = function.__defaults__ or ()
    defaults = dict(zip(positional[len(positional) - len(values) :], values, strict=True))
    defaults |= function.__kwdefaults__ or {}
    if not defaults:
        return
    try:
        definition = find_definition(function)
    except UncacheableError:
        yield from defaults.items()
        return
    # A def at the beginning of a line is made once, so it has no other defaults than those.
    if isinstance(definition, ast.FunctionDef) and definition.col_offset == 0:
        return
    expressions = _default_expressions(definition)
    for name, value in defaults.items():
        if name not in expressions or not _writes_out(expressions[name], value, function):
            yield name, value


def _default_expressions(definition: Any) -> dict[str, ast.expr]:
    arguments: ast.arguments = definition.args
    positional = [*arguments.posonlyargs, *arguments.args]
    first = len(positional) - len(arguments.defaults)
    expressions = {}
    for parameter, default in zip(positional[first:], arguments.defaults, strict=True):
        expressions[parameter.arg] = default
    for parameter, keyword_default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        if keyword_default is not None:
            expressions[parameter.arg] = keyword_default
    return expressions


def _writes_out(expression: ast.expr, value: object, function: FunctionType) -> bool:
    """Whether source says a default: a literal, or the name of a global."""
    if isinstance(expression, (ast.Name, ast.Attribute)):
        return _global(expression, function) is value
    try:
        literal = ast.literal_eval(expression)
    except ValueError:
        return False
    # What may change while tests run, such as a memo, says nothing.
    return isinstance(literal, (list, dict, set)) or (type(literal) is type(value) and repr(literal) == repr(value))


def _global(expression: ast.expr, function: FunctionType) -> object:
    """Return what a dotted name stands for among the globals of a function; a new object where that is nothing."""
    if isinstance(expression, ast.Attribute):
        return getattr(_global(expression.value, function), expression.attr, object())
    if isinstance(expression, ast.Name):
        return function.__globals__.get(expression.id, getattr(builtins, expression.id, object()))
    return object()


def _public_name(value: Any) -> str:
    """Return the name under which its module has a value, such as ``torch.relu``; empty where that has it not."""
    module = getattr(value, "__module__", None)
    # Those of C functions may name a class of which nobody knows.
    for name in (getattr(value, "__qualname__", None), getattr(value, "__name__", None)):
        if not isinstance(module, str) or not isinstance(name, str) or "<locals>" in name:
            break
        found: object = sys.modules.get(module)
        for part in name.split("."):
            found = getattr(found, part, None)
        if found is value:
            return f"{module}.{name}"
    return ""
