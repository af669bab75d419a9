"""``tune()``, ``loss()`` and the decorator ``tuned()``.

A choice comes from a loaded cache, from a cache that a library ships, or from a search. The process remembers the
choice. If a run of pytest is active, its session records the choice.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial, wraps
from pathlib import Path
from types import MethodType
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
from pytest_autotune.run.lookup import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.function import MEMORIES, Memory
from pytest_autotune.tuners.function.identity import (
    find_first_argument,
    has_method,
    key_values,
    list_key_class_lines,
    list_sources,
    read_source_argument,
    source_text,
)
from pytest_autotune.tuners.function.plan import (
    DeferredCallError,
    DeviceLock,
    Plan,
    check_callbacks,
    find_processor,
    parse_compile_threads,
    parse_strategy,
)
from pytest_autotune.tuners.function.search import (
    Bench,
    EveryCandidateFailedError,
    Loss,
    SearchResult,
    compare,
    random_state_kept,
    search,
)
from pytest_autotune.tuners.function.space import Configuration, Space, SpaceError, TuningError, as_space
from pytest_autotune.tuners.measuring.clocks import Runner
from pytest_autotune.tuners.measuring.options import Measuring, make_clock
from pytest_autotune.tuners.measuring.race import CAPTURED, Contest
from pytest_autotune.tuners.measuring.times import UnusableTimesError
from pytest_autotune.tuners.source.attributes import is_instance
from pytest_autotune.tuners.source.functions import find_deferred_kind
from pytest_autotune.tuners.source.libraries import Distribution, find_version, list_versions
from pytest_autotune.tuners.source.source_digest import FORM, DigestedSource, combine_parts, digest, stable_value

NAME = "function"
#: The largest space that is raced as a whole, and the number of candidates of a sweep in a space that is too large to
#: be listed.
MOST = 1000
#: The callbacks besides ``run``. For :func:`tuned` they get the arguments of the call after their own.
_CALLBACKS = ("compile", "setup", "reset", "verify")
_NO_SOURCE = "tune() found no source code in its arguments, so no edit makes the entry stale (pass source=)"
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
    :param source: the code that the choice depends on: a function, class, text, the path of a file, a module, or
        several. None: ``run`` and ``compile``, if they are functions with a name or classes.
    :param device: ``"cpu"``, ``"cuda"`` or a :class:`Device`. None: the current GPU if this process uses one, else the
        CPU. Pass ``"cpu"`` for a kernel of the CPU in a process that also uses a GPU.
    :param compile_threads: the number of configurations that are compiled at the same time. None: the number of the
        process's cores. 1: they are compiled in the calling thread.
    :returns: the configuration, as the space holds it.
    :raises TuningError: if every configuration failed.
    :raises ValueError: for an empty space, or if ``where`` fails; the message names the kernel and the cause.
    :raises TypeError: for an argument of a wrong type, such as an ``async def`` function as ``run``.
    """
    plan = _build_plan(
        space=space,
        run=run,
        compile=compile,
        setup=setup,
        reset=reset,
        verify=verify,
        invalid=invalid,
        strict=strict,
        strategy=strategy,
        measuring=measuring,
        device=device,
        compile_threads=compile_threads,
    )
    name = _check_kernel_name(kernel)
    try:
        return _choose_config(name, key, plan, version, source)
    except SpaceError as error:
        raise SpaceError(f"{NAME}:{name}: {error}") from error.__cause__


def _choose_config(kernel: str, key: object, plan: Plan, version: object, source: object) -> Any:
    """Return the chosen configuration as the space of this call holds it; see :func:`tune`."""
    if plan.space.only is not None:
        return plan.space.only.config
    choice = _choose(kernel, key, plan, version, source)
    # An equal space may have been tuned before, and the choice is then an object of that space. The user gets the
    # object of this call's space. A product makes a new object for each call, so the user may change it.
    configuration = plan.space.find(choice.params)
    if configuration is None:
        raise SpaceError(
            "where= of product() refuses a choice that it allowed before (put what it depends on into key=)"
        )
    return configuration.config


def loss(
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
    device: object = None,
    compile_threads: int | None = None,
) -> Loss:
    """Compare a configuration with the best configuration for the problem at hand.

    Use this for keys that are coarser than the sizes: tune with the coarse key, then ask for the cost of its choice at
    the exact size. Nothing is remembered or recorded.

    The arguments besides ``config`` are those of :func:`tune`, without ``kernel``, ``key``, ``version`` and ``source``.
    The callbacks ``run`` and ``verify`` work at the exact size.

    :param config: the result of :func:`tune` for the coarser key.
    :raises TuningError: if the configuration fails at this size, or its result is wrong.
    :raises ValueError: if the configuration is not in the space.
    """
    plan = _build_plan(
        space=space,
        run=run,
        compile=compile,
        setup=setup,
        reset=reset,
        verify=verify,
        invalid=invalid,
        strict=strict,
        strategy=strategy,
        measuring=measuring,
        device=device,
        compile_threads=compile_threads,
    )
    lock = DeviceLock(MEMORIES[-1].session, plan.processor.lock)
    with random_state_kept():
        return compare(plan, config, lock)


