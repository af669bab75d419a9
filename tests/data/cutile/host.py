"""Tensors, streams and times for the tests of the adapter for cuTile, with and without a GPU.

Without a GPU, tileiras compiles each kernel for an H200 if it is installed. A time depends on the configuration only.
"""

from __future__ import annotations

import hashlib
import io
import os
from dataclasses import dataclass
from typing import Any

import cuda.tile as ct
import cuda.tile.tune

HAS_GPU = False
if os.environ.get("WITH_GPU"):
    import torch

    HAS_GPU = torch.cuda.is_available()
IS_STAND_IN = not hasattr(ct, "compiler_timeout")
#: The sizes of the machine code that tileiras made without a GPU, in bytes.
compiled_sizes: list[int] = []
_searches: list[object] = []


def compile_for_hopper(kernel: Any, arguments: Any) -> str:
    """Compile a kernel for sm_90 and return a digest of the machine code."""
    from cuda.tile.compilation import ArrayConstraint, CallingConvention, KernelSignature, export_kernel

    constraints = []
    for argument in arguments:
        if isinstance(argument, int):
            constraints.append(argument)
            continue
        rank = len(argument.shape)
        constraints.append(
            ArrayConstraint(
                dtype=argument.dtype,
                ndim=rank,
                index_dtype=ct.int32,
                stride_constant=(None,) * (rank - 1) + (1,),
                stride_lower_bound_incl=0,
                alias_groups=(),
                may_alias_internally=False,
                stride_divisible_by=(16,) * (rank - 1) + (1,),
                shape_divisible_by=(16,) * rank,
                base_addr_divisible_by=16,
            )
        )
    signature = KernelSignature(constraints, CallingConvention.cutile_python_v1())
    code = io.BytesIO()
    export_kernel(kernel, [signature], code, gpu_code="sm_90", output_format="cubin")
    compiled_sizes.append(len(code.getvalue()))
    return hashlib.sha256(code.getvalue()).hexdigest()


_times_us: dict[object, float] = {}


def benchmark_nothing(stream: Any, grid: Any, kernel: Any, arguments: Any, flush_l2: Any) -> float:
    """Compile a kernel once, and return a time that depends on its machine code."""
    constants = tuple(argument for argument in arguments if isinstance(argument, int))
    key = kernel._pyfunc, str(kernel._compiler_options), constants, arguments[0].shape
    if key not in _times_us:
        _times_us[key] = 20.0 + int(compile_for_hopper(kernel, arguments)[:4], 16) % 80
    return _times_us[key]


if not HAS_GPU and not IS_STAND_IN:
    import cuda.tile.tune._tune as _tune

    _tune._benchmark = benchmark_nothing
    ct.launch = lambda *arguments: None
if not IS_STAND_IN:
    import cuda.tile.tune._tune as _tune

    _warmup = _tune._TimingCandidate.warmup

    def count_warmup(candidate: Any, *arguments: Any) -> Any:
        _searches.append(candidate)
        return _warmup(candidate, *arguments)

    _tune._TimingCandidate.warmup = count_warmup


@dataclass(frozen=True)
class HostTensor:
    """A tensor without numbers."""

    dtype: Any
    shape: tuple[int, ...]
    strides_of_dimensions: tuple[int, ...]

    def stride(self) -> tuple[int, ...]:
        return self.strides_of_dimensions

    def __dlpack__(self) -> Any:
        raise NotImplementedError


def make_tensor(*shape: int, dtype: str = "float32") -> Any:
    """Return a tensor of this shape."""
    if HAS_GPU:
        return torch.randn(shape, device="cuda").to(getattr(torch, dtype))
    strides = []
    stride = 1
    for size in reversed(shape):
        strides.insert(0, stride)
        stride *= size
    element_type = dtype if IS_STAND_IN else getattr(ct, dtype)
    return HostTensor(element_type, shape, tuple(strides))


def find_stream() -> Any:
    """Return the stream of the launches."""
    return torch.cuda.current_stream() if HAS_GPU else 0


def count_searches(candidates: int) -> int:
    """Return the number of searches with so many candidates."""
    if IS_STAND_IN:
        return len(cuda.tile.tune.searches)
    return len(_searches) // candidates
