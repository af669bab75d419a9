"""The stable form of what keys, candidates and constants of kernels are made of."""

from __future__ import annotations

import enum
import sys
from contextlib import suppress
from typing import Any

from pytest_autotune.cache.model import UnportableError, Value, plain_value
from pytest_autotune.tuners.kernel_source import python_function, qualified_name, source_digest

_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
_PLAIN = (int, str, bool, float, type(None))
#: Libraries whose classes of scalars stand for dtypes: ``numpy.float32``.
_DTYPE_CLASSES = ("numpy", "ml_dtypes")


class DtypeName(str):
    """The name of a dtype, however its library spells it."""


def stable_value(name: str, value: object) -> Value:
    """Encode a value so that it means the same in another process.

    Takes plain scalars, those of numpy too, dtypes of any library, members of an
    enum, functions with a name, and tuples and lists of these.

    :raises UnportableError: for what has no stable form, such as a tensor.
    """
    if type(value) in _PLAIN:  # nearly all are, and a space has hundreds of them
        return plain_value(name, value)
    value = unwrapped(value)
    if (dtype := _dtype_name(value)) is not None:
        return Value(name, dtype, "dtype")
    if isinstance(value, enum.Enum):
        return Value(name, f"{type(value).__qualname__}.{value.name}", "enum")
    if isinstance(value, (tuple, list)):
        return Value(name, repr([stable_value("", part).encoded[1:] for part in value]), "tuple")
    function = python_function(value)
    if function is not None:
        return Value(name, f"{qualified_name(function)}@{source_digest(function, constant_text)}", "function")
    return plain_value(name, value)


def unwrapped(value: Any) -> object:
    """The value inside a ``tl.constexpr`` or a scalar of numpy."""
    while type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    numpy: Any = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def constant_text(value: object) -> str | None:
    """The text of a constant that a kernel uses, for its source digest; None for what is none."""
    with suppress(UnportableError):
        return repr(stable_value("", value).encoded)
    return None


def _dtype_name(value: object) -> str | None:
    if isinstance(value, type):
        text = value.__name__ if value.__module__ in _DTYPE_CLASSES else None
    else:
        # numpy has a class for each of its dtypes: Float32DType.
        is_dtype = isinstance(value, DtypeName) or type(value).__name__ == "dtype"
        is_dtype = is_dtype or type(value).__module__ == "numpy.dtypes"
        text = str(value).removeprefix("torch.") if is_dtype else None
    return None if text is None else _DTYPES.get(text, text)
