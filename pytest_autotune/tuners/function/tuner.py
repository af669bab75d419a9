"""The call itself, and the tuner as a decorator.

What is chosen is remembered in the process, and kept by the run that is attached. It comes from a loaded cache, from
what a library ships, or from a search.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from typing import Any

from pytest_autotune.cache.digest_parts import digest_of_candidates, digest_of_parts
from pytest_autotune.cache.model import (
    Candidate,
    Digest,
    Entry,
    Fingerprint,
    Identity,
    Problem,
    UncacheableError,
    Value,
    Versions,
    check_name,
)
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.question import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.function import MEMORIES, Memory
from pytest_autotune.tuners.function.identity import key_values, read_given, source_text, sources_of
from pytest_autotune.tuners.function.plan import Hold, Plan, as_compile_threads, as_strategy, processor_of
from pytest_autotune.tuners.function.search import Bench, Found, Loss, compare, random_state_kept, search
from pytest_autotune.tuners.function.space import Configuration, SpaceError, TuningError, as_space
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.options import Measuring, make_clock
from pytest_autotune.tuners.measuring.race import CAPTURED, Contest
from pytest_autotune.tuners.measuring.times import UnusableTimesError
from pytest_autotune.tuners.shared.distributions import Distribution
from pytest_autotune.tuners.shared.library import find_version, list_versions
from pytest_autotune.tuners.shared.source_digest import FORM, Source, digest, stable_value

NAME = "function"
#: A larger space is not raced as a whole; of one that is too large to be listed so many are candidates of a sweep.
MOST = 1000
_NO_SOURCE = "no source was found in what tune() was given, so no edit makes its choices stale: pass source="
#: Libraries whose versions a hand-written kernel's choice may depend on, if they are imported.
_LIBRARIES = ("torch", "triton", "cupy", "numba", "pyopencl", "pycuda", "cutlass", "cuda.tile")


def tune(
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
    version: object = None,
    source: object = None,
    device: object = None,
    compile_threads: int | None = None,
) -> Any:
    """Choose the fastest configuration for a kernel, or take what was chosen before.

    What was chosen is remembered in the process. With pytest-autotune active it is taken from the loaded cache, shared
    with the other workers, reported, and dumped.

    :param kernel: its name, the same in every process.
    :param key: names and values of what one problem of the kernel differs from another in: sizes, dtypes. A value
        without a stable form makes it one that cannot be kept.
    :param space: the configurations: a list or another iterable, axes by name, or a :func:`product`. A configuration is
        a mapping, a dataclass, a named tuple or a plain value.
    :param run: runs the kernel once with a configuration; this is measured. With ``compile`` it also gets what that
        returned.
    :param compile: compiles the kernel for a configuration; called in threads, ahead of measuring.
    :param setup: called with a configuration before it is tried.
    :param reset: called with a configuration before each run and not timed: for kernels that change their inputs.
    :param verify: gets a configuration and what ``run`` returned for it; a wrong result, for which it raises
        AssertionError or returns False, disqualifies the configuration.
    :param invalid: errors of your callbacks that mean that a configuration cannot be used.
        :class:`InvalidConfiguration` always does.
    :param strict: False takes any error for one of the configuration alone.
    :param strategy: ``"exhaustive"``, ``"random"``, ``"optuna"``, or a :class:`Random` or :class:`Optuna` with settings
        of its own.
    :param measuring: how to measure; times are in microseconds.
    :param version: changes when choices made before are no longer good: a number, text, or a tuple.
    :param source: what the choice rests on: a function, text, the path of a file, a module, or several. Left out, it is
        ``run`` and ``compile`` where they are functions with a name.
    :param device: ``"cpu"``, ``"cuda"`` or a :class:`Device`. Left out, it is the current GPU where this process uses
        one, else the CPU: say it where both are in use.
    :param compile_threads: how many configurations are compiled at a time; left out, as many as this process has cores.
        With 1 they are compiled in the thread that calls.
    :returns: the configuration, as the space holds it.
    :raises TuningError: when every configuration failed.
    :raises ValueError: for an empty space, or one whose ``where`` fails; it names the kernel and the cause.
    :raises TypeError: for an argument that makes no sense.
    """
    callbacks = {"compile": compile, "setup": setup, "reset": reset, "verify": verify}
    plan = _plan(space, run, invalid, strategy, measuring, device, compile_threads, strict=strict, **callbacks)
    name = _kernel_name(kernel)
    try:
        if plan.space.only is not None:
            return plan.space.only.config
        # Of two equal spaces, each gets its own object back; a product makes a new one, which may be changed.
        found = plan.space.find(_choice(name, key, plan, version, source).params)
    except SpaceError as error:
        raise SpaceError(f"{NAME}:{name}: {error}") from error.__cause__
    assert found is not None
    return found.config


def loss(config: object, **request: Any) -> Loss:
    """How much slower a configuration is than the best one for the problem at hand.

    For keys that are coarser than the sizes: tune with the coarse key, then ask what its choice costs
    at the exact size. Nothing is remembered or kept.

    :param config: what :func:`tune` returned for the coarser key.
    :param request: the arguments of :func:`tune` without ``key``, ``version`` and ``source``; ``run`` and
        ``verify`` work at the exact size.
    :raises TuningError: when the configuration fails at this size, or its result is wrong.
    :raises ValueError: when it is not in the space.
    """
    plan, session = _plan(**request), MEMORIES[-1].session
    hold: Hold = nullcontext if session is None else partial(session.measuring, plan.processor.lock)
    with random_state_kept():
        return compare(plan, config, hold)


def _plan(
    space: object,
    run: Callable[..., object],
    invalid: object = (),
    strategy: object = "exhaustive",
    measuring: Measuring | None = None,
    device: object = None,
    compile_threads: object = None,
    **others: Any,
) -> Plan:
    """What is asked for by the arguments of ``tune()`` and ``loss()`` that say how to search."""
    classes = invalid if isinstance(invalid, tuple) else (invalid,)
    if not all(isinstance(one, type) and issubclass(one, BaseException) for one in classes):
        raise TypeError(f"invalid= takes classes of errors, not {invalid!r}")
    how = as_strategy(strategy), measuring or Measuring(), processor_of(device)
    threads = as_compile_threads(compile_threads)
    return Plan(as_space(space), *how, run, classes, compile_threads=threads, **others)


def _kernel_name(kernel: object) -> str:
    if not isinstance(kernel, str) or not kernel:
        raise TypeError(f"tune() takes the name of the kernel first, as text, not {kernel!r}")
    try:
        check_name(kernel)
    except UncacheableError as error:
        raise TypeError(f"tune(): {error}") from None
    return kernel


@dataclass(frozen=True)
class TuneRequest:
    """What one call asks for: ``sources`` is what its digest is of, ``label`` what the fingerprint leaves out."""

    problem: Problem
    fingerprint: tuple[Value, ...]
    plan: Plan
    sources: tuple[Source, ...]
    label: str

    @classmethod
    def of(cls, kernel: str, key: object, plan: Plan, version: object, source: object) -> TuneRequest:
        """What a call of ``tune()`` with these arguments asks for."""
        problem = Problem(NAME, kernel, key_values(key), plan.processor.device)
        values = [Value("space", plan.space.digest, "digest"), *_how(plan)]
        if version is not None:
            values.append(stable_value("version", version))
        given = sources_of(source, plan.run, plan.compile)
        sources = tuple(read for read in map(read_given, given) if read is not None)
        if sources:
            form = "digest" if all(isinstance(one, (str, Path)) for one in given) else FORM
            texts = [read.digest for read in sources]
            values.append(Value("source", texts[0] if len(texts) == 1 else digest("\n".join(texts)), form))
        is_complete = sources and len(sources) == len(given)
        label = "" if is_complete else "fingerprint: without a source that cannot be read"
        return cls(problem, tuple(sorted(values, key=lambda value: value.name)), plan, sources, label)

    @property
    def note(self) -> str:
        """A line for the summary about the source; empty where there is nothing to say."""
        if self.sources:
            return next(filter(None, (source.note(self.problem.name) for source in self.sources)), "")
        has_version = any(value.name == "version" for value in self.fingerprint)
        return "" if has_version else f"{self.problem.name}: {_NO_SOURCE}"

    def digest_parts(self) -> Iterator[Digest]:
        """What the digests of the fingerprint stand for."""
        for value in self.fingerprint:
            if value.name == "space" and self.plan.space.can_be_listed:
                yield digest_of_candidates(str(value.value), [one.params for one in self.plan.space])
            elif value.name == "source":
                parts = [part for source in self.sources for part in source.parts.items()]
                yield digest_of_parts(str(value.value), dict(parts))

    @property
    def versions(self) -> Versions:
        """Those of the libraries that a choice may depend on, that of this package first."""
        own = "pytest-autotune", find_version("pytest_autotune")
        named = frozenset[Distribution]().union(*(source.libraries for source in self.sources))
        return Versions((own, *list_versions(*_LIBRARIES, distributions=named).libraries))


def _how(plan: Plan) -> Iterator[Value]:
    """What is measured, and which part of a space, where it is not the usual; how exactly, is left out."""
    clock, strategy = plan.measuring.clock, plan.strategy
    if plan.measuring.flush_l2:
        yield Value("flush_l2", True)
    if callable(clock):
        yield Value("clock", source_text(clock) or "unread", "function")
    elif plan.processor.on_gpu and clock == "host":
        yield Value("clock", clock)
    if strategy is not None and plan.space.size > strategy.trials:
        yield Value("strategy", str(strategy))


#: Answers with what a library ships, where no session is attached: see :func:`pytest_autotune.use`.
shipped: Callable[[TuneRequest], Configuration | None] | None = None


def _choice(kernel: str, key: object, plan: Plan, version: object, source: object) -> Configuration:
    """What is remembered, what is offered, or what a search finds.

    :raises TuningError: when every configuration failed.
    """
    memory = MEMORIES[-1]
    session = memory.session
    if session is not None and (session.is_paused or session.ignores(NAME, kernel)):
        session = None
    try:
        request = TuneRequest.of(kernel, key, plan, version, source)
    except UncacheableError as error:
        problem = Problem(NAME, kernel, key_values(key, only_stable=True), plan.processor.device)
        hold: Hold = nullcontext
        if session is not None:
            session.report_uncacheable(problem, str(error))
            hold = partial(session.measuring, plan.processor.lock)
        elif memory.session is None and shipped is not None:  # in no cache is a key with such a part
            unstable = replace(problem, key=(*problem.key, Value("uncacheable", str(error))))
            if (chosen := shipped(TuneRequest(unstable, (), plan, (), ""))) is not None:
                return chosen
        return _search(plan, problem, hold).best.configuration
    identity = Identity(request.problem, Fingerprint(request.fingerprint))
    if (chosen := memory.chosen.get(identity)) is not None:
        return chosen
    with memory.budget.limit_waits(), _alone(memory, identity):
        chosen = memory.chosen.get(identity)
        if chosen is None and memory.session is None and shipped is not None:
            chosen = shipped(request)
        if chosen is None and session is not None:
            chosen = _asked(session, request, partial(memory.chosen.pop, identity, None))
        if chosen is None:
            chosen = _search(plan, request.problem).best.configuration
        memory.chosen[identity] = chosen
        return chosen


class TuneQuestion(Question):
    """Asks for the configuration of a call of ``tune()``."""

    def __init__(self, request: TuneRequest) -> None:
        super().__init__(request.problem, request.fingerprint, label=request.label, versions=request.versions)
        self._request = request

    def offers(self, entry: Entry) -> bool:
        """Whether an entry's choice is in the space."""
        return entry.choice is not None and self._request.plan.space.find(entry.choice.params) is not None

    def candidates(self) -> Sequence[Candidate]:
        """Return all configurations; of a space that is too large to be listed a sample, the same in every run."""
        sample = self._request.plan.space.sample(MOST, self.problem.digest)
        return [Candidate(params=configuration.params) for configuration in sample]

    def digests(self) -> Iterable[Digest]:
        """Return the configurations and the functions that the fingerprint is made of."""
        return self._request.digest_parts()


