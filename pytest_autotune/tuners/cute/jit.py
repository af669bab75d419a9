"""``autotune_jit``: the configuration with which CuTe compiles a ``@cute.jit`` function for some arguments.

Each function that ``autotune_jit`` decorates is replaced by a function of :class:`JitFunctions`:

- If CuTe's memory has a kernel for the same problem, the replacement launches this kernel.
- Else it asks the session. On a hit it compiles the loaded configuration, and benchmarks nothing.
- On a miss it compiles and benchmarks all configurations. CuTe's own search is not used, because it ends at the first
  configuration that does not compile.

In the last two cases the kernel then goes into CuTe's memory, for the later calls of the problem. CuTe does not find
the adapter's kernels there, and the adapter launches none of CuTe's: their keys differ.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from types import FunctionType
from typing import Any

from pytest_autotune.cache.model import Problem, UncacheableError, Value
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.cute.internals import (
    AutotunedFunction,
    CompiledLaunch,
    CuteLibrary,
    Iterations,
    is_autotuned,
)
from pytest_autotune.tuners.cute.searching import NAME, CuteSearch, build_problem
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.shared.arguments import list_argument_values, list_class_values, list_compiled_values
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.configurations import (
    ConfigurationQuestion,
    Configurations,
    add_code_in_values,
    list_config_values,
    was_measured_for_this_problem,
)
from pytest_autotune.tuners.shared.contests import build_contest
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall, Patches
from pytest_autotune.tuners.source.functions import python_function, qualified_name
from pytest_autotune.tuners.source.libraries import list_versions
from pytest_autotune.tuners.source.source_digest import read_source

#: How often CuTe launches each configuration if the user of the decorator does not say.
DEFAULT_ITERATIONS = Iterations(warmup=10, timed=100)


class DecoratorHook(CallHook):
    """Replaces each function that ``autotune_jit`` decorates in this run."""

    def __init__(self, functions: JitFunctions) -> None:
        self._functions = functions

    def note(self, call: HookedCall, result: Any) -> CallResult | None:
        """Return the replacement. None keeps the function that CuTe's decorator returned."""
        if not is_autotuned(result):
            return None  # a second autotune_jit on a function returns the replacement that the first has made
        decorator = call.arguments["self"]
        iterations = Iterations(decorator.warmup_iterations, decorator.iterations)
        return CallResult(self._functions.make_replacement(result, iterations))


