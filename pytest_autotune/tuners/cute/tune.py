"""``cutlass.testing.tune``: the configuration with which a function of the user builds the fastest kernel.

A call that hits returns the loaded configuration: nothing is compiled or benchmarked. A call that misses runs CuTe's
own loop over all configurations. The adapter puts :class:`NotingBuilder` into the place of the user's function, and so
sees the configurations that fail. :class:`~pytest_autotune.tuners.cute.searching.BenchmarkHook` sees the times.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

from pytest_autotune.cache.model import UncacheableError, Value
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.cute.internals import list_configs
from pytest_autotune.tuners.cute.searching import NAME, CuteSearch, build_problem
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.shared.arguments import list_argument_values, list_class_values
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.configurations import (
    ConfigurationQuestion,
    Configurations,
    add_code_in_values,
    list_config_values,
    was_measured_for_this_problem,
)
from pytest_autotune.tuners.shared.contests import build_contest
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall
from pytest_autotune.tuners.source.functions import closure_cells, python_function, qualified_name
from pytest_autotune.tuners.source.libraries import list_versions
from pytest_autotune.tuners.source.source_digest import is_code, is_library_class, read_source


class TuneHook(CallHook):
    """Asks for the choice of each call of ``tune``, and records the results of the searches that take place."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, call: HookedCall) -> CallResult | CallInstead | None:
        """Return the loaded configuration. If there is none, let CuTe search with a :class:`NotingBuilder`.

        None leaves the call to CuTe: the session does not act on it, or its problem has no stable form.
        """
        arguments = call.arguments
        if not arguments["params_dict"]:
            return None
        tune_call = TuneCall(
            builder=arguments["func"],
            params_dict=arguments["params_dict"],
            jit_arguments=arguments["kernel_arguments"],
            stream=arguments["stream"],
        )
        if self._session.leaves_alone(NAME, tune_call.kernel_name):
            return None
        try:
            question = tune_call.build_question()
        except UncacheableError as error:
            self._session.report_uncacheable(build_problem(tune_call.kernel_name), str(error))
            return None
        question.note_large_source(self._session)
        tuning = call.enter(self._session.tuning(question))
        config = self._find_loaded_config(tune_call, question, tuning)
        if config is not None:
            return CallResult(config)
        search = CuteSearch(question, tuning)
        call.state = search
        call.enter(search.as_current())
        return call.with_arguments(func=NotingBuilder(tune_call, search))

    def _find_loaded_config(
        self, tune_call: TuneCall, question: ConfigurationQuestion, tuning: Tuning
    ) -> dict[str, Any] | None:
        """Return the configuration of the first entry that can be used; None if the session offers no such entry."""
        for entry in tuning.offered_entries():
            assert entry.choice is not None
            config: dict[str, Any] = question.configurations.find(entry.choice)
            if was_measured_for_this_problem(self._session, tuning):
                tuning.race(tune_call.build_contest)
                return config
            reason = tune_call.explain_unusable(config)
            if not reason:
                return config
            tuning.reject(reason)
        return None

    def note(self, call: HookedCall, result: Mapping[str, Any]) -> None:
        """Record the configuration that CuTe's search returned."""
        if call.state is not None:
            call.state.results.record(call.state.tuning, result)

    def note_error(self, call: HookedCall, error: Exception) -> None:
        """Note why each configuration failed, if the search ended without a time."""
        search = call.state
        if search is not None and search.results.fastest is None:
            search.tuning.not_recorded(search.results.failure)


