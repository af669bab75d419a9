"""Tensors and streams without a GPU."""

from __future__ import annotations

from typing import Any

from cutlass import cute


class FakeTensor(cute.Tensor):
    def __init__(self, element_type: Any, shape: tuple[int, ...], stride: tuple[int, ...]) -> None:
        self.element_type = element_type
        self.shape = shape
        self.stride = stride


class FakeStream:
    def __int__(self) -> int:
        return 0


def make_fake_compact_tensor(
    dtype: Any, shape: tuple[int, ...], *, stride_order: Any = None, assumed_align: Any = None
) -> FakeTensor:
    strides, stride = [], 1
    for size in shape:  # the first dimension first
        strides.append(stride)
        stride *= size
    return FakeTensor(dtype, shape, tuple(strides))


def make_fake_stream() -> FakeStream:
    return FakeStream()
