"""Reads the values that a function carries, as text for a key or a configuration.

A function *carries* a value that it got where it was made. Here, ``make(2)`` carries ``factor=2``::

    def make(factor):
        return lambda x: x * factor

Two functions that a factory made have the same source. They differ in the values that they carry:

- the values in the closure;
- the defaults that the source does not write out;
- the arguments of a ``partial``, and the object of a method;
- the attributes of an object of the suite that wraps the function;
- the values that all these functions carry in turn.

A function or class of the suite that carries nothing is left out, because the digest of the source already has it
(:mod:`pytest_autotune.tuners.source.source_digest`).

A value without a stable form is an error, unless the function stands in its module under its own name. The module makes
such a function only once, so its name alone identifies it.
"""

from __future__ import annotations

import ast
import builtins
import dis
import enum
import sys
from collections.abc import Iterable, Iterator
from functools import partial
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from pytest_autotune.cache.model import UncacheableError
from pytest_autotune.tuners.source.attributes import (
    MISSING,
    class_attributes,
    class_module,
    class_name,
    is_dataclass_instance,
    is_frozen,
    is_instance,
    list_field_values,
    list_items,
    list_stored_attributes,
    module_attributes,
    read_stored,
)
from pytest_autotune.tuners.source.code_text import NoDigestError, find_definition
from pytest_autotune.tuners.source.functions import (
    closure_cells,
    list_layers,
    python_function,
    qualified_name,
    read_attribute,
    unwrap_attribute,
    unwrapped,
)
from pytest_autotune.tuners.source.libraries import is_library_code
from pytest_autotune.tuners.source.source_digest import class_digest, immutable_text, source_digest

_REMEDY = "carry numbers, text, dtypes, enum members, tuples or functions, or define it at the top of its module"
#: Stands for a name that no global and no builtin has. It is no value of a default.
_NO_VALUE = object()


class CarriedError(TypeError):
    """A function carries a value without a stable form, so no text tells the function from others of its factory."""


def carried_text(value: object) -> str:
    """Return the values that a function carries, as text that is the same in every process; empty for no values.

    :param value: the function, or the object that its decorators made of it.
    :raises CarriedError: for a value without a stable form.
    :raises NoDigestError: if reading the values fails.
    """
    function = python_function(value)
    name = ""
    if function is not None:
        name = qualified_name(function)
    try:
        return _CarriedReader(name).describe_carried(value, "")
    except (CarriedError, UncacheableError):
        raise
    except Exception as error:  # it must not fail the user's test
        raise NoDigestError(f"the values that {name} carries cannot be read: {type(error).__name__}") from error