def _build_plan(
    *,
    space: object,
    run: Callable[..., object],
    compile: Callable[[Any], object] | None,
    setup: Callable[[Any], object] | None,
    reset: Callable[[Any], object] | None,
    verify: Callable[[Any, Any], object] | None,
    invalid: object,
    strict: bool,
    strategy: object,
    measuring: Measuring | None,
    device: object,
    compile_threads: object,
) -> Plan:
    """Return the plan for the arguments of ``tune()`` and ``loss()`` that say how to search.

    :raises TypeError: for an argument of a wrong type.
    """
    check_callbacks({"run": run, "compile": compile, "setup": setup, "reset": reset, "verify": verify})
    error_classes = _list_error_classes(invalid)
    return Plan(
        space=as_space(space),
        strategy=parse_strategy(strategy),
        measuring=measuring or Measuring(),
        processor=find_processor(device),
        run=run,
        invalid=error_classes,
        compile=compile,
        setup=setup,
        reset=reset,
        verify=verify,
        strict=strict,
        compile_threads=parse_compile_threads(compile_threads),
    )


def _list_error_classes(invalid: object) -> tuple[type[BaseException], ...]:
    """Return the classes of errors in the argument ``invalid=``: a class, or a tuple of classes.

    :raises TypeError: if it has anything else.
    """
    error_classes: tuple[Any, ...] = (invalid,)
    if isinstance(invalid, tuple):
        error_classes = invalid
    for error_class in error_classes:
        if not isinstance(error_class, type) or not issubclass(error_class, BaseException):
            raise TypeError(f"invalid= takes classes of errors, not {invalid!r}")
    return error_classes


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
    def build(cls, kernel: str, key: object, plan: Plan, version: object, source: object) -> TuneRequest:
        """Return the request of a call of ``tune()`` with these arguments.

        :raises UncacheableError: if the key, the space or the version has no stable form.
        """
        if plan.space.uncacheable:
            raise UncacheableError(f"space=: {plan.space.uncacheable}")
        problem = Problem(NAME, kernel, key_values(key), plan.processor.device)
        values = [Value("space", plan.space.digest, "digest"), *_list_settings(plan)]
        class_lines = [*list_key_class_lines(key), *plan.space.class_lines]
        if class_lines:
            values.append(Value("classes", digest("\n".join(class_lines)), "digest"))
        if version is not None:
            values.append(stable_value("version", version))
        subjects = list_sources(source, plan.run, plan.compile)
        sources = _read_sources(subjects)
        if sources:
            values.append(_build_source_value(subjects, sources))
        label = ""
        if not sources or len(sources) < len(subjects):
            label = "fingerprint: without a source that cannot be read"
        return cls(problem, Fingerprint(values), plan, sources, label)

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
        """Return the parts that the digests of the fingerprint are made of: configurations, and functions of the user.

        If a digest changes, a report names the parts that differ.
        """
        digests = []
        for value in self.fingerprint:
            text = str(value.value)
            if value.name == "space" and self.plan.space.can_be_listed:
                params = [configuration.params for configuration in self.plan.space]
                digests.append(digest_of_candidates(text, params))
            elif value.name == "source":
                digests.append(digest_of_parts(text, combine_parts([source.parts for source in self.sources])))
        return digests

    @property
    def versions(self) -> Versions:
        """The versions of the libraries that a choice may depend on, this package first."""
        distributions: set[Distribution] = set()
        for source in self.sources:
            distributions |= source.libraries
        own_version = "pytest-autotune", find_version("pytest_autotune")
        return Versions((own_version, *list_versions(*_LIBRARIES, distributions=distributions).libraries))


def _read_sources(subjects: Sequence[object]) -> tuple[DigestedSource, ...]:
    """Return the sources that can be read.

    :param subjects: functions, texts, paths and modules; see :func:`list_sources`.
    """
    sources = []
    for subject in subjects:
        source = read_source_argument(subject)
        if source is not None:
            sources.append(source)
    return tuple(sources)