@contextmanager
def _alone(memory: Memory, identity: Identity) -> Iterator[None]:
    """Let one thread at a time tune a problem; a thread goes on beside another one when its time-out is over.

    Two threads wait for each other where the candidates of each ask for the other's problem.
    """
    lock = memory.searches.setdefault(identity, threading.RLock())
    with memory.budget.waiting() as left_s:
        is_mine = lock.acquire(timeout=left_s)
    try:
        yield
    finally:
        if is_mine:
            lock.release()


def _asked(session: Session, request: TuneRequest, forget: Callable[[], object]) -> Configuration:
    """What a loaded cache chooses, or a search that is recorded; ``forget`` has the process ask again."""
    if note := request.note:
        session.note(note)
    with session.tuning(TuneQuestion(request)) as tuning:
        taken = _taken(session, request, tuning, forget)
        return taken if taken is not None else _tuned(request, tuning)


def _taken(
    session: Session, request: TuneRequest, tuning: Tuning, forget: Callable[[], object]
) -> Configuration | None:
    """What is offered, unless it can no longer be used; None where nothing is."""
    while tuning.entry is not None and tuning.entry.choice is not None:
        found = request.plan.space.find(tuning.entry.choice.params)
        assert found is not None
        if session.picks_candidates:  # it asks again what it runs with
            session.at_next_test(forget)
        elif not tuning.lookup.fallback:
            tuning.race(partial(_contest, request.plan))
            return found
        if not (why := why_unusable(request, found)):
            return found
        tuning.reject(why)
    return None


