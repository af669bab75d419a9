"""``tune()``, ``loss()`` and the decorator ``tuned()``.

A choice comes from a loaded cache, from a cache that a library ships, or from a search. It is remembered in the
process, and the run that is attached records it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
from pytest_autotune.tuners.function.identity import key_values, list_sources, read_given, source_text
from pytest_autotune.tuners.function.plan import (
    DeviceLock,
    Plan,
    find_processor,
    parse_compile_threads,
    parse_strategy,
)
from pytest_autotune.tuners.function.search import Bench, Loss, SearchResult, compare, random_state_kept, search
from pytest_autotune.tuners.function.space import Configuration, SpaceError, TuningError, as_space
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.options import Measuring, make_clock
from pytest_autotune.tuners.measuring.race import CAPTURED, Contest
from pytest_autotune.tuners.measuring.times import UnusableTimesError
from pytest_autotune.tuners.shared.distributions import Distribution
from pytest_autotune.tuners.shared.library import find_version, list_versions
from pytest_autotune.tuners.shared.source_digest import FORM, DigestedSource, digest, stable_value

NAME = "function"
#: The largest space that is raced as a whole, and the number of candidates of a sweep in a space that is too large to
#: be listed.
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
    """Choose the fastest configuration for a kernel, or return the configuration that was chosen before.

    The choice is remembered in the process. With pytest-autotune active, the choice is taken from the loaded cache,
    shared with the other workers, reported, and dumped.

    :param kernel: its name, the same in every process.
    :param key: the names and values by which problems of the kernel differ: sizes, dtypes. A problem with a value
        that has no stable form is tuned and not recorded.
    :param space: the configurations: a list or another iterable, axes by name, or a :func:`product`. A configuration is
        a mapping, a dataclass, a named tuple or a plain value.
    :param run: runs the kernel once with a configuration; this call is measured. With ``compile`` it also gets the
        result of ``compile``.
    :param compile: compiles the kernel for a configuration; called in threads, before any measurement.
    :param setup: called with a configuration before it is tried.
    :param reset: called with a configuration before each run and not timed, for kernels that change their inputs.
    :param verify: gets a configuration and the result of ``run``. If it raises AssertionError or returns False, the
        result is wrong, and the configuration is disqualified.
    :param invalid: the errors of your callbacks that mean that a configuration cannot be used.
        :class:`InvalidConfiguration` always does.
    :param strict: False: any error means that only this configuration cannot be used.
    :param strategy: ``"exhaustive"``, ``"random"``, ``"optuna"``, or a :class:`Random` or :class:`Optuna` with other
        settings.
    :param measuring: how to measure; times are in microseconds.
    :param version: a number, text or tuple. Change it when earlier choices are no longer good.
    :param source: the code that the choice depends on: a function, text, the path of a file, a module, or several.
        None: ``run`` and ``compile``, if they are functions with a name.
    :param device: ``"cpu"``, ``"cuda"`` or a :class:`Device`. None: the current GPU if this process uses one, else the
        CPU. Pass the device if the process uses both.
    :param compile_threads: the number of configurations that are compiled at the same time. None: the number of the
        process's cores. 1: they are compiled in the calling thread.
    :returns: the configuration, as the space holds it.
    :raises TuningError: if every configuration failed.
    :raises ValueError: for an empty space, or if ``where`` fails; the message names the kernel and the cause.
    :raises TypeError: for an argument of a wrong type.
    """
    callbacks = {"compile": compile, "setup": setup, "reset": reset, "verify": verify}
    plan = _build_plan(space, run, invalid, strategy, measuring, device, compile_threads, strict=strict, **callbacks)
    name = _check_kernel_name(kernel)
    try:
        if plan.space.only is not None:
            return plan.space.only.config
        choice = _choose(name, key, plan, version, source)
        # The caller gets the object of its own space, also if an equal space was tuned before. A product makes a new
        # object for each call, so that the caller may change it.
        configuration = plan.space.find(choice.params)
    except SpaceError as error:
        raise SpaceError(f"{NAME}:{name}: {error}") from error.__cause__
    assert configuration is not None
    return configuration.config


def loss(config: object, **request: Any) -> Loss:
    """Compare a configuration with the best configuration for the problem at hand.

    Use this for keys that are coarser than the sizes: tune with the coarse key, then ask for the cost of its choice at
    the exact size. Nothing is remembered or recorded.

    :param config: the result of :func:`tune` for the coarser key.
    :param request: the arguments of :func:`tune` without ``key``, ``version`` and ``source``; ``run`` and
        ``verify`` work at the exact size.
    :raises TuningError: if the configuration fails at this size, or its result is wrong.
    :raises ValueError: if the configuration is not in the space.
    """
    plan = _build_plan(**request)
    lock = DeviceLock(MEMORIES[-1].session, plan.processor.lock)
    with random_state_kept():
        return compare(plan, config, lock)


def _build_plan(
    space: object,
    run: Callable[..., object],
    invalid: object = (),
    strategy: object = "exhaustive",
    measuring: Measuring | None = None,
    device: object = None,
    compile_threads: object = None,
    **callbacks_and_flags: Any,
) -> Plan:
    """Return the plan for the arguments of ``tune()`` and ``loss()`` that say how to search."""
    error_classes = invalid if isinstance(invalid, tuple) else (invalid,)
    for error_class in error_classes:
        if not isinstance(error_class, type) or not issubclass(error_class, BaseException):
            raise TypeError(f"invalid= takes classes of errors, not {invalid!r}")
    return Plan(
        as_space(space),
        parse_strategy(strategy),
        measuring or Measuring(),
        find_processor(device),
        run,
        error_classes,
        compile_threads=parse_compile_threads(compile_threads),
        **callbacks_and_flags,
    )


def _check_kernel_name(kernel: object) -> str:
    """Return the name of a kernel.

    :raises TypeError: if it is no name that a cache can hold.
    """
    if not isinstance(kernel, str) or not kernel:
        raise TypeError(f"tune() takes the name of the kernel first, as text, not {kernel!r}")
    try:
        check_name(kernel)
    except UncacheableError as error:
        raise TypeError(f"tune(): {error}") from None
    return kernel


@dataclass(frozen=True)
class TuneRequest:
    """The request of one call of ``tune()``.

    :param sources: the sources that the fingerprint has a digest of.
    :param label: says that a source could not be read; empty if all sources could.
    """

    problem: Problem
    fingerprint: Fingerprint
    plan: Plan
    sources: tuple[DigestedSource, ...]
    label: str

    @classmethod
    def of(cls, kernel: str, key: object, plan: Plan, version: object, source: object) -> TuneRequest:
        """Return the request of a call of ``tune()`` with these arguments.

        :raises UncacheableError: if the key or the version has no stable form.
        """
        problem = Problem(NAME, kernel, key_values(key), plan.processor.device)
        values = [Value("space", plan.space.digest, "digest"), *_list_settings(plan)]
        if version is not None:
            values.append(stable_value("version", version))
        subjects = list_sources(source, plan.run, plan.compile)
        sources = []
        for subject in subjects:
            read = read_given(subject)
            if read is not None:
                sources.append(read)
        if sources:
            digests = [read.digest for read in sources]
            source_digest = digests[0] if len(digests) == 1 else digest("\n".join(digests))
            is_plain_text = all(isinstance(subject, (str, Path)) for subject in subjects)
            values.append(Value("source", source_digest, "digest" if is_plain_text else FORM))
        label = ""
        if not sources or len(sources) < len(subjects):
            label = "fingerprint: without a source that cannot be read"
        return cls(problem, Fingerprint(values), plan, tuple(sources), label)

    @property
    def note(self) -> str:
        """A line for the summary about the source; empty if there is nothing to report."""
        for source in self.sources:
            note = source.note(self.problem.name)
            if note:
                return note
        has_version = any(value.name == "version" for value in self.fingerprint)
        if self.sources or has_version:
            return ""
        return f"{self.problem.name}: {_NO_SOURCE}"

    def list_digests(self) -> list[Digest]:
        """Return the parts that the digests of the fingerprint are made of."""
        digests = []
        for value in self.fingerprint:
            if value.name == "space" and self.plan.space.can_be_listed:
                params = [configuration.params for configuration in self.plan.space]
                digests.append(digest_of_candidates(str(value.value), params))
            elif value.name == "source":
                parts: dict[str, str] = {}
                for source in self.sources:
                    parts.update(source.parts)
                digests.append(digest_of_parts(str(value.value), parts))
        return digests

    @property
    def versions(self) -> Versions:
        """The versions of the libraries that a choice may depend on, this package first."""
        distributions: set[Distribution] = set()
        for source in self.sources:
            distributions |= source.libraries
        own_version = "pytest-autotune", find_version("pytest_autotune")
        return Versions((own_version, *list_versions(*_LIBRARIES, distributions=distributions).libraries))


def _list_settings(plan: Plan) -> Iterator[Value]:
    """Yield the values of a fingerprint for unusual settings: the clock, and the part of the space that is searched."""
    clock, strategy = plan.measuring.clock, plan.strategy
    if plan.measuring.flush_l2:
        yield Value("flush_l2", True)
    if callable(clock):
        yield Value("clock", source_text(clock) or "unread", "function")
    elif plan.processor.on_gpu and clock == "host":
        yield Value("clock", clock)
    if strategy is not None and plan.space.size > strategy.trials:
        yield Value("strategy", str(strategy))


#: Returns the configuration of a cache that a library ships, if no session is attached: see
#: :func:`pytest_autotune.use`.
find_shipped: Callable[[TuneRequest], Configuration | None] | None = None


def _choose(kernel: str, key: object, plan: Plan, version: object, source: object) -> Configuration:
    """Return the configuration that is remembered, loaded or shipped; else search for it.

    :raises TuningError: if every configuration failed.
    """
    memory = MEMORIES[-1]
    session = memory.session
    if session is not None and (session.is_paused or session.ignores(NAME, kernel)):
        session = None
    try:
        request = TuneRequest.of(kernel, key, plan, version, source)
    except UncacheableError as error:
        problem = Problem(NAME, kernel, key_values(key, only_stable=True), plan.processor.device)
        if session is not None:
            session.report_uncacheable(problem, str(error))
        elif memory.session is None and find_shipped is not None:
            # No cache has a key with such a value, so the request is a miss that names the value.
            unstable = replace(problem, key=(*problem.key, Value("uncacheable", str(error))))
            configuration = find_shipped(TuneRequest(unstable, Fingerprint(), plan, (), ""))
            if configuration is not None:
                return configuration
        return _search(plan, problem, DeviceLock(session, plan.processor.lock)).best.configuration
    identity = Identity(request.problem, request.fingerprint)
    chosen = memory.chosen.get(identity)
    if chosen is not None:
        return chosen
    with memory.budget.limit_waits(), _one_thread_at_a_time(memory, identity):
        chosen = memory.chosen.get(identity)
        if chosen is None and memory.session is None and find_shipped is not None:
            chosen = find_shipped(request)
        if chosen is None and session is not None:
            chosen = _ask_session(session, request, memory)
        if chosen is None:
            chosen = _search(plan, request.problem, DeviceLock()).best.configuration
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
        return self._request.list_digests()


@contextmanager
def _one_thread_at_a_time(memory: Memory, identity: Identity) -> Iterator[None]:
    """Let one thread at a time tune a problem. A thread that has waited too long goes on beside the other thread.

    Two threads can wait for each other, if the candidates of each thread ask for the other's problem.
    """
    lock = memory.searches.setdefault(identity, threading.RLock())
    with memory.budget.waiting() as left_s:
        is_mine = lock.acquire(timeout=left_s)
    try:
        yield
    finally:
        if is_mine:
            lock.release()


def _ask_session(session: Session, request: TuneRequest, memory: Memory) -> Configuration:
    """Return the choice of a loaded cache, or search and record the result."""
    if request.note:
        session.note(request.note)
    with session.tuning(TuneQuestion(request)) as tuning:
        configuration = _take_entry(session, request, tuning, memory)
        if configuration is not None:
            return configuration
        return _search_and_record(request, tuning)


def _take_entry(session: Session, request: TuneRequest, tuning: Tuning, memory: Memory) -> Configuration | None:
    """Return the configuration of an entry that the tuning offers; None if no entry can be used."""
    while tuning.entry is not None and tuning.entry.choice is not None:
        configuration = request.plan.space.find(tuning.entry.choice.params)
        assert configuration is not None
        if session.picks_candidates:
            # Each test asks again, so that the session knows the configuration that the test ran with.
            session.at_next_test(partial(memory.chosen.pop, tuning.lookup.identity, None))
        elif not tuning.lookup.fallback:
            tuning.race(partial(_build_contest, request.plan))
            return configuration
        reason = explain_unusable(request, configuration)
        if not reason:
            return configuration
        tuning.reject(reason)
    return None


def explain_unusable(request: TuneRequest, configuration: Configuration) -> str:
    """Return why a configuration that was not tried for this problem cannot be used; empty if it can."""
    if stream_is_capturing():
        return ""
    with random_state_kept():
        return Bench(request.plan).check([configuration])[0].failed


def _search_and_record(request: TuneRequest, tuning: Tuning) -> Configuration:
    lock = DeviceLock(tuning, request.plan.processor.lock)
    try:
        result = _search(request.plan, request.problem, lock, tuning)
    except TuningError as error:
        if error.reasons:
            tuning.record_failure(error.reasons)
        raise
    if result.disturbed:
        tuning.mark_disturbed()
    tuning.record(result.best.candidate, [trial.candidate for trial in result.trials])
    return result.best.configuration


def _search(plan: Plan, problem: Problem, lock: DeviceLock, tuning: Tuning | None = None) -> SearchResult:
    """Search for the fastest configuration.

    :raises TuningError: with the problem in its message.
    """
    if stream_is_capturing():
        raise TuningError(f"{problem}: nothing can be tuned while a CUDA graph is captured (call it once before)")
    with random_state_kept():
        try:
            return search(plan, lock, tuning)
        except TuningError as error:
            raise TuningError(f"{problem}: {error}", error.reasons) from error.__cause__


def _build_contest(plan: Plan) -> Contest | str:
    """Return the contest that a loaded choice is raced in, or why there is none."""
    if stream_is_capturing():
        return CAPTURED
    if plan.strategy is not None or plan.space.size > MOST:
        return "its space is too large to be raced as a whole"
    configurations = {Candidate(params=configuration.params): configuration for configuration in plan.space}
    measuring = plan.measuring
    return Contest(
        list(configurations),
        _RunnerBuilder(plan, configurations).build_runners,
        partial(make_clock, measuring.clock, plan.processor.on_gpu, measuring.flush_l2),
        (*plan.expected, UnusableTimesError),
        plan.processor.lock,
        context=random_state_kept,
    )


@dataclass(frozen=True)
class _RunnerBuilder:
    """Makes the candidates of a contest ready."""

    plan: Plan
    configurations: Mapping[Candidate, Configuration]

    def build_runners(self, candidates: Sequence[Candidate]) -> dict[Candidate, Runner]:
        """Return a runner for each candidate that can be launched."""
        bench = Bench(self.plan)
        trials = bench.check([self.configurations[candidate] for candidate in candidates])
        runners = {}
        for candidate, trial in zip(candidates, trials, strict=True):
            if not trial.failed:
                runners[candidate] = bench.build_runner(trial)
        return runners


#: The callbacks that get the arguments of the call after their own arguments.
_CALLBACKS = ("compile", "setup", "reset", "verify")


def tuned(
    *,
    space: Iterable[Any],
    key: Callable[..., Mapping[str, object]] | None = None,
    kernel: str = "",
    **options: Any,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Choose the argument ``config`` of a function for each key, and call the function with the choice.

    ::

        @tuned(space=product(BLOCK=[16, 32, 64]), key=lambda a, b: {"n": a.shape[0]})
        def add(a, b, *, config): ...

        add(a, b)

    The function is measured with the arguments of the first call of each key. The options are those of
    :func:`~pytest_autotune.tune`. The callbacks get the arguments of the call after their own, and the function itself
    remembers the result of ``compile``.

    :param key: gets the arguments of a call and returns its key; None for one choice for all calls.
    :param kernel: the kernel's name; empty for the module and the name of the function.
    """
    configurations = as_space(space)

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        name = kernel or f"{function.__module__}.{function.__qualname__}"
        source = options.get("source")
        if source is None:
            compile = options.get("compile")
            source = [function] if compile is None else [function, compile]

        @wraps(function)
        def tuned_function(*args: Any, **kwargs: Any) -> Any:
            call = _Call(function, args, kwargs)
            callbacks = {}
            for option in _CALLBACKS:
                if options.get(option) is not None:
                    callbacks[option] = _BoundCallback(options[option], args, kwargs)
            config = tune(
                name,
                key={} if key is None else key(*args, **kwargs),
                space=configurations,
                run=call.run,
                **{**options, **callbacks, "source": source},
            )
            return call.run(config)

        return tuned_function

    return decorate


@dataclass(frozen=True)
class _Call:
    """A call of a decorated function."""

    function: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def run(self, config: object, compiled: object = None) -> Any:
        """Call the function with a configuration."""
        return self.function(*self.args, config=config, **self.kwargs)


@dataclass(frozen=True)
class _BoundCallback:
    """A callback that also gets the arguments of the call."""

    callback: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, *own_args: Any) -> Any:
        return self.callback(*own_args, *self.args, **self.kwargs)
