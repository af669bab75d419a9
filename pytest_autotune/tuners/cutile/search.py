"""One call of ``exhaustive_search``: its kernel, its key and fingerprint, and the launches of its configurations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Problem, UncacheableError, Value
from pytest_autotune.cache.structured import structured_value
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.shared.arguments import is_tensor, list_argument_values, list_class_values
from pytest_autotune.tuners.shared.configurations import (
    ConfigurationQuestion,
    Configurations,
    add_code_in_values,
    list_config_values,
)
from pytest_autotune.tuners.shared.contests import build_contest
from pytest_autotune.tuners.source.code_text import read_function
from pytest_autotune.tuners.source.functions import closure_cells, is_code, python_function, qualified_name
from pytest_autotune.tuners.source.libraries import list_versions
from pytest_autotune.tuners.source.source_digest import (
    DigestedSource,
    combine_sources,
    digest,
    immutable_text,
    read_source,
    stable_value,
)
from pytest_autotune.tuners.source.values import list_defaults

NAME = "cutile"


@dataclass(frozen=True)
class FirstKernel:
    """The ``@ct.kernel`` of the first configuration.

    :param kernel: None if the user's function that returns it failed.
    :param error: why this function failed; else empty.
    """

    kernel: Any
    error: str = ""

    def find_function(self) -> FunctionType | None:
        """Return the Python function of the kernel; None if there is none."""
        return python_function(self.kernel)


@dataclass(frozen=True)
class ConfigArguments:
    """The kernel's arguments for a configuration.

    :param config: a configuration for which ``args_fn`` raises no error.
    """

    config: Any
    arguments: tuple[Any, ...]

    def list_values(self, name: str, argument: Any) -> list[Value]:
        """Return the values of a key for an argument; none if the configuration itself holds the argument."""
        values = list_argument_values(name, argument)
        for item in list_config_values(self.config):
            with suppress(UncacheableError):
                if list_argument_values(name, item) == values:
                    return []
        return values


@dataclass(frozen=True)
class KernelArgument:
    """An argument of the kernel.

    :param value: the argument for the first configuration.
    :param key: the values of the key for the argument.
    :param is_fixed: whether the first and the last configuration give the key equal values.
    """

    name: str
    value: Any
    key: tuple[Value, ...]
    is_fixed: bool


@dataclass(frozen=True)
class TileSearch:
    """The arguments of one call of ``exhaustive_search``.

    :param configs: the configurations, such as ``[{"T": 256}, {"T": 1024}]``. A configuration can be any Python value.
    :param stream: the CUDA stream of the launches.
    :param grid_fn: a function that returns the grid for a configuration, such as ``(16, 1)``.
    :param kernel: a ``@ct.kernel``, or a function that returns the ``@ct.kernel`` for a configuration.
    :param args_fn: a function that returns the kernel's arguments for a configuration, such as ``(x, y, 256)``.
    :param hints_fn: None, or a function that returns the compiler hints for a configuration, such as
        ``{"occupancy": 4}``.
    :param flush_l2: whether cuTile empties the L2 cache before each measured launch.
    """

    configs: Sequence[Any]
    stream: Any
    grid_fn: Callable[[Any], tuple[int, ...]]
    kernel: Any
    args_fn: Callable[[Any], tuple[Any, ...]]
    hints_fn: Callable[[Any], Mapping[str, Any]] | None
    flush_l2: bool

    # The problem and the fingerprint.

    def build_question(self) -> ConfigurationQuestion:
        """Return the question for this search.

        :raises UncacheableError: if a part of the problem has no stable form.
        """
        function = self.first_kernel.find_function()
        if function is None:
            raise UncacheableError(
                self.first_kernel.error or "the kernel has no Python function whose source could be compared"
            )
        key: list[Value] = []
        # Objects that may be of classes of the user, whose source belongs to the question. An argument that a
        # configuration changes is left out: _read_source() adds the classes in configurations itself.
        key_values: list[tuple[str, Any]] = []
        for argument in self._list_arguments(function):
            key += argument.key
            if argument.is_fixed and not is_tensor(argument.value):
                key_values.append((argument.name, argument.value))
        for name, value in self._list_carried_values():
            key.append(_encode_carried(name, value))
            key_values.append((name, value))
        source = self._read_source(function, [value for _, value in key_values])
        return ConfigurationQuestion(
            Problem(NAME, self.kernel_name, tuple(key), self.problem.device),
            source,
            Configurations(self.configs),
            settings=[*self._list_settings(), *list_class_values(key_values)],
            versions=list_versions("cuda.tile", "torch", distributions=source.libraries),
        )

    @property
    def problem(self) -> Problem:
        """The problem without its key."""
        return Problem(NAME, self.kernel_name, (), devices.current_gpu() or devices.cpu())

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in caches and reports, such as ``lib.ops.scale``.

        If the function that returns the kernel fails, the name is that of this function.
        """
        function = self.first_kernel.find_function() or python_function(self.kernel)
        if function is None:
            return type(self.kernel).__qualname__
        return qualified_name(function)

    @cached_property
    def first_kernel(self) -> FirstKernel:
        """The kernel of the first configuration. If configurations have different kernels, it names the problem."""
        try:
            return FirstKernel(self.find_kernel(self.configs[0]))
        except Exception as error:
            # cuTile calls the function again, and then the user gets the error.
            return FirstKernel(None, f"the function that returns the kernel failed: {describe_error(error)}")

    def find_kernel(self, config: object) -> Any:
        """Return the ``@ct.kernel`` of a configuration. The hints of the configuration are not applied to it."""
        if is_kernel(self.kernel):
            return self.kernel
        return self.kernel(config)

    def _list_carried_values(self) -> Iterator[tuple[str, Any]]:
        """Yield the values that the callbacks carry, except those of ``args_fn``: the key has its results."""
        yield from list_carried_values("grid_fn", self.grid_fn)
        yield from list_carried_values("hints_fn", self.hints_fn)
        if not is_kernel(self.kernel):
            yield from list_carried_values("kernel", self.kernel)

    def _list_arguments(self, function: FunctionType) -> list[KernelArgument]:
        """Return the kernel's arguments. One that is a value of the configuration gives the key no values.

        The method looks at the arguments of the first and the last configuration. It calls ``args_fn`` as rarely as
        possible, because each call may copy tensors. An argument that differs between the two is one of these:

        - A value of the configuration, such as the size of a tile. It is tuned: ``key`` is empty.
        - A value that depends on the configuration and on the problem, such as a tensor with padding, or the number of
          tiles. The key has both values: ``tiles=64`` and ``tiles.last=16``.
        """
        # Each call ends with the first configuration for which args_fn returns arguments.
        first = self._make_arguments(self.configs)
        last = self._make_arguments(list(reversed(self.configs)))
        parameter_names = inspect.signature(function).parameters
        # zip() ends with the shortest. If the numbers of arguments and parameters differ, cuTile refuses the launch.
        pairs = zip(parameter_names, first.arguments, last.arguments, strict=False)
        arguments = []
        for name, first_argument, last_argument in pairs:
            values = list_argument_values(name, first_argument)
            last_values = list_argument_values(name, last_argument)
            is_fixed = values == last_values
            if not is_fixed:
                # list_values() returns nothing for an argument that is a value in the configuration.
                values = first.list_values(name, first_argument)
                last_values = last.list_values(name, last_argument)
            key = list(values)
            for value in last_values:
                if value not in values:
                    key.append(replace(value, name=f"{value.name}.last"))
            arguments.append(KernelArgument(name, first_argument, tuple(key), is_fixed))
        return arguments

    def _make_arguments(self, configs: Sequence[Any]) -> ConfigArguments:
        """Return the kernel's arguments for the first configuration for which ``args_fn`` raises no error.

        :raises UncacheableError: if there is no such configuration.
        """
        for config in configs:
            try:
                return ConfigArguments(config, tuple(self.args_fn(config)))
            except Exception:
                continue  # the search of cuTile, too, goes on with the next configuration
        raise UncacheableError("args_fn failed for every configuration")

    def _read_source(self, function: FunctionType, key_values: Sequence[Any]) -> DigestedSource:
        """Return the source of the kernel, of the functions around it, and of the classes of values.

        :param key_values: the values of the key as Python has them. The values of the configurations count as well.
        """
        # cuTile compiles the values in the kernel's closure into the kernel, so they count.
        sources = [read_source(function, own_cells=True)]
        callbacks = [self.grid_fn, self.args_fn, self.hints_fn]
        if not is_kernel(self.kernel):
            # The user passed a function that returns the kernel of a configuration. Its source counts, too.
            callbacks.append(self.kernel)
        for callback in callbacks:
            if callback is not None:
                # A callback is often a lambda in a test. named=False leaves out its name, which says nothing.
                # carried=False leaves out the values in its closure, such as the tensors of the test.
                sources.append(read_source(callback, named=False, carried=False))
        values: list[object] = list(key_values)
        for config in self.configs:
            values += [config, *list_config_values(config)]
        return add_code_in_values(combine_sources(sources), values, function)

    def _list_settings(self) -> Iterator[Value]:
        """Yield the options of the kernel's decorator and of the search that differ from their defaults."""
        options = list_decorator_options(self.first_kernel.kernel)
        if options:
            yield structured_value("options", options)
        if not self.flush_l2:
            yield Value("flush_l2", False)

    # The launches.

    @property
    def is_on_gpu(self) -> bool:
        """Whether this process uses a GPU."""
        return devices.current_gpu() is not None

    @property
    def lock_name(self) -> str:
        """The name of the processor that the search locks: empty for the current GPU, ``cpu`` without a GPU."""
        if self.is_on_gpu:
            return ""
        return "cpu"

    def build_launch(self, config: object) -> TileLaunch:
        """Return the launch of a configuration."""
        hints: Mapping[str, Any] = {}
        if self.hints_fn is not None:
            hints = self.hints_fn(config)
        kernel = self.find_kernel(config).replace_hints(**hints)
        return TileLaunch(self, config, self.grid_fn(config), kernel)

    def find_launch_error(self, config: object) -> Exception | None:
        """Launch a configuration once, and return the error; None if the launch works.

        Without a GPU nothing can be launched, so every configuration is taken to work.
        """
        if not self.is_on_gpu:
            return None
        try:
            launch = self.build_launch(config)
            launch.prepare()
            launch.run()
        except Exception as error:
            return error
        return None

    def build_contest(self) -> Contest | str:
        """Return the race of a loaded choice with the other configurations, or the reason why there is no race."""
        return build_contest(Configurations(self.configs), self, self.stream, flush_l2=self.flush_l2)

    def build_runner(self, config: object) -> Runner:
        """Return the runner that launches a configuration in a race."""
        launch = self.build_launch(config)
        return Runner(launch.run, launch.prepare)


