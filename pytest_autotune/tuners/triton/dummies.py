"""Arguments that a kernel is compiled with and never launched: what a specialisation says of them, and no more."""

from __future__ import annotations

import re
import sys
from typing import Any

from pytest_autotune.tuners.triton.constants import NoText, constant_of
from pytest_autotune.tuners.triton.internals import modules
from pytest_autotune.tuners.triton.specialisation_text import Constant, Part, Typed

_TORCH = {
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bf16": "bfloat16",
    "i1": "bool",
    "u1": "bool",
    "i8": "int8",
    "u8": "uint8",
    "i16": "int16",
    "u16": "uint16",
    "i32": "int32",
    "u32": "uint32",
    "i64": "int64",
    "u64": "uint64",
    "fp8e4nv": "float8_e4m3fn",
    "fp8e5": "float8_e5m2",
    "fp8e4b8": "float8_e4m3fnuz",
    "fp8e5b16": "float8_e5m2fnuz",
}
_DESCRIPTOR = re.compile(r"tensordesc<([a-z0-9]+)\[([0-9,]{1,100})\]>")
_LARGE = {"i64": 1 << 40, "u64": 1 << 63}


class Buffer:
    """A buffer on the device, as far as Triton looks at one to specialise: :class:`triton.runtime.jit.MockTensor`."""

    def __init__(self, kind: str, *, divisible: bool, small: bool = False) -> None:
        self.dtype = getattr(sys.modules.get("torch"), _TORCH.get(kind, ""), None)
        if self.dtype is None:
            raise NoText(f"a buffer of {kind}")
        self._divisible = divisible
        self._small = small

    def data_ptr(self) -> int:
        return 0 if self._divisible else 1

    def ptr_range(self) -> int:
        return 0 if self._small else 1 << 40


def dummy_of(part: Part) -> Any:
    """An argument that Triton specialises as a part says.

    :raises NoText: where there is none.
    """
    if isinstance(part, tuple):
        return tuple(map(dummy_of, part))
    if isinstance(part, Constant):
        return constant_of(part.value)
    if not isinstance(part, Typed):
        raise NoText("what the choice holds stands in a tuple")
    kind = part.kind
    if kind.startswith("*"):
        return Buffer(kind.lstrip("*").removeprefix("k"), divisible=part.divisible, small=part.small)
    if descriptor := _DESCRIPTOR.fullmatch(kind):
        return _descriptor(descriptor[1], [int(size) for size in descriptor[2].split(",") if size])
    if kind in ("i1", "u1"):
        return True
    if kind[0] in "iu" and kind[1:].isdigit():
        return _LARGE.get(kind, 1 << 10) + (0 if part.divisible else 3)
    if kind.startswith(("fp", "bf")):
        return 0.5
    raise NoText(f"the type {kind}")


def _descriptor(kind: str, block: list[int]) -> Any:
    descriptor = modules.descriptor_class()
    if descriptor is None:
        raise NoText("no descriptors are in use")
    strides = [1 << 10] * (len(block) - 1) + [1]
    return descriptor(Buffer(kind, divisible=True), list(block), strides, list(block))
