"""Finds the choice for a launch for which Triton's memory has no choice. If no cache has a choice, a search begins.

Two calls take part. The ``launch`` is the user's call of the kernel. In the launch, Triton calls ``check_disk_cache``,
which the adapter replaces: this call is the ``hooked_call``. A config is Triton's object for a candidate.

:mod:`.identity` computes the problem of the launch, and :mod:`.tuning` makes the search.
"""

from __future__ import annotations

import threading
import weakref
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Candidate, Device, Digest, Entry
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.lookup import Lookup, Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall
from pytest_autotune.tuners.source.functions import python_function, qualified_name
from pytest_autotune.tuners.source.libraries import Distribution, list_versions
from pytest_autotune.tuners.triton.compile_watcher import CompileWatcher
from pytest_autotune.tuners.triton.compiling import compile_and_load, help_to_compile
from pytest_autotune.tuners.triton.identity import (
    NAME,
    Call,
    CallIdentity,
    can_share_tuning_key,
    compute_identity,
    find_target_device,
    list_digests,
)
from pytest_autotune.tuners.triton.internals import autotuners, compiler
from pytest_autotune.tuners.triton.internals.autotuners import OuterHeuristics, find_pruner
from pytest_autotune.tuners.triton.tuning import CallContest, CallSearch, describe_failure


class CallQuestion(Question):
    """The question that the adapter asks the session: which config is the choice for this launch?

    :param configs: the candidates that pruning left.
    """

    def __init__(self, launch: Call, configs: Sequence[Any], identity: CallIdentity, session: Session) -> None:
        libraries: Iterable[Distribution] = ()
        if identity.source is not None:
            libraries = identity.source.libraries
        versions = list_versions("triton", "torch", distributions=libraries)
        super().__init__(identity.problem, identity.fingerprint, versions=versions, may_be_renamed=True)
        self._launch = launch
        self._configs = configs
        self._call_identity = identity
        self._session = session

    def offers(self, entry: Entry) -> bool:
        """Whether the entry's choice is one of the call's candidates."""
        return entry.choice is not None and entry.choice.params in self._call_identity.config_by_params

    def candidates(self) -> list[Candidate]:
        """Return the call's candidates in the order of the kernel's list."""
        return [Candidate(params=params) for params in self._call_identity.config_by_params]

    def digests(self) -> Iterable[Digest]:
        """Return the functions, constants and configs that the fingerprint is made of."""
        return list_digests(self._launch, self._call_identity, self._configs)

    def help(self) -> None:
        """Compile candidates while another worker tunes the same problem, so that it finds them on disk."""
        if _can_compile(self._launch):
            help_to_compile(self._launch, self._configs, self._session)


@dataclass(frozen=True)
class _RememberedChoice:
    """A choice in the memory of an autotuner, which the autotuner may have to forget.

    :param cache: the autotuner's memory at that time. For a test with its own cache file, the adapter gives the
        autotuner another memory.
    """

    cache: dict[Any, Any]
    tuning_key: Any

    def forget(self) -> None:
        self.cache.pop(self.tuning_key, None)


@dataclass
class _SearchAfterHook:
    """A search that ends after the hook: Triton's benchmark or the kernel's own measures the candidates."""

    launch: Call
    search: CallSearch
    tuning: Tuning


@dataclass
class _DiskCacheSearch(_SearchAfterHook):
    """A search in which Triton looks into its disk cache first. If the choice is not there, Triton benchmarks.

    :param is_benchmarked: whether a benchmark ran and ended without an error. False if the disk cache had the choice.
    :param benchmark_error: the error that ended the benchmark. If the call ends with any other error, the error comes
        from Triton's disk cache.
    """

    is_benchmarked: bool = False
    benchmark_error: Exception | None = None


