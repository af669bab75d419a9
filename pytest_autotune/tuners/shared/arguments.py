"""The arguments of a kernel as values of a key, and the modules that hold a library's function under a name."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.cache.model import Value
from pytest_autotune.cache.structured import structured_value
from pytest_autotune.tuners.source.attributes import class_module, class_mro, class_name, find_in_class
from pytest_autotune.tuners.source.source_digest import digest, has_names, immutable_text, stable_value

#: The classes of streams, by module and name. A class that is not listed here is never left out of a key, whatever its
#: name: a user may have an enum StreamKMode.
STREAM_CLASSES = {
    ("torch", "Stream"),
    ("torch.cuda.streams", "Stream"),
    ("torch.cuda.streams", "ExternalStream"),
    ("torch._C", "_CudaStreamBase"),
    ("cuda.bindings.driver", "CUstream"),
    ("cuda.bindings.runtime", "cudaStream_t"),
    # The names of cuda-python before version 12.6.
    ("cuda.cuda", "CUstream"),
    ("cuda.cudart", "cudaStream_t"),
    ("cuda.core._stream", "Stream"),
    ("cuda.core.experimental._stream", "Stream"),
    ("cupy.cuda.stream", "Stream"),
    ("cupy.cuda.stream", "ExternalStream"),
    ("numba.cuda.cudadrv.driver", "Stream"),
    # CuTe compiles a kernel with this stand-in for a stream.
    ("cutlass.runtime", "_FakeStream"),
}
#: The protocols by which a library reads the tensors of another library. Every tensor class has at least one, except
#: those of CuTe.
_TENSOR_PROTOCOLS = ("__dlpack__", "__cuda_array_interface__")
#: The alignment of each tensor that a library allocates, in bytes. A view may have less.
_USUAL_ALIGNMENT = 16


def list_argument_values(name: str, value: Any) -> list[Value]:
    """Return the values of a key for one argument.

    ====================== ========================================================================
    argument ``x``         values
    ====================== ========================================================================
    a stream               none: it does not change the choice
    a tensor               ``x.dtype``, ``x.shape``, ``x.stride`` unless the tensor is contiguous, and ``x.align`` if
                           its alignment is unusual; ``x.layout`` for CuTe's layouts with ``?``, see
                           :func:`find_cute_layout`
    a list with tensors    the values of its items: ``x.0.dtype``, ``x.0.shape``, ``x.1``
    anything else          ``x``
    ====================== ========================================================================

    :raises UncacheableError: for an argument without a stable form.
    """
    if is_stream(value):
        return []
    if is_tensor(value):
        return _list_tensor_values(name, value)
    has_tensors = isinstance(value, (list, tuple)) and any(is_tensor(item) for item in value)
    if has_tensors:
        item_values = []
        for index, item in enumerate(value):
            item_values += list_argument_values(f"{name}.{index}", item)
        return item_values
    return [stable_value(name, value)]


def _list_tensor_values(name: str, tensor: Any) -> list[Value]:
    """Return the values of a key for a tensor."""
    values = [_find_dtype_value(name, tensor), structured_value(f"{name}.shape", _plain_sizes(tensor.shape))]
    strides = _list_strides(tensor)
    if strides is not None and not _is_contiguous(tensor.shape, strides):
        values.append(structured_value(f"{name}.stride", _plain_sizes(strides)))
    alignment = _find_unusual_alignment(tensor)
    if alignment is not None:
        values.append(Value(f"{name}.align", alignment))
    layout = find_cute_layout(tensor)
    if layout is not None and "?" in layout:
        values.append(Value(f"{name}.layout", layout))
    return values


def list_class_values(arguments: Iterable[tuple[str, Any]]) -> list[Value]:
    """Return the fingerprint's value ``classes``, as a list: a digest of the enums and named tuples in the arguments.

    The key holds only the name of an enum's member, such as ``Mode.FAST``. If the user edits the class so that ``FAST``
    has another value, this digest makes the entry stale. The list is empty if no argument has such a class.

    :param arguments: the name and the value of each argument.
    """
    #: ``mode: `` and the text of the enum's member with its value.
    lines = []
    for name, value in arguments:
        text = None
        if has_names(value):
            text = immutable_text(value)
        if text is not None:
            lines.append(f"{name}: {text}")
    if not lines:
        return []
    return [Value("classes", digest("\n".join(lines)), "digest")]


def list_compiled_values(name: str, value: Any) -> list[Value]:
    """Return ``x.dtype`` and ``x.layout`` of a tensor as values of a key: CuTe compiles both into a kernel.

    A tensor of another library has no ``x.layout``. A list has the values of its tensors. Other values have none.
    """
    if is_tensor(value):
        values = [_find_dtype_value(name, value)]
        layout = find_cute_layout(value)
        if layout is not None:
            values.append(Value(f"{name}.layout", layout))
        return values
    item_values = []
    if isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            item_values += list_compiled_values(f"{name}.{index}", item)
    return item_values


def _find_dtype_value(name: str, tensor: Any) -> Value:
    """Return the dtype of a tensor as a value of a key."""
    return stable_value(f"{name}.dtype", _find_dtype(tensor))


def is_tensor(value: object) -> bool:
    """Whether a value is a tensor of some library: torch, CuPy, or CuTe.

    Attributes with the names ``dtype`` and ``shape`` do not make a tensor. A scalar of numpy has both, and a dataclass
    of the user may have both: its other fields would be left out of the key.
    """
    cls = type(value)
    if all(find_in_class(cls, name) is None for name in _TENSOR_PROTOCOLS) and not _is_class_of_cute(cls):
        return False
    return _find_dtype(value) is not None and getattr(value, "shape", None) is not None


def _is_class_of_cute(cls: type) -> bool:
    """Whether a class is a class of CuTe's tensors."""
    for base in class_mro(cls):
        if class_name(base) == "Tensor" and class_module(base).startswith("cutlass."):
            return True
    return False


