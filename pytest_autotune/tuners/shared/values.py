"""The stable form of what keys and candidates are made of, functions among it."""

from __future__ import annotations

import enum
import functools
import inspect

from pytest_autotune.cache.model import UnportableError, Value, check_name
from pytest_autotune.tuners.shared.scalars import PLAIN, scalar_value, unwrapped
from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.source.source_digest import class_digest, immutable_text, source_digest


def stable_value(name: str, value: object, dtype_apart: bool = False, carried: bool = True) -> Value:
    """Encode a value so that it means the same in another process.

    Takes plain scalars, those of numpy too, dtypes of any library, members of an
    enum, functions with a name and what they took from the functions around them,
    and tuples and lists of these.

    :param dtype_apart: whether ``torch.float16`` and ``tl.float16`` are two values. As the dtype of data they are one.
    :param carried: whether what functions carry in closures and defaults belongs to them.
    :raises UnportableError: for what has no stable form, such as a tensor, and for a name that UTF-8 cannot encode.
    """
    if type(value) in PLAIN:
        return scalar_value(name, value)
    check_name(name)
    inner = unwrapped(value)
    if isinstance(inner, (tuple, list)) and not isinstance(inner, enum.Enum):
        parts = [stable_value("", part, dtype_apart, carried).encoded[1:] for part in inner]
        return Value(name, repr(parts), "tuple")
    function = python_function(inner)
    if function is not None:
        return Value(
            name, f"{qualified_name(function)}@{source_digest(inner, own_cells=True, carried=carried)}", "function"
        )
    return scalar_value(name, value, dtype_apart)


def callable_text(value: object) -> str:
    """What a function that is called beside a kernel does, such as a hook: its source and what it carries.

    :raises UnportableError: when a part of that has no stable form.
    """
    if isinstance(value, functools.partial):
        return f"{callable_text(value.func)}({_text(value.args)}, {_text(tuple(sorted(value.keywords.items())))})"
    if inspect.ismethod(value):
        owner = value.__self__
        cls, content = (owner, "") if isinstance(owner, type) else (type(owner), _text(owner))
        return f"{callable_text(value.__func__)} of {content} {class_digest(cls)}"
    if inspect.isbuiltin(value):
        return f"{value.__module__}.{value.__qualname__}"
    own_call = vars(type(value)).get("__call__")
    if python_function(value) is None and inspect.isfunction(own_call):
        return f"{callable_text(own_call)} of {_text(value)}"
    return str(stable_value("hook", value).value)


def label_text(value: object) -> str:
    """What can be said of a callable that carries something without a stable form."""
    if (function := python_function(value)) is not None:
        try:
            return source_digest(value, carried=False)
        except UnportableError:
            return qualified_name(function)
    owner = value.__self__ if inspect.ismethod(value) else value
    name = f"{value.__func__.__qualname__} of " if inspect.ismethod(value) else ""
    return f"{name}{type(owner).__qualname__} {class_digest(type(owner))}"


def _text(value: object) -> str:
    text = immutable_text(value)
    if text is None:
        raise UnportableError(f"a {type(value).__qualname__} has no stable form")
    return text