class JitFunctions:
    """The replacements of this run, and CuTe's memory of their choices."""

    def __init__(self, session: Session, library: CuteLibrary, patches: Patches) -> None:
        self._library = library
        self._ask_or_search = patches.wrap(leave_to_cute, JitHook(session))
        self._functions: list[AutotunedFunction] = []
        #: False after the run. The modules of tests still hold the replacements then.
        self._is_in_run = True

    def make_replacement(self, cute_function: FunctionType, iterations: Iterations) -> Callable[..., Any]:
        """Return the replacement of a function that CuTe's decorator returned.

        The replacement is a function, and no object with a ``__call__``, so that it can be a method of a class.
        """
        autotuned = AutotunedFunction(cute_function, iterations)
        self._functions.append(autotuned)

        @functools.wraps(cute_function)
        def replacement(*args: Any, **kwargs: Any) -> Any:
            return self._launch(autotuned, args, kwargs)

        return replacement

    def _launch(self, autotuned: AutotunedFunction, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Have :class:`JitHook` answer a call. A call with wrong arguments, or after the run, is CuTe's."""
        if not self._is_in_run:
            return autotuned.cute_function(*args, **kwargs)
        try:
            arguments = autotuned.bind(args, kwargs)
        except TypeError:
            # The call is wrong. CuTe raises the error that its user expects.
            return autotuned.cute_function(*args, **kwargs)
        return self._ask_or_search(JitCall(self._library, autotuned, args, kwargs, arguments))

    def list_tuned_names(self) -> list[str]:
        """Return the names of the functions that have a choice in CuTe's memory."""
        names = []
        for autotuned in self._functions:
            function = python_function(autotuned.jit_function)
            if autotuned.kernels and function is not None:
                names.append(qualified_name(function))
        return names

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Empty CuTe's memory of all functions, and give it back afterwards."""
        memories = [
            _Memory(autotuned, dict(autotuned.kernels), dict(autotuned.chosen_configs)) for autotuned in self._functions
        ]
        self._forget_all()
        try:
            yield
        finally:
            # This includes the functions that were decorated inside the context: they have no memory from before.
            self._forget_all()
            for memory in memories:
                memory.give_back()

    def _forget_all(self) -> None:
        for autotuned in self._functions:
            autotuned.forget_all()

    def end(self) -> None:
        """End the run: each replacement now calls CuTe's function, which searches by itself."""
        self._is_in_run = False


@dataclass(frozen=True)
class _Memory:
    """CuTe's memory of one function, as it was at one time."""

    autotuned: AutotunedFunction
    kernels: Mapping[tuple[Any, ...], Any]
    chosen_configs: Mapping[tuple[Any, ...], dict[str, Any]]

    def give_back(self) -> None:
        """Put the choices of that time into CuTe's memory."""
        self.autotuned.kernels.update(self.kernels)
        self.autotuned.chosen_configs.update(self.chosen_configs)


def leave_to_cute(jit_call: JitCall) -> Any:
    """Leave a call to CuTe. :class:`JitHook` is asked before, and most often answers the call."""
    return jit_call.autotuned.cute_function(*jit_call.args, **jit_call.kwargs)


class JitHook(CallHook):
    """Launches the remembered kernel of a call's problem; else asks the session for a choice, or searches."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def ask(self, call: HookedCall) -> CallInstead | None:
        """Return the launch of the remembered kernel, of the loaded choice or, after a search, of the fastest.

        None leaves the call to CuTe: its kernel is left out, its problem has no stable form, every configuration
        failed (CuTe raises the error), or the session is paused and no kernel is remembered.
        """
        jit_call: JitCall = call.arguments["jit_call"]
        # A paused session launches a remembered kernel, too. So this check is not the whole leaves_alone().
        if self._session.is_left_out(NAME, jit_call.kernel_name):
            return None
        launch = jit_call.find_launch()
        if launch is not None:
            return CallInstead(launch.run)
        if self._session.leaves_alone(NAME, jit_call.kernel_name):
            return None
        try:
            question = jit_call.build_question()
        except UncacheableError as error:
            self._session.report_uncacheable(build_problem(jit_call.kernel_name), str(error))
            return None
        question.note_large_source(self._session)
        with self._session.tuning(question) as tuning:
            compiled = self._compile_loaded(jit_call, question, tuning)
            if compiled is None:
                compiled = self._search(jit_call, question, tuning)
        if compiled is None:
            return None
        jit_call.remember(compiled)
        return CallInstead(compiled.launch.run)

    def _compile_loaded(
        self, jit_call: JitCall, question: ConfigurationQuestion, tuning: Tuning
    ) -> CompiledConfig | None:
        """Return the configuration of the first entry that compiles; None if the session offers no such entry."""
        for entry in tuning.offered_entries():
            assert entry.choice is not None  # the session offers only entries with a choice
            config = question.configurations.find(entry.choice)
            try:
                compiled = jit_call.compile(config)
            except Exception as error:
                tuning.reject(does_not_compile(describe_error(error)))
                continue
            if was_measured_for_this_problem(self._session, tuning):
                # With --autotune-verify, the choice races the other configurations of this problem.
                tuning.race(jit_call.build_contest)
            elif self._session.picks_candidates:
                # In a sweep, the next test shall ask again: the session reports the configuration of each test.
                self._session.at_next_test(jit_call.forget)
            return compiled
        return None

    def _search(self, jit_call: JitCall, question: ConfigurationQuestion, tuning: Tuning) -> CompiledConfig | None:
        """Search, and record the result. Return the fastest configuration; None if every configuration failed."""
        search = CuteSearch(question, tuning)
        fastest = jit_call.find_fastest(search)
        if fastest is None:
            tuning.not_recorded(search.results.failure)
            return None
        if not search.results.has_time(fastest.config):
            # BenchmarkHook failed, and the summary has a line about its error. The kernel itself works.
            tuning.not_recorded("its time was not noted")
            return fastest
        search.results.record(tuning, fastest.config)
        return fastest


@dataclass(frozen=True)
class CompiledConfig:
    """A configuration that compiled, such as ``{"V": 4, "T": 128}``, and the launch of its kernel."""

    config: dict[str, Any]
    launch: CompiledLaunch


@dataclass(frozen=True)
class JitCall:
    """One call of a function under ``autotune_jit``.

    :param arguments: the arguments by name, without defaults. ``args`` and ``kwargs`` hold the same arguments.
    """

    library: CuteLibrary
    autotuned: AutotunedFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    arguments: Mapping[str, Any]

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in caches and reports, such as ``lib.ops.scale``."""
        function = python_function(self.autotuned.jit_function)
        assert function is not None
        return qualified_name(function)

    @cached_property
    def _problem(self) -> Problem:
        """The problem of this call.

        :raises UncacheableError: if a part of the problem has no stable form.
        """
        if self.autotuned.is_method:
            raise UncacheableError("the kernel is a method, which depends on the attributes of self")
        return build_problem(self.kernel_name, tuple(self._list_key()))

    @cached_property
    def _class_values(self) -> list[Value]:
        """The fingerprint's digest of the classes of the arguments."""
        return list_class_values(self.arguments.items())

    def build_question(self) -> ConfigurationQuestion:
        """Return the question for this call.

        :raises UncacheableError: if a part of the problem has no stable form.
        """
        problem = self._problem
        # CuTe compiles the values in the function's closure into the kernel, so they count.
        jit_function = self.autotuned.jit_function
        source = read_source(jit_function, own_cells=True)
        values = list(self.arguments.values())
        for config in self.autotuned.configs:
            values += list_config_values(config)
        source = add_code_in_values(source, values, python_function(jit_function))
        return ConfigurationQuestion(
            problem,
            source,
            Configurations(self.autotuned.configs),
            settings=self._class_values,
            versions=list_versions("cutlass", "torch", distributions=source.libraries),
        )

    def _list_key(self) -> Iterator[Value]:
        """Yield the values of the key: the arguments that CuTe tells calls apart by, the dtypes and layouts of tensors.

        CuTe does not look at dtypes and layouts, but each of them needs another kernel.
        """
        for name, value in self.arguments.items():
            if self.autotuned.is_in_key(name, value):
                yield from list_argument_values(name, value)
            else:
                yield from list_compiled_values(name, value)

    def compile(self, config: dict[str, Any]) -> CompiledConfig:
        """Compile a configuration for the arguments of this call."""
        kernel = self.library.compile(self.autotuned.jit_function, self.args, {**self.kwargs, **config})
        return CompiledConfig(config, CompiledLaunch.of_call(kernel, self.args, self.kwargs))

    def find_fastest(self, search: CuteSearch) -> CompiledConfig | None:
        """Compile and benchmark all configurations. Return the fastest; None if every configuration failed.

        ``BenchmarkHook`` notes the times in the results of the search.
        """
        fastest = None
        fastest_us = float("inf")
        with search.as_current():
            for config in self.autotuned.configs:
                search.begin(config)
                try:
                    compiled = self.compile(config)
                    time_us = self._benchmark(compiled.launch)
                except Exception as error:
                    search.results.note_failure(config, error)
                    continue
                if time_us < fastest_us:
                    fastest = compiled
                    fastest_us = time_us
        return fastest

    def _benchmark(self, launch: CompiledLaunch) -> float:
        """Return the time of a launch in microseconds by CuTe's own benchmark; infinity if a launch fails."""
        time_us: float = self.library.testing._benchmark_for_autotune(
            launch.kernel,
            *launch.args,
            warmup_iterations=self.autotuned.iterations.warmup,
            iterations=self.autotuned.iterations.timed,
            use_cold_l2=True,
            print_verbose=False,
            **launch.kwargs,
        )
        return time_us

    @cached_property
    def _memory_key(self) -> tuple[Any, ...]:
        """The key of this call's kernel in CuTe's memory.

        :raises UncacheableError: if the problem has no stable form.
        """
        return (self._problem, *self._class_values, *self.autotuned.list_none_names(self.arguments))

    def find_launch(self) -> CompiledLaunch | None:
        """Return the launch of the kernel that was remembered for this call's problem; None if there is none."""
        try:
            kernel = self.autotuned.kernels.get(self._memory_key)
        except UncacheableError:
            return None
        if kernel is None:
            return None
        return CompiledLaunch.of_call(kernel, self.args, self.kwargs)

    def remember(self, compiled: CompiledConfig) -> None:
        """Put a choice into CuTe's memory."""
        self.autotuned.kernels[self._memory_key] = compiled.launch.kernel
        self.autotuned.chosen_configs[self._memory_key] = compiled.config

    def forget(self) -> None:
        """Take the choice of this call out of CuTe's memory."""
        self.autotuned.kernels.pop(self._memory_key, None)
        self.autotuned.chosen_configs.pop(self._memory_key, None)

    def build_contest(self) -> Contest | str:
        """Return the race of a loaded choice with the other configurations, or the reason why there is no race."""
        return build_contest(Configurations(self.autotuned.configs), self, None, flush_l2=True)

    def build_runner(self, config: dict[str, Any]) -> Runner:
        """Return the runner that launches a configuration in a race."""
        return Runner(self.compile(config).launch.run)