class _CarriedReader:
    """Reads all values that one function carries.

    In all methods, ``path`` is the dotted name of a value for messages, such as ``scale.__self__``.

    :param function_name: the name of the function, for messages.
    """

    def __init__(self, function_name: str) -> None:
        self._function_name = function_name
        #: The text of each function and class that was read, by the id of the object. The text of a function that is
        #: being read is empty, so a function that carries itself ends the recursion.
        self._text_by_id: dict[int, str] = {}
        #: The objects of these ids. They stay alive, because Python gives the id of a dead object to a new object.
        self._read_objects: list[object] = []
        #: The ids of the dataclasses' objects that are being read now.
        self._open_objects: set[int] = set()

    def describe_carried(self, value: object, path: str) -> str:
        """Return a line for each value that a function, its decorators, or a class carries; empty for no values.

        :param path: the name of the function with a dot at its end; empty for the function that is read first.
        """
        if id(value) in self._text_by_id:
            return self._text_by_id[id(value)]
        self._read_objects.append(value)
        self._text_by_id[id(value)] = ""
        if is_instance(value, type):
            lines = self._describe_methods(value, path)
        else:
            lines = self._describe_layers(value, path)
        try:
            # This runs the generator, which reads the values.
            text = "\n".join(lines)
        except CarriedError:
            # The name of a public function identifies it, so its values do not count.
            if not _find_public_name(value):
                raise
            text = ""
        self._text_by_id[id(value)] = text
        return text

    def _describe_methods(self, cls: type, path: str) -> Iterator[str]:
        """Yield a line for each method of a class that carries values."""
        for name, member in sorted(class_attributes(cls).items()):
            function = unwrap_attribute(member)
            if type(function) is not FunctionType:
                continue
            text = self.describe_carried(function, f"{path}{name}.")
            if text:
                yield f"{name}: {text}"

    def _describe_layers(self, value: object, path: str) -> Iterator[str]:
        """Yield a line for each value that a function or one of its decorators carries."""
        layers = list(list_layers(value))
        for layer in layers:
            if type(layer) is FunctionType:
                yield from self._describe_function(layer, path)
            elif is_instance(layer, (partial, MethodType)):
                yield self._describe(layer, path)
            elif not is_library_code(type(layer)):
                yield from self._describe_wrapper(layer, layers, path)

    def _describe_wrapper(self, wrapper: object, layers: list[object], path: str) -> Iterator[str]:
        """Yield a line for each attribute of an object of the suite, without the function that the object wraps."""
        for name, attribute in _list_attributes(wrapper):
            is_layer = any(attribute is layer for layer in layers)
            if not is_layer:
                yield f"{name}={self._describe(attribute, path + name)}"

    def _describe_function(self, function: FunctionType, path: str) -> Iterator[str]:
        """Yield a line for each value in the closure and in the unwritten defaults of a function.

        :raises CarriedError: also for a variable that the function assigns: each call may see another value.
        """
        assigned_names = set(_list_assigned_names(function.__code__))
        carried_values = [*closure_cells(function).items(), *_list_unwritten_defaults(function)]
        for name, value in carried_values:
            if name in assigned_names:
                raise self._build_error(path + name, "which the function sets itself")
            if not self._is_in_source_digest(value, f"{path}{name}."):
                yield f"{name}={self._describe(value, path + name)}"

    def _is_in_source_digest(self, value: object, path: str) -> bool:
        """Whether the digest of the source fully describes a value: code of the suite that carries nothing."""
        code = python_function(value) or value
        if not is_instance(code, (FunctionType, type)) or is_library_code(code):
            return False
        return not self.describe_carried(value, path)

    def _describe(self, value: object, path: str) -> str:
        """Return the stable text of a carried value.

        :raises CarriedError: if the value has no stable form.
        """
        value = unwrapped(value)
        if is_instance(value, ModuleType):
            return f"module {module_attributes(value).get('__name__')}"
        if is_instance(value, partial):
            return self._describe_partial(value, path)
        if is_instance(value, MethodType) and not _find_public_name(value):
            function_text = self._describe(value.__func__, path)
            owner_text = self._describe(value.__self__, f"{path}.__self__")
            return f"{function_text} of {owner_text}"
        if is_instance(value, type) or python_function(value) is not None:
            return self._describe_code(value, path)
        text = _find_public_name(value) or self._describe_data(value, path)
        if not text:
            raise self._build_error(path, f"a {class_name(type(value))}, which has no stable form")
        return text

    def _describe_partial(self, value: partial[Any], path: str) -> str:
        """Return ``partial(function, argument, name=argument)`` with the text of each part."""
        parts = [self._describe(value.func, path), *self._describe_items(value.args, path)]
        for name, argument in sorted(value.keywords.items()):
            parts.append(f"{name}={self._describe(argument, f'{path}.{name}')}")
        return f"partial({', '.join(parts)})"

    def _describe_code(self, value: Any, path: str) -> str:
        """Return the name of a function or class, its digest if the suite defines it, and the values that it carries.

        A public function or class of a library is its public name alone.
        """
        code = python_function(value) or value
        name = f"{read_attribute(code, '__module__')}.{read_attribute(code, '__qualname__')}"
        if is_library_code(code):
            public_name = _find_public_name(value)
            if public_name:
                return public_name
            return f"{name}({self.describe_carried(value, f'{path}.')})"
        try:
            if is_instance(code, type):
                digest = class_digest(code)
            else:
                digest = source_digest(value, carried=False)
        except UncacheableError as error:
            raise self._build_error(path, str(error)) from None
        carried_values = self.describe_carried(value, f"{path}.")
        return f"{name}@{digest}({carried_values})"

    def _describe_data(self, value: Any, path: str) -> str | None:
        """Return the text of data that cannot change, such as ``builtins.tuple(1, 2)``; None for other data."""
        cls = type(value)
        name = f"{class_module(cls)}.{class_name(cls)}"
        if is_instance(value, enum.Enum):
            return f"{name}.{read_stored(value, '_name_')}={immutable_text(read_stored(value, '_value_'))}"
        if is_instance(value, tuple):
            return f"{name}({', '.join(self._describe_items(list_items(value), path))})"
        if is_instance(value, frozenset):
            # The order of a set differs between processes.
            items = sorted(self._describe_items(frozenset.__iter__(value), path))
            return f"{name}({', '.join(items)})"
        if is_dataclass_instance(value) and is_frozen(cls):
            return f"{name}({', '.join(self._describe_fields(value, path))})"
        return immutable_text(value)

    def _describe_fields(self, value: object, path: str) -> list[str]:
        """Return the text of each field of a frozen dataclass's object, which may contain the object itself."""
        if id(value) in self._open_objects:
            return ["recursive"]
        self._open_objects.add(id(value))
        texts = []
        for name, field_value in list_field_values(value):
            if field_value is MISSING:
                texts.append("unset")
            else:
                texts.append(self._describe(field_value, f"{path}.{name}"))
        self._open_objects.discard(id(value))
        return texts

    def _describe_items(self, values: Iterable[object], path: str) -> list[str]:
        return [self._describe(value, path) for value in values]

    def _build_error(self, path: str, problem: str) -> CarriedError:
        """Return an error that names the function, the value at ``path`` and the remedy."""
        subject = f"the function {self._function_name} carries {path.strip('.')}"
        return CarriedError(f"{subject}, {problem} ({_REMEDY})")


