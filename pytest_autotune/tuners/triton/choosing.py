"""What a call of an autotuned kernel runs with where Triton's memory has nothing: a choice, or a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, suppress
from functools import partial
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
from pytest_autotune.tuners.shared.functions import python_function, qualified_name
from pytest_autotune.tuners.shared.library import list_versions
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
from pytest_autotune.tuners.triton.tuning import contest_of, failure_text, tune


class CallQuestion(Question):
    """Asks for the config of a call of an autotuned kernel.

    :param configs: the candidates that pruning left.
    """

    def __init__(self, call: Call, configs: Sequence[Any], identity: CallIdentity, session: Session) -> None:
        libraries = identity.source.libraries if identity.source is not None else ()
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
        if _is_compiled(self._call.autotuner):
            help_to_compile(self._call, self._configs, self._session)


class Choices:
    """Chooses for the calls of one process.

    :param compilations: notes what the choices are compiled for.
    :param heuristics: those over autotuners.
    :param disk_cache: Triton's own ``check_disk_cache``.
    """

    def __init__(
        self,
        session: Session,
        compilations: CompileWatcher,
        heuristics: OuterHeuristics,
        disk_cache: Callable[..., Any],
    ) -> None:
        self._session = session
        self._compilations = compilations
        self._heuristics = heuristics
        self._disk_cache = disk_cache
        self._devices: set[Device] = set()
        self._interpreter_threads = InterpreterThreads()

    def choose(self, autotuner: Any, tuning_key: Any, configs: Sequence[Any], bench_fn: Callable[[], None]) -> bool:
        """Stand in for ``check_disk_cache``: put a choice into ``autotuner.cache``.

        :param configs: the candidates that pruning left.
        :param bench_fn: measures them as Triton does.
        :returns: True when the choice was not benchmarked in this call.
        """
        session = self._session
        function = python_function(autotuner)
        if session.is_paused or function is None or session.ignores(NAME, qualified_name(function)):
            return self.check_disk_cache(autotuner, tuning_key, configs, bench_fn)
        is_interpreted = autotuners.is_interpreted(autotuner)
        if is_interpreted:
            self._interpreter_threads.add_lookup()
        call = Call.of(autotuner, tuning_key, bench_fn, self._heuristics.list_around(autotuner))
        if len(configs) == 1:
            with compiler.remove_unfinished_hashes():  # a candidate that holds a function has the hash of that
                call.adopt(configs[0], {configs[0]: 0.0})
            self._forget_before_the_next_test(call)
            return True
        # Triton refuses a call for which pruning left nothing, or that sets what is tuned, before it measures anything.
        is_refused = not configs or any(call.kwargs.keys() & config.kwargs.keys() for config in configs)
        identity = None if is_refused else self._identity(call, function, configs)
        if identity is None:
            return self.check_disk_cache(autotuner, tuning_key, configs, bench_fn)
        if not is_interpreted:
            self._compilations.begin_choice(autotuner)
        with self._tuning(call, configs, identity) as tuning:
            is_taken = self._take(call, identity, tuning)
            if not is_taken:
                if not session.policy.is_dumping and _owner_uses_disk_cache(autotuner):
                    return bool(self._disk_cache(autotuner, tuning_key, configs, bench_fn))
                threads = self._interpreter_threads if is_interpreted else None
                tune(call, configs, bench_fn, tuning, session, is_compiled=_is_compiled(autotuner), threads=threads)
                self._note_tuned(call, tuning.lookup)
            self._forget_before_the_next_test(call)
            return is_taken

    def check_disk_cache(self, autotuner: Any, tuning_key: Any, configs: Any, bench_fn: Callable[[], None]) -> bool:
        """Do what Triton does without us: ask its disk cache where the owner has switched it on, or benchmark."""
        if tuning_key in autotuner.cache:  # an error of ours came after the choice
            return False
        if _owner_uses_disk_cache(autotuner):
            return bool(self._disk_cache(autotuner, tuning_key, configs, bench_fn))
        bench_fn()
        return False

    def _identity(self, call: Call, function: FunctionType, configs: Sequence[Any]) -> CallIdentity | None:
        """What the call is known by; None where it is to be bypassed."""
        try:
            device = self._device(call.autotuner)
        except RuntimeError:  # there is no GPU, or it is broken: the launch says which
            return None
        identity = compute_identity(call, function, configs, device)
        if identity.uncacheable:
            self._session.report_uncacheable(identity.problem, identity.uncacheable)
            return None
        if identity.source is not None and (note := identity.source.note(identity.problem.name)):
            self._session.note(note)
        return identity

    def _device(self, autotuner: Any) -> Device:
        if autotuners.is_interpreted(autotuner):
            return devices.INTERPRETER
        on = devices.current_gpu() or find_target_device()
        self._devices.add(on)
        if len(self._devices) == 2:
            self._session.note(
                "triton: two types of GPU in one process, but Triton's memory of a choice ignores the device"
            )
        return on

    def _tuning(self, call: Call, configs: Sequence[Any], identity: CallIdentity) -> AbstractContextManager[Tuning]:
        return self._session.tuning(CallQuestion(call, configs, identity, self._session))

    def _take(self, call: Call, identity: CallIdentity, tuning: Tuning) -> bool:
        """Take what is offered, unless it does not compile; False where nothing is."""
        while tuning.entry is not None and tuning.entry.choice is not None:
            config = identity.config_by_params[tuning.entry.choice.params]
            try:
                kernel = _compiled_kernel(call, config)
            except (TypeError, ValueError, KeyError, OSError, MemoryError):
                kernel = None  # the call is wrong, or a disk is full, whatever is chosen: the launch raises it
            except Exception as error:
                tuning.reject(does_not_compile(failure_text(error)))
                continue
            tuning.race(partial(contest_of, call, identity.config_by_params, self._session))
            call.adopt(config, {config: (tuning.entry.choice.time_us or 0.0) / 1000})
            self._compilations.note_choice(call, tuning.entry, config, kernel)
            return True
        return False

    def _note_tuned(self, call: Call, lookup: Lookup) -> None:
        """Note what the choice of a search was compiled for; what it was compiled to is in Triton's memory."""
        config = call.autotuner.cache.get(call.tuning_key)
        if self._session.policy.is_dumping and lookup.is_tuned and lookup.entry is not None and config is not None:
            kernel = None
            with suppress(Exception):  # then the launch raises it
                kernel = _compiled_kernel(call, config)
            self._compilations.note_choice(call, lookup.entry, config, kernel)

    def _forget_before_the_next_test(self, call: Call) -> None:
        """Let the next test ask for its own choice where arguments outside the key prune the candidates.

        Triton's memory would give it the choice of whichever test came first, which pruning may have taken from it.
        In a sweep it always asks, so that it is known what it ran with.
        """
        autotuner = call.autotuner
        is_pruned = find_pruner(autotuner) is not None and autotuner.perf_model is None
        if is_pruned or self._session.picks_candidates:
            self._session.at_next_test(partial(autotuner.cache.pop, call.tuning_key, None))


def _compiled_kernel(call: Call, config: Any) -> Any:
    """Compile and load a candidate; None where nothing is compiled, as under the interpreter, or a graph is captured.

    :raises Exception: what Triton raises.
    """
    if not _is_compiled(call.autotuner) or stream_is_capturing():
        return None
    return compile_and_load(call, config)


def _is_compiled(autotuner: Any) -> bool:
    """Whether candidates can be compiled without a launch: not where the hook of another one's launches this kernel."""
    return (
        not autotuners.is_interpreted(autotuner)
        and autotuners.launches_triton_kernel(autotuner)
        and not compiler.is_pool_active()
    )


def _owner_uses_disk_cache(autotuner: Any) -> bool:
    # Triton 3.4 and 3.5 fail there when interpreting.
    return bool(autotuner.__dict__.get("cache_results")) and not autotuners.is_interpreted(autotuner)
