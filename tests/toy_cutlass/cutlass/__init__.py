"""A stand-in for nvidia-cutlass-dsl 4.8 without a compiler: the signatures, memory and flaws of its tuners."""

from __future__ import annotations

__version__ = "4.8.1"


class DTypeMeta(type):
    """CuTe's dtypes are classes with a metaclass of their own."""


class Float32(metaclass=DTypeMeta):
    width = 32


class Float16(metaclass=DTypeMeta):
    width = 16


class Int32(metaclass=DTypeMeta):
    width = 32


class Constexpr:
    pass


from cutlass import cute as cute  # noqa: E402
from cutlass import runtime as runtime  # noqa: E402
from cutlass import testing as testing  # noqa: E402
