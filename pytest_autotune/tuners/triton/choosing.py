"""Finds the choice for a call of an autotuned kernel that Triton's memory has no choice for, or begins a search."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from dataclasses import dataclass
from types import FunctionType
from typing import Any

from pytest_autotune import devices
from pytest_autotune.cache.model import Candidate, Device, Digest, Entry
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.question import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.shared.candidates import does_not_compile
from pytest_autotune.tuners.shared.distributions import Distribution
from pytest_autotune.tuners.shared.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.library import list_versions
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall
from pytest_autotune.tuners.triton.compilations import CompileWatcher
from pytest_autotune.tuners.triton.compiling import compile_and_load, help_to_compile
from pytest_autotune.tuners.triton.identity import (
    NAME,
    Call,
    CallIdentity,
    compute_identity,
    find_target_device,
    list_digests,
)
from pytest_autotune.tuners.triton.internals import autotuners, compiler
from pytest_autotune.tuners.triton.internals.autotuners import OuterHeuristics, find_pruner
from pytest_autotune.tuners.triton.interpreter import InterpreterThreads
from pytest_autotune.tuners.triton.tuning import CallContest, CallSearch, describe_failure


class CallQuestion(Question):
    """Asks for the config of a call of an autotuned kernel.

    :param configs: the candidates that pruning left.
    """

    def __init__(self, call: Call, configs: Sequence[Any], identity: CallIdentity, session: Session) -> None:
        libraries: Iterable[Distribution] = ()
        if identity.source is not None:
            libraries = identity.source.libraries
        versions = list_versions("triton", "torch", distributions=libraries)
        super().__init__(identity.problem, identity.fingerprint, versions=versions, may_be_renamed=True)
        self._call = call
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
        return list_digests(self._call, self._call_identity, self._configs)

    def help(self) -> None:
        """Compile candidates for the worker that tunes this call."""
        if _can_compile(self._call.autotuner):
            help_to_compile(self._call, self._configs, self._session)


@dataclass(frozen=True)
class _RememberedChoice:
    """A choice in the memory of an autotuner.

    :param cache: the memory. A test with its own cache file gives the autotuner another memory for a while.
    """

    cache: dict[Any, Any]
    tuning_key: Any

    def forget(self) -> None:
        self.cache.pop(self.tuning_key, None)


@dataclass(frozen=True)
class _BenchmarkedSearch:
    """A search that Triton's benchmark, or the kernel's own, makes after the hook was asked."""

    call: Call
    search: CallSearch
    tuning: Tuning


class Choices(CallHook):
    """Finds the choices for the calls of one process. It is the hook of ``check_disk_cache``.

    :param compilations: notes the specializations of choices.
    :param heuristics: the ``triton.heuristics`` around autotuners.
    :param disk_cache: Triton's own ``check_disk_cache``.
    :param asked: receives each autotuner that asks.
    """

    def __init__(
        self,
        session: Session,
        compilations: CompileWatcher,
        heuristics: OuterHeuristics,
        disk_cache: Callable[..., Any],
        asked: weakref.WeakSet[Any],
    ) -> None:
        self._session = session
        self._compilations = compilations
        self._heuristics = heuristics
        self._disk_cache = disk_cache
        self._asked = asked
        self._devices: set[Device] = set()
        self._interpreter_threads = InterpreterThreads()

    def ask(self, call: HookedCall) -> CallResult | CallInstead | None:
        """Put a choice into ``autotuner.cache``, or let Triton benchmark the candidates.

        The result of ``check_disk_cache`` is True if the choice was not benchmarked in this call.
        """
        autotuner, configs = call.arguments["autotuner"], call.arguments["configs"]
        self._asked.add(autotuner)
        session = self._session
        function = python_function(autotuner)
        if session.is_paused or function is None or session.ignores(NAME, qualified_name(function)):
            return None
        is_interpreted = autotuners.is_interpreted(autotuner)
        if is_interpreted:
            self._interpreter_threads.add_lookup()
        outer_heuristics = self._heuristics.list_around(autotuner)
        kernel_call = Call.of(autotuner, call.arguments["tuning_key"], call.arguments["bench_fn"], outer_heuristics)
        if len(configs) == 1:
            with compiler.remove_unfinished_hashes():  # the hash of a config hashes the functions that it holds
                kernel_call.adopt(configs[0], {configs[0]: 0.0})
            self._forget_before_the_next_test(kernel_call)
            return CallResult(True)
        identity = self._find_identity(kernel_call, function, configs)
        if identity is None:
            return None
        if not is_interpreted:
            self._compilations.begin_choice(autotuner)
        tuning = call.enter(self._begin_tuning(kernel_call, configs, identity))
        if self._take_choice(kernel_call, identity, tuning):
            self._forget_before_the_next_test(kernel_call)
            return CallResult(True)
        if not session.policy.is_dumping and _owner_uses_disk_cache(autotuner):
            return None
        return self._search(call, kernel_call, tuning)

    def note(self, call: HookedCall, result: Any) -> CallResult | None:
        """Record the choice of a benchmark."""
        if not isinstance(call.state, _BenchmarkedSearch):
            return None
        call.state.search.record_benchmark()
        self._end_search(call.state.call, call.state.tuning)
        return CallResult(False)

    def note_error(self, call: HookedCall, error: Exception) -> None:
        """Record the error of a benchmark, if the next run will see it, too."""
        if isinstance(call.state, _BenchmarkedSearch):
            call.state.search.record_error(error)

    def check_disk_cache(self, autotuner: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        """Do what Triton does without the plugin: ask its disk cache if the owner uses it, else benchmark."""
        if tuning_key in autotuner.cache:  # an error of ours came after the choice
            return False
        if _owner_uses_disk_cache(autotuner):
            return bool(self._disk_cache(autotuner, tuning_key, configs, bench_fn))
        bench_fn()
        return False

    def _find_identity(self, call: Call, function: FunctionType, configs: Sequence[Any]) -> CallIdentity | None:
        """Return the identity of a call; None if Triton is to handle the call as it does without the plugin."""
        # Triton refuses a call without candidates, or with an argument that is tuned, before it measures anything.
        if not configs:
            return None
        for config in configs:
            if call.kwargs.keys() & config.kwargs.keys():
                return None
        try:
            device = self._find_device(call.autotuner)
        except RuntimeError:  # there is no GPU, or it is broken: the launch says which
            return None
        identity = compute_identity(call, function, configs, device)
        if identity.uncacheable:
            self._session.report_uncacheable(identity.problem, identity.uncacheable)
            return None
        if identity.source is not None:
            note = identity.source.note(identity.problem.name)
            if note:
                self._session.note(note)
        return identity

    def _find_device(self, autotuner: Any) -> Device:
        if autotuners.is_interpreted(autotuner):
            return devices.INTERPRETER
        device = devices.current_gpu() or find_target_device()
        self._devices.add(device)
        if len(self._devices) == 2:
            self._session.note(
                "triton: two types of GPU in one process, but Triton's memory of a choice ignores the device"
            )
        return device

    def _begin_tuning(
        self, call: Call, configs: Sequence[Any], identity: CallIdentity
    ) -> AbstractContextManager[Tuning]:
        return self._session.tuning(CallQuestion(call, configs, identity, self._session))

    def _take_choice(self, call: Call, identity: CallIdentity, tuning: Tuning) -> bool:
        """Use the first offered choice that compiles; returns whether there is one."""
        while tuning.entry is not None and tuning.entry.choice is not None:
            config = identity.config_by_params[tuning.entry.choice.params]
            try:
                kernel = _compile_if_possible(call, config)
            except (TypeError, ValueError, KeyError, OSError, MemoryError):
                # The call is wrong, or a disk is full. No other choice would help. The launch raises the error.
                kernel = None
            except Exception as error:
                tuning.reject(does_not_compile(describe_failure(error)))
                continue
            tuning.race(CallContest(call, identity.config_by_params, self._session).build)
            call.adopt(config, {config: (tuning.entry.choice.time_us or 0.0) / 1000})
            self._compilations.note_choice(call, tuning.entry, config, kernel)
            return True
        return False

    def _search(self, call: HookedCall, kernel_call: Call, tuning: Tuning) -> CallResult | CallInstead:
        """Race the candidates, or have them benchmarked if they cannot race."""
        threads = None
        if autotuners.is_interpreted(kernel_call.autotuner):
            threads = self._interpreter_threads
        is_compiled = _can_compile(kernel_call.autotuner)
        configs = call.arguments["configs"]
        search = CallSearch(kernel_call, configs, tuning, is_compiled=is_compiled, threads=threads)
        if search.race(self._session):
            self._end_search(kernel_call, tuning)
            return CallResult(False)
        call.enter(search.benchmarking())
        call.state = _BenchmarkedSearch(kernel_call, search, tuning)
        return CallInstead(call.arguments["bench_fn"])

    def _end_search(self, kernel_call: Call, tuning: Tuning) -> None:
        self._note_tuned(kernel_call, tuning.lookup)
        self._forget_before_the_next_test(kernel_call)

    def _note_tuned(self, call: Call, lookup: Lookup) -> None:
        """Note the specialization of a search's choice. Triton's memory holds the compiled kernel."""
        config = call.autotuner.cache.get(call.tuning_key)
        if self._session.policy.is_dumping and lookup.is_tuned and lookup.entry is not None and config is not None:
            kernel = None
            with suppress(Exception):  # the launch raises it
                kernel = _compile_if_possible(call, config)
            self._compilations.note_choice(call, lookup.entry, config, kernel)

    def _forget_before_the_next_test(self, call: Call) -> None:
        """Have Triton forget a choice before the next test, if arguments outside the key prune the candidates.

        Triton's memory would give the next test the choice of an earlier test. Pruning may exclude this choice in the
        next test. A sweep also needs each test to ask, so that the sweep knows the test's choice.
        """
        autotuner = call.autotuner
        is_pruned = find_pruner(autotuner) is not None and autotuner.perf_model is None
        if is_pruned or self._session.picks_candidates:
            self._session.at_next_test(_RememberedChoice(autotuner.cache, call.tuning_key).forget)


def _compile_if_possible(call: Call, config: Any) -> Any:
    """Compile and load a candidate; None if the candidate cannot be compiled now without a launch.

    :raises Exception: Triton's errors.
    """
    if not _can_compile(call.autotuner) or stream_is_capturing():
        return None
    return compile_and_load(call, config)


def _can_compile(autotuner: Any) -> bool:
    """Whether candidates can be compiled without a launch.

    They cannot if the kernel is launched by the hook of another kernel's candidate, which is compiled in a pool.
    """
    if autotuners.is_interpreted(autotuner) or not autotuners.launches_triton_kernel(autotuner):
        return False
    return not compiler.is_pool_active()


def _owner_uses_disk_cache(autotuner: Any) -> bool:
    # Triton 3.4 and 3.5 fail in their disk cache when they interpret.
    return bool(autotuner.__dict__.get("cache_results")) and not autotuners.is_interpreted(autotuner)
