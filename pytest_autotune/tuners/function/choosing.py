"""What one call of ``tune()`` asks for, and what it is given: a loaded choice, or the outcome of a search."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from pytest_autotune.cache.digest_parts import of_candidates, of_parts
from pytest_autotune.cache.model import Candidate, Digest, Entry, Identity, Problem, Value, Versions
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.function.identity import key_values, parts_of, source_text, sources_of
from pytest_autotune.tuners.function.plan import Exhaustive, Found, Hold, Optuna, Plan, Random, Strategy
from pytest_autotune.tuners.function.search import check, random_state_kept, search
from pytest_autotune.tuners.function.space import Configuration, Space, TuningError
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.how import CallersClock, Measuring, make_clock
from pytest_autotune.tuners.measuring.race import CAPTURED, Contest
from pytest_autotune.tuners.measuring.times import UnusableTimesError
from pytest_autotune.tuners.shared.functions import python_function
from pytest_autotune.tuners.shared.library import version_of, versions_of
from pytest_autotune.tuners.shared.source_digest import FORM, class_digest, digest, immutable_text, stable_value

NAME = "function"
#: So many configurations of a space that is too large to be listed are candidates of a sweep.
SWEPT = 1000
#: A larger space is not raced as a whole.
MOST_RACED = 1000
#: Libraries whose versions a hand-written kernel's choice may depend on, if they are imported.
_LIBRARIES = ("torch", "triton", "cupy", "numba", "pyopencl", "pycuda", "cutlass", "cuda.tile")


def how_measured(measuring: Measuring, on_gpu: bool) -> Iterator[Value]:
    """What is measured, where it is not the usual: with the L2 cache flushed, by another clock.

    How often and how long decides how exact the times are, and is left out.
    """
    if measuring.flush_l2:
        yield Value("flush_l2", True)
    clock = measuring.clock
    if callable(clock):
        yield Value("clock", _own_text(clock), "function")
    elif on_gpu and clock == "host":
        yield Value("clock", clock)


def how_searched(strategy: Strategy, space: Space) -> Iterator[Value]:
    """Which part of a space is measured, where it is not all of it."""
    if isinstance(strategy, Exhaustive):
        return
    if not isinstance(strategy, (Optuna, Random)):
        yield Value("strategy", _own_text(strategy), "function")
    elif space.size > strategy.trials:
        yield Value("strategy", str(strategy))


def _own_text(own: object) -> str:
    """A digest of a benchmark or strategy of the caller's own; of an object, its class and what cannot change of it."""
    if python_function(own) is not None:
        return source_text(own) or "unread"
    return digest(f"{class_digest(type(own))} {immutable_text(own)}")


@dataclass(frozen=True)
class Request:
    """What one call asks for.

    :param fingerprint: sorted by name.
    :param sources: what the digest of the source is of.
    :param label: what the fingerprint leaves out; empty where it has the source.
    """

    problem: Problem
    fingerprint: tuple[Value, ...]
    plan: Plan
    sources: tuple[object, ...]
    label: str

    @classmethod
    def of(cls, kernel: str, key: object, plan: Plan, version: object, source: object) -> Request:
        """What a call of ``tune()`` with these arguments asks for.

        :param version: anything with a stable form that the caller changes when a choice is no longer good.
        :raises UncacheableError: when a part of it has no stable form.
        """
        problem = Problem(NAME, kernel, key_values(key), plan.processor.device)
        values = [Value("space", plan.space.digest, "digest")]
        values += [*how_measured(plan.measuring, plan.processor.on_gpu), *how_searched(plan.strategy, plan.space)]
        if version is not None:
            values.append(stable_value("version", version))
        sources = sources_of(source, plan.callbacks.run, plan.callbacks.compile)
        texts = [source_text(source) for source in sources]
        known = [text for text in texts if text is not None]
        label = "fingerprint: without a source that cannot be read" if len(known) < len(texts) else ""
        if known:
            form = "digest" if all(isinstance(source, (str, Path)) for source in sources) else FORM
            values.append(Value("source", known[0] if len(known) == 1 else digest("\n".join(known)), form))
        else:
            label = f"fingerprint: space{'' if version is None else ' and version'} only"
        return cls(problem, tuple(sorted(values, key=lambda value: value.name)), plan, sources, label)

    @property
    def identity(self) -> Identity:
        """What the process remembers a choice by."""
        return Identity(self.problem, self.fingerprint)

    def digest_parts(self) -> Iterator[Digest]:
        """What the digests of the fingerprint stand for."""
        for value in self.fingerprint:
            if value.name == "space":
                yield of_candidates(str(value.value), self.plan.space.listed())
            elif value.name == "source":
                parts = [part for source in self.sources for part in parts_of(source).items()]
                yield of_parts(str(value.value), dict(parts))

    def candidates(self) -> list[Candidate]:
        """All configurations; of a space that is too large to be listed some, the same in every run."""
        return [Candidate(params=one.params) for one in self.plan.space.sample(SWEPT, self.problem.digest)]

    def on_offer(self, entry: Entry) -> bool:
        """Whether an entry's choice is in the space."""
        return entry.choice is not None and self.plan.space.find(entry.choice.params) is not None