class Choices(CallHook):
    """Finds the choices for the calls of one process. An object of this class is the hook of :meth:`check_disk_cache`.

    :param session: answers which choice to use, and records searches.
    :param compile_watcher: notes for which specializations a choice was compiled.
    :param heuristics: the ``triton.heuristics`` around autotuners.
    :param triton_check: Triton's own ``check_disk_cache``.
    :param asking_autotuners: the set to which this class adds each autotuner that asks.
    """

    def __init__(
        self,
        session: Session,
        compile_watcher: CompileWatcher,
        heuristics: OuterHeuristics,
        triton_check: Callable[..., Any],
        asking_autotuners: weakref.WeakSet[Any],
    ) -> None:
        self._session = session
        self._compile_watcher = compile_watcher
        self._heuristics = heuristics
        self._triton_check = triton_check
        self._asking_autotuners = asking_autotuners
        #: The types of GPU on which this process launched kernels.
        self._devices: set[Device] = set()
        #: The number of lookups of interpreted kernels, by the identifier of their thread.
        self._interpreted_lookups: Counter[int] = Counter()

    def ask(self, hooked_call: HookedCall) -> CallResult | CallInstead | None:
        """Put a choice into ``autotuner.cache``, or let Triton benchmark the candidates.

        The method takes the first of these steps that applies:

        1. The plugin does not act on this kernel, or cannot identify the call: Triton handles it.
        2. There is a single candidate: it is the choice.
        3. The session offers a choice that compiles: it is used.
        4. The kernel uses Triton's disk cache, nothing is dumped, and no loaded entry says that every candidate failed:
           Triton takes the choice from its disk cache or, if the choice is not there, benchmarks the candidates.
        5. The candidates race. If they cannot race, Triton benchmarks them.

        :returns: the result of ``check_disk_cache``: True if the choice comes from a cache, False if this call measured
            it. None leaves the call to :meth:`check_disk_cache`, as without the plugin.
        """
        autotuner, configs = hooked_call.arguments["autotuner"], hooked_call.arguments["configs"]
        self._asking_autotuners.add(autotuner)
        function = python_function(autotuner)
        if function is None or self._is_left_alone(function):
            return None
        launch = self._prepare(hooked_call)
        # Pruning left a single candidate, so there is nothing to choose.
        if len(configs) == 1:
            return self._take_only_candidate(launch, configs[0])
        identity = self._find_identity(launch, function, configs)
        if identity is None:
            return None
        return self._answer(hooked_call, launch, identity)

    def _prepare(self, hooked_call: HookedCall) -> Call:
        """Return the launch in which Triton makes the hooked call. Count the lookup if the kernel is interpreted."""
        arguments = hooked_call.arguments
        autotuner = arguments["autotuner"]
        outer_heuristics = self._heuristics.list_around(autotuner)
        launch = Call.from_bench_fn(autotuner, arguments["tuning_key"], arguments["bench_fn"], outer_heuristics)
        if launch.is_interpreted:
            self._interpreted_lookups[threading.get_ident()] += 1
        return launch

    def _answer(self, hooked_call: HookedCall, launch: Call, identity: CallIdentity) -> CallResult | CallInstead | None:
        """Ask the session for the choice, and begin a search if it offers none: steps 3 to 5 of :meth:`ask`."""
        autotuner = launch.autotuner
        if not launch.is_interpreted:
            hooked_call.enter(self._compile_watcher.choosing(autotuner))
        question = CallQuestion(launch, hooked_call.arguments["configs"], identity, self._session)
        # The tuning ends with the hooked call, also if an error ends it.
        tuning = hooked_call.enter(self._session.tuning(question))
        if self._take_choice(launch, identity, tuning):
            self._forget_before_the_next_test(launch)
            return CallResult(True)
        # A dump measures anew: Triton's disk cache has times of an earlier run, and no reasons why candidates failed.
        # If the loaded entry says that every candidate failed, only a new measurement shows whether one works now.
        if self._session.policy.is_dumping or tuning.is_expected_to_fail or not _uses_disk_cache(autotuner):
            return self._search(hooked_call, launch, tuning)
        return self._search_with_disk_cache(hooked_call, launch, tuning)

    def _is_left_alone(self, function: FunctionType) -> bool:
        """Whether the session does not act on this kernel now: see :meth:`Session.leaves_alone`."""
        return self._session.leaves_alone(NAME, qualified_name(function))

    def _take_only_candidate(self, launch: Call, config: Any) -> CallResult:
        """Put the only candidate into the autotuner's memory, as Triton does without a measurement."""
        # Triton's memory hashes the config, and so the functions in the config. If the hashing fails half-way, a
        # function would keep a wrong hash.
        with compiler.remove_unfinished_hashes():
            launch.adopt(config, {config: 0.0})
        self._forget_before_the_next_test(launch)
        return CallResult(True)

    def note(self, hooked_call: HookedCall, result: Any) -> CallResult | None:
        """Record the result of a benchmark, Triton's or the kernel's. A choice from a disk cache is not recorded."""
        state = hooked_call.state
        if isinstance(state, _DiskCacheSearch):
            if state.is_benchmarked:
                self._record_benchmark(state)
            return None
        if isinstance(state, _SearchAfterHook):
            self._record_benchmark(state)
            return CallResult(False)
        return None

    def note_error(self, hooked_call: HookedCall, error: Exception) -> None:
        """Record the error that ended a benchmark, if the next run will see the same error.

        If only Triton's disk cache could not be written, record the result of the benchmark.
        """
        state = hooked_call.state
        if isinstance(state, _DiskCacheSearch):
            if state.is_benchmarked:
                # Triton could not write its disk cache. The times of the benchmark are right.
                self._record_benchmark(state)
            elif error is state.benchmark_error:
                state.search.record_error(error)
            # Any other error comes from reading Triton's disk cache. It says nothing about the candidates.
        elif isinstance(state, _SearchAfterHook):
            state.search.record_error(error)

    def _record_benchmark(self, state: _SearchAfterHook) -> None:
        state.search.record_benchmark()
        self._end_search(state.launch, state.tuning)

    def check_disk_cache(self, autotuner: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        """Do what Triton does without the plugin: ask its disk cache if the kernel's author uses it, else benchmark."""
        # The hook has put a choice into the memory, and an error of the plugin followed. The choice can be used.
        if tuning_key in autotuner.cache:
            return False
        if _uses_disk_cache(autotuner):
            return bool(self._triton_check(autotuner, tuning_key, configs, bench_fn))
        bench_fn()
        return False

    def _find_identity(self, launch: Call, function: FunctionType, configs: Sequence[Any]) -> CallIdentity | None:
        """Return the identity of a call; None if Triton handles the call as it does without the plugin."""
        # The pruner left no candidate. Triton raises an error.
        if not configs:
            return None
        # The call passes an argument, such as BLOCK=64, whose value the candidates set. Triton raises an error.
        for config in configs:
            if launch.kwargs.keys() & config.kwargs.keys():
                return None
        try:
            device = self._find_device(launch)
        except RuntimeError:
            # There is no usable GPU. The launch raises an error that says so.
            return None
        identity = compute_identity(launch, function, configs, device)
        if identity.uncacheable:
            self._session.report_uncacheable(identity.problem, identity.uncacheable)
            return None
        # If the source has very many parts, a library is probably among them. The summary then says so.
        if identity.source is not None:
            note = identity.source.note(identity.problem.name)
            if note:
                self._session.note(note)
        return identity

    def _find_device(self, launch: Call) -> Device:
        """Return the device of a launch.

        :raises RuntimeError: if there is no usable GPU.
        """
        if launch.is_interpreted:
            return devices.INTERPRETER
        device = devices.current_gpu() or find_target_device()
        self._devices.add(device)
        if len(self._devices) == 2:
            self._session.note(
                "triton: two types of GPU in one process, but Triton uses the choice of the first on both "
                "(test each in its own process)"
            )
        return device

    def _take_choice(self, launch: Call, identity: CallIdentity, tuning: Tuning) -> bool:
        """Put the first choice that the session offers and that compiles into Triton's memory.

        :returns: whether there is such a choice. If not, a search has to follow.
        """
        for entry in tuning.offered_entries():
            assert entry.choice is not None
            config = identity.config_by_params[entry.choice.params]
            try:
                compiled_kernel = _compile_if_possible(launch, config)
            except (TypeError, ValueError, KeyError, OSError, MemoryError):
                # The call is wrong, or a disk is full, so every other choice would fail, too. The launch of this choice
                # raises the error for the user.
                compiled_kernel = None
            except Exception as error:
                tuning.reject(does_not_compile(describe_failure(error)))
                continue
            # With --autotune-verify, the choice races the other candidates now. Whatever the verdict, the call uses it.
            tuning.race(CallContest(launch, identity.config_by_params, self._session).build)
            launch.adopt(config, {config: (entry.choice.time_us or 0.0) / 1000})
            if not launch.is_interpreted:
                self._compile_watcher.note_choice(launch, entry, config, compiled_kernel)
            return True
        return False

    def _search(self, hooked_call: HookedCall, launch: Call, tuning: Tuning) -> CallResult | CallInstead:
        """Search by a race of the candidates or, if they cannot race, by Triton's own benchmark.

        The race runs in this method, which records its choice. Triton's benchmark runs after this method, which only
        returns the call of it. Later :meth:`note` records the result of the benchmark, or :meth:`note_error` its error.
        """
        interpreted_lookups = None
        if launch.is_interpreted:
            interpreted_lookups = self._interpreted_lookups
        search = CallSearch(
            launch,
            hooked_call.arguments["configs"],
            tuning,
            can_compile=_can_compile(launch),
            interpreted_lookups=interpreted_lookups,
        )
        if search.race(self._session):
            self._end_search(launch, tuning)
            return CallResult(False)
        hooked_call.enter(search.benchmarking())
        hooked_call.state = _SearchAfterHook(launch, search, tuning)
        return CallInstead(hooked_call.arguments["bench_fn"])

    def _search_with_disk_cache(self, hooked_call: HookedCall, launch: Call, tuning: Tuning) -> CallInstead:
        """Have Triton look for the choice in its disk cache, and benchmark the candidates if there is none.

        As after :meth:`_search`, :meth:`note` or :meth:`note_error` sees how the call ended. The fields of the state
        then tell whether Triton has benchmarked, and whether an error comes from the benchmark.
        """
        arguments = hooked_call.arguments
        configs, bench_fn = arguments["configs"], arguments["bench_fn"]
        search = CallSearch(launch, configs, tuning, can_compile=_can_compile(launch))
        state = _DiskCacheSearch(launch, search, tuning)
        hooked_call.state = state
        # If Triton takes the choice from its disk cache, no search ends. So this is done here.
        self._forget_before_the_next_test(launch)

        def benchmark() -> None:
            # Triton calls this function only if its disk cache has no choice. The compilation is not a part of
            # benchmarking(), so that other workers can measure while this worker compiles.
            with self._session.guard(NAME, autotuners.DISK_CACHE):
                search.compile(self._session)
            try:
                with self._session.enter_under_guard(NAME, search.benchmarking(), None):
                    bench_fn()
            except Exception as error:
                state.benchmark_error = error
                raise
            state.is_benchmarked = True

        return CallInstead(self._triton_check, (launch.autotuner, arguments["tuning_key"], configs, benchmark))

    def _end_search(self, launch: Call, tuning: Tuning) -> None:
        self._note_tuned(launch, tuning.lookup)
        self._forget_before_the_next_test(launch)

    def _note_tuned(self, launch: Call, lookup: Lookup) -> None:
        """Note the argument types for which the choice of a search was compiled: the specialization of its kernel."""
        # Only a dump writes specializations.
        if not self._session.policy.is_dumping:
            return
        # The search recorded no choice.
        config = launch.autotuner.cache.get(launch.tuning_key)
        if config is None or not lookup.is_tuned or lookup.entry is None:
            return
        compiled_kernel = None
        # Triton returns the kernel from its memory, because the search has compiled it. An error comes again in the
        # launch, which raises it for the user.
        with suppress(Exception):
            compiled_kernel = _compile_if_possible(launch, config)
        self._compile_watcher.note_choice(launch, lookup.entry, config, compiled_kernel)

    def _forget_before_the_next_test(self, launch: Call) -> None:
        """Have Triton forget a choice before the next test, if the next test must ask again.

        The next test must ask again in three cases:

        - The kernel has a pruner, which may look at arguments outside the key. Triton calls the pruner only if its
          memory has no choice for the key. If the memory kept this choice, the next test would get it, even if the
          pruner excludes it for that test. The choice of a test would then depend on the order of the tests.
        - The problem or the fingerprint depends on an argument that Triton's key lacks, such as a function, or another
          call may pass a function or tensors in its place. If the memory kept the choice, a test with another function
          would get it.
        - In a sweep, the summary names the candidates with which a test failed, so each test must ask.

        A kernel with a performance model keeps its choice. The fingerprint does not have the candidates that the model
        leaves, so no entry belongs to the candidates of one test.
        """
        autotuner = launch.autotuner
        must_ask = find_pruner(autotuner) is not None or can_share_tuning_key(launch)
        if self._session.picks_candidates or (must_ask and autotuner.perf_model is None):
            self._session.at_next_test(_RememberedChoice(autotuner.cache, launch.tuning_key).forget)


def _compile_if_possible(launch: Call, config: Any) -> Any:
    """Compile and load a candidate, and return Triton's compiled kernel; None if only a launch can compile it now.

    :raises Exception: Triton's errors.
    """
    if not _can_compile(launch) or stream_is_capturing():
        return None
    return compile_and_load(launch, config)


def _can_compile(launch: Call) -> bool:
    """Whether candidates can be compiled without a launch."""
    # The interpreter compiles nothing, and a Python function can do anything.
    if launch.is_interpreted or not autotuners.launches_triton_kernel(launch.autotuner):
        return False
    # While a pool is active, Triton submits each compilation to the pool and returns before the kernel is compiled. The
    # pool is active here only if a hook launches this kernel while the pool compiles another kernel.
    return not compiler.is_pool_active()


def _uses_disk_cache(autotuner: Any) -> bool:
    """Whether Triton uses its disk cache: the kernel or ``TRITON_CACHE_AUTOTUNING=1`` sets ``cache_results``."""
    # Triton 3.4 and 3.5 fail in their disk cache when they interpret.
    return bool(autotuner.__dict__.get("cache_results")) and not autotuners.is_interpreted(autotuner)
