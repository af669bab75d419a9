"""A stand-in for cuda-tile 1.7 that compiles nothing: the signatures of its tuner and its launch."""

from __future__ import annotations

from typing import Any

__version__ = "1.7.0"

#: (name of the kernel, its arguments) of each launch.
launches: list[tuple[str, tuple[Any, ...]]] = []


class CompilerOptions:
    def __init__(self, **options: Any) -> None:
        vars(self).update({"num_ctas": None, "occupancy": None, "opt_level": 3, "num_worker_warps": None})
        vars(self).update(options)


class kernel:
    def __new__(cls, function: Any = None, /, **options: Any) -> Any:
        if function is None:
            return lambda decorated: kernel(decorated, **options)
        return super().__new__(cls)

    def __init__(self, function: Any = None, /, **options: Any) -> None:
        self._pyfunc = function
        self._compiler_options = CompilerOptions(**options)

    def replace_hints(self, **hints: Any) -> Any:
        return kernel(self._pyfunc, **{**vars(self._compiler_options), **hints})


class Constant:
    def __class_getitem__(cls, item: Any) -> Any:
        return cls


def launch(stream: Any, grid: Any, kernel: Any, kernel_args: Any, /) -> None:
    launches.append((kernel._pyfunc.__name__, kernel_args))


def cdiv(a: int, b: int) -> int:
    return -(-a // b)


from cuda.tile import tune as tune  # noqa: E402