#: Answers with what a library ships, where no session is attached: see :func:`pytest_autotune.use`.
shipped: Callable[[Request], Configuration | None] | None = None


def choose(session: Session | None, request: Request, forget: Callable[[], object]) -> Configuration:
    """What a loaded cache chooses, or a search.

    :param session: that is attached; None outside pytest.
    :param forget: makes the process ask again.
    :raises TuningError: when every configuration failed.
    """
    problem = request.problem
    if session is None and shipped is not None and (found := shipped(request)) is not None:
        return found
    if session is None or session.paused or session.ignores(NAME, problem.kernel):
        return _search(request.plan, problem, workers_of(session)).best.configuration
    with session.tuning(
        problem,
        request.fingerprint,
        request.on_offer,
        # The first one is that of the tuner itself.
        Versions((("pytest-autotune", version_of("pytest_autotune")), *versions_of(*_LIBRARIES).each)),
        request.label,
        request.candidates,
        request.digest_parts,
    ) as tuning:
        if tuning.lookup.inside:  # a test that uses it is to ask for it, too: else that would not be known
            session.at_next_test(forget)
        taken = _taken(session, request, tuning, forget)
        return taken if taken is not None else _tuned(session, request, tuning)


def _taken(session: Session, request: Request, tuning: Tuning, forget: Callable[[], object]) -> Configuration | None:
    """What is offered, unless it can no longer be used; None where nothing is."""
    while tuning.entry is not None and tuning.entry.choice is not None:
        found = request.plan.space.find(tuning.entry.choice.params)
        assert found is not None
        if session.policy.picks:  # it asks again what it runs with
            session.at_next_test(forget)
        elif not tuning.lookup.fallback:
            tuning.race(partial(_contest, request.plan, workers_of(session)))
            return found
        if not (why := why_unusable(request, found)):
            return found
        tuning.reject(why)
    return None


def _tuned(session: Session, request: Request, tuning: Tuning) -> Configuration:
    hold = partial(tuning.measuring, request.plan.processor.lock)
    try:
        outcome = _search(request.plan, request.problem, workers_of(session), hold, tuning)
    except TuningError as error:
        if error.reasons:
            tuning.record_failure(error.reasons)
        raise
    if outcome.disturbed:
        tuning.was_disturbed()
    tuning.record(outcome.best.candidate, [trial.candidate for trial in outcome.trials])
    return outcome.best.configuration


def _contest(plan: Plan, workers: int) -> Contest | str:
    """What is raced where a loaded choice is, or why it cannot be.

    :param workers: how many configurations may be compiled at a time.
    """
    if stream_is_capturing():
        return CAPTURED
    if not isinstance(plan.strategy, Exhaustive) or plan.space.size > MOST_RACED:
        return "its space is too large to be raced as a whole"
    candidates = [Candidate(params=one.params) for one in plan.space]

    def ready(some: Sequence[Candidate]) -> dict[Candidate, Runner]:
        configurations = [found for one in some if (found := plan.space.find(one.params)) is not None]
        checked = check(plan, configurations, workers)
        usable = {one.configuration.params: runner for one, runner in checked if not one.failed}
        return {one: usable[one.params] for one in some if one.params in usable}

    def clock() -> Clock:
        own, how = plan.measuring.clock, plan.measuring
        return CallersClock(own) if callable(own) else make_clock(own, plan.processor.on_gpu, how.flush_l2)

    expected = (*plan.callbacks.expected, UnusableTimesError)
    return Contest(candidates, ready, clock, expected, plan.processor.lock, around=random_state_kept)


def choose_uncacheable(session: Session | None, plan: Plan, problem: Problem, reason: str) -> Configuration:
    """Search for a problem that cannot be kept.

    :param reason: which part of it has no stable form.
    :raises TuningError: when every configuration failed.
    """
    hold: Hold = nullcontext
    if session is not None and not session.paused and not session.ignores(NAME, problem.kernel):
        session.uncacheable(problem, reason)
        hold = partial(session.measuring, plan.processor.lock)
    return _search(plan, problem, workers_of(session), hold).best.configuration


def why_unusable(request: Request, configuration: Configuration) -> str:
    """Why a configuration cannot be used, which was not tried for this problem; empty where it can."""
    if stream_is_capturing():
        return ""
    with random_state_kept():
        [(trial, _)] = check(request.plan, [configuration], 1)
        return trial.failed


def _search(
    plan: Plan, problem: Problem, workers: int, hold: Hold = nullcontext, tuning: Tuning | None = None
) -> Found:
    if stream_is_capturing():
        raise TuningError(f"{problem}: nothing can be tuned while a CUDA graph is captured (call it once before)")
    with random_state_kept():
        try:
            reports = () if tuning is None else (tuning.tries, tuning.races)
            return search(plan, workers, hold, *reports)
        except TuningError as error:
            raise TuningError(f"{problem}: {error}", error.reasons) from error.__cause__


def workers_of(session: Session | None) -> int:
    """How many configurations may be compiled at a time."""
    if session is not None:
        return session.policy.compile_threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
