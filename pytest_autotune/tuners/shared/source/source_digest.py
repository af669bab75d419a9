"""A digest of a kernel's source that changes when the kernel does, and only then.

It is equal across Python and Triton versions, under the interpreter and the
compiler, wherever in a file the kernel stands and however it is laid out: it is
made of what the parser sees, without docstrings and the kernel's own decorators,
together with the functions, classes and constants that the kernel uses.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, partial
from types import FunctionType, ModuleType
from typing import Any, Optional

from pytest_autotune.cache.model import UnportableError
from pytest_autotune.tuners.shared.digest import digest
from pytest_autotune.tuners.shared.source.attributes import attributes_of
from pytest_autotune.tuners.shared.source.code_text import class_text, function_text
from pytest_autotune.tuners.shared.source.functions import closure_cells, kept_source, layers, python_function
from pytest_autotune.tuners.shared.source.libraries import of_library

#: The type of a value of a fingerprint that holds a digest of source: another rule gets another name.
FORM = "digest.2"
#: Arguments of ``triton.jit`` that are compiled in.
_OPTIONS = ("noinline", "do_not_specialize", "do_not_specialize_on_alignment", "debug")
#: Arguments of Numba's decorators that are compiled in.
_OPTIONS_OF_NUMBA = (
    "boundscheck",
    "debug",
    "error_model",
    "fastmath",
    "forceobj",
    "inline",
    "max_registers",
    "parallel",
)
_Constant = Callable[[object], str | None]
#: Takes a name, the function or class that uses it, and the value.
Unstable = Callable[[str, object, object], None]


def is_code(value: object) -> bool:
    """Whether a value is a part of the program, which digests of source follow, and not data."""
    # On Python 3.10, Any is no class yet.
    return isinstance(value, (ModuleType, type, type(Optional))) or python_function(value) is not None


def unnoticed(name: str, user: object, value: object) -> None:
    """Nobody wants to know what has no stable form."""


def source_digest(
    kernel: object,
    constant: _Constant,
    *,
    own_cells: bool = False,
    named: bool = True,
    unstable: Unstable = unnoticed,
    objects: bool = True,
) -> str:
    """The digest of a kernel's source with everything of its own that it uses.

    The text of a function is read once. What its names stand for is looked up at
    every call: a global may be another one the next time.

    :param kernel: a Python function, or what its decorators made of it.
    :param constant: the stable text of a constant, or None for what is none.
    :param own_cells: whether plain values in the kernel's own closure belong to it. They do not where kernels
        made by a factory share their source, and what they differ in is in the key.
    :param named: whether the kernel's own name belongs to it. It does not where a renamed kernel is the same.
    :param unstable: called with what would belong to it and has no stable form: its name, the function or class
        that uses it, and the value. What it raises passes.
    :param objects: whether attributes of other objects belong to it, as far as functions name them, and values in
        closures and defaults. They do not where tests may change them.
    :raises UnportableError: when the source of a function cannot be read.
    """
    return _Digests(constant, unstable, objects).of(kernel, own_cells, named)


def source_parts(
    kernel: object, constant: _Constant, *, own_cells: bool = False, named: bool = True, objects: bool = True
) -> dict[str, str]:
    """The functions, classes and constants in :func:`source_digest`, by name, each with a digest of it alone.

    :raises UnportableError: when the source of a function cannot be read.
    """
    digests = _Digests(constant, objects=objects)
    digests.of(kernel, own_cells, named)
    return digests.parts


def class_digest(cls: type, constant: _Constant) -> str:
    """The digest of a class: its text, its methods with what they use, and the values of its attributes.

    :param constant: as for :func:`source_digest`.
    """
    return _Digests(constant).of_class(cls)


def object_digest(value: object, constant: _Constant) -> str:
    """The digest of an object: its class, and its attributes that the class uses and does not change.

    :param constant: as for :func:`source_digest`; attributes that are none are left out.
    """
    return digest("\n".join(_Digests(constant).of_object(value)))


class _Digests:
    """The digests of one question: each function and class once, however they refer to each other."""

    def __init__(self, constant: _Constant, unstable: Unstable = unnoticed, objects: bool = True) -> None:
        self._constant = constant
        self._unstable = unstable
        self._objects = objects
        self._seen: dict[object, str] = {}
        #: The name of each function, class and constant -> a digest of that without what it uses.
        self.parts: dict[str, str] = {}

    def of(self, value: object, own_cells: bool = True, named: bool = True) -> str:
        function = python_function(value)
        assert function is not None
        if function in self._seen:
            return self._seen[function]
        self._seen[function] = f"recursive {function.__qualname__}"
        own = function_text(function, kept_source(value))
        parts = [own.text if named else own.nameless_text]
        cells = function.__code__.co_freevars
        own_cells = own_cells and self._objects
        for name, used in used_by(function, own.names, self._objects):
            text = self._text(used) if own_cells or name not in cells or is_code(used) else None
            if text is not None:
                parts.append(f"{name}: {text}")
                if not is_code(used):
                    self._is_part(name, text)
            elif (own_cells or name not in cells) and not is_code(used):
                self._unstable(name, function, used)
        counted = [(name, used) for name, used in _defaults(function) if self._objects or is_code(used)]
        defaults = [f"default {name}: {self._text(used)}" for name, used in counted]
        options = [*compiled_in(value)]
        parts += [*defaults, *options]
        self._is_part(function.__qualname__, "\n".join([parts[0], *defaults, *options]))
        for layer in layers(value):
            if not inspect.isfunction(layer) and not of_library(type(layer)):
                parts += self.of_object(layer)
        self._seen[function] = digest("\n".join(parts))
        return self._seen[function]

    def of_class(self, cls: type) -> str:
        if cls in self._seen:
            return self._seen[cls]
        self._seen[cls] = f"recursive {cls.__qualname__}"
        parts = [cls.__qualname__, class_text(cls)]
        self._is_part(cls.__qualname__, parts[1])
        parts += [self.of_class(base) for base in cls.__bases__ if not of_library(base)]
        members = cls.__members__ if issubclass(cls, enum.Enum) else {}
        parts += [f"{name}: {self._constant(member)}" for name, member in members.items()]
        for name, value in sorted(vars(cls).items()):
            text = self._attribute_text(cls, name, _plain_function(value)) if name not in members else None
            if text is not None:
                parts.append(f"{name}: {text}")
        self._seen[cls] = digest("\n".join(parts))
        return self._seen[cls]

    def _is_part(self, name: str, text: str) -> None:
        # Two functions of one name count together.
        self.parts[name] = digest(self.parts.get(name, "") + text)

    def of_object(self, value: object) -> Iterator[str]:
        cls: type = type(value)
        yield self.of_class(cls)
        used, changed = attributes_of(cls)
        inside = list(layers(value))
        for name in sorted(used - changed):
            attribute = _attribute(value, name)
            if not any(attribute is one for one in inside) and (text := self._text(attribute)):
                yield f"{name}: {text}"

    def _attribute_text(self, cls: type, name: str, value: object) -> str | None:
        if python_function(value) is not None:
            try:
                return self._text(value)
            except UnportableError:  # one that a decorator of the class made
                return None
        if name.startswith("_") and name.endswith("_"):
            return None
        text = self._text(value)
        if text is None and not is_code(value):
            self._unstable(name, cls, value)
        return text

    def _text(self, value: object) -> str | None:
        """What stands for something that a function uses; None where that is nothing of its own."""
        function = python_function(value)
        if function is not None:
            return None if of_library(function) else self.of(value)
        if isinstance(value, type):
            return None if of_library(value) else self.of_class(value)
        if isinstance(value, partial):
            given = [*value.args, *(part for pair in sorted(value.keywords.items()) for part in pair)]
            texts = [self._text(part) for part in (value.func, *given)]
            return None if None in texts[1:] else f"partial({', '.join(map(str, texts))})"
        text = self._constant(value)
        cls = type(_unwrapped(value))
        return text if text is None or of_library(cls) else f"{text} of {self.of_class(cls)}"


def used_by(function: FunctionType, names: tuple[tuple[str, ...], ...], objects: bool) -> list[tuple[str, object]]:
    """What a function takes from outside, by the name it uses, sorted by name; nothing of Python's own or a library.

    :param names: see :class:`~pytest_autotune.tuners.shared.source.code_text.FunctionText`.
    :param objects: whether attributes of objects are followed.
    """
    outside: tuple[Mapping[str, object], ...] = (closure_cells(function), function.__globals__)
    found: dict[str, object] = {}
    for name, *attributes in names:
        scope = next((scope for scope in outside if name in scope), None)
        if scope is None:
            continue
        value, path = scope[name], name
        for attribute in attributes:
            if isinstance(value, ModuleType):
                if of_library(value):
                    break
                value = getattr(value, attribute, None)
            else:
                found[path] = value
                if not objects or isinstance(value, type) or python_function(value) is not None:
                    break
                if attribute == "value" and _unwrapped(value) is not value:
                    value = _unwrapped(value)
                elif of_library(type(_unwrapped(value))):
                    break
                else:
                    owner = _unwrapped(value)
                    value = _attribute(owner, attribute)
                    if python_function(value) is not None:  # a method uses others
                        found[f"{path}.__class__"] = type(owner)
            path += f".{attribute}"
        if not isinstance(value, ModuleType):
            found[path] = value
    return sorted(found.items(), key=lambda item: item[0])


def _attribute(value: object, name: str) -> object:
    """An attribute of an object without running anything of the object's: of a property its function."""
    found = inspect.getattr_static(value, name, None)
    return getattr(value, name, None) if inspect.ismemberdescriptor(found) else _plain_function(found)


