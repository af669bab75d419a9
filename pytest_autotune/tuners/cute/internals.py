"""The names of CuTe DSL that the adapter uses, with the signatures of nvidia-cutlass-dsl 4.8.

Most of them are private: the benchmark, the method that compiles, and the attributes in which ``autotune_jit`` keeps
its choices. Another version of CuTe may have other names, so each is checked before it is used.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib import import_module
from itertools import product
from types import FunctionType, ModuleType
from typing import Any

from pytest_autotune.tuners.protocol import HookError
from pytest_autotune.tuners.shared.patches import check_signature
from pytest_autotune.tuners.source.attributes import class_mro, is_instance
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
#: The attributes of a function under ``autotune_jit``; see :class:`AutotunedFunction`.
_STATE = ("_original_func", "_autotune_params", "_autotune_update_params", "_best_kernel", "_best_config")


class CuteLibrary:
    """The functions and classes of CuTe DSL that the adapter replaces or calls, after a check of their signatures.

    :param module: ``cutlass.cute.testing``.
    :raises HookError: if this version of CuTe DSL lacks a function, or the function has another signature.
    """

    def __init__(self, module: ModuleType) -> None:
        self.testing: Any = sys.modules.get("cutlass.testing")
        if self.testing is None:
            raise HookError(f"{LIBRARY} {find_version(LIBRARY)} has no cutlass.testing")
        self.tune: Any = _check(self.testing, "tune", TUNE_PARAMETERS)
        _check(self.testing, "_benchmark_for_autotune", BENCHMARK_PARAMETERS)
        self.decorator: Any = getattr(module, "autotune_jit", None)
        _check(self.decorator, "__call__", DECORATE_PARAMETERS)
        # The hook runs while the package cutlass.cute imports its module testing. The package has no compile() yet, so
        # the method compile() below looks for it later.
        self._cute: Any = sys.modules["cutlass.cute"]
        self.compiler: Any = getattr(import_module("cutlass.base_dsl.compiler"), "CompileCallable", None)
        _check(self.compiler, "_compile", COMPILE_PARAMETERS)

    def compile(self, jit_function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        """Compile a ``@cute.jit`` function for these arguments."""
        return self._cute.compile(jit_function, *args, **kwargs)


def _check(owner: Any, name: str, parameters: Sequence[str]) -> Any:
    return check_signature(getattr(owner, name, None), f"{name}()", LIBRARY, parameters)


def list_configs(params_dict: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Return the configurations of a search, in the order in which CuTe tries them.

    ``{"V": [1, 4], "T": [64]}`` gives ``[{"V": 1, "T": 64}, {"V": 4, "T": 64}]``.
    """
    configs = []
    for values in product(*params_dict.values()):
        configs.append(dict(zip(params_dict, values, strict=True)))
    return configs


@dataclass(frozen=True)
class Iterations:
    """How often a benchmark launches each configuration.

    :param warmup: the launches before the measurement.
    :param timed: the launches that are measured.
    """

    warmup: int
    timed: int