def _build_source_value(subjects: Sequence[object], sources: Sequence[DigestedSource]) -> Value:
    """Return the part ``source`` of a fingerprint: a digest of all sources."""
    digests = [source.digest for source in sources]
    combined_digest = digests[0]
    if len(digests) > 1:
        combined_digest = digest("\n".join(digests))
    if all(isinstance(subject, (str, Path)) for subject in subjects):
        return Value("source", combined_digest, "digest")
    # The type names the version of the rule by which functions are digested. Plain text needs no rule.
    return Value("source", combined_digest, FORM)


def _list_settings(plan: Plan) -> Iterator[Value]:
    """Yield the parts of a fingerprint for settings that are not the default.

    Default settings have no part, so their fingerprints stay the same if a later version adds a setting.
    """
    clock, strategy = plan.measuring.clock, plan.strategy
    if plan.measuring.flush_l2:
        yield Value("flush_l2", True)
    if callable(clock):
        yield Value("clock", source_text(clock) or "unread", "function")
    elif plan.processor.on_gpu and clock == "host":
        yield Value("clock", clock)
    # A strategy with enough trials for all combinations finds the same choice as an exhaustive search.
    if strategy is not None and plan.space.size > strategy.trials:
        yield Value("strategy", str(strategy))


#: Returns the configuration of a cache that a library ships, or None. :func:`pytest_autotune.use` sets it. It is
#: called only outside of runs.
find_shipped: Callable[[TuneRequest], Configuration | None] | None = None


def _choose(kernel: str, key: object, plan: Plan, version: object, source: object) -> Configuration:
    """Return the configuration that is remembered, loaded or shipped; else search for it.

    :raises TuningError: if every configuration failed.
    """
    memory = MEMORIES[-1]
    session = memory.session
    # In these cases, the session must not see this call. The choice is still remembered.
    if session is not None and session.leaves_alone(NAME, kernel):
        session = None
    try:
        request = TuneRequest.build(kernel, key, plan, version, source)
    except UncacheableError as error:
        problem = Problem(NAME, kernel, key_values(key, only_stable=True), plan.processor.device)
        return _choose_for_uncacheable(problem, plan, error, session, memory)
    identity = Identity(request.problem, request.fingerprint)
    chosen = memory.chosen.get(identity)
    if chosen is not None:
        return chosen
    with memory.budget.limit_waits(), _one_thread_at_a_time(memory, identity):
        # Another thread may have made the choice while this thread waited.
        chosen = memory.chosen.get(identity)
        if chosen is None:
            chosen = _choose_anew(request, session, memory)
        memory.chosen[identity] = chosen
        return chosen


def _choose_for_uncacheable(
    problem: Problem, plan: Plan, error: UncacheableError, session: Session | None, memory: Memory
) -> Configuration:
    """Return the configuration for a problem with a value that has no stable form. Nothing remembers the choice.

    :param problem: the problem without such values.
    :param error: names the value.
    :param session: the session that reports the problem; None if no session shall see the call.
    """
    if session is not None:
        session.report_uncacheable(problem, str(error))
    elif memory.session is None and find_shipped is not None:
        # No cache has a key with such a value. So the request is a miss, and the key of the miss names the value.
        problem_with_reason = replace(problem, key=(*problem.key, Value("uncacheable", str(error))))
        configuration = find_shipped(TuneRequest(problem_with_reason, Fingerprint(), plan, sources=(), label=""))
        if configuration is not None:
            return configuration
    return _search(plan, problem, DeviceLock(session, plan.processor.lock)).best.configuration


