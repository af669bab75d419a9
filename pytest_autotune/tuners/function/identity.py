"""The key of a problem, encoded, and the source that its choice depends on.

A digest of source follows names, by the rule of :mod:`pytest_autotune.tuners.shared.source_digest`. It also leaves out
the values that belong to one call: values in closures and defaults, the arguments of a ``partial``, the object of a
method. A function that is a value of a key or of a configuration includes these values (:mod:`.carried`).
"""

from __future__ import annotations

import ast
import enum
import inspect
import json
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FunctionType, MethodType, ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from pytest_autotune.cache.model import UncacheableError, Value
from pytest_autotune.cache.structured import JSON_LIST, JSON_TUPLE
from pytest_autotune.tuners.function.carried import carried_text
from pytest_autotune.tuners.shared.code_text import (
    NoDigestError,
    check_module_not_edited,
    list_imports,
    read_function,
    syntax_text,
)
from pytest_autotune.tuners.shared.functions import closure_cells, is_library_code, python_function
from pytest_autotune.tuners.shared.imported_modules import read_imported_modules
from pytest_autotune.tuners.shared.libraries import Libraries, is_library_callable
from pytest_autotune.tuners.shared.scalars import unwrapped
from pytest_autotune.tuners.shared.source_digest import (
    DigestedSource,
    digest,
    read_method_source,
    read_source,
    stable_value,
)
from pytest_autotune.tuners.shared.used_values import list_used_values

#: The source of each function that was read, which holds as long as its names stand for the same values. The keys are
#: the class of a method, and then the function.
_sources: WeakKeyDictionary[type, WeakKeyDictionary[object, DigestedSource]] = WeakKeyDictionary()
#: Stands for the class of a function that is no method.
_NO_CLASS = type(None)


def list_sources(source: object, *callbacks: object) -> tuple[object, ...]:
    """Return the objects whose source a choice depends on: the caller's ``source=``, else the callbacks.

    A lambda stands for the functions of the caller that it calls, because two tests of one problem each write a lambda.
    If it calls no such function, it stands for itself.
    """
    if isinstance(source, (list, tuple)):
        return tuple(source)
    if source is not None:
        return (source,)
    sources: list[object] = []
    for callback in callbacks:
        function = python_function(_kernel_of(callback))
        if function is None:
            continue
        called: tuple[object, ...] = ()
        if function.__name__ == "<lambda>":
            try:
                called = _list_called_functions(function)
            except Exception:  # of an object that the lambda names: reading the lambda itself reports it
                called = ()
        sources += called or (callback,)
    return tuple(sources)


def _list_called_functions(function: FunctionType) -> tuple[object, ...]:
    """Return the functions of the caller that a lambda calls; none if the lambda itself must count.

    It must if it uses a class of the caller: it may call methods of the class, which no name in the lambda leads to.
    It must also if it uses another callable that may lead to code of the caller, such as a bound method.
    """
    try:
        names = read_function(function).names
    except UncacheableError:
        return ()
    called = []
    for _, value in list_used_values(function, names):
        if isinstance(value, type) and not is_library_code(value):
            return ()
        if isinstance(value, (partial, MethodType)):
            return ()
        inner_function = python_function(value)
        if inner_function is None:
            if callable(value) and not isinstance(value, type) and not is_library_callable(value):
                return ()
        elif not is_library_code(inner_function):
            called.append(value)
        elif _list_inner_functions(inner_function):
            return ()
    return tuple(called)


def _list_inner_functions(function: FunctionType) -> list[object]:
    """Return the functions of the caller inside a function that a decorator of a library made."""
    candidates = [*closure_cells(function).values(), vars(function).get("__wrapped__")]
    functions: list[object] = []
    for candidate in candidates:
        inner_function = python_function(candidate)
        if inner_function is not None and not is_library_code(inner_function):
            functions.append(candidate)
    return functions


def source_text(source: object) -> str | None:
    """Return the digest of a source: a function or kernel, text, the path of a file, a module; None if unreadable."""
    try:
        read = read_given(source)
    except NoDigestError:
        return None
    if read is None:
        return None
    return read.digest