def why_unusable(request: TuneRequest, configuration: Configuration) -> str:
    """Why a configuration cannot be used, which was not tried for this problem; empty where it can."""
    if stream_is_capturing():
        return ""
    with random_state_kept():
        return Bench(request.plan).checked([configuration])[0].failed


def _tuned(request: TuneRequest, tuning: Tuning) -> Configuration:
    try:
        outcome = _search(request.plan, request.problem, partial(tuning.measuring, request.plan.processor.lock), tuning)
    except TuningError as error:
        if error.reasons:
            tuning.record_failure(error.reasons)
        raise
    if outcome.disturbed:
        tuning.mark_disturbed()
    tuning.record(outcome.best.candidate, [trial.candidate for trial in outcome.trials])
    return outcome.best.configuration


def _search(plan: Plan, problem: Problem, hold: Hold = nullcontext, tuning: Tuning | None = None) -> Found:
    if stream_is_capturing():
        raise TuningError(f"{problem}: nothing can be tuned while a CUDA graph is captured (call it once before)")
    with random_state_kept():
        try:
            return search(plan, hold, *(() if tuning is None else (tuning.report_trial, tuning.report_race)))
        except TuningError as error:
            raise TuningError(f"{problem}: {error}", error.reasons) from error.__cause__


def _contest(plan: Plan) -> Contest | str:
    """What is raced where a loaded choice is, or why it cannot be."""
    if stream_is_capturing():
        return CAPTURED
    if plan.strategy is not None or plan.space.size > MOST:
        return "its space is too large to be raced as a whole"
    how, offered = plan.measuring, {Candidate(params=one.params): one for one in plan.space}

    def ready(some: Sequence[Candidate]) -> dict[Candidate, Runner]:
        bench = Bench(plan)
        trials = bench.checked([offered[one] for one in some])
        return {one: bench.runner(trial) for one, trial in zip(some, trials, strict=True) if not trial.failed}

    clock = partial(make_clock, how.clock, plan.processor.on_gpu, how.flush_l2)
    expected = (*plan.expected, UnusableTimesError)
    return Contest(list(offered), ready, clock, expected, plan.processor.lock, context=random_state_kept)


