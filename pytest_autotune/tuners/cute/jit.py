"""``autotune_jit``: the configuration with which CuTe compiles a ``@cute.jit`` function for some arguments.

On a hit the one chosen configuration is compiled, and nothing is benchmarked. On a miss the search is ours, with CuTe's
benchmark. CuTe's own search ends at the first configuration that does not compile.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pytest_autotune.cache.model import Problem, UncacheableError, Value
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.cute.internals import AutotunedFunction, CompiledLaunch, CuteLibrary, is_autotuned
from pytest_autotune.tuners.cute.searching import NAME, CuteSearch, build_problem, was_measured
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.race import Contest
from pytest_autotune.tuners.shared.arguments import is_tensor, list_argument_values, list_dtype_value
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.configurations import ConfigurationQuestion, Configurations
from pytest_autotune.tuners.shared.contests import build_contest
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall, Patches
from pytest_autotune.tuners.source.functions import python_function, qualified_name
from pytest_autotune.tuners.source.libraries import list_versions
from pytest_autotune.tuners.source.source_digest import read_source


@dataclass(frozen=True)
class JitCall:
    """One call of a function under ``autotune_jit`` that has no choice yet."""

    library: CuteLibrary
    autotuned: AutotunedFunction
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    @property
    def kernel_name(self) -> str:
        """The name of the kernel in caches and reports."""
        function = python_function(self.autotuned.function)
        assert function is not None
        return qualified_name(function)

    @property
    def passed(self) -> dict[str, Any]:
        """The caller's arguments by name."""
        return inspect.signature(self.autotuned.function).bind_partial(*self.args, **self.kwargs).arguments

    def build_question(self) -> ConfigurationQuestion:
        """Return the question for this call.

        :raises UncacheableError: if a part of the problem has no stable form.
        """
        problem = build_problem(self.kernel_name)
        source = read_source(self.autotuned.function, own_cells=True)
        return ConfigurationQuestion(
            Problem(NAME, problem.kernel, tuple(self._list_key()), problem.device),
            source,
            Configurations(self.autotuned.configs),
            versions=list_versions("cutlass", "torch", distributions=source.libraries),
        )

    def _list_key(self) -> Iterator[Value]:
        """Yield the values that CuTe tells calls apart by, and the dtypes of all tensors."""
        for name, value in self.passed.items():
            if name in self.autotuned.key_names:
                yield from list_argument_values(name, value)
            elif is_tensor(value):
                yield list_dtype_value(name, value)

    def compile(self, config: Mapping[str, Any]) -> CompiledLaunch:
        """Compile a configuration."""
        kernel = self.library.compile(self.autotuned.function, self.args, {**self.kwargs, **config})
        return CompiledLaunch.of(kernel, self.args, self.kwargs)

    def adopt(self, config: dict[str, Any], kernel_call: CompiledLaunch) -> CallInstead:
        """Put a compiled choice into CuTe's memory. Return the launch that the user's call asked for."""
        key = self.autotuned.compute_key(self.args, self.kwargs)
        self.autotuned.kernels[key] = kernel_call.kernel
        self.autotuned.chosen_configs[key] = config
        return CallInstead(kernel_call.run)

    def forget(self) -> None:
        """Take the choice out of CuTe's memory."""
        key = self.autotuned.compute_key(self.args, self.kwargs)
        self.autotuned.kernels.pop(key, None)
        self.autotuned.chosen_configs.pop(key, None)

    def search(self, search: CuteSearch, iterations: Iterations) -> CompiledLaunch | None:
        """Compile and benchmark all configurations. Return the fastest; None if every configuration failed."""
        fastest, least_us = None, float("inf")
        with search.going_on():
            for config in self.autotuned.configs:
                search.begin(config)
                try:
                    kernel_call = self.compile(config)
                    time_us = iterations.benchmark(self.library, kernel_call)
                except Exception as error:
                    search.results.note_failure(config, error)
                    continue
                if time_us < least_us:
                    fastest, least_us = kernel_call, time_us
        return fastest

    def build_contest(self) -> Contest | str:
        """Return the race of a loaded choice, or the reason why there is none."""
        return build_contest(Configurations(self.autotuned.configs), self, None, flush_l2=True)

    def build_runner(self, config: Mapping[str, Any]) -> Runner:
        """Return a configuration for a race."""
        return Runner(self.compile(config).run)


@dataclass(frozen=True)
class Iterations:
    """How often the decorator's user wants each configuration to be launched."""

    warmup: int
    timed: int

    def benchmark(self, library: CuteLibrary, kernel_call: CompiledLaunch) -> float:
        """Return the time of a configuration in microseconds, by CuTe's own benchmark; infinite if it cannot run."""
        time_us: float = library.testing._benchmark_for_autotune(
            kernel_call.kernel,
            *kernel_call.args,
            warmup_iterations=self.warmup,
            iterations=self.timed,
            use_cold_l2=True,
            print_verbose=False,
            **kernel_call.kwargs,
        )
        return time_us


