"""``cutlass.testing.tune``: the configuration with which a function of the user builds the fastest kernel."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any

from pytest_autotune.cache.model import Problem, UncacheableError, Value
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.run.session import Session
from pytest_autotune.tuners.cute.internals import list_configs
from pytest_autotune.tuners.cute.searching import NAME, CuteSearch, build_problem, was_measured
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.shared.arguments import list_argument_values
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.configurations import ConfigurationQuestion, Configurations
from pytest_autotune.tuners.shared.contests import build_contest
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall
from pytest_autotune.tuners.source.functions import closure_cells, python_function, qualified_name
from pytest_autotune.tuners.source.libraries import list_versions
from pytest_autotune.tuners.source.source_digest import is_code, is_library_class, read_source


@dataclass(frozen=True)
class TuneCall:
    """One call of ``cutlass.testing.tune``.

    :param builder: the user's function. For a configuration it returns a function without arguments that launches the
        kernel.
    :param arguments: a ``JitArguments``: what the builder gets beside the configuration.
    """

    builder: Callable[..., Callable[[], object]]
    params_dict: Mapping[str, Any]
    arguments: Any
    stream: Any

    def find_function(self) -> FunctionType | None:
        """Return the Python function of the builder; None if there is none."""
        builder = self.builder
        while isinstance(builder, partial):
            builder = builder.func
        return python_function(builder)

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in caches and reports."""
        function = self.find_function()
        if function is None:
            return type(self.builder).__qualname__
        return qualified_name(function)

    def build_question(self) -> ConfigurationQuestion:
        """Return the question for this call.

        :raises UncacheableError: if a part of the problem has no stable form.
        """
        function = self.find_function()
        if function is None:
            raise UncacheableError(f"{self.kernel_name} is no Python function")
        problem = build_problem(self.kernel_name)
        source = read_source(function)
        return ConfigurationQuestion(
            Problem(NAME, problem.kernel, tuple(self._list_key(function)), problem.device),
            source,
            Configurations(list_configs(self.params_dict)),
            versions=list_versions("cutlass", "torch", distributions=source.libraries),
        )

    def _list_key(self, function: FunctionType) -> Iterator[Value]:
        """Yield the values of the key: the builder's arguments beside the configuration, then its closure."""
        closure = [(f"closure.{name}", value) for name, value in closure_cells(function).items()]
        for name, value in [*self._list_arguments(), *closure]:
            # Skip the user's own code: the digest of the source covers it.
            if is_library_class(value) or not is_code(value):
                yield from list_argument_values(name, value)

    def _list_arguments(self) -> list[tuple[str, Any]]:
        """Return the builder's arguments beside the configuration, each with its name."""
        bound = inspect.signature(self.builder).bind_partial(*self.arguments.args, **self.arguments.kwargs)
        bound.apply_defaults()
        arguments = []
        for name, value in bound.arguments.items():
            if name not in self.params_dict:
                arguments.append((name, value))
        if isinstance(self.builder, partial):
            # The signature of a partial does not show the positional arguments that the partial has bound.
            for index, value in enumerate(self.builder.args):
                arguments.append((f"partial.{index}", value))
        return arguments

    def build_kernel(self, config: Mapping[str, Any]) -> Callable[[], object]:
        """Return the function that launches the kernel of a configuration."""
        return self.builder(*self.arguments.args, **{**self.arguments.kwargs, **config})

    def build_contest(self) -> Contest | str:
        """Return the race of a loaded choice, or the reason why there is none."""
        configurations = Configurations(list_configs(self.params_dict))
        return build_contest(configurations, self, self.stream, flush_l2=True)

    def build_runner(self, config: Mapping[str, Any]) -> Runner:
        """Return the runner that launches a configuration in a race."""
        return Runner(self.build_kernel(config))

    def explain_unusable(self, config: Mapping[str, Any]) -> str:
        """Return why a configuration that was not tried for this problem cannot be used; empty if it can."""
        try:
            self.build_kernel(config)
        except Exception as error:
            return does_not_compile(describe_error(error))
        return ""


class NotingBuilder:
    """Stands in for the user's function during a search, and notes the configurations that fail.

    CuTe's own loop goes on with the next configuration and does not report the failure.
    """

    def __init__(self, call: TuneCall, search: CuteSearch) -> None:
        self._call = call
        self._search = search

    def __call__(self, *args: Any, **kwargs: Any) -> Callable[[], object]:
        self._search.begin({name: kwargs[name] for name in self._call.params_dict})
        try:
            return self._call.builder(*args, **kwargs)
        except Exception as error:
            self._search.results.note_failure(self._search.config, error)
            raise


class TuneHook(CallHook):
    """Asks for the choice of each call of ``tune``, and records the results of the searches that take place."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, call: HookedCall) -> CallResult | CallInstead | None:
        """Return the first loaded choice that works. If there is none, let CuTe search."""
        arguments = call.arguments
        if not arguments["params_dict"] or self._session.is_paused:
            return None
        tune_call = TuneCall(
            arguments["func"], arguments["params_dict"], arguments["kernel_arguments"], arguments["stream"]
        )
        if self._session.ignores(NAME, tune_call.kernel_name):
            return None
        try:
            question = tune_call.build_question()
        except UncacheableError as error:
            self._session.report_uncacheable(build_problem(tune_call.kernel_name), str(error))
            return None
        question.note_large_source(self._session)
        tuning = call.enter(self._session.tuning(question))
        for entry in tuning.offered_entries():
            assert entry.choice is not None
            config = question.configurations.find(entry.choice)
            if was_measured(self._session, tuning):
                tuning.race(tune_call.build_contest)
                return CallResult(config)
            reason = tune_call.explain_unusable(config)
            if not reason:
                return CallResult(config)
            tuning.reject(reason)
        search = call.state = CuteSearch(question, tuning)
        call.enter(search.going_on())
        return call.with_arguments(func=NotingBuilder(tune_call, search))

    def note(self, call: HookedCall, result: Mapping[str, Any]) -> None:
        if call.state is not None:
            call.state.results.record(call.state.tuning, result)

    def note_error(self, call: HookedCall, error: Exception) -> None:
        search = call.state
        if search is not None and search.results.fastest is None:
            search.tuning.not_recorded(search.results.failure)
