"""The names of CuTe DSL that the adapter uses; the signatures are those of nvidia-cutlass-dsl 4.8.

Two are private: the function that both tuners of CuTe benchmark with, and the attributes in which ``autotune_jit``
keeps its choices. CuTe's tuners change from version to version, so all are checked.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import check_signature
from pytest_autotune.tuners.source.libraries import find_version

#: The distribution of CuTe DSL.
LIBRARY = "nvidia-cutlass-dsl"
TUNE_PARAMETERS = ["func", "params_dict", "kernel_arguments", "warmup_iterations", "iterations", "stream"]
BENCHMARK_PARAMETERS = [
    "callable",
    "args",
    "warmup_iterations",
    "iterations",
    "use_cold_l2",
    "print_verbose",
    "current_stream",
    "kwargs",
]
DECORATE_PARAMETERS = ["self", "func"]
COMPILE_PARAMETERS = ["self", "func", "args", "kwargs"]
#: The attributes of a function under ``autotune_jit``.
_STATE = ("_original_func", "_autotune_params", "_autotune_update_params", "_best_kernel", "_best_config")


class CuteLibrary:
    """The modules of CuTe DSL, checked.

    :param module: ``cutlass.cute.testing``.
    :raises HookError: if this version of CuTe DSL has other functions than the known ones.
    """

    def __init__(self, module: ModuleType) -> None:
        self.testing: Any = sys.modules.get("cutlass.testing")
        if self.testing is None:
            raise HookError(f"{LIBRARY} {find_version(LIBRARY)} has no cutlass.testing")
        self.tune: Any = _check(self.testing, "tune", TUNE_PARAMETERS)
        self.benchmark: Any = _check(self.testing, "_benchmark_for_autotune", BENCHMARK_PARAMETERS)
        self.decorator: Any = getattr(module, "autotune_jit", None)
        _check(self.decorator, "__call__", DECORATE_PARAMETERS)
        # The package cutlass.cute, which has compile(), is still being imported: it imports its testing first.
        self._cute: Any = sys.modules["cutlass.cute"]
        self.compiler: Any = getattr(import_module("cutlass.base_dsl.compiler"), "CompileCallable", None)
        _check(self.compiler, "_compile", COMPILE_PARAMETERS)

    def compile(self, function: FunctionType, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compile a ``@cute.jit`` function for these arguments."""
        return self._cute.compile(function, *args, **kwargs)


def _check(owner: Any, name: str, parameters: Sequence[str]) -> Any:
    return check_signature(getattr(owner, name, None), f"{name}()", LIBRARY, parameters)


def list_configs(params_dict: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the configurations of a search, in the order in which CuTe tries them."""
    configs = []
    for values in product(*params_dict.values()):
        configs.append(dict(zip(params_dict, values, strict=True)))
    return configs


def is_autotuned(value: object) -> bool:
    """Whether this is a function that ``autotune_jit`` has decorated."""
    return isinstance(value, FunctionType) and "_best_kernel" in vars(value) and hasattr(value, "__wrapped__")


@dataclass(frozen=True)
class AutotunedFunction:
    """A function under ``autotune_jit``, by the attributes in which CuTe keeps its choices.

    :param launch: the function as CuTe's decorator returned it.
    :raises HookError: if the attributes are not the known ones.
    """

    launch: Any

    def __post_init__(self) -> None:
        if not all(hasattr(self.launch, name) for name in _STATE):
            raise HookError(f"autotune_jit of {LIBRARY} {find_version(LIBRARY)} keeps its choices elsewhere")

    @property
    def function(self) -> Any:
        """The ``@cute.jit`` function."""
        return self.launch._original_func

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The configurations, in the order in which CuTe tries them."""
        return list_configs(self.launch._autotune_params)

    @property
    def key_names(self) -> list[str]:
        """The names of the parameters of which CuTe tunes each value. CuTe adds names to this list."""
        names: list[str] = self.launch._autotune_update_params
        return names

    @property
    def kernels(self) -> dict[tuple[Any, ...], Any]:
        """The compiled choices by the values of the key."""
        kernels: dict[tuple[Any, ...], Any] = self.launch._best_kernel
        return kernels

    @property
    def chosen_configs(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """The chosen configurations by the values of the key."""
        configs: dict[tuple[Any, ...], dict[str, Any]] = self.launch._best_config
        return configs

    def add_constexpr_names(self, passed: Mapping[str, Any]) -> None:
        """Add the Constexpr parameters that a caller passes to the names of the key.

        CuTe adds these names after its first search, so that the second call has another key and tunes again.

        :param passed: the caller's arguments by name.
        """
        parameters = inspect.signature(self.function).parameters
        for name in passed:
            is_in_key = name in self.key_names or name in self.launch._autotune_params
            if not is_in_key and _is_constexpr(parameters[name].annotation):
                self.key_names.append(name)

    def compute_key(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[Any, ...]:
        """Return the key under which CuTe remembers the choice for a call."""
        names = list(inspect.signature(self.function).parameters)
        key = []
        for name in self.key_names:
            if name in kwargs:
                key.append(kwargs[name])
            elif names.index(name) < len(args):
                key.append(args[names.index(name)])
        return tuple(key)


def _is_constexpr(annotation: Any) -> bool:
    """Whether a parameter is annotated as ``cutlass.Constexpr`` or ``cutlass.Constexpr[int]``."""
    return "Constexpr" in str(annotation)


@dataclass(frozen=True)
class CompiledLaunch:
    """A compiled kernel with the arguments of one launch. Constexpr arguments are compiled in, and left out."""

    kernel: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of(cls, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CompiledLaunch:
        """Return the launch of a kernel that was compiled for these arguments."""
        positional, named = list(args), dict(kwargs)
        compiled_in = []
        for argument in kernel.execution_args.get_constexpr_args():
            if argument["argument_name"] in named:
                del named[argument["argument_name"]]
            elif argument["argument_index"] is not None:
                compiled_in.append(argument["argument_index"])
        for index in sorted(compiled_in, reverse=True):
            if index < len(positional):
                del positional[index]
        return cls(kernel, tuple(positional), named)

    def run(self) -> Any:
        """Launch the kernel once."""
        return self.kernel(*self.args, **self.kwargs)


def list_autotuned() -> list[tuple[ModuleType, str, FunctionType]]:
    """Return the modules that hold a function under ``autotune_jit``, each with the name and the function."""
    holders = []
    for module in list(sys.modules.values()):
        if type(module) is not ModuleType:
            continue  # a module that loads lazily would import its library
        for name, value in list(vars(module).items()):
            if is_autotuned(value):
                holders.append((module, name, value))
    return holders
