"""What one call of ``tune()`` asks for, and what it is given: a loaded choice, or the outcome of a search."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache, partial

from pytest_autotune.cache.model import Candidate, Entry, Identity, Problem, Versions
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.abilities import Abilities
from pytest_autotune.run.door import Tuning, TuningRun
from pytest_autotune.tuners.function.errors import TuningError
from pytest_autotune.tuners.function.fingerprint import Fingerprint, fingerprint, how_measured, how_searched
from pytest_autotune.tuners.function.keys import key_values
from pytest_autotune.tuners.function.plan import Found, Hold, Plan
from pytest_autotune.tuners.function.processors import Processor
from pytest_autotune.tuners.function.randomness import random_state_kept
from pytest_autotune.tuners.function.search import search, why_unusable
from pytest_autotune.tuners.function.source_text import sources_of
from pytest_autotune.tuners.function.space import Configuration, sample
from pytest_autotune.tuners.function.verifying import verify_choice
from pytest_autotune.tuners.shared.versions import version_of, versions_of

NAME = "function"
#: So many configurations of a space that is too large to be listed are candidates of a sweep.
SWEPT = 1000
#: Libraries whose versions a hand-written kernel's choice may depend on, if they are imported.
_LIBRARIES = ("torch", "cupy", "numba", "pyopencl", "pycuda", "cutlass", "cuda.tile")


@dataclass(frozen=True)
class Request:
    """What one call asks for."""

    problem: Problem
    fingerprint: Fingerprint
    processor: Processor
    plan: Plan

    @classmethod
    def of(
        cls, kernel: str, key: Mapping[str, object], plan: Plan, processor: Processor, version: object, source: object
    ) -> Request:
        """What a call of ``tune()`` with these arguments asks for.

        :raises UnportableError: when a part of it has no stable form.
        """
        problem = Problem(NAME, kernel, key_values(key), processor.device)
        searched = (*how_measured(plan.measuring, processor.on_gpu), *how_searched(plan.strategy, plan.space))
        sources = sources_of(source, plan.callbacks.run, plan.callbacks.compile)
        return cls(problem, fingerprint(plan.space, version, sources, searched), processor, plan)

    @property
    def identity(self) -> Identity:
        """What the process remembers a choice by."""
        return Identity(self.problem, self.fingerprint.values)

    def on_offer(self, entry: Entry) -> bool:
        """Whether an entry's choice is in the space."""
        return entry.choice is not None and self.plan.space.find(entry.choice.params) is not None


def choose(run: TuningRun | None, request: Request, forget: Callable[[], object]) -> Configuration:
    """What a loaded cache chooses, or a search.

    :param run: that is attached; None outside pytest.
    :param forget: makes the process ask again.
    :raises TuningError: when every configuration failed.
    """
    problem = request.problem
    if run is None or run.paused or run.ignores(NAME, problem.kernel):
        return _search(request.plan, request.processor, problem, workers_of(run)).best.configuration
    values = request.fingerprint.values
    with run.tuning(
        problem,
        values,
        request.on_offer,
        versions(),
        request.fingerprint.label,
        Abilities(
            candidates=partial(_candidates, request),
            made_of=partial(request.fingerprint.made_of, request.plan.space),
        ),
    ) as tuning:
        if tuning.lookup.inside:  # a test that uses it is to ask for it, too: else that would not be known
            run.at_next_test(forget)
        taken = _taken(run, request, tuning, forget)
        return taken if taken is not None else _tuned(run, request, tuning)


def _taken(run: TuningRun, request: Request, tuning: Tuning, forget: Callable[[], object]) -> Configuration | None:
    """What is offered, unless it can no longer be used; None where nothing is."""
    while tuning.entry is not None and tuning.entry.choice is not None:
        found = request.plan.space.find(tuning.entry.choice.params)
        assert found is not None
        if run.policy.sweep is not None:  # it asks again what it runs with
            run.at_next_test(forget)
        elif not tuning.lookup.untuned:
            verify_choice(request.plan, request.processor, tuning, workers_of(run))
            return found
        if not (why := _why_unusable(request, found)):
            return found
        tuning.reject(why)
    return None


def _tuned(run: TuningRun, request: Request, tuning: Tuning) -> Configuration:
    hold = partial(tuning.measuring, request.processor.lock)
    try:
        outcome = _search(request.plan, request.processor, request.problem, workers_of(run), hold, tuning)
    except TuningError as error:
        if error.reasons:
            tuning.record_failure(error.reasons)
        raise
    if outcome.disturbed:
        tuning.was_disturbed()
    tuning.record(outcome.best.candidate, [trial.candidate for trial in outcome.trials])
    return outcome.best.configuration


def choose_unportable(
    run: TuningRun | None, plan: Plan, processor: Processor, problem: Problem, reason: str
) -> Configuration:
    """Search for a problem that cannot be kept.

    :param reason: which part of it has no stable form.
    :raises TuningError: when every configuration failed.
    """
    hold: Hold = nullcontext
    if run is not None and not run.paused and not run.ignores(NAME, problem.kernel):
        run.unportable(problem, reason)
        hold = partial(run.measuring, processor.lock)
    return _search(plan, processor, problem, workers_of(run), hold).best.configuration


def _candidates(request: Request) -> list[Candidate]:
    """All configurations; of a space that is too large to be listed some, the same in every run."""
    return [Candidate(params=one.params) for one in sample(request.plan.space, SWEPT, request.problem.digest)]


def _why_unusable(request: Request, configuration: Configuration) -> str:
    if stream_is_capturing():
        return ""
    with random_state_kept():
        return why_unusable(request.plan, configuration, request.processor.on_gpu)


def _search(
    plan: Plan,
    processor: Processor,
    problem: Problem,
    workers: int,
    hold: Hold = nullcontext,
    tuning: Tuning | None = None,
) -> Found:
    if stream_is_capturing():
        raise TuningError(f"{problem}: nothing can be tuned while a CUDA graph is captured (call it once before)")
    with random_state_kept():
        try:
            told = () if tuning is None else (tuning.tries, tuning.races)
            return search(plan, processor.on_gpu, workers, hold, *told)
        except TuningError as error:
            raise TuningError(f"{problem}: {error}", error.reasons) from error.__cause__


def workers_of(run: TuningRun | None) -> int:
    """How many configurations may be compiled at a time."""
    if run is not None:
        return run.policy.compile_threads
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def versions() -> Versions:
    """The versions that are noted of a choice; the first one is that of the tuner itself."""
    return Versions((("pytest-autotune", _own_version()), *versions_of(*_LIBRARIES).each))


@lru_cache(maxsize=1)
def _own_version() -> str:
    return version_of("pytest-autotune")
