"""Tensors and streams without a GPU."""

from __future__ import annotations

from typing import Any

import cutlass
from cutlass import cute
from cutlass.runtime import make_fake_stream as make_fake_stream


class FakeTensor(cute.Tensor):
    def __init__(
        self, element_type: Any, shape: tuple[Any, ...], stride: tuple[Any, ...], assumed_align: int | None
    ) -> None:
        self.element_type = element_type
        self.shape = shape
        self.stride = stride
        self._assumed_align = assumed_align or element_type.width // 8


class Tensor(cute.Tensor):
    """A tensor of another library, whose layout is static until it is marked."""

    def __init__(self, tensor: Any, assumed_align: int | None) -> None:
        self.element_type = cutlass.Float32
        self.shape = tuple(tensor.shape)
        self.stride = tuple(stride // tensor.itemsize for stride in tensor.strides)
        self._assumed_align = assumed_align
        self._is_dynamic = False

    def mark_layout_dynamic(self) -> Tensor:
        self._is_dynamic = True
        return self

    def __str__(self) -> str:
        shape, stride = [*self.shape], [*self.stride]
        if self._is_dynamic:
            shape = ["?"] * len(shape)
            stride = [1 if size == 1 else "?{i64}" for size in stride]
        layout = f"({','.join(map(str, shape))}):({','.join(map(str, stride))})"
        return f"Tensor<0x{id(self):x}@generic o {layout}>"


def from_dlpack(tensor: Any, assumed_align: int | None = None) -> Tensor:
    return Tensor(tensor, assumed_align)


def make_fake_tensor(
    dtype: Any, shape: tuple[Any, ...], stride: tuple[Any, ...], *, assumed_align: int | None = None
) -> FakeTensor:
    return FakeTensor(dtype, shape, stride, assumed_align)


def make_fake_compact_tensor(
    dtype: Any,
    shape: tuple[int, ...],
    *,
    stride_order: Any = None,
    memspace: Any = None,
    assumed_align: int | None = None,
    use_32bit_stride: bool = False,
) -> FakeTensor:
    strides, stride = [], 1
    for size in shape:  # the first dimension first
        strides.append(stride)
        stride *= size
    return FakeTensor(dtype, shape, tuple(strides), assumed_align)