@dataclass
class TileLaunch:
    """The kernel and the grid of one configuration. The arguments are new for each launch, as in a search of cuTile.

    :param arguments: the arguments of the next launch, which :meth:`prepare` makes.
    """

    search: TileSearch
    config: Any
    grid: tuple[int, ...]
    kernel: Any
    arguments: tuple[Any, ...] = ()

    def prepare(self) -> None:
        """Make the arguments of the next launch."""
        self.arguments = self.search.args_fn(self.config)

    def run(self) -> None:
        """Launch the kernel once."""
        from cuda.tile import launch  # type: ignore[import-not-found]

        launch(self.search.stream, self.grid, self.kernel, self.arguments)


def is_kernel(kernel: object) -> bool:
    """Whether this is a ``@ct.kernel``, and not a function that returns the kernel of a configuration."""
    return hasattr(kernel, "replace_hints")


def list_carried_values(name: str, callback: object) -> Iterator[tuple[str, Any]]:
    """Yield the values that cannot change in the closure and the defaults of a callback, such as ``grid_fn.size``.

    The source of the callback lacks them. Tensors are left out: the key has those that the kernel gets.

    :param name: the name of the parameter, such as ``grid_fn``.
    :param callback: the callback; None without one.
    """
    function = python_function(callback)
    if function is None:
        return
    assigned_names = [names[-1] for names in read_function(function).assigned]
    for variable, value in [*closure_cells(function).items(), *list_defaults(function)]:
        # The source has the code of a function. A variable that the callback assigns is a counter.
        if is_code(value) or is_tensor(value) or variable in assigned_names:
            continue
        if immutable_text(value) is not None:
            yield f"{name}.{variable}", value


def _encode_carried(name: str, value: object) -> Value:
    """Encode, for the key, a value that a callback carries."""
    try:
        return stable_value(name, value)
    except UncacheableError:  # a frozen dataclass
        return Value(name, digest(str(immutable_text(value))), "digest")


def list_decorator_options(kernel: object) -> dict[str, Any]:
    """Return the options that a kernel's decorator sets: ``{"occupancy": 2}`` for ``@ct.kernel(occupancy=2)``.

    The options stand in the private attribute ``_compiler_options`` of a kernel. An option can be a ``ByTarget``, which
    has a number for each type of GPU. It is returned as text.
    """
    compiler_options: Any = getattr(kernel, "_compiler_options", None)
    options: dict[str, Any] = {}
    for name, value in sorted(getattr(compiler_options, "__dict__", {}).items()):
        if isinstance(value, int):
            options[name] = value
        elif value is not None:
            options[name] = str(value)
    return options