_BOUND = ("compile", "setup", "reset", "verify")


def tuned(
    *,
    space: Iterable[Any],
    key: Callable[..., Mapping[str, object]] | None = None,
    kernel: str = "",
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Choose the argument ``config`` of a function anew for each key, then call it with the choice.

    ::

        @tuned(space=product(BLOCK=[16, 32, 64]), key=lambda a, b: {"n": a.shape[0]})
        def add(a, b, *, config): ...

        add(a, b)

    The function is measured with the arguments of the call that comes first. The options are those of
    :func:`~pytest_autotune.tune`; its callbacks get the arguments of the call after their own, and what
    ``compile`` returns is left to the function's own memory.

    :param key: gets the arguments of a call, returns its key; None for one choice for all calls.
    :param kernel: the kernel's name; the function's module and name, if empty.
    """
    candidates = as_space(space)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = kernel or f"{function.__module__}.{function.__qualname__}"
        source = options.get("source")
        if source is None:
            source = [function, *filter(None, [options.get("compile")])]

        @wraps(function)
        def tuned_function(*args: Any, **kwargs: Any) -> Any:
            def bound(callback: Callable[..., object]) -> Callable[..., object]:
                return lambda *own: callback(*own, *args, **kwargs)

            callbacks = {option: bound(options[option]) for option in _BOUND if options.get(option) is not None}
            config = tune(
                name,
                key=key(*args, **kwargs) if key is not None else {},
                space=candidates,
                run=lambda config, *compiled: function(*args, config=config, **kwargs),
                **{**options, **callbacks, "source": source},
            )
            return function(*args, config=config, **kwargs)

        return tuned_function

    return decorate
