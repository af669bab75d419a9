"""The arguments of a kernel as values of a key, and the modules that hold a library's function under a name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.cache.model import Value
from pytest_autotune.cache.structured import structured_value
from pytest_autotune.tuners.source.source_digest import stable_value


def list_argument_values(name: str, value: Any) -> list[Value]:
    """Return the values of a key for one argument.

    ====================== ========================================================================
    argument ``x``         values
    ====================== ========================================================================
    a stream               none: it does not change the choice
    a tensor               ``x.dtype``, ``x.shape``, and ``x.stride`` unless the tensor is contiguous
    a list with tensors    the values of its items: ``x.0.dtype``, ``x.0.shape``, ``x.1``
    anything else          ``x``
    ====================== ========================================================================

    :raises UncacheableError: for an argument without a stable form.
    """
    if is_stream(value):
        return []
    if is_tensor(value):
        tensor_values = [list_dtype_value(name, value), structured_value(f"{name}.shape", _plain_sizes(value.shape))]
        strides = _list_strides(value)
        if strides is not None and not _is_contiguous(value.shape, strides):
            tensor_values.append(structured_value(f"{name}.stride", _plain_sizes(strides)))
        return tensor_values
    has_tensors = isinstance(value, (list, tuple)) and any(is_tensor(item) for item in value)
    if has_tensors:
        item_values = []
        for index, item in enumerate(value):
            item_values += list_argument_values(f"{name}.{index}", item)
        return item_values
    return [stable_value(name, value)]


def list_dtype_value(name: str, tensor: Any) -> Value:
    """Return the dtype of a tensor as a value of a key."""
    return stable_value(f"{name}.dtype", _find_dtype(tensor))


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of some library: torch, CuPy, or CuTe, which has ``element_type``."""
    return _find_dtype(value) is not None and getattr(value, "shape", None) is not None


def is_stream(value: object) -> bool:
    """Whether a value is a stream of some library: torch's ``Stream``, the ``CUstream`` of cuda-bindings."""
    return "stream" in type(value).__name__.lower()


def _find_dtype(value: object) -> object:
    element_type: object = getattr(value, "element_type", None)
    if element_type is not None:
        return element_type
    return getattr(value, "dtype", None)


def _list_strides(tensor: Any) -> Sequence[Any] | None:
    """Return the strides of a tensor in elements; None if it has none."""
    strides = getattr(tensor, "stride", None)
    if callable(strides):
        strides = strides()
    if strides is not None:
        return tuple(strides)
    strides_in_bytes = getattr(tensor, "strides", None)
    if strides_in_bytes is None:
        return None
    return tuple(stride // tensor.itemsize for stride in strides_in_bytes)


def _is_contiguous(shape: Iterable[Any], strides: Sequence[Any]) -> bool:
    """Whether the elements lie one after the other, the last dimension first. Dimensions of size 1 do not matter."""
    expected_stride = 1
    for size, stride in reversed(list(zip(shape, strides, strict=False))):
        # CuTe's layouts have nested sizes, and sizes that are known only at a launch.
        if not isinstance(size, int) or not isinstance(stride, int):
            return False
        if size != 1 and stride != expected_stride:
            return False
        expected_stride *= size
    return True


def _plain_sizes(sizes: Iterable[Any]) -> list[Any]:
    """Return sizes as integers, and sizes that are known only at a launch as text. CuTe's layouts may be nested."""
    plain: list[Any] = []
    for size in sizes:
        if isinstance(size, (list, tuple)):
            plain.append(_plain_sizes(size))
        elif isinstance(size, int):
            plain.append(int(size))
        else:
            plain.append(str(size))
    return plain


def list_holders(function: FunctionType) -> list[tuple[ModuleType, str]]:
    """Return each imported module that has a function among its globals, with the name that the function has there.

    User code that says ``from cuda.tile.tune import …`` is such a module.
    """
    holders = []
    for module in list(sys.modules.values()):
        if type(module) is not ModuleType:
            continue  # a module that loads lazily would import its library
        for name, value in list(vars(module).items()):
            if value is function:
                holders.append((module, name))
    return holders
