"""Tensors and streams without a GPU."""

from __future__ import annotations

from typing import Any

from cutlass import cute
from cutlass.runtime import make_fake_stream as make_fake_stream


class FakeTensor(cute.Tensor):
    def __init__(
        self, element_type: Any, shape: tuple[int, ...], stride: tuple[int, ...], assumed_align: int | None
    ) -> None:
        self.element_type = element_type
        self.shape = shape
        self.stride = stride
        self._assumed_align = assumed_align or element_type.width // 8


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