@dataclass(frozen=True)
class AutotunedFunction:
    """A function under ``autotune_jit``, with CuTe's private attributes under plain names.

    :param cute_function: the function that ``autotune_jit`` returned. It launches the remembered kernel, or searches.
    :param iterations: how often the user of the decorator wants each configuration to be launched.
    :raises HookError: if the function lacks an attribute.
    """

    cute_function: Any
    iterations: Iterations
    #: The ``update_on_change`` of the decorator: CuTe tunes each value of these parameters by itself. This is a copy,
    #: because CuTe's own searches add names to the list.
    key_names: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        if not all(hasattr(self.cute_function, name) for name in _STATE):
            raise HookError(f"autotune_jit of {LIBRARY} {find_version(LIBRARY)} keeps its choices elsewhere")
        object.__setattr__(self, "key_names", tuple(self.cute_function._autotune_update_params))

    @property
    def jit_function(self) -> Any:
        """The ``@cute.jit`` function that the user decorated."""
        return self.cute_function._original_func

    @property
    def configs(self) -> list[dict[str, Any]]:
        """The configurations, in the order in which CuTe tries them."""
        return list_configs(self.cute_function._autotune_params)

    @property
    def kernels(self) -> dict[tuple[Any, ...], Any]:
        """CuTe's memory: the compiled kernel of each key.

        CuTe's own keys are values of arguments without names, compared as Python compares them. The adapter's keys
        begin with a problem, so that CuTe never takes a kernel of the adapter for one of its own.
        """
        kernels: dict[tuple[Any, ...], Any] = self.cute_function._best_kernel
        return kernels

    @property
    def chosen_configs(self) -> dict[tuple[Any, ...], dict[str, Any]]:
        """CuTe's memory: the chosen configuration of each key."""
        configs: dict[tuple[Any, ...], dict[str, Any]] = self.cute_function._best_config
        return configs

    @cached_property
    def _signature(self) -> inspect.Signature:
        return inspect.signature(self.jit_function)

    @cached_property
    def _constexpr_names(self) -> frozenset[str]:
        try:
            # The annotations may be text, because of "from __future__ import annotations".
            signature = inspect.signature(self.jit_function, eval_str=True)
        except Exception:
            # A name in an annotation is not defined, for example.
            signature = self._signature
        parameters = signature.parameters.values()
        return frozenset(parameter.name for parameter in parameters if _is_constexpr(parameter.annotation))

    @property
    def is_method(self) -> bool:
        """Whether the function is a method of a class. CuTe decides this by the name ``self``, too."""
        return next(iter(self._signature.parameters), "") == "self"

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arguments of a call by name, without defaults.

        :raises TypeError: if the function cannot be called with these arguments.
        """
        return self._signature.bind_partial(*args, **kwargs).arguments

    def is_in_key(self, name: str, value: Any) -> bool:
        """Whether the value of an argument tells calls apart.

        - A parameter in ``update_on_change`` does.
        - A parameter that is tuned does not: it gets its value from the configuration.
        - A parameter that is annotated as ``Constexpr`` does, because CuTe compiles its value into the kernel.
        - A class, such as the dtype ``cutlass.Float16``, does, because it is compiled in, too.
        """
        if name in self.key_names:
            return True
        if name in self.cute_function._autotune_params:
            return False
        return name in self._constexpr_names or isinstance(value, type)

    def list_none_names(self, arguments: Mapping[str, Any]) -> list[str]:
        """Return the parameters that are None in a call, whether the caller passed None or None is the default.

        CuTe compiles another kernel if a parameter is None, for example one without a bias.

        :param arguments: the arguments of the call by name.
        """
        parameters = self._signature.parameters.items()
        return [name for name, parameter in parameters if arguments.get(name, parameter.default) is None]

    def forget_all(self) -> None:
        """Empty CuTe's memory of this function."""
        self.kernels.clear()
        self.chosen_configs.clear()


def _is_constexpr(annotation: Any) -> bool:
    """Whether a parameter is annotated as ``cutlass.Constexpr``, ``cutlass.Constexpr[int]``, or a subclass of these.

    The annotation is text if it could not be resolved.
    """
    classes = [annotation]
    if is_instance(annotation, type):
        classes = list(class_mro(annotation))
    return any("Constexpr" in str(cls) for cls in classes)


@dataclass(frozen=True)
class CompiledLaunch:
    """A compiled kernel with the arguments of one launch.

    The arguments that are compiled into the kernel are left out, because a compiled kernel does not take them.
    """

    kernel: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @classmethod
    def of_call(cls, kernel: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> CompiledLaunch:
        """Return the launch that a call of the ``@cute.jit`` function asks for.

        :param kernel: the kernel that CuTe compiled for these arguments.
        """
        compiled_in_names = set()
        compiled_in_indexes = set()
        for parameter in kernel.execution_args.get_constexpr_args():
            if parameter["argument_name"] in kwargs:
                compiled_in_names.add(parameter["argument_name"])
            else:
                # The parameter may also have its value from its default or from the configuration. Its index is then no
                # position in ``args``, so no argument is left out.
                compiled_in_indexes.add(parameter["argument_index"])
        remaining_args = [argument for index, argument in enumerate(args) if index not in compiled_in_indexes]
        remaining_kwargs = {name: argument for name, argument in kwargs.items() if name not in compiled_in_names}
        return cls(kernel, tuple(remaining_args), remaining_kwargs)

    def run(self) -> Any:
        """Launch the kernel once."""
        return self.kernel(*self.args, **self.kwargs)


@dataclass(frozen=True)
class FunctionName:
    """A name of an imported module that is bound to a function under ``autotune_jit``."""

    module: ModuleType
    name: str
    function: FunctionType


def list_function_names() -> list[FunctionName]:
    """Return all names of imported modules that are bound to a function under ``autotune_jit``."""
    names = []
    for module in list(sys.modules.values()):
        if type(module) is not ModuleType:
            continue  # a lazy module, for example: reading its names may import a whole library
        for name, value in list(vars(module).items()):
            if is_autotuned(value):
                names.append(FunctionName(module, name, value))
    return names


def is_autotuned(value: object) -> bool:
    """Whether this is a function that ``autotune_jit`` returned.

    The ``@cute.jit`` function inside, and a function with ``functools.wraps`` around it, have the same attributes. But
    only the function that CuTe returned wraps the ``@cute.jit`` function directly.
    """
    if not isinstance(value, FunctionType):
        return False
    jit_function = vars(value).get("_original_func")
    return jit_function is not None and getattr(value, "__wrapped__", None) is jit_function