def _list_attributes(wrapper: object) -> Iterator[tuple[str, object]]:
    """Yield the names and values of an object's attributes, sorted by name, without ``__wrapped__`` and the like."""
    for name, value in list_stored_attributes(wrapper):
        if not name.startswith("__"):
            yield name, value


def _list_assigned_names(code: CodeType) -> Iterator[str]:
    """Yield the names of closure variables that some code, or a function inside it, assigns or deletes."""
    for instruction in dis.get_instructions(code):
        is_assignment = instruction.opname in ("STORE_DEREF", "DELETE_DEREF")
        if is_assignment and instruction.argval in code.co_freevars:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _list_assigned_names(constant)


def _list_unwritten_defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    """Yield the parameters whose default is not written in the source of the function, and the default.

    In a factory, the default of ``def scaled(x, factor=factor)`` is another value for each call of the factory. The
    default of ``def scaled(x, factor=2)`` is written out, and the digest of the source has it.
    """
    defaults = _read_defaults(function)
    if not defaults:
        return
    try:
        definition = find_definition(function)
    except UncacheableError:
        # Without a source, every default counts.
        yield from defaults.items()
        return
    # A def without indentation is no part of a factory. Its module makes the function once, with a single default.
    if isinstance(definition, ast.FunctionDef) and definition.col_offset == 0:
        return
    expressions = _list_default_expressions(definition)
    for name, value in defaults.items():
        if name not in expressions or not _is_written_out(expressions[name], value, function):
            yield name, value


def _read_defaults(function: FunctionType) -> dict[str, object]:
    """Return the default of each parameter that has a default, by the name of the parameter."""
    values = function.__defaults__ or ()
    positional_names = function.__code__.co_varnames[: function.__code__.co_argcount]
    # Only the last positional parameters have defaults.
    names = positional_names[len(positional_names) - len(values) :]
    defaults = dict(zip(names, values, strict=True))
    return {**defaults, **(function.__kwdefaults__ or {})}


def _list_default_expressions(definition: Any) -> dict[str, ast.expr]:
    """Return the expression of each default in a ``def`` or a lambda, by the name of the parameter."""
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


def _is_written_out(expression: ast.expr, value: object, function: FunctionType) -> bool:
    """Whether the expression of a default tells its value: it is a literal, or the name of a global.

    ``factor=factor`` tells nothing, because ``factor`` is a variable of the factory.
    """
    if isinstance(expression, (ast.Name, ast.Attribute)):
        return _find_global(expression, function) is value
    try:
        literal = ast.literal_eval(expression)
    except ValueError:
        # The expression is computed: ``factor=2 * n``.
        return False
    # A list, dict or set, such as a memo, may change while tests run. No digest holds its contents.
    if isinstance(literal, (list, dict, set)):
        return True
    return type(literal) is type(value) and repr(literal) == repr(value)


def _find_global(expression: ast.expr, function: FunctionType) -> object:
    """Return the value of a dotted name among the globals of a function; ``_NO_VALUE`` if there is none."""
    if isinstance(expression, ast.Attribute):
        return read_stored(_find_global(expression.value, function), expression.attr, _NO_VALUE)
    if isinstance(expression, ast.Name):
        builtin = getattr(builtins, expression.id, _NO_VALUE)
        return function.__globals__.get(expression.id, builtin)
    return _NO_VALUE


def _find_public_name(value: Any) -> str:
    """Return the name under which its module has a value, such as ``torch.relu``; empty if the module lacks it."""
    module_name = read_attribute(value, "__module__")
    if not is_instance(module_name, str):
        return ""
    # The __qualname__ of a C function may name a class that no module has. Its __name__ can still be found.
    for name in (read_attribute(value, "__qualname__"), read_attribute(value, "__name__")):
        if not is_instance(name, str) or "<locals>" in name:
            return ""
        named_value: object = sys.modules.get(module_name)
        for part in name.split("."):
            named_value = _find_member(named_value, part)
        if named_value is value:
            return f"{module_name}.{name}"
    return ""


def _find_member(owner: object, name: str) -> object:
    """Return the value that a module or class has under a name; None if it has none."""
    member = read_stored(owner, name)
    if is_instance(member, staticmethod):
        return member.__func__
    return member
