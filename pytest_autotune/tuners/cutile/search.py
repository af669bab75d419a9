"""One call of ``exhaustive_search``: the question that it asks, and the launches of its configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Problem, UncacheableError, Value
from pytest_autotune.cache.structured import structured_value
from pytest_autotune.tuners.cutile.internals import is_kernel, list_decorator_options, list_parameter_names
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.shared.arguments import list_argument_values
from pytest_autotune.tuners.shared.configurations import ConfigurationQuestion, Configurations
from pytest_autotune.tuners.shared.contests import build_contest
from pytest_autotune.tuners.source.functions import python_function, qualified_name
from pytest_autotune.tuners.source.libraries import list_versions
from pytest_autotune.tuners.source.source_digest import DigestedSource, combine_sources, read_source

NAME = "cutile"


@dataclass(frozen=True)
class TileSearch:
    """The arguments of one call of cuTile's ``exhaustive_search``, under cuTile's names.

    :param space: the configurations; any Python values, one for each candidate.
    :param stream: the CUDA stream of the launches.
    :param grid_fn: returns the grid for a configuration.
    :param kernel: the kernel, or a function that returns the kernel for a configuration.
    :param args_fn: returns the kernel's arguments for a configuration.
    :param hints_fn: returns the compiler hints for a configuration; None if there are none.
    :param flush_l2: whether cuTile flushes the L2 cache before each measured launch.
    """

    space: Sequence[Any]
    stream: Any
    grid_fn: Callable[[Any], tuple[int, ...]]
    kernel: Any
    args_fn: Callable[[Any], tuple[Any, ...]]
    hints_fn: Callable[[Any], Mapping[str, Any]] | None
    flush_l2: bool

    def find_function(self) -> FunctionType | None:
        """Return the Python function of the kernel; None if there is none."""
        return python_function(self.find_kernel(self.space[0]))

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in caches and reports."""
        function = self.find_function()
        if function is None:
            return type(self.kernel).__qualname__
        return qualified_name(function)

    @property
    def is_on_gpu(self) -> bool:
        """Whether this process uses a GPU."""
        return devices.current_gpu() is not None

    @property
    def problem(self) -> Problem:
        """The problem without its key."""
        return Problem(NAME, self.kernel_name, (), devices.current_gpu() or devices.cpu())

    def find_kernel(self, config: object) -> Any:
        """Return the kernel of a configuration, without its hints."""
        if is_kernel(self.kernel):
            return self.kernel
        return self.kernel(config)

    def build_question(self) -> ConfigurationQuestion:
        """Return the question for this search.

        :raises UncacheableError: if a part of the problem has no stable form.
        """
        problem = Problem(NAME, self.kernel_name, tuple(self._list_key()), self.problem.device)
        source = self._read_source()
        return ConfigurationQuestion(
            problem,
            source,
            Configurations(self.space),
            settings=self._list_settings(),
            versions=list_versions("cuda.tile", "torch", distributions=source.libraries),
        )

    def _list_settings(self) -> Iterator[Value]:
        """Yield the options of the kernel's decorator and of the search that differ from their defaults."""
        options = list_decorator_options(self.find_kernel(self.space[0]))
        if options:
            yield structured_value("options", options)
        if not self.flush_l2:
            yield Value("flush_l2", False)

    def _read_source(self) -> DigestedSource:
        """Return the source of the kernel, and of the functions that make its grid, arguments and hints."""
        function = self.find_function()
        if function is None:
            raise UncacheableError("the kernel has no Python function")
        # The values in the closure of the kernel are compiled into it, so they count.
        sources = [read_source(function, own_cells=True)]
        callbacks = [self.grid_fn, self.args_fn, self.hints_fn]
        if not is_kernel(self.kernel):
            callbacks.append(self.kernel)
        for callback in callbacks:
            if callback is not None:
                # These functions are often lambdas of a test: their names and the values in their closures, such as the
                # tensors of the test, do not count.
                sources.append(read_source(callback, named=False, carried=False))
        return combine_sources(sources)

    def _list_key(self) -> Iterator[Value]:
        """Yield the values of the key: the arguments that are the same for all configurations.

        An argument belongs to the key if its encoded values are equal for the first and the last configuration. The
        objects cannot be compared, because ``args_fn`` may copy tensors.
        """
        function = self.find_function()
        assert function is not None
        first, last = self._list_arguments(self.space), self._list_arguments(self.space[::-1])
        names = list_parameter_names(function)
        for index, argument in enumerate(first):
            if index >= len(names):
                break  # cuTile refuses the launch
            values = list_argument_values(names[index], argument)
            if index < len(last) and values == list_argument_values(names[index], last[index]):
                yield from values

    def _list_arguments(self, configs: Sequence[Any]) -> tuple[Any, ...]:
        """Return the kernel's arguments for the first configuration for which ``args_fn`` raises no error."""
        for config in configs:
            try:
                return tuple(self.args_fn(config))
            except Exception:
                continue  # cuTile leaves such a configuration out
        raise UncacheableError("args_fn failed for every configuration")

    def build_launch(self, config: object) -> TileLaunch:
        """Return the launch of a configuration."""
        hints: Mapping[str, Any] = {}
        if self.hints_fn is not None:
            hints = self.hints_fn(config)
        kernel = self.find_kernel(config).replace_hints(**hints)
        return TileLaunch(self, config, self.grid_fn(config), kernel)

    def explain_unusable(self, config: object) -> Exception | None:
        """Return the error of launching a configuration that no search has tried for this problem; None if it works."""
        try:
            launch = self.build_launch(config)
            launch.prepare()
            launch.run()
        except Exception as error:
            return error
        return None

    def build_contest(self) -> Contest | str:
        """Return the race of a loaded choice, or the reason why there is none."""
        return build_contest(Configurations(self.space), self, self.stream, flush_l2=self.flush_l2)

    def build_runner(self, config: object) -> Runner:
        """Return the runner that launches a configuration in a race."""
        launch = self.build_launch(config)
        return Runner(launch.run, launch.prepare)


@dataclass
class TileLaunch:
    """One configuration, ready to be launched.

    :param arguments: of the next launch. ``args_fn`` makes new arguments for each launch, as in a search.
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
