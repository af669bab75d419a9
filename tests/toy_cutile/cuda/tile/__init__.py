"""A stand-in for cuda-tile 1.7 that compiles nothing: the signatures of its tuner and its launch."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from types import FunctionType
from typing import Any

__version__ = "1.7.0"

#: (name of the kernel, its arguments) of each launch.
launches: list[tuple[str, tuple[Any, ...]]] = []


@dataclass(frozen=True)
class CompilerOptions:
    num_ctas: Any = None
    occupancy: Any = None
    opt_level: Any = 3
    num_worker_warps: Any = None


class kernel:
    def __new__(cls, function: Any = None, /, **options: Any) -> Any:
        if function is None:
            return lambda decorated: kernel(decorated, **options)
        return super().__new__(cls)

    def __init__(self, function: Any = None, /, **options: Any) -> None:
        if not isinstance(function, FunctionType):
            raise TypeError("`kernel` decorator must be applied to a Python function")
        self._pyfunc = function
        self._compiler_options = CompilerOptions(**options)

    def replace_hints(self, **hints: Any) -> Any:
        return kernel(self._pyfunc, **asdict(replace(self._compiler_options, **hints)))

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError("Tile kernels cannot be called directly. Use cuda.tile.launch() instead.")


class Constant:
    def __class_getitem__(cls, item: Any) -> Any:
        return cls


def launch(
    stream: Any, grid: Any, kernel: Any, kernel_args: Any, /, *, programmatic_dependent_launch: bool = False
) -> None:
    if not isinstance(kernel_args, tuple):
        raise TypeError("launch() expects a tuple of arguments")
    launches.append((kernel._pyfunc.__name__, kernel_args))


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


from cuda.tile import tune as tune  # noqa: E402
