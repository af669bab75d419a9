"""Encodes scalars, dtypes, members of enums and Triton's types so that they mean the same in another process."""

from __future__ import annotations

import enum
import sys
from typing import Any

from pytest_autotune.cache.model import Value, plain_value

#: Triton's types of values that cannot change, besides its dtypes, with the attributes that distinguish the values.
_TRITON_CORE = "triton.language.core"
_TRITON_VALUES = {
    "pointer_type": ("element_ty", "const", "address_space"),
    "block_type": ("element_ty", "shape"),
    "tuple": ("values",),
}
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
#: The libraries whose classes of scalars, such as ``numpy.float32``, stand for dtypes.
_DTYPE_CLASSES = ("numpy", "ml_dtypes")


class DtypeName(str):
    """The name of a dtype in the spelling of its library."""


def scalar_value(name: str, value: object, dtype_apart: bool = False) -> Value:
    """Encode a plain value so that it means the same in another process.

    :param dtype_apart: whether ``torch.float16`` and ``tl.float16`` are two values. Otherwise both are ``fp16``.
    :raises UncacheableError: for a value without a stable form.
    """
    value = unwrapped(value)
    dtype = _find_dtype_name(value, dtype_apart)
    if dtype is not None:
        return Value(name, dtype, "dtype")
    if isinstance(value, enum.Enum):
        return Value(name, f"{type(value).__qualname__}.{value.name}", "enum")
    return plain_value(name, value)


def unwrapped(value: Any) -> object:
    """Return the value inside a ``tl.constexpr`` or a scalar of numpy, and other values as they are."""
    while type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        return value.item()
    return value


def is_dtype_class(value: type) -> bool:
    """Whether a class stands for a dtype, such as ``numpy.float32``."""
    return value.__module__ in _DTYPE_CLASSES


def _find_dtype_name(value: object, apart: bool) -> str | None:
    """Return the name of a dtype; None for other values.

    :param apart: whether the name begins with the dtype's library: ``torch.float16``. Triton's own dtypes have the
        short name ``fp16`` in any case.
    """
    if isinstance(value, type):
        if not is_dtype_class(value):
            return None
        text, library = value.__name__, value.__module__
    else:
        if not _is_dtype(value):
            return None
        text, library = str(value).removeprefix("torch."), type(value).__module__
    if apart and not library.startswith(("triton.", "pytest_autotune.")):
        return f"{library.split('.')[0]}.{text}"
    return _DTYPES.get(text, text)


def _is_dtype(value: object) -> bool:
    if isinstance(value, DtypeName):
        return True
    module, name = type(value).__module__, type(value).__name__
    # numpy has a class for each of its dtypes, such as numpy.dtypes.Float32DType.
    return name == "dtype" or module == "numpy.dtypes" or (module, name) == ("cuda.tile", "DType")


def list_triton_items(value: Any) -> list[tuple[str, object]] | None:
    """Return the attributes that a type or tuple of Triton has under all versions; None for other values."""
    names = _TRITON_VALUES.get(type(value).__qualname__)
    if names is None or type(value).__module__ != _TRITON_CORE:
        return None
    items: list[tuple[str, object]] = []
    for name in names:
        attribute = getattr(value, name)
        if name in ("shape", "values"):
            items.append((name, tuple(attribute)))
        elif name == "address_space" and attribute in (1, "global"):
            # The default is 1 in Triton 3.4 and "global" later. Without it, all versions give the same items.
            continue
        else:
            items.append((name, attribute))
    return items