def read_given(source: object) -> DigestedSource | None:
    """Return the source for the argument ``source=``; None if it cannot be read.

    :raises TypeError: if the argument has no source.
    :raises NoDigestError: if the source was edited after its import, or reading it fails.
    """
    if isinstance(source, str):
        return _of_text("text", source)
    if isinstance(source, Path):
        # Line ends depend on the settings of a checkout.
        content = source.read_bytes().replace(b"\r\n", b"\n")
        return _of_text(source.name, content.decode("utf-8", "surrogateescape"))
    kernel = _kernel_of(source)
    if not isinstance(kernel, ModuleType) and python_function(kernel) is None:
        raise TypeError(f"source= takes functions, texts, paths and Python modules, not {source!r}")
    cls = _find_class_of_method(source)
    try:
        sources = _sources.setdefault(cls, WeakKeyDictionary())
        kept_source = sources.get(kernel)
    except TypeError:  # the kernel takes no weak references, or has no hash
        return _read_or_none(kernel, cls)
    if kept_source is not None and kept_source.used_values is not None and kept_source.used_values.still_hold():
        return kept_source
    current_source = _read_or_none(kernel, cls)
    if current_source is not None:
        sources[kernel] = current_source
    return current_source


def _of_text(name: str, text: str) -> DigestedSource:
    return DigestedSource(digest(text), {name: digest(text)})


def _read_or_none(source: object, cls: type) -> DigestedSource | None:
    try:
        if isinstance(source, ModuleType):
            check_module_not_edited(source)
            return _read_module(source)
        if cls is not _NO_CLASS and python_function(source) is not None:
            return read_method_source(source, cls)
        return read_source(source, carried=False)
    except NoDigestError:
        raise
    except (UncacheableError, OSError, TypeError, SyntaxError):
        return None
    except Exception as error:  # of the user's code, such as a recursion
        raise NoDigestError(f"no digest of its source: {type(error).__name__}") from error


def _read_module(module: ModuleType) -> DigestedSource:
    """Return the source of a module and of the user's modules that it imports."""
    tree = ast.parse(inspect.getsource(module))
    text = syntax_text(tree)
    package = getattr(module, "__package__", None) or ""
    imported_texts = read_imported_modules(list_imports(tree), package, Libraries(None))
    imported_texts.pop(module.__name__, None)
    if not imported_texts:
        return _of_text(module.__name__, text)
    parts = {module.__name__: digest(text)}
    for name, imported_text in imported_texts.items():
        parts[name] = digest(imported_text)
    lines = [f"{name}: {part}" for name, part in sorted(parts.items())]
    return DigestedSource(digest("\n".join(lines)), parts)


def _find_class_of_method(source: object) -> type:
    """Return the class of the object that a bound method, or a callable object, is called with."""
    source = _without_arguments(source)
    if inspect.ismethod(source):
        owner: object = source.__self__
        if isinstance(owner, type):
            return owner
        return type(owner)
    # Of an object that wraps a function, _kernel_of gives the object or the function.
    is_callable_object = callable(source) and _kernel_of(source) is type(source).__call__
    return type(source) if is_callable_object else _NO_CLASS


def _without_arguments(source: object) -> object:
    while isinstance(source, partial):
        source = source.func
    return source


def _kernel_of(source: object) -> object:
    """Return the function or kernel inside a partial, a bound method or a callable object."""
    source = _without_arguments(source)
    if inspect.ismethod(source):
        source = source.__func__
    call = type(source).__call__ if python_function(source) is None and callable(source) else source
    inner_function = python_function(call)
    # The __call__ of a torch module is torch's, for every module.
    if inner_function is None or is_library_code(inner_function):
        return source
    return call


def power_of_two(n: int) -> int:
    """Return the smallest power of two that is not below ``n``; 1 for 0 and 1.

    :raises ValueError: for a negative number.
    """
    if n < 0:
        raise ValueError(f"power_of_two({n}): a size is not negative")
    return 1 << (n - 1).bit_length() if n > 1 else 1