class JitHook(CallHook):
    """Asks for the choice of a call, and searches if there is none."""

    def __init__(self, session: Session, iterations: Iterations) -> None:
        self._session = session
        self._iterations = iterations

    def ask(self, call: HookedCall) -> CallInstead | None:
        jit_call: JitCall = call.arguments["jit_call"]
        if self._session.is_paused or self._session.ignores(NAME, jit_call.kernel_name):
            return None
        jit_call.autotuned.add_constexpr_names(jit_call.passed)
        try:
            question = jit_call.build_question()
        except UncacheableError as error:
            self._session.report_uncacheable(build_problem(jit_call.kernel_name), str(error))
            return None
        question.note_large_source(self._session)
        with self._session.tuning(question) as tuning:
            launch = self._take_entry(question, tuning, jit_call)
            if launch is not None:
                return launch
            search = CuteSearch(question, tuning)
            kernel_call = jit_call.search(search, self._iterations)
            fastest = search.results.fastest
            if kernel_call is None or fastest is None:
                tuning.not_recorded(search.results.failure)
                return None  # CuTe raises the error of the first configuration, as always
            tuning.record(fastest, search.results.candidates)
            return jit_call.adopt(question.configurations.find(fastest), kernel_call)

    def _take_entry(self, question: ConfigurationQuestion, tuning: Tuning, jit_call: JitCall) -> CallInstead | None:
        """Compile the choice of an entry and return its launch; None if no entry can be used."""
        for entry in tuning.offered_entries():
            assert entry.choice is not None
            config = question.configurations.find(entry.choice)
            try:
                kernel_call = jit_call.compile(config)
            except Exception as error:
                tuning.reject(does_not_compile(describe_error(error)))
                continue
            if was_measured(self._session, tuning):
                tuning.race(jit_call.build_contest)
            elif self._session.picks_candidates:
                # Each test asks again, so that the session knows the configuration that the test ran with.
                self._session.at_next_test(jit_call.forget)
            return jit_call.adopt(config, kernel_call)
        return None


class JitFunctions:
    """The functions under ``autotune_jit`` that ask the session before CuTe searches."""

    def __init__(self, session: Session, library: CuteLibrary, patches: Patches) -> None:
        self._session = session
        self._library = library
        self._patches = patches
        self._asking: list[AutotunedFunction] = []
        #: False after the run: the modules of tests still hold the functions.
        self._is_in_run = True

    def make_ask(self, launch: FunctionType, iterations: Iterations) -> Callable[..., Any]:
        """Return a function to call in place of one that CuTe's decorator returned."""
        autotuned = AutotunedFunction(launch)
        self._asking.append(autotuned)
        search = self._patches.wrap(_SearchOfCute(launch).run, JitHook(self._session, iterations))

        @functools.wraps(launch)
        def launch_or_search(*args: Any, **kwargs: Any) -> Any:
            if not self._is_in_run:
                return launch(*args, **kwargs)
            kernel = autotuned.kernels.get(autotuned.compute_key(args, kwargs))
            if kernel is None:
                return search(JitCall(self._library, autotuned, args, kwargs))
            return CompiledLaunch.of(kernel, args, kwargs).run()

        vars(launch_or_search)[_ASKS] = True
        return launch_or_search

    def list_names_with_choices(self) -> list[str]:
        """Return the names of the functions that have a choice."""
        names = []
        for autotuned in self._asking:
            function = python_function(autotuned.function)
            if autotuned.kernels and function is not None:
                names.append(qualified_name(function))
        return names

    @contextmanager
    def forgotten(self) -> Iterator[None]:
        """Empty the memory of all functions, and give it back afterwards."""
        memories = []
        for autotuned in self._asking:
            memories += [autotuned.kernels, autotuned.chosen_configs]
        kept = [dict(memory) for memory in memories]
        for memory in memories:
            memory.clear()
        try:
            yield
        finally:
            # A function that was decorated in the meantime has no memory from before.
            for autotuned in self._asking:
                autotuned.kernels.clear()
                autotuned.chosen_configs.clear()
            for memory, content in zip(memories, kept, strict=True):
                memory.update(content)

    def end(self) -> None:
        """Let CuTe search by itself again."""
        self._is_in_run = False


#: Marks a function that asks already: a function may be decorated twice.
_ASKS = "_pytest_autotune_asks"


def asks(function: object) -> bool:
    """Whether a function under ``autotune_jit`` asks the session already."""
    return _ASKS in vars(function)


class _SearchOfCute:
    """CuTe's own search, for the calls that the session leaves to it."""

    def __init__(self, launch: Callable[..., Any]) -> None:
        self._launch = launch

    def run(self, jit_call: JitCall) -> Any:
        """Search and launch."""
        return self._launch(*jit_call.args, **jit_call.kwargs)


class DecoratorHook(CallHook):
    """Has each function that ``autotune_jit`` decorates in this run ask before CuTe searches."""

    def __init__(self, functions: JitFunctions) -> None:
        self._functions = functions

    def note(self, call: HookedCall, result: Any) -> CallResult | None:
        if not is_autotuned(result) or asks(result):
            return None
        decorator = call.arguments["self"]
        iterations = Iterations(decorator.warmup_iterations, decorator.iterations)
        return CallResult(self._functions.make_ask(result, iterations))
