"""One Triton kernel that Inductor generated, from its compilation to its choice.

Inductor calls two methods of the kernel's autotuner: ``precompile`` to compile the kernel, and ``run`` to launch it. A
compiled kernel may never be launched. Inductor tunes inside the first launch. :class:`GeneratedKernel` acts in both
calls until the kernel has its choice: one configuration, such as ``XBLOCK=256 num_warps=4``. Later launches run no code
of the plugin.

Three words have one meaning here. To *compile* a candidate is to make its binary. To *load* it is to make a launcher,
which can run on the device. A *search* is Inductor's own tuning: it measures candidates and keeps the fastest.

:mod:`.kernels` hooks Inductor and makes the objects of this class. :mod:`.autotuners` knows Inductor's private lists.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Iterator
from concurrent import futures
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Any

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry, Problem
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.run.lookup import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor import autotuners
from pytest_autotune.tuners.inductor.autotuners import CandidateList, Params, build_candidate, params_of
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks, KernelRace
from pytest_autotune.tuners.inductor.compile_threads import CompileThreads, Precompilation
from pytest_autotune.tuners.inductor.graph_caches import forget_compiled
from pytest_autotune.tuners.inductor.identity import is_placeholder, kernel_name, versions
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, does_not_compile
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, HookedCall, Patches

TUNER = "inductor.config"


class KernelState(Enum):
    """The state of a generated kernel.

    A kernel that is loaded from a cache goes ``COMPILING`` -> ``CHOSEN``, or ``COMPILING`` -> ``COMPILING_IN_THREAD``
    -> ``CHOSEN``. A kernel that Inductor tunes goes ``COMPILING`` -> ``WAITING`` -> ``SEARCHING`` -> ``CHOSEN``.
    """

    #: The plugin or Inductor compiles the kernel in the calling thread.
    COMPILING = "compiling"
    #: A thread of the plugin compiles the kernel. The next launch waits for this thread and loads the kernel.
    COMPILING_IN_THREAD = "compiling in a thread"
    #: All candidates are compiled. The next launch asks the session for the choice.
    WAITING = "waiting"
    #: Inductor measures the candidates in a launch. If the launch fails, the kernel is ``WAITING`` again.
    SEARCHING = "searching"
    #: The choice is loaded, or Inductor has nothing to choose.
    CHOSEN = "chosen"


class CompiledBy(Enum):
    """The code that compiles a kernel when Inductor calls ``precompile``."""

    #: The plugin has compiled and loaded the choice.
    PLUGIN = "plugin"
    #: A thread of the plugin compiles the choice. It compiles all candidates if Inductor has nothing to choose.
    THREAD = "thread"
    #: Inductor has to compile all candidates.
    INDUCTOR = "inductor"


class KernelQuestion(Question):
    """Asks for the configuration of one kernel."""

    def __init__(self, problem: Problem, candidates: CandidateList, dtypes: str) -> None:
        super().__init__(problem, label=dtypes, versions=versions())
        self.candidate_list = candidates

    def offers(self, entry: Entry) -> bool:
        """Whether Inductor's search could still choose the entry's choice.

        The search begins with the candidates of the list. A coordinate descent then changes values, such as XBLOCK, and
        so leaves the list. It never removes a value. The choice must therefore set each value that a candidate sets.
        """
        # The entry says that every candidate failed.
        if entry.choice is None:
            return False
        names_in_choice = {value.name for value in entry.choice.params}
        for config in self.candidate_list.configs:
            names_in_config = {value.name for value in params_of(config)}
            if names_in_config.issubset(names_in_choice):
                return True
        return False

    def candidates(self) -> list[Candidate]:
        """Return the candidates of the list."""
        return [Candidate(params=params_of(config)) for config in self.candidate_list.configs]


@dataclass(frozen=True)
class KernelTools:
    """The objects that all generated kernels of a run share.

    :param benchmarks: times the measurements of a search.
    :param threads: compile choices, if the run allows threads.
    :param patches: replace the ``run`` of an autotuner.
    """

    session: Session
    benchmarks: Benchmarks
    threads: CompileThreads
    patches: Patches

    def acts_on(self, autotuner: Any) -> bool:
        """Whether the plugin acts on a kernel, so that the session is asked for its choice."""
        # Inductor made a placeholder only to measure it for a decision about fusion. `graph_shape` acts on it.
        if is_placeholder(autotuner):
            return False
        return not self.session.leaves_alone(TUNER, kernel_name(autotuner))


class GeneratedKernel:
    """A Triton kernel that Inductor generated.

    The kernel begins in the state ``COMPILING``, and ends in the state ``CHOSEN``. Its methods are called in order:

    1. :meth:`compile_choice`, before Inductor compiles. It may do all that is to be done.
    2. :meth:`begin_compiling_all` and :meth:`end_compiling_all`, around Inductor's own compilation of all candidates.
    3. :meth:`ask_before_launch`, before the first launch.
    4. :meth:`racing`, :meth:`take_raced_time` and :meth:`note_time`, while Inductor searches in this launch.
    5. :meth:`end_search`, after this launch.

    The object holds only a weak reference to its autotuner. Inductor's module of the graph keeps the autotuner alive.

    :param precompilation: Inductor's call of ``precompile``, during which this object is made.
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
        #: The job of the thread that compiles the kernel, or has compiled it; None if no thread was asked.
        self._thread_job: futures.Future[None] | None = None
        #: Whether the autotuner's lists hold only the choice. If the choice fails, the candidates are put back.
        self._lists_only_choice = False
        #: Whether a mode races the loaded choice with all candidates in the first launch.
        self._must_race = False
        #: The time at which Inductor began to compile all candidates, and the duration. Both are in seconds.
        self._compiling_began_s = 0.0
        self._compiling_took_s = 0.0
        #: The times that this search measured, in milliseconds.
        self._times_ms: dict[Params, float] = {}
        #: The times that the race measured, by launcher. Inductor has not asked for these times yet.
        self._raced_ms: dict[Any, float] = {}

    @property
    def _autotuner(self) -> Any:
        """The kernel's autotuner, which is alive while Inductor calls one of its methods."""
        return self._autotuner_reference()

    def _require_question(self) -> KernelQuestion:
        """Return the question. Only a kernel in which Inductor has something to choose has a question."""
        assert self._question is not None
        return self._question

    # Compiling.

    def compile_choice(self) -> CompiledBy:
        """Compile only the kernel's choice, if the session has one. Return the code that compiles the kernel.

        The method is called when Inductor calls ``precompile``. If a thread then compiles the kernel, the first launch
        calls the method again, to load the result.
        """
        # Inductor has nothing to choose. A thread can then compile everything that the autotuner lists.
        if self._question is None:
            if self._begin_thread():
                return CompiledBy.THREAD
            return CompiledBy.INDUCTOR
        # A mode such as --autotune-verify may race the choice, and a race needs all candidates.
        if self._tools.session.may_race(self._question.problem):
            self._must_race = True
            return CompiledBy.INDUCTOR
        # The only candidate is compiled, whatever the cache says. If Inductor adds a second candidate after this
        # compilation, the first launch asks for the choice.
        if len(self._question.candidate_list.configs) == 1 and not autotuners.descends(self._autotuner):
            return CompiledBy.INDUCTOR
        with self._ask() as tuning:
            for entry in tuning.offered_entries():
                assert entry.choice is not None
                try:
                    return self._compile_only(entry.choice)
                except Exception as error:
                    tuning.reject(does_not_compile(describe_error(error)))
            # No entry can be used. The first launch asks again, and Inductor then searches.
            tuning.postpone()
        return CompiledBy.INDUCTOR

    def _compile_only(self, choice: Candidate) -> CompiledBy:
        """Compile and load a choice, or have a thread compile it.

        :raises Exception: if the choice does not compile. Inductor's error has one of several classes.
        """
        self._lists_only_choice = True
        autotuners.keep_only_choice(self._autotuner, self._require_question().candidate_list, choice)
        if self._begin_thread():
            return CompiledBy.THREAD
        self._precompilation.run(self._autotuner)
        autotuners.keep_launcher(self._autotuner, choice)
        self.finish()
        return CompiledBy.PLUGIN

    def _begin_thread(self) -> bool:
        """Have a thread compile the candidates that the autotuner lists. The first launch waits for the thread.

        :returns: whether a thread compiles.
        """
        # This is the second call: the first launch has waited for the thread, and needs the kernel at once.
        if self._thread_job is not None:
            return False
        # Inductor handed over compiled candidates, so only the loading remains.
        if self._autotuner.compile_results:
            return False
        if not self._tools.threads.are_allowed():
            return False
        self._thread_job = self._tools.threads.submit(self._precompilation, self._autotuner)
        self.state = KernelState.COMPILING_IN_THREAD
        self._replace_launch()
        return True

    def begin_compiling_all(self) -> None:
        """Put all candidates back into the autotuner's lists, before Inductor compiles and loads them."""
        if self._lists_only_choice:
            self._lists_only_choice = False
            autotuners.restore_candidates(self._autotuner, self._require_question().candidate_list)
        self._compiling_began_s = HostTime.perf_counter()

    def end_compiling_all(self) -> None:
        """Note that Inductor has compiled all candidates. If they are rivals, the first launch asks for the choice."""
        self._compiling_took_s = HostTime.perf_counter() - self._compiling_began_s
        if self._has_rivals():
            self._wait_for_launch()
        else:
            self.finish()

    def _has_rivals(self) -> bool:
        """Whether something is to be chosen, after Inductor has loaded all candidates."""
        if self._question is None:
            return False
        # A coordinate descent varies even a single candidate. A mode may race a loaded choice with a single candidate.
        if autotuners.descends(self._autotuner) or self._must_race:
            return True
        return len(self._autotuner.launchers) > 1

    def compile_all_and_launch(self, *args: Any, **kwargs: Any) -> Any:
        """Compile and load all candidates, as Inductor does, and launch the kernel.

        If something is to be chosen, ``run`` has a hook again, and this launch asks for the choice.

        :raises Exception: the errors of Inductor, and of the kernel.
        """
        self._precompilation.run(self._autotuner)
        self.end_compiling_all()
        return self._autotuner.run(*args, **kwargs)

    def _wait_for_launch(self) -> None:
        """Have the next launch ask for the choice."""
        self.state = KernelState.WAITING
        self._replace_launch()

    def finish(self) -> None:
        """End the plugin's part in this kernel, and free the list of candidates."""
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
        :returns: another call to make in place of the launch; None if the autotuner launches the kernel now.
        """
        # The hook is for one launch: the autotuner gets Inductor's own `run` back.
        vars(self._autotuner).pop("run", None)
        if self.state is KernelState.COMPILING_IN_THREAD:
            return self._load_from_thread(call)
        # An error of the plugin has ended its part in this kernel.
        if self.state is not KernelState.WAITING:
            return None
        if self._must_choose():
            self._choose(call)
        else:
            self.finish()
        return None

    def _load_from_thread(self, call: HookedCall) -> CallInstead | None:
        """Wait for the thread that compiles the choice, and load the choice in the launching thread.

        :param call: the launch.
        :returns: the call that compiles all candidates and then launches, if the choice did not compile or if there is
            no choice; else None.
        """
        assert self._thread_job is not None
        futures.wait([self._thread_job])
        # An error of the thread is not read here. The same compilation fails again below, where the error is handled.
        self.state = KernelState.COMPILING
        # This second call finds what the thread compiled, and only loads it.
        if self.compile_choice() is not CompiledBy.INDUCTOR:
            return None
        self.begin_compiling_all()
        launch = call.with_arguments()
        # Errors of Inductor's compilation are for the test, so they must not reach the guard around this hook.
        return CallInstead(self.compile_all_and_launch, launch.args, launch.kwargs)

    def _must_choose(self) -> bool:
        """Whether this launch has to ask the session for the choice."""
        # Inductor has the result of a coordinate descent, and no mode wants to race it.
        if autotuners.is_chosen_by_inductor(self._autotuner) and not self._must_race:
            return False
        # A test may have paused the plugin after the compilation.
        return self._tools.acts_on(self._autotuner)

    def _choose(self, call: HookedCall) -> None:
        """Load the choice. If there is none, have Inductor search in the launch, and record the search after it.

        :param call: the launch. A context that is entered in it ends after Inductor has measured and launched.
        """
        call.enter(self._until_chosen())
        tuning = self._enter_search(call)
        if tuning is None:
            # The choice is loaded.
            self.finish()
            return
        self._times_ms = {}
        self.state = KernelState.SEARCHING
        call.enter(self._tools.benchmarks.searching(tuning))
        call.state = tuning  # for LaunchHook.note

    def _enter_search(self, call: HookedCall) -> Tuning | None:
        """Load the choice; if there is none, return the tuning in which Inductor searches.

        If the choice is loaded, the tuning ends here, before the launch. Otherwise Inductor searches in the launch, so
        the tuning ends after the launch.
        """
        with ExitStack() as ends_tuning:
            tuning = ends_tuning.enter_context(self._ask())
            if self._load_choice(tuning, call.arguments["args"], call.arguments["kwargs"]):
                return None
            # pop_all() leaves nothing to end here, and makes another stack that ends the tuning. The call enters it.
            call.enter(ends_tuning.pop_all())
            return tuning

    @contextmanager
    def _until_chosen(self) -> Iterator[None]:
        """Have the next launch ask again, if an error, a skipped test or Ctrl-C ends the search."""
        try:
            yield
        finally:
            if self.state is not KernelState.CHOSEN:
                self._wait_for_launch()

    def _load_choice(self, tuning: Tuning, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Load the choice beside the candidates, let a mode race it, and keep only the choice.

        :param args: the arguments of the launch; ``kwargs`` as well.
        :returns: whether a choice is loaded. Otherwise Inductor has to search.
        """
        autotuner = self._autotuner
        for entry in tuning.offered_entries():
            choice = entry.choice
            assert choice is not None
            try:
                # The candidates stay loaded until the race is over.
                autotuners.add_launcher(autotuner, self._require_question().candidate_list, choice)
                race = KernelRace(autotuner, choice, args, kwargs, self._tools.benchmarks, self._compiling_took_s)
                tuning.race(race.build)
                autotuners.keep_launcher(autotuner, choice)
                return True
            except Exception as error:
                tuning.reject(does_not_compile(describe_error(error)))
        return False

    def _ask(self) -> AbstractContextManager[Tuning]:
        """Ask the session for the choice. The returned context gives the tuning, which offers entries."""
        session = self._tools.session
        if session.picks_candidates:
            session.at_next_test(forget_compiled)  # the next test gets another candidate
        return session.tuning(self._require_question())

    # Searching.

    def end_search(self, tuning: Tuning) -> None:
        """Record the choice of a search that Inductor made in a launch."""
        # Inductor measures nothing if only a single candidate could be loaded.
        if self._times_ms:
            self._record(tuning)
        self.finish()

    def _record(self, tuning: Tuning) -> None:
        """Record the choice and the times of all measured candidates."""
        # Inductor keeps only the launcher of its choice, the fastest candidate.
        chosen_params = params_of(self._autotuner.launchers[0].config)
        chosen_ms = self._times_ms.get(chosen_params, math.inf)
        if not math.isfinite(chosen_ms):
            tuning.not_recorded(EVERY_CANDIDATE_FAILED)
            return
        candidates = []
        for params, time_ms in self._times_ms.items():
            candidates.append(build_candidate(params, time_ms))
        tuning.record(build_candidate(chosen_params, chosen_ms), candidates)

    @contextmanager
    def racing(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[None]:
        """Race the candidates of the list. Inside the context, Inductor asks ``bench`` for the time of each of them.

        :param args: the arguments of the launch; ``kwargs`` as well.
        """
        launchers = autotuners.select_measurable(self._autotuner, self._autotuner.launchers)
        self._raced_ms = self._tools.benchmarks.race_launchers(self._autotuner, launchers, args, kwargs)
        try:
            yield
        finally:
            # A coordinate descent may follow. Inductor measures its candidates itself.
            self._raced_ms = {}

    def take_raced_time(self, launcher: Any) -> float | None:
        """Return the time of a launcher in the race, in milliseconds; None if the launcher did not race.

        The time is removed, so that a second question about the same launcher leads to a new measurement.
        """
        return self._raced_ms.pop(launcher, None)

    def note_time(self, launcher: Any, time_ms: float) -> None:
        """Note the time of a candidate in this search."""
        self._times_ms[params_of(launcher.config)] = float(time_ms)


class LaunchHook(CallHook):
    """Acts before the first launch of a kernel, which is a call of its autotuner's ``run``."""

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
