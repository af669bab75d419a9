"""The call itself: what is chosen is remembered in the process, and kept by the run that is attached."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import lru_cache, partial
from typing import Any

from pytest_autotune.cache.model import Candidate, Entry, Identity, Problem, UnportableError, Value, Versions
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.abilities import Abilities
from pytest_autotune.run.door import TuningRun
from pytest_autotune.tuners.function.carried import Bound, carried_by
from pytest_autotune.tuners.function.compiling import Compiling
from pytest_autotune.tuners.function.errors import TuningError
from pytest_autotune.tuners.function.fingerprint import Fingerprint, fingerprint, made_of
from pytest_autotune.tuners.function.how_tuned import how_measured, how_searched
from pytest_autotune.tuners.function.keys import key_values, sizes_in
from pytest_autotune.tuners.function.processors import Processor, processor_of
from pytest_autotune.tuners.function.randomness import random_state_kept
from pytest_autotune.tuners.function.search import Callbacks, Found, Loss, Plan, compare, search, why_unusable
from pytest_autotune.tuners.function.source_text import callbacks_with_source
from pytest_autotune.tuners.function.space import Configuration, SpaceError, as_space, sample
from pytest_autotune.tuners.function.strategies import as_strategy
from pytest_autotune.tuners.function.verifying import verify_choice
from pytest_autotune.tuners.measuring.how import Measuring
from pytest_autotune.tuners.shared.versions import version_of, versions_of

NAME = "function"
#: So many configurations of a space that is too large to be listed are candidates of a sweep.
SWEPT = 1000
#: How long a thread waits for another one that tunes the same problem, in seconds.
WAIT_S = 120.0
#: Libraries whose versions a hand-written kernel's choice may depend on, if they are imported.
_LIBRARIES = ("torch", "cupy", "numba", "pyopencl", "pycuda", "cutlass", "cuda.tile")

_Hold = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Request:
    """What one call asks for."""

    problem: Problem
    fingerprint: Fingerprint
    processor: Processor
    plan: Plan
    sources: tuple[object, ...] = ()

    @property
    def identity(self) -> Identity:
        return Identity(self.problem, self.fingerprint.values)

    def on_offer(self, entry: Entry) -> bool:
        return entry.choice is not None and self.plan.space.find(entry.choice.params) is not None


@dataclass
class Memory:
    """What was chosen in this process, as long as one run lasts; ``run`` is None outside pytest."""

    run: TuningRun | None = None
    chosen: dict[Identity, Configuration] = field(default_factory=dict)
    #: A lock for each problem that is being tuned, so that another thread waits for it.
    searches: dict[tuple[int, Identity], threading.RLock] = field(default_factory=dict)
    #: Where each kernel whose caller did not say it was first tuned.
    default_processors: dict[str, Processor] = field(default_factory=dict)
    #: Kernels that were tuned before the run began.
    unseen: set[str] = field(default_factory=set)


class FunctionTuner:
    """Tunes on request; one for each process.

    Runs are attached and detached like the layers of a stack, since one pytest may run inside another.
    """

    def __init__(self) -> None:
        self._layers = [Memory()]

    @property
    def memory(self) -> Memory:
        """What belongs to the run that is attached now."""
        return self._layers[-1]

    def attach(self, run: TuningRun) -> Memory:
        """Let a run see what is tuned; what was chosen before is not remembered while it lasts."""
        before = self.memory
        layer = Memory(run, unseen={problem.kernel for problem, _ in before.chosen} if before.run is None else set())
        self._layers.append(layer)
        return layer

    def detach(self, layer: Memory) -> None:
        """End what :meth:`attach` began."""
        self._layers = [other for other in self._layers if other is not layer]

    def tune(
        self,
        kernel: str,
        *,
        space: Iterable[Any],
        run: Callable[..., object],
        key: Mapping[str, object] | None = None,
        compile: Callable[[Any], object] | None = None,
        setup: Callable[[Any], object] | None = None,
        reset: Callable[[Any], object] | None = None,
        verify: Callable[[Any, Any], object] | None = None,
        invalid: type[BaseException] | tuple[type[BaseException], ...] = (),
        strict: bool = True,
        strategy: object = "exhaustive",
        measuring: Measuring | None = None,
        compiling: Compiling | None = None,
        version: object = None,
        source: object = None,
        device: object = None,
    ) -> Any:
        """Choose the fastest configuration for a kernel, or take what was chosen before.

        What was chosen is remembered in the process. With pytest-autotune active it is taken from
        the loaded cache, shared with the other workers, reported, and dumped.

        :param kernel: its name, the same in every process.
        :param key: names and values of what one problem of the kernel differs from another in: sizes, dtypes.
            A value without a stable form makes it one that cannot be kept.
        :param space: the configurations: a list or another iterable, axes by name, or a :func:`product`.
            A configuration is a mapping, a dataclass, a named tuple or a plain value.
        :param run: runs the kernel once with a configuration; this is measured. With ``compile`` it
            also gets what that returned.
        :param compile: compiles the kernel for a configuration; called in a pool, ahead of measuring.
        :param setup: called with a configuration before it is tried.
        :param reset: called with a configuration before each run and not timed: for kernels that
            change their inputs.
        :param verify: gets a configuration and what ``run`` returned for it; a wrong result, for which it
            raises AssertionError or returns False, disqualifies the configuration.
        :param invalid: errors of your callbacks that mean that a configuration cannot be used.
            :class:`InvalidConfiguration` always does.
        :param strict: False takes any error for one of the configuration alone.
        :param strategy: ``"exhaustive"``, ``"optuna"``, or an :class:`Optuna` with its own settings.
        :param measuring: how to measure; times are in microseconds.
        :param compiling: how ``compile`` is called.
        :param version: changes when choices made before are no longer good: a number, text, or a tuple.
        :param source: what the choice rests on: a function, text, the path of a file, a module, or
            several. Left out, it is ``run`` and ``compile`` where they are functions with a name.
        :param device: ``"cpu"``, ``"cuda"`` or a :class:`Device`. Left out, it is the current GPU
            where this process uses one, else the CPU: say it where both are in use.
        :returns: the configuration, as the space holds it.
        :raises TuningError: when every configuration failed.
        :raises ValueError: for an empty space, or one whose ``where`` fails; it names the kernel and the cause.
        :raises TypeError: for an argument that makes no sense.
        """
        callbacks = Callbacks(run, compile, setup, reset, verify, _classes(invalid), strict)
        plan = Plan(
            as_space(space), callbacks, measuring or Measuring(), compiling or Compiling(), as_strategy(strategy)
        )
        name = _kernel_name(kernel)
        with _said_of(name):
            if plan.space.only is not None:
                return plan.space.only.config
            processor = processor_of(device)
            if device is None:
                self._note_two_devices(name, processor)
            try:
                problem = Problem(NAME, name, key_values(key or {}), processor.device)
                sources = _sources(source, callbacks)
                carried = carried_by(_carriers(callbacks, sources), sizes_in(key or {}))
                searched = (*how_measured(plan.measuring, processor.on_gpu), *how_searched(plan.strategy, plan.space))
                request = Request(
                    problem, fingerprint(plan.space, version, sources, carried, searched), processor, plan, sources
                )
            except UnportableError as error:
                return self._unportable(Problem(NAME, name, (), processor.device), str(error), plan, processor)
            memory = self.memory
            chosen = memory.chosen.get(request.identity)
            if chosen is None:
                with _one_at_a_time(memory, request.identity):
                    chosen = memory.chosen.get(request.identity) or _choose(memory, request)
                    memory.chosen[request.identity] = chosen
            # Of two equal spaces, each gets its own object back; a product makes a new one, which may be changed.
            found = plan.space.find(chosen.params)
            assert found is not None
            return found.config

    def loss(
        self,
        config: object,
        *,
        space: Iterable[Any],
        run: Callable[..., object],
        compile: Callable[[Any], object] | None = None,
        setup: Callable[[Any], object] | None = None,
        reset: Callable[[Any], object] | None = None,
        verify: Callable[[Any, Any], object] | None = None,
        invalid: type[BaseException] | tuple[type[BaseException], ...] = (),
        strict: bool = True,
        strategy: object = "exhaustive",
        measuring: Measuring | None = None,
        compiling: Compiling | None = None,
        device: object = None,
    ) -> Loss:
        """How much slower a configuration is than the best one for the problem at hand.

        For keys that are coarser than the sizes: tune with the coarse key, then ask what its choice costs
        at the exact size. Nothing is remembered or kept.

        :param config: what :meth:`tune` returned for the coarser key. The other arguments are those of
            :meth:`tune`; ``run`` and ``verify`` work at the exact size.
        :raises TuningError: when the configuration fails at this size, or its result is wrong.
        :raises ValueError: when it is not in the space.
        """
        callbacks = Callbacks(run, compile, setup, reset, verify, _classes(invalid), strict)
        plan = Plan(
            as_space(space), callbacks, measuring or Measuring(), compiling or Compiling(), as_strategy(strategy)
        )
        processor, active = processor_of(device), self.memory.run
        hold: _Hold = nullcontext if active is None else partial(active.measuring, processor.lock)
        with random_state_kept():
            return compare(plan, config, processor.on_gpu, _workers(active), hold)

    def _note_two_devices(self, kernel: str, processor: Processor) -> None:
        memory = self.memory
        before = memory.default_processors.setdefault(kernel, processor)
        if memory.run is not None and before.on_gpu != processor.on_gpu:
            memory.run.note(f"{NAME}:{kernel} was tuned for the CPU and for a GPU in one process: say device=")

    def _unportable(self, problem: Problem, reason: str, plan: Plan, processor: Processor) -> Any:
        run = self.memory.run
        hold: _Hold = nullcontext
        if run is not None and not run.paused and not run.ignores(NAME, problem.kernel):
            run.unportable(problem, reason)
            hold = partial(run.measuring, processor.lock)
        return _search(plan, processor, problem, _workers(run), hold).best.configuration.config


def _choose(memory: Memory, request: Request) -> Configuration:
    run, problem, label = memory.run, request.problem, request.fingerprint.label
    if run is None or run.paused or run.ignores(NAME, problem.kernel):
        return _search(request.plan, request.processor, problem, _workers(run), nullcontext).best.configuration
    values = _in_the_form_of_the_file(run, problem, request.fingerprint)
    with run.tuning(
        problem,
        values,
        request.on_offer,
        versions(),
        label,
        Abilities(
            candidates=partial(_candidates, request),
            made_of=partial(made_of, values, request.plan.space, request.sources),
        ),
    ) as tuning:
        while tuning.entry is not None and tuning.entry.choice is not None:
            found = request.plan.space.find(tuning.entry.choice.params)
            assert found is not None
            if run.policy.sweep is not None:  # it asks again what it runs with
                run.at_next_test(partial(memory.chosen.pop, request.identity, None))
            elif not tuning.lookup.untuned:
                verify_choice(request.plan, request.processor, tuning, _workers(run))
                return found
            if not (why := _why_unusable(request, found)):
                return found
            tuning.reject(why)
        hold = partial(tuning.measuring, request.processor.lock)
        try:
            outcome = _search(request.plan, request.processor, problem, _workers(run), hold, tuning.tries)
        except TuningError as error:
            if error.reasons:
                tuning.record_failure(error.reasons)
            raise
        if outcome.disturbed:
            tuning.was_disturbed()
        tuning.record(outcome.best.candidate, [trial.candidate for trial in outcome.trials])
        return outcome.best.configuration


def _candidates(request: Request) -> list[Candidate]:
    """All configurations; of a space that is too large to be listed some, the same in every run."""
    return [Candidate(params=one.params) for one in sample(request.plan.space, SWEPT, request.problem.digest)]


def _why_unusable(request: Request, configuration: Configuration) -> str:
    if stream_is_capturing():
        return ""
    with random_state_kept():
        return why_unusable(request.plan, configuration, request.processor.on_gpu)


def _in_the_form_of_the_file(run: TuningRun, problem: Problem, now: Fingerprint) -> tuple[Value, ...]:
    """The fingerprint by the older rule for sources where a loaded entry has that one, and it holds."""
    loaded = [entry.fingerprint for index in run.indexes for entry in index.same_key(problem)]
    if not loaded or now.values in loaded:
        return now.values
    older = now.older()
    return older if older is not None and older in loaded else now.values


def _search(
    plan: Plan,
    processor: Processor,
    problem: Problem,
    workers: int,
    hold: _Hold,
    tries: Callable[[int, int], object] = lambda number, of: None,
) -> Found:
    if stream_is_capturing():
        raise TuningError(f"{problem}: nothing can be tuned while a CUDA graph is captured (call it once before)")
    with random_state_kept():
        try:
            return search(plan, processor.on_gpu, workers, hold, tries)
        except TuningError as error:
            raise TuningError(f"{problem}: {error}", error.reasons) from error.__cause__


@contextmanager
def _one_at_a_time(memory: Memory, identity: Identity) -> Iterator[None]:
    """Let other threads that ask for the same problem wait for the first one, but not for ever."""
    # A forked child has none of the threads that its parent's locks belong to.
    search = os.getpid(), identity
    lock = memory.searches.setdefault(search, threading.RLock())
    acquired = lock.acquire(timeout=WAIT_S)
    try:
        yield
    finally:
        if acquired:
            lock.release()
        memory.searches.pop(search, None)


def _workers(run: TuningRun | None) -> int:
    if run is not None:
        return run.policy.compile_threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def _said_of(kernel: str) -> Iterator[None]:
    """Have an error of a space name the kernel."""
    try:
        yield
    except SpaceError as error:
        raise SpaceError(f"{NAME}:{kernel}: {error}") from error.__cause__


def _kernel_name(kernel: object) -> str:
    if not isinstance(kernel, str) or not kernel:
        raise TypeError(f"tune() takes the name of the kernel first, as text, not {kernel!r}")
    return kernel


def _classes(invalid: object) -> tuple[type[BaseException], ...]:
    classes = invalid if isinstance(invalid, tuple) else (invalid,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        raise TypeError(f"invalid= takes classes of errors, not {invalid!r}")
    return classes


def _carriers(callbacks: Callbacks, sources: tuple[object, ...]) -> list[object]:
    """The functions of a call that decide which configuration is the fastest."""
    functions: list[object] = [callbacks.run, *filter(None, [callbacks.compile])]
    known = {id(own.function if isinstance(own, Bound) else own) for own in functions}
    return functions + [source for source in sources if callable(source) and id(source) not in known]


def _sources(source: object, callbacks: Callbacks) -> tuple[object, ...]:
    if source is None:
        return callbacks_with_source(callbacks.run, callbacks.compile)
    return tuple(source) if isinstance(source, (list, tuple)) else (source,)


def versions() -> Versions:
    """The versions that are noted of a choice; the first one is that of the tuner itself."""
    return Versions((("pytest-autotune", _own_version()), *versions_of(*_LIBRARIES).each))


@lru_cache(maxsize=1)
def _own_version() -> str:
    return version_of("pytest-autotune")


TUNER = FunctionTuner()
tune = TUNER.tune
loss = TUNER.loss
