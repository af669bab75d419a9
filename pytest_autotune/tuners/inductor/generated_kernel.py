"""One Triton kernel that Inductor generated, on its way to its choice.

Inductor calls ``precompile`` of the kernel's autotuner to compile the kernel, and ``run`` to launch it, perhaps never.
Inductor tunes inside the first launch. :class:`GeneratedKernel` stands in for both calls until the kernel has its
choice. Later launches run none of our code. :mod:`.kernels` hooks Inductor and makes the objects of this class.
"""

from __future__ import annotations

import math
import os
import weakref
from collections.abc import Iterator, Sequence
from concurrent import futures
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry, Problem
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.lookup import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor import autotuners
from pytest_autotune.tuners.inductor.autotuners import CandidateList, Params, build_candidate, params_of
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks, build_runners
from pytest_autotune.tuners.inductor.graph_caches import forget_compiled
from pytest_autotune.tuners.inductor.identity import is_placeholder, kernel_name, versions
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.race import CAPTURED, Contest
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, does_not_compile
from pytest_autotune.tuners.shared.compile_pool import CompilePool
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, HookedCall, Patches

TUNER = "inductor.config"


class KernelState(Enum):
    """The state of a generated kernel."""

    #: Inductor compiles the kernel, in this thread or in a thread of ours.
    COMPILING = "compiling"
    #: All candidates are compiled. The next launch asks the session for the choice.
    WAITING = "waiting"
    #: A launch has begun in which Inductor measures the candidates. If it fails, the kernel waits again.
    SEARCHING = "searching"
    #: The choice is loaded, or Inductor has nothing to choose.
    CHOSEN = "chosen"


class KernelQuestion(Question):
    """Asks for the configuration of one kernel."""

    def __init__(self, problem: Problem, candidates: CandidateList, dtypes: str) -> None:
        super().__init__(problem, label=dtypes, versions=versions())
        self.candidate_list = candidates

    def offers(self, entry: Entry) -> bool:
        """Whether a search that begins with the candidates of the list can reach the entry's choice.

        A coordinate descent leaves the list, but its choice sets the same values.
        """
        if entry.choice is None:
            return False
        names = {value.name for value in entry.choice.params}
        for config in self.candidate_list.configs:
            if names >= {value.name for value in params_of(config)}:
                return True
        return False

    def candidates(self) -> list[Candidate]:
        """Return the candidates of the list."""
        return [Candidate(params=params_of(config)) for config in self.candidate_list.configs]


@dataclass(frozen=True)
class Precompilation:
    """Inductor's call of ``precompile``. The plugin has postponed the call, and makes it later itself.

    The object does not keep the autotuner alive.

    :param original: Inductor's own method.
    :param reload_kernel: an argument of the method, as ``static_triton_bundle_key``.
    """

    original: Any
    reload_kernel: Any
    static_triton_bundle_key: Any

    def run(self, autotuner: Any) -> object:
        """Compile and load the autotuner's candidates."""
        return self.original(autotuner, False, self.reload_kernel, self.static_triton_bundle_key)

    def compile_only(self, autotuner: Any) -> None:
        """Compile the autotuner's candidates and load none of them, as Inductor does in a compile worker."""
        self.original(autotuner, True)


class CompileThreads:
    """The threads that compile kernels in a run that only loads.

    Without its pool of processes, Inductor compiles the many kernels of a graph one after the other. The processes take
    longer to start than the few candidates of a run that only loads take to compile.

    :param heuristics: Inductor's module ``triton_heuristics``.
    """

    def __init__(self, session: Session, heuristics: Any) -> None:
        self._session = session
        self._heuristics = heuristics
        self._pool: CompilePool | None = None

    def are_allowed(self) -> bool:
        """Whether a kernel that is compiled now may be compiled in a thread."""
        policy = self._session.policy
        if not self._session.indexes or policy.is_dumping or policy.compile_threads <= 1:
            return False
        config = self._heuristics.torch._inductor.config
        if "TORCHINDUCTOR_COMPILE_THREADS" in os.environ or config.compile_threads != 1:
            return False  # the user decides how kernels are compiled
        # A graph that is cached, or called from C++, needs its kernels at once.
        return not config.fx_graph_cache and not config.cpp_wrapper

    def submit(self, precompilation: Precompilation, autotuner: Any) -> futures.Future[None]:
        """Compile the autotuner's candidates in a thread."""
        if self._pool is None:
            self._pool = CompilePool(self._session.policy.compile_threads)
        # The pool copies the context, and Inductor's settings belong to the context.
        return self._pool.submit(precompilation.compile_only, autotuner)


