"""The race of a loaded choice of a hand-written tuner against the other configurations."""

from __future__ import annotations

from collections.abc import Sequence

from pytest_autotune.cache.model import Candidate, Entry
from pytest_autotune.devices import stream_is_capturing
from pytest_autotune.run.door import Tuning
from pytest_autotune.run.verify import Verdict
from pytest_autotune.tuners.function.plan import Plan
from pytest_autotune.tuners.function.processors import Processor
from pytest_autotune.tuners.function.randomness import random_state_kept
from pytest_autotune.tuners.function.search import runners
from pytest_autotune.tuners.function.strategies import Exhaustive
from pytest_autotune.tuners.measuring.clocks import Clock, Runner
from pytest_autotune.tuners.measuring.how import CallersClock, make_clock
from pytest_autotune.tuners.measuring.times import UnusableTimesError
from pytest_autotune.tuners.measuring.verifying import CAPTURED, Contest, verify

#: A larger space is not raced as a whole.
MOST = 1000


def verify_choice(plan: Plan, processor: Processor, tuning: Tuning, workers: int) -> None:
    """Race the loaded choice where it is its turn.

    :param workers: how many configurations may be compiled at a time.
    """
    entry = tuning.entry
    if not tuning.to_verify or entry is None:
        return
    if stream_is_capturing():
        tuning.verified(CAPTURED)
        return
    candidates = _candidates(plan, entry)
    if not candidates:
        tuning.verified(Verdict("its space is too large to be raced as a whole, and the file keeps no candidates"))
        return

    def ready(some: Sequence[Candidate]) -> dict[Candidate, Runner]:
        configurations = [found for one in some if (found := plan.space.find(one.params)) is not None]
        by_params = runners(plan, configurations, processor.on_gpu, workers)
        return {one: by_params[one.params] for one in some if one.params in by_params}

    def clock() -> Clock:
        own, how = plan.measuring.clock, plan.measuring
        return CallersClock(own) if callable(own) else make_clock(own, processor.on_gpu, how.flush_l2)

    expected = (*plan.callbacks.expected, UnusableTimesError)
    with random_state_kept():
        verify(tuning, Contest(candidates, ready, clock, expected, processor.lock))


def _candidates(plan: Plan, entry: Entry) -> list[Candidate]:
    """All configurations; of a space that a search does not measure as a whole, those that the file keeps."""
    if isinstance(plan.strategy, Exhaustive) and plan.space.size <= MOST:
        return [Candidate(params=one.params) for one in plan.space]
    kept = [one for one in entry.candidates if not one.failed and plan.space.find(one.params) is not None]
    choice = [Candidate(params=entry.choice.params)] if entry.choice is not None and kept else []
    return list(dict.fromkeys([*choice, *(Candidate(params=one.params) for one in kept)]))