def find_cute_layout(tensor: Any) -> str | None:
    """Return the layout of a tensor of CuTe, for which a kernel is compiled; None for tensors of other libraries.

    The text is CuTe's own: the sizes of the dimensions, a colon, and their strides in elements.

    =========================== ===================================================================
    ``(8,16):(16,1)``           8 rows of 16 elements: all sizes and strides are compiled into the kernel
    ``(?,?):(?{i64},1)``        the same tensor after ``mark_layout_dynamic()``: the kernel gets each ``?`` at its
                                launch; a ``?`` is a number of 32 bits, and a ``?{i64}`` a number of 64 bits
    ``(8,?{div=4}):(?{i64},1)`` the user promised that 4 divides the second size
    =========================== ===================================================================
    """
    if not _is_class_of_cute(type(tensor)):
        return None
    # A real tensor's attributes do not have its "?" and "{div=8}". Its text has: "Tensor<0x7f5c@gmem o (8,?):(1,8)>".
    _, separator, layout = str(tensor).partition(" o ")
    if separator:
        return layout.removesuffix(">")
    # A tensor of make_fake_tensor() has no memory, and its text has no layout. Its attributes have each "?".
    return f"{_describe_fake_sizes(tensor.shape)}:{_describe_fake_sizes(tensor.stride)}"


def _describe_fake_sizes(sizes: Iterable[Any]) -> str:
    """Return the sizes or strides of a fake tensor as CuTe prints those of a real tensor: ``(8)``, ``(?,16)``.

    A fake tensor adds to each ``?`` the name that the user gave it, and ``div=1``: ``rows ?{div=1}``, ``?{i64 div=1}``.
    """
    texts = []
    for size in sizes:
        _name, question_mark, properties = str(size).rpartition("?")
        properties = properties.replace("{div=1}", "").replace(" div=1}", "}")
        texts.append(question_mark + properties)
    return f"({','.join(texts)})"


def is_stream(value: object) -> bool:
    """Whether a value is a stream of a known library, such as torch's ``Stream`` or the ``CUstream`` of cuda-bindings.

    A subclass of the user is no stream: it may have attributes on which the choice depends.
    """
    cls = type(value)
    return (class_module(cls), class_name(cls)) in STREAM_CLASSES


def _find_unusual_alignment(tensor: Any) -> int | None:
    """Return the alignment of a tensor in bytes; None for the usual alignment, and if it is not known.

    A kernel with wide loads needs the alignment. CuTe compiles a kernel for the alignment that the user promises with
    ``from_dlpack(x, assumed_align=16)``. Without a promise it is the size of an element.
    """
    promised = getattr(tensor, "_assumed_align", None)
    if isinstance(promised, int):
        element_bits = getattr(_find_dtype(tensor), "width", 0)
        if promised * 8 == element_bits:
            return None
        return promised
    address = _find_address(tensor)
    if address is None or address % _USUAL_ALIGNMENT == 0:
        return None
    # The lowest bit that is set: 4 for the address 20.
    alignment: int = address & -address
    return alignment


def _find_address(tensor: Any) -> int | None:
    """Return the address of a tensor's first element; None if it is not known."""
    find_address = getattr(tensor, "data_ptr", None)
    if callable(find_address):
        address: int = find_address()
        return address
    # CuPy's and Numba's arrays have no data_ptr().
    array_interface = getattr(tensor, "__cuda_array_interface__", None)
    if isinstance(array_interface, dict):
        address, _is_read_only = array_interface["data"]
        return address
    return None


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