def _plain_function(value: Any) -> object:
    """The function inside what a class holds."""
    if isinstance(value, property):
        return value.fget
    if isinstance(value, cached_property):
        return value.func
    return getattr(value, "__func__", value)


def _unwrapped(value: Any) -> Any:
    """The value inside a ``tl.constexpr``."""
    while type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    return value


def _defaults(function: FunctionType) -> Iterator[tuple[str, object]]:
    """The defaults of a function's parameters: what a factory computed is not in the text."""
    values = function.__defaults__ or ()
    code = function.__code__
    yield from zip(code.co_varnames[code.co_argcount - len(values) : code.co_argcount], values, strict=True)
    yield from sorted((function.__kwdefaults__ or {}).items())


def compiled_in(kernel: object) -> Iterator[str]:
    """Arguments of a kernel's decorators that are compiled in, where they are not the defaults."""
    for layer in layers(kernel):
        given = getattr(getattr(layer, "rewriter", None), "kwargs", None)  # where Triton's interpreter keeps it
        for name in _OPTIONS:
            value = given.get(name) if isinstance(given, dict) else getattr(layer, name, None)
            if isinstance(value, (list, tuple, set, frozenset)):
                value = sorted(map(str, value))
            if value and isinstance(value, (bool, str, int, list)):
                yield f"{name}={value!r}"
        yield from _options_of_numba(layer)


def _options_of_numba(layer: object) -> Iterator[str]:
    """``fastmath``, ``parallel``, …, as Numba's dispatchers keep them."""
    options = getattr(layer, "targetoptions", None)
    if not isinstance(options, dict):
        return
    if options.get("opt") is False:
        yield "opt=False"
    for name in _OPTIONS_OF_NUMBA:
        value = options.get(name)
        if isinstance(value, dict):
            value = sorted(map(str, value.items()))
        elif isinstance(value, (set, frozenset)):
            value = sorted(map(str, value))
        if value and isinstance(value, (bool, str, int, list)):
            yield f"{name}={value!r}"