@dataclass(frozen=True)
class TuneCall:
    """The arguments of one call of ``cutlass.testing.tune``.

    :param builder: the user's function. ``builder(x, y, V=4, T=128)`` returns a function without parameters, which
        launches the kernel of this configuration.
    :param params_dict: the values of each parameter that is tuned: ``{"V": [1, 4], "T": [64, 128]}``.
    :param jit_arguments: CuTe's ``JitArguments``: the arguments of the builder that are not tuned.
    :param stream: the CUDA stream of the launches; None for the default stream.
    """

    builder: Callable[..., Callable[[], object]]
    params_dict: Mapping[str, Any]
    jit_arguments: Any
    stream: Any

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in caches and reports: that of the builder, ``lib.ops.build``."""
        function = self.find_function()
        if function is None:
            return type(self.builder).__qualname__
        return qualified_name(function)

    def find_function(self) -> FunctionType | None:
        """Return the Python function inside the builder; None if there is none, as in a function written in C."""
        builder = self.builder
        while isinstance(builder, partial):
            builder = builder.func
        return python_function(builder)

    def build_question(self) -> ConfigurationQuestion:
        """Return the question for this call.

        :raises UncacheableError: if a part of the problem has no stable form.
        """
        function = self.find_function()
        if function is None:
            raise UncacheableError(f"{self.kernel_name} is no Python function, whose source could be compared")
        problem = build_problem(self.kernel_name, tuple(self._list_key(function)))
        named_values = [(argument.name, argument.value) for argument in self._list_arguments()]
        named_values += _list_closure_values(function)
        values = [*list_config_values(self.params_dict), *(value for _, value in named_values)]
        source = add_code_in_values(read_source(function), values, function)
        return ConfigurationQuestion(
            problem,
            source,
            Configurations(list_configs(self.params_dict)),
            settings=list_class_values(named_values),
            versions=list_versions("cutlass", "torch", distributions=source.libraries),
        )

    def _list_key(self, function: FunctionType) -> Iterator[Value]:
        """Yield the values of the key: the arguments that are not tuned, then the values in the builder's closure."""
        for argument in self._list_arguments():
            if argument.is_default and _is_in_source(argument.value):
                continue
            yield from list_argument_values(argument.name, argument.value)
        for name, value in _list_closure_values(function):
            yield from list_argument_values(name, value)

    def _list_arguments(self) -> list[BuilderArgument]:
        """Return each argument of the builder that is not tuned.

        :raises UncacheableError: if the builder cannot be called with these arguments.
        """
        jit_arguments = self.jit_arguments
        signature = inspect.signature(self.builder)
        try:
            bound = signature.bind_partial(*jit_arguments.args, **jit_arguments.kwargs)
        except TypeError as error:
            raise UncacheableError(f"{self.kernel_name}() cannot be called with the JitArguments: {error}") from None
        passed_names = set(bound.arguments)
        if isinstance(self.builder, partial):
            passed_names.update(self.builder.keywords)
        bound.apply_defaults()
        arguments = []
        for name, value in bound.arguments.items():
            kind = signature.parameters[name].kind
            if kind is inspect.Parameter.VAR_POSITIONAL:
                for index, item in enumerate(value):
                    arguments.append(BuilderArgument(f"{name}.{index}", item))
            elif kind is inspect.Parameter.VAR_KEYWORD:
                for keyword, item in value.items():
                    if keyword not in self.params_dict:
                        arguments.append(BuilderArgument(f"{name}.{keyword}", item))
            elif name not in self.params_dict:
                arguments.append(BuilderArgument(name, value, is_default=name not in passed_names))
        if isinstance(self.builder, partial):
            # The signature of partial(build, x) has no parameter for x any more, so x is called "partial.0".
            for index, value in enumerate(self.builder.args):
                arguments.append(BuilderArgument(f"partial.{index}", value))
        return arguments

    def build_kernel(self, config: Mapping[str, Any]) -> Callable[[], object]:
        """Return the function that launches the kernel of a configuration."""
        return self.builder(*self.jit_arguments.args, **{**self.jit_arguments.kwargs, **config})

    def explain_unusable(self, config: Mapping[str, Any]) -> str:
        """Return why the builder cannot build the kernel of a configuration; empty if the builder can."""
        try:
            self.build_kernel(config)
        except Exception as error:
            return does_not_compile(describe_error(error))
        return ""

    def build_contest(self) -> Contest | str:
        """Return the race of a loaded choice with the other configurations, or the reason why there is no race."""
        configurations = Configurations(list_configs(self.params_dict))
        return build_contest(configurations, self, self.stream, flush_l2=True)

    def build_runner(self, config: Mapping[str, Any]) -> Runner:
        """Return the runner that launches a configuration in a race."""
        return Runner(self.build_kernel(config))


@dataclass(frozen=True)
class BuilderArgument:
    """An argument of the user's builder.

    :param is_default: whether the builder's signature has the value, and the call does not pass it.
    """

    name: str
    value: Any
    is_default: bool = False


def _list_closure_values(function: FunctionType) -> list[tuple[str, Any]]:
    """Return the values in the closure of the builder that its source does not cover, such as ``closure.layout``."""
    values = []
    for name, value in closure_cells(function).items():
        if not _is_in_source(value):
            values.append((f"closure.{name}", value))
    return values


def _is_in_source(value: Any) -> bool:
    """Whether the digest of the builder's source covers a value in its closure or defaults.

    It covers functions and the user's classes. A class of a library, such as the dtype cutlass.Float16, is data. The
    digest does not cover an argument of a call: build(x, relu) and build(x, gelu) have the same source.
    """
    return is_code(value) and not is_library_class(value)


class NotingBuilder:
    """The user's builder during a search: notes which configuration CuTe tries, and whether the builder fails.

    CuTe's own loop catches the error of a builder, goes on with the next configuration, and reports nothing.
    """

    def __init__(self, tune_call: TuneCall, search: CuteSearch) -> None:
        self._tune_call = tune_call
        self._search = search

    def __call__(self, *args: Any, **kwargs: Any) -> Callable[[], object]:
        config = {name: kwargs[name] for name in self._tune_call.params_dict}
        self._search.begin(config)
        try:
            return self._tune_call.builder(*args, **kwargs)
        except Exception as error:
            self._search.results.note_failure(config, error)
            raise
