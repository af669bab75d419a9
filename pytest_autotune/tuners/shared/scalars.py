"""Scalars, dtypes, members of enums and Triton's types as values that mean the same in another process."""

from __future__ import annotations

import enum
import sys
from typing import Any

from pytest_autotune.cache.model import Value, plain_value

#: What Triton has of values that cannot change, beside its dtypes; the attributes that tell them apart.
_TRITON_CORE = "triton.language.core"
_TRITON_VALUES = {
    "pointer_type": ("element_ty", "const", "address_space"),
    "block_type": ("element_ty", "shape"),
    "tuple": ("values",),
}
_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
#: Libraries whose classes of scalars stand for dtypes: ``numpy.float32``.
_DTYPE_CLASSES = ("numpy", "ml_dtypes")


class DtypeName(str):
    """The name of a dtype, however its library spells it."""


def scalar_value(name: str, value: object, dtype_apart: bool = False) -> Value:
    """Encode a plain value so that it means the same in another process.

    :param dtype_apart: whether ``torch.float16`` and ``tl.float16`` are two values.
    :raises UncacheableError: for what has no stable form.
    """
    value = unwrapped(value)
    if (dtype := _dtype_name(value, dtype_apart)) is not None:
        return Value(name, dtype, "dtype")
    if isinstance(value, enum.Enum):
        return Value(name, f"{type(value).__qualname__}.{value.name}", "enum")
    return plain_value(name, value)


def unwrapped(value: Any) -> object:
    """The value inside a ``tl.constexpr`` or a scalar of numpy."""
    while type(value).__name__ == "constexpr" and hasattr(value, "value"):
        value = value.value
    numpy: Any = sys.modules.get("numpy")
    return value.item() if numpy is not None and isinstance(value, numpy.generic) else value


def is_dtype_class(value: type) -> bool:
    """Whether a class stands for a dtype, such as ``numpy.float32``."""
    return value.__module__ in _DTYPE_CLASSES


def _dtype_name(value: object, apart: bool) -> str | None:
    """The name of a dtype, of its library too where those are told apart; Triton's own have none."""
    if isinstance(value, type):
        text = value.__name__ if is_dtype_class(value) else None
    else:
        # numpy has a class for each of its dtypes: Float32DType. That of cuTile is DType.
        is_dtype = isinstance(value, DtypeName) or type(value).__name__ == "dtype"
        is_dtype = is_dtype or (type(value).__name__ == "DType" and type(value).__module__ == "cuda.tile")
        is_dtype = is_dtype or type(value).__module__ == "numpy.dtypes"
        text = str(value).removeprefix("torch.") if is_dtype else None
    if text is None:
        return None
    library = value.__module__ if isinstance(value, type) else type(value).__module__
    if apart and not library.startswith(("triton.", "pytest_autotune.")):
        return f"{library.split('.')[0]}.{text}"
    return _DTYPES.get(text, text)


def list_triton_items(value: Any) -> list[tuple[str, object]] | None:
    """Return the attributes by which a type or tuple of Triton's is known under all its versions; None of others."""
    names = _TRITON_VALUES.get(type(value).__qualname__)
    if names is None or type(value).__module__ != _TRITON_CORE:
        return None
    items: list[tuple[str, object]] = []
    for name in names:
        attribute = getattr(value, name)
        if name in ("shape", "values"):
            items.append((name, tuple(attribute)))
        elif name != "address_space" or attribute not in (1, "global"):  # by its number in Triton 3.4
            items.append((name, attribute))
    return items