def multiple_of(n: int, k: int) -> int:
    """Return the smallest multiple of ``k`` that is not below ``n``.

    :raises ValueError: for a negative size, and for a step below 1.
    """
    if n < 0 or k <= 0:
        raise ValueError(f"multiple_of({n}, {k}): expected a size of 0 or more, and a step of 1 or more")
    return -(-n // k) * k


def stable_part(name: str, value: object) -> Value:
    """Encode a value of a key. A function is encoded with the values that it carries.

    :raises UncacheableError: for a value without a stable form.
    :raises CarriedError: for a function that carries such a value.
    """
    inner = unwrapped(value)
    if isinstance(inner, (tuple, list)) and not isinstance(inner, enum.Enum):
        parts = [stable_part("", part).encoded[1:] for part in inner]
        return Value(name, repr(parts), "tuple")
    encoded = stable_value(name, value, carried=False)
    if encoded.type != "function":
        return encoded
    carried = carried_text(inner)
    return replace(encoded, value=f"{encoded.value}@{digest(carried)}") if carried else encoded


def param_value(name: str, value: object) -> Value:
    """Encode a value of a configuration. A tuple or list is JSON, which a reviewer reads in the cache file.

    The tuple ``(1, 1)`` and the list ``[1, 1]`` are two candidates. Both have the text ``[1, 1]``, and the types
    ``"json.tuple"`` and ``"json.list"`` differ. All other values are encoded as in a key, see :func:`stable_part`.

    :raises UncacheableError: for a value without a stable form.
    :raises CarriedError: for a function that carries such a value.
    """
    inner = unwrapped(value)
    container = _find_container_type(inner)
    if container is None:
        return stable_part(name, value)
    text = json.dumps(_plain_items(inner, container), ensure_ascii=False)
    if container is tuple:
        return Value(name, text, JSON_TUPLE)
    return Value(name, text, JSON_LIST)


def _find_container_type(value: object) -> type | None:
    """Return ``tuple`` or ``list`` for an instance of it; None for other values."""
    if isinstance(value, enum.Enum):  # the class of an enum may also inherit from tuple
        return None
    if isinstance(value, tuple):
        return tuple
    if isinstance(value, list):
        return list
    return None


def _plain_items(items: Any, container: type) -> list[object]:
    """Return the items of a tuple or list as JSON can hold them.

    A scalar stays a scalar, and an inner container of the same type becomes a list. All other items become a mapping of
    their type to their value. ``(1, (2, 3), [4], torch.float16)`` becomes
    ``[1, [2, 3], {"list": [4]}, {"dtype": "fp16"}]``. A configuration cannot hold a mapping itself, so no two values
    have the same JSON.
    """
    plain_items: list[object] = []
    for item in items:
        inner = unwrapped(item)
        inner_container = _find_container_type(inner)
        if inner_container is not None:
            inner_items = _plain_items(inner, inner_container)
            if inner_container is container:
                plain_items.append(inner_items)
            else:
                plain_items.append({inner_container.__name__: inner_items})
            continue
        encoded = stable_part("", item)
        if encoded.type:
            plain_items.append({encoded.type: encoded.value})
        else:
            plain_items.append(encoded.value)
    return plain_items


def key_values(key: object, only_stable: bool = False) -> tuple[Value, ...]:
    """Encode the argument ``key=``, in its order.

    :param only_stable: leave out the values without a stable form.
    :raises TypeError: if the key is no mapping of names to values.
    :raises UncacheableError: for a value without a stable form.
    """
    parts = {} if key is None else key
    if not isinstance(parts, Mapping) or not all(isinstance(name, str) for name in parts):
        raise TypeError(f"key= takes a mapping of names to values, not a {type(key).__name__}")
    values = []
    for name, value in parts.items():
        try:
            values.append(stable_part(name, value))
        except UncacheableError:
            if not only_stable:
                raise
    return tuple(values)
