"""The stable form of plain values: scalars, dtypes of any library, members of an enum; and short digests of text."""

from __future__ import annotations

import enum
import hashlib
import sys
from typing import Any

from pytest_autotune.cache.model import Value, check_name, plain_value

DIGEST_LENGTH = 12


def digest(text: str) -> str:
    """A short digest of text, as fingerprints hold them."""
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:DIGEST_LENGTH]


_DTYPES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "float64": "fp64"}
PLAIN = (int, str, bool, float, type(None))
#: Libraries whose classes of scalars stand for dtypes: ``numpy.float32``.
_DTYPE_CLASSES = ("numpy", "ml_dtypes")


class DtypeName(str):
    """The name of a dtype, however its library spells it."""


def scalar_value(name: str, value: object, dtype_apart: bool = False) -> Value:
    """Encode a plain value so that it means the same in another process.

    :param dtype_apart: whether ``torch.float16`` and ``tl.float16`` are two values. As the dtype of data they are one.
    :raises UncacheableError: for anything else, and for a name that UTF-8 cannot encode.
    """
    if type(value) in PLAIN:  # nearly all are, and a space has hundreds of them
        return plain_value(name, value)
    check_name(name)
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
