"""The stable form of what keys, candidates and constants of kernels are made of."""

from __future__ import annotations

import dataclasses
import enum
import functools
import inspect
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from types import FunctionType, SimpleNamespace
from typing import Any

from pytest_autotune.cache.model import UnportableError, Value, check_name, plain_value
from pytest_autotune.tuners.shared.source.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.source.source_digest import class_digest, object_digest, source_digest

#: What stands for a function, in text, given that or what its decorators made of it.
FunctionDigest = Callable[[object], str]
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_PLAIN = (int, str, bool, float, type(None))
#: Libraries whose classes of scalars stand for dtypes: ``numpy.float32``.
_DTYPE_CLASSES = ("numpy", "ml_dtypes")


class DtypeName(str):
    """The name of a dtype, however its library spells it."""


def _digest_with_all(function: object) -> str:
    return source_digest(function, constant_text, own_cells=True, unstable=refuse)


def stable_value(
    name: str, value: object, dtype_apart: bool = False, function_digest: FunctionDigest = _digest_with_all
) -> Value:
    """Encode a value so that it means the same in another process.

    Takes plain scalars, those of numpy too, dtypes of any library, members of an
    enum, functions with a name and what they took from the functions around them,
    and tuples and lists of these.

    :param dtype_apart: whether ``torch.float16`` and ``tl.float16`` are two values. As the dtype of data they are one.
    :param function_digest: what stands for a function; by itself its source, with everything that it uses and carries.
    :raises UnportableError: for what has no stable form, such as a tensor, and for a name that UTF-8 cannot encode.
    """
    if type(value) in _PLAIN:  # nearly all are, and a space has hundreds of them
        return plain_value(name, value)
    check_name(name)
    value = unwrapped(value)
    if (dtype := _dtype_name(value, dtype_apart)) is not None:
        return Value(name, dtype, "dtype")
    if isinstance(value, enum.Enum):
        return Value(name, f"{type(value).__qualname__}.{value.name}", "enum")
    if isinstance(value, (tuple, list)):
        return Value(
            name, repr([stable_value("", part, dtype_apart, function_digest).encoded[1:] for part in value]), "tuple"
        )
    function = python_function(value)
    if function is not None:
        return Value(name, f"{qualified_name(function)}@{function_digest(value)}", "function")
    return plain_value(name, value)


def refuse(name: str, user: object, value: object) -> None:
    """For :func:`source_digest`: what a function has in its closure and has no stable form belongs to no cache.

    :raises UnportableError: where it is of a closure.
    """
    if isinstance(user, FunctionType) and name in user.__code__.co_freevars:
        plain_value(f"{name} of {qualified_name(user)}", value)


def unwrapped(value: Any) -> object:
    """The value inside a ``tl.constexpr`` or a scalar of numpy."""
    while type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    numpy: Any = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def constant_text(value: object, function_digest: FunctionDigest = _digest_with_all) -> str | None:
    """The text of a constant that a kernel uses, for its source digest; None for what is none.

    Members of an enum, dataclasses and namespaces stand there with their values.

    :param function_digest: what stands for the functions in it, as in :func:`stable_value`.
    """
    with suppress(UnportableError, RecursionError):  # an object may hold itself
        return _content(value, function_digest)
    return None


def _content(value: object, function_digest: FunctionDigest = _digest_with_all) -> str:
    value = unwrapped(value)
    kind = type(value).__qualname__
    if isinstance(value, enum.Enum):
        return f"{kind}.{value.name}={constant_text(value.value, function_digest)}"
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        return f"{kind}({_items(fields, function_digest)})"
    if isinstance(value, SimpleNamespace):
        return f"{kind}({_items(sorted(vars(value).items()), function_digest)})"
    if isinstance(value, dict):
        items = sorted((_content(key, function_digest), content) for key, content in value.items())
        return f"{kind}({_items(items, function_digest)})"
    if isinstance(value, tuple) and isinstance(names := getattr(value, "_fields", None), tuple):
        return f"{kind}({_items(zip(map(str, names), value, strict=False), function_digest)})"
    if isinstance(value, (tuple, list)):
        return f"{kind}({', '.join(_content(part, function_digest) for part in value)})"
    if isinstance(value, (set, frozenset)):
        in_order = sorted(value, key=_name_of_function)  # a digest may tell what was read before from what was not
        return f"{kind}({', '.join(sorted(_content(part, function_digest) for part in in_order))})"
    return repr(stable_value("", value, dtype_apart=True, function_digest=function_digest).encoded)


def _name_of_function(value: object) -> str:
    function = python_function(value)
    return qualified_name(function) if function is not None else ""


def _items(items: Iterable[tuple[str, object]], function_digest: FunctionDigest) -> str:
    return ", ".join(f"{name}={_content(value, function_digest)}" for name, value in items)


def callable_text(value: object) -> str:
    """What a function that is called beside a kernel does, such as a hook: its source and what it carries.

    :raises UnportableError: when a part of that has no stable form.
    """
    if isinstance(value, functools.partial):
        return f"{callable_text(value.func)}({_content(value.args)}, {_content(value.keywords)})"
    if inspect.ismethod(value):
        owner = value.__self__
        cls = owner if isinstance(owner, type) else type(owner)
        content = "" if isinstance(owner, type) else _content(owner)
        return f"{callable_text(value.__func__)} of {content} {class_digest(cls, constant_text)}"
    if inspect.isbuiltin(value):
        return f"{value.__module__}.{value.__qualname__}"
    own_call = vars(type(value)).get("__call__")
    if python_function(value) is None and inspect.isfunction(own_call):
        return f"{callable_text(own_call)} of {_content(value)}"
    return str(stable_value("hook", value).value)


def label_text(value: object) -> str:
    """What can be said of a callable that carries something without a stable form."""
    if (function := python_function(value)) is not None:
        with suppress(UnportableError):
            return source_digest(value, constant_text, own_cells=True)
        return qualified_name(function)
    owner = value.__self__ if inspect.ismethod(value) else value
    name = f"{value.__func__.__qualname__} of " if inspect.ismethod(value) else ""
    return f"{name}{type(owner).__qualname__} {object_digest(owner, constant_text)}"


def _dtype_name(value: object, apart: bool) -> str | None:
    """The name of a dtype, of its library too where those are told apart; Triton's own have none."""
    if isinstance(value, type):
        text = value.__name__ if value.__module__ in _DTYPE_CLASSES else None
    else:
        # numpy has a class for each of its dtypes: Float32DType.
        is_dtype = isinstance(value, DtypeName) or type(value).__name__ == "dtype"
        is_dtype = is_dtype or type(value).__module__ == "numpy.dtypes"
        text = str(value).removeprefix("torch.") if is_dtype else None
    if text is None:
        return None
    library = value.__module__ if isinstance(value, type) else type(value).__module__
    if apart and not library.startswith(("triton.", "pytest_autotune.")):
        return f"{library.split('.')[0]}.{text}"
    return _DTYPES.get(text, text)