@dataclass(frozen=True)
class KernelTools:
    """The objects of a run that all its generated kernels use.

    :param benchmarks: times the measurements of a search.
    :param threads: may compile choices.
    :param patches: replace the ``run`` of an autotuner.
    """

    session: Session
    benchmarks: Benchmarks
    threads: CompileThreads
    patches: Patches

    def acts_on(self, autotuner: Any) -> bool:
        """Whether the session wants to be asked about a kernel."""
        if self.session.is_paused or is_placeholder(autotuner):
            return False
        return not self.session.ignores(TUNER, kernel_name(autotuner))


class GeneratedKernel:
    """A Triton kernel that Inductor generated.

    The kernel begins in the state ``COMPILING``, and ends in the state ``CHOSEN``. It does not keep its autotuner
    alive: Inductor's module of the graph does.

    :param question: asks for the kernel's choice; None if Inductor has nothing to choose.
    """

    def __init__(
        self, tools: KernelTools, autotuner: Any, precompilation: Precompilation, question: KernelQuestion | None
    ) -> None:
        self.state = KernelState.COMPILING
        self._tools = tools
        self._autotuner_reference = weakref.ref(autotuner)
        self._precompilation = precompilation
        self._question = question
        self._compilation: futures.Future[None] | None = None
        self._has_only_choice = False
        self._is_raced = False
        self._began_s = 0.0
        self._compiled_s = 0.0
        self._times_ms: dict[Params, float] = {}
        self._raced_ms: dict[Any, float] = {}

    @property
    def _autotuner(self) -> Any:
        """The kernel's autotuner, which lives while Inductor calls it."""
        return self._autotuner_reference()

    def _own_question(self) -> KernelQuestion:
        """Return the question of a kernel in which Inductor has something to choose."""
        assert self._question is not None
        return self._question

    # Compiling.

    def compile_choice(self) -> bool:
        """Compile only the choice, or begin to compile it in a thread.

        :returns: False if there is no choice that can be compiled. Inductor then has to compile all candidates.
        """
        if self._question is None:
            return self._begin_thread()  # Inductor has nothing to choose, and the thread compiles everything
        if self._tools.session.may_race(self._question.problem):
            self._is_raced = True  # the first launch races the choice with all candidates
            return False
        if len(self._question.candidate_list.configs) == 1 and not autotuners.descends(self._autotuner):
            return False
        with self._ask() as tuning:
            for entry in tuning.offered_entries():
                assert entry.choice is not None
                try:
                    self._compile_only(entry.choice)
                    return True
                except Exception as error:
                    tuning.reject(does_not_compile(describe_error(error)))
            tuning.postpone()  # the first launch asks again, if there is one
        return False

    def _compile_only(self, choice: Candidate) -> None:
        """Compile a choice, or begin to compile it in a thread.

        :raises Exception: if the choice does not compile.
        """
        self._has_only_choice = True
        autotuners.keep_only_choice(self._autotuner, self._own_question().candidate_list, choice)
        if self._begin_thread():
            return
        self._precompilation.run(self._autotuner)
        autotuners.keep_launcher(self._autotuner, choice)
        self.finish()

    def _begin_thread(self) -> bool:
        """Compile in a thread what the autotuner holds, if a thread may.

        :returns: whether a thread compiles. The first launch waits for it and loads the kernel.
        """
        # After the thread has ended, the first launch compiles the rest itself.
        has_ended = self._compilation is not None
        if has_ended or self._autotuner.compile_results or not self._tools.threads.are_allowed():
            return False
        self._compilation = self._tools.threads.submit(self._precompilation, self._autotuner)
        self._replace_launch()
        return True

    def begin_compiling_all(self) -> None:
        """Give the autotuner all its candidates, before Inductor compiles and loads them."""
        if self._has_only_choice:
            self._has_only_choice = False
            autotuners.restore_candidates(self._autotuner, self._own_question().candidate_list)
        self._began_s = HostTime.perf_counter()

    def end_compiling_all(self) -> None:
        """Have the kernel wait for its first launch, if there is something to choose."""
        self._compiled_s = HostTime.perf_counter() - self._began_s
        autotuner = self._autotuner
        has_rivals = self._is_raced or len(autotuner.launchers) > 1 or autotuners.descends(autotuner)
        if self._question is None or not has_rivals:
            self.finish()
        else:
            self._wait()

    def compile_all_and_launch(self, *args: Any, **kwargs: Any) -> Any:
        """Compile and load all candidates, as Inductor does, and launch the kernel.

        :raises Exception: the errors of Inductor, and of the kernel.
        """
        self._precompilation.run(self._autotuner)
        self.end_compiling_all()
        return self._autotuner.run(*args, **kwargs)

    def _wait(self) -> None:
        """Have the next launch ask for the choice."""
        self.state = KernelState.WAITING
        self._replace_launch()

    def finish(self) -> None:
        """Leave the kernel to its autotuner, and free the candidates."""
        self.state = KernelState.CHOSEN
        self._question = None

    # Launching.

    def _replace_launch(self) -> None:
        """Have :class:`LaunchHook` asked about the next launch."""
        autotuner = self._autotuner
        autotuner.run = self._tools.patches.wrap(autotuner.run, LaunchHook(self))

    def ask_before_launch(self, call: HookedCall) -> CallInstead | None:
        """Load the choice before the autotuner launches the kernel, or have Inductor search in this launch.

        :param call: the launch.
        """
        autotuner = self._autotuner
        vars(autotuner).pop("run", None)
        if self.state is KernelState.COMPILING and self._compilation is not None:
            # If the thread has failed, so does the compilation in this thread, which handles the error.
            futures.wait([self._compilation])
            if not self.compile_choice():
                self.begin_compiling_all()
                launch = call.with_arguments()
                return CallInstead(self.compile_all_and_launch, launch.args, launch.kwargs)
        if self.state is not KernelState.WAITING:
            return None
        is_settled = autotuners.is_chosen_by_inductor(autotuner) and not self._is_raced
        if is_settled or not self._tools.acts_on(autotuner):
            self.finish()
            return None
        self._choose(call)
        return None

    def _choose(self, call: HookedCall) -> None:
        """Load the choice. If there is none, begin a search that ends with the launch."""
        call.enter(self._until_chosen())
        with ExitStack() as exits:
            tuning = exits.enter_context(self._ask())
            if self._load_choice(tuning, call.arguments["args"], call.arguments["kwargs"]):
                self.finish()
                return
            call.enter(exits.pop_all())  # the tuning ends after the launch
        self._times_ms = {}
        self.state = KernelState.SEARCHING
        call.enter(self._tools.benchmarks.searching(tuning))
        call.state = tuning

    @contextmanager
    def _until_chosen(self) -> Iterator[None]:
        """Let the kernel wait again, if an error, a skipped test or Ctrl-C ends the search."""
        try:
            yield
        finally:
            if self.state is not KernelState.CHOSEN:
                self._wait()

    def _load_choice(self, tuning: Tuning, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Load the choice beside the candidates, let a mode race it, and keep only the choice.

        :returns: False if there is no choice that can be loaded.
        """
        autotuner = self._autotuner
        for entry in tuning.offered_entries():
            choice = entry.choice
            assert choice is not None
            try:
                autotuners.add_launcher(autotuner, self._own_question().candidate_list, choice)
                race = KernelRace(autotuner, choice, args, kwargs, self._tools.benchmarks, self._compiled_s)
                tuning.race(race.build)
                autotuners.keep_launcher(autotuner, choice)
                return True
            except Exception as error:
                tuning.reject(does_not_compile(describe_error(error)))
        return False

    def _ask(self) -> AbstractContextManager[Tuning]:
        """Ask the session for the choice."""
        session = self._tools.session
        if session.picks_candidates:
            session.at_next_test(forget_compiled)  # the next test gets another candidate
        return session.tuning(self._own_question())

    # Searching.

    def end_search(self, tuning: Tuning) -> None:
        """Record the choice of a search that Inductor made in a launch."""
        # Inductor measures nothing if one launcher was left.
        if self._times_ms:
            self._record(tuning)
        self.finish()

    def _record(self, tuning: Tuning) -> None:
        params = params_of(self._autotuner.launchers[0].config)
        time_ms = self._times_ms.get(params, math.inf)
        if not math.isfinite(time_ms):
            tuning.not_recorded(EVERY_CANDIDATE_FAILED)
            return
        candidates = [build_candidate(*measurement) for measurement in self._times_ms.items()]
        tuning.record(build_candidate(params, time_ms), candidates)

    @contextmanager
    def racing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Race the candidates of the list. Inductor asks for their times inside.

        :param args: the arguments of the launch; ``kwargs`` as well.
        """
        launchers = autotuners.select_measurable(self._autotuner, self._autotuner.launchers)
        self._raced_ms = self._tools.benchmarks.race_launchers(self._autotuner, launchers, args, kwargs)
        try:
            yield
        finally:
            self._raced_ms = {}  # Inductor measures other candidates afterwards

    def take_raced_time(self, launcher: Any) -> float | None:
        """Return the time of a launcher in the race, in milliseconds; None if the launcher did not race."""
        return self._raced_ms.pop(launcher, None)

    def note_time(self, launcher: Any, time_ms: float) -> None:
        """Note the time of a candidate in this search."""
        self._times_ms[params_of(launcher.config)] = float(time_ms)


class LaunchHook(CallHook):
    """Stands in for the ``run`` of an autotuner until its kernel has its choice."""

    def __init__(self, kernel: GeneratedKernel) -> None:
        self._kernel = kernel

    def ask(self, call: HookedCall) -> CallInstead | None:
        """Load the choice, or have Inductor search."""
        try:
            return self._kernel.ask_before_launch(call)
        except Exception:
            self._kernel.finish()  # after an error of the plugin, Inductor handles this kernel alone
            raise

    def note(self, call: HookedCall, result: Any) -> None:
        """Record the choice of a search."""
        if isinstance(call.state, Tuning):
            self._kernel.end_search(call.state)


@dataclass(frozen=True)
class KernelRace:
    """The race of a loaded choice, whose launcher is loaded beside all candidates.

    :param args: the kernel's arguments in its first launch; ``kwargs`` as well.
    :param compiled_s: the seconds that the compilation of the candidates took.
    """

    autotuner: Any
    choice: Candidate
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    benchmarks: Benchmarks
    compiled_s: float

    def build(self) -> Contest | str:
        """Return the contest, or the reason why the choice cannot be raced."""
        if self.autotuner.device_props.type != "cuda":
            return "it is not on a GPU"
        if stream_is_capturing():
            return CAPTURED
        candidates = [Candidate(params=params) for params in self._list_launchers()]
        return Contest(candidates, self.build_runners, self.benchmarks.make_clock, spent_s=self.compiled_s)

    def build_runners(self, candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
        """Return a runner for each of the candidates."""
        launcher_by_params = self._list_launchers()
        launchers = [launcher_by_params[candidate.params] for candidate in candidates]
        runners = build_runners(self.autotuner, launchers, self.args, self.kwargs)
        return dict(zip(candidates, runners, strict=True))

    def _list_launchers(self) -> dict[Params, Any]:
        """Return the launchers that race: the choice, then the candidates that Inductor measures."""
        launchers = autotuners.select_measurable(self.autotuner, self.autotuner.launchers)
        choice = autotuners.find_launcher(self.autotuner, self.choice)
        return {params_of(launcher.config): launcher for launcher in (choice, *launchers)}