def _choose_anew(request: TuneRequest, session: Session | None, memory: Memory) -> Configuration:
    """Return the loaded or shipped configuration of a request that is not in the memory; else search for the best.

    :param session: the session to ask; None if no session shall see the call.
    """
    if memory.session is None and find_shipped is not None:
        shipped = find_shipped(request)
        if shipped is not None:
            return shipped
    if session is not None:
        return _ask_session(session, request, memory)
    return _search(request.plan, request.problem, DeviceLock()).best.configuration


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
    """Let one thread at a time tune a problem.

    A thread that has waited too long tunes the problem at the same time as the other thread. Otherwise two threads
    could wait for each other for ever, if the candidates of each thread call ``tune()`` for the other thread's problem.
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
    """Return the configuration of an entry that the tuning offers; None if no entry can be used.

    After a rejection, the tuning offers another entry, if it has one.
    """
    for entry in tuning.offered_entries():
        assert entry.choice is not None
        configuration = request.plan.space.find(entry.choice.params)
        assert configuration is not None
        if session.picks_candidates:
            # In a sweep, the memory forgets the choice after each test. Each test then asks the session again, so that
            # the session knows the configuration that the test ran with.
            session.at_next_test(partial(memory.chosen.pop, tuning.lookup.identity, None))
        elif not tuning.lookup.fallback:
            # The entry was tuned for this problem, so its choice worked before. A mode may race it.
            tuning.race(partial(_build_contest, request.plan))
            return configuration
        # The choice was tuned for another problem, or was never measured. It may fail for this problem.
        reason = explain_unusable(request, configuration)
        if not reason:
            return configuration
        tuning.reject(reason)
    return None


def explain_unusable(request: TuneRequest, configuration: Configuration) -> str:
    """Return why a configuration that was not tried for this problem cannot be used; empty if it can."""
    if stream_is_capturing():
        # Nothing can be tried while a CUDA graph is captured. The configuration counts as usable.
        return ""
    with random_state_kept():
        return Bench(request.plan).check([configuration])[0].failed


def _search_and_record(request: TuneRequest, tuning: Tuning) -> Configuration:
    """Search for the fastest configuration, and record the choice, or why every candidate failed.

    :raises TuningError: if every candidate failed.
    """
    lock = DeviceLock(tuning, request.plan.processor.lock)
    try:
        result = _search(request.plan, request.problem, lock, tuning)
    except TuningError as error:
        if error.reasons:  # the next run will see the same
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
        except EveryCandidateFailedError as error:
            raise TuningError(f"{problem}: {error}", error.reasons) from error.__cause__
        except TuningError as error:
            # The error comes from a candidate that calls tune(), or from the device. The next run may see no error.
            raise TuningError(f"{problem}: {error}") from error.__cause__


def _build_contest(plan: Plan) -> Contest | str:
    """Return the contest in which ``--autotune-verify`` races a loaded choice against the other candidates.

    A text is the reason why there is none.
    """
    if stream_is_capturing():
        return CAPTURED
    if plan.strategy is not None or plan.space.size > MOST:
        return "the space is too large for a race"
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

    :param key: gets the arguments of a call and returns its key; None if all calls share one choice.
    :param kernel: the kernel's name; empty for the module and the name of the function.
    """
    configurations = as_space(space)
    check_callbacks({name: options.get(name) for name in _CALLBACKS})

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        kind = find_deferred_kind(function)
        if kind:
            raise DeferredCallError("the function under @tuned", kind)
        name = kernel or f"{function.__module__}.{function.__qualname__}"
        tuned_function = _TunedFunction(function, name, key, configurations, options)

        @wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            return tuned_function.call(args, kwargs)

        return call

    return decorate


@dataclass(frozen=True)
class _TunedFunction:
    """A function whose argument ``config`` is tuned; see :func:`tuned`.

    :param options: the other arguments of ``tune()``. The callbacks among them take the arguments of a call, too.
    """

    function: Callable[..., Any]
    kernel: str
    key: Callable[..., Mapping[str, object]] | None
    space: Space
    options: Mapping[str, Any]

    def call(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Choose a configuration for the arguments of a call, and call the function with it."""
        key: Mapping[str, object] = {}
        if self.key is not None:
            key = self.key(*args, **kwargs)
        call = _Call(self.function, args, kwargs)
        options = {**self.options, **self._bind_callbacks(args, kwargs), "source": self._list_sources(args, kwargs)}
        config = tune(self.kernel, key=key, space=self.space, run=call.run, **options)
        return call.run(config)

    def _bind_callbacks(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, _BoundCallback]:
        """Return the callbacks among the options, bound to the arguments of a call."""
        callbacks = {}
        for name in _CALLBACKS:
            if self.options.get(name) is not None:
                callbacks[name] = _BoundCallback(self.options[name], args, kwargs)
        return callbacks

    def _list_sources(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        """Return the argument ``source=``: by default the decorated function and the callback ``compile``.

        The callbacks that ``tune()`` gets are objects of this module, so ``tune()`` cannot find their source itself.

        :param args: the arguments of a call.
        :param kwargs: the keyword arguments of the call.
        """
        source: object = self.options.get("source")
        if source is not None:
            return source
        sources = [self._bind_method(args, kwargs)]
        if self.options.get("compile") is not None:
            sources.append(self.options["compile"])
        return sources

    def _bind_method(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> object:
        """Return the function, bound to its object if it is a method: ``self.area()`` depends on the object's class.

        :param args: the arguments of a call. The first one is the object, if its class has the decorated function. It
            is the class for a class method.
        :param kwargs: the keyword arguments of the call. The object is among them in ``Kernel.run(self=kernel)``.
        """
        owner = find_first_argument(self.function, args, kwargs)
        classes = [type(owner)]
        if is_instance(owner, type):
            classes.append(owner)
        if any(has_method(cls, self.function) for cls in classes):
            return MethodType(self.function, owner)
        return self.function


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
    """A callback of the user that gets the arguments of the decorated function's call after its own arguments."""

    callback: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]

    def __call__(self, *own_args: Any) -> Any:
        return self.callback(*own_args, *self.args, **self.kwargs)
