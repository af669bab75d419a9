"""``inductor.template``: which template, or library call, computes a matrix product or a convolution.

``AlgorithmSelectorCache.lookup`` is replaced. It is the only place where Inductor measures them. What is recorded, and
handed back on a hit, are the times of all candidates and not the fastest: whether Inductor fuses something into a
template depends on the times.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from types import ModuleType
from typing import Any

from pytest_autotune.cache.foreign_text import describe_error
from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry, Problem
from pytest_autotune.run.question import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor.benchmarks import Benchmarks
from pytest_autotune.tuners.inductor.graph_caches import forget_compiled
from pytest_autotune.tuners.inductor.identity import device_of, versions
from pytest_autotune.tuners.inductor.parts import Part
from pytest_autotune.tuners.inductor.template_key import inner, kind, template_key
from pytest_autotune.tuners.measuring.race import RaceOutcome
from pytest_autotune.tuners.measuring.times import ALLOWANCE, Comparison
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, does_not_compile, rounded_us
from pytest_autotune.tuners.shared.library import FunctionPatches

#: Digits of a time that are kept. Those handed to Inductor in a dump run are the kept ones, so a load decides alike.
DIGITS = 6
#: The time of what a sweep picks; all others are infinitely slow.
_PICKED_MS = 1.0
_NUMBER = re.compile(r"_\d+$")
_Benchmark = Callable[[Sequence[Any]], Mapping[Any, float]]


class Templates(Part):
    """The part of the adapter for choices among templates."""

    tuner = "inductor.template"
    module = "torch._inductor.select_algorithm"

    def __init__(self, timed: Benchmarks) -> None:
        self._timed = timed

    def hook(self, module: ModuleType, session: Session, patches: FunctionPatches) -> None:
        self._session, self._module = session, module
        base = next(cls for cls in module.AlgorithmSelectorCache.__mro__ if "lookup" in vars(cls))
        parameters = ["self", "choices", "op", "inputs", "benchmark", "hint_override"]
        patches.replace(base, "lookup", parameters, self._lookup)

    def _lookup(
        self,
        original: Any,
        cache: Any,
        choices: Sequence[Any],
        op: str,
        inputs: str,
        benchmark: _Benchmark | None,
        hint_override: int | None = None,
    ) -> Any:
        session = self._session
        if session.is_paused or session.ignores(self.tuner, op) or not choices:
            return original(cache, choices, op, inputs, benchmark, hint_override=hint_override)
        offered = _Offered(choices)
        on = choices[0].layout.device
        key = template_key(self._module.torch, choices, op, inputs, hint_override)
        problem = Problem(self.tuner, op, key, device_of(on.type, on.index))
        if session.picks_candidates:  # the next test asks again what it runs with
            session.at_next_test(forget_compiled)
        if benchmark is None and session.may_race(problem):
            return {}  # they are compiled then, and this is asked again with a benchmark
        with session.tuning(TemplateQuestion(problem, offered)) as tuning:
            while tuning.entry is not None:
                if reason := _does_not_compile(offered, tuning.entry):
                    tuning.reject(reason)
                else:
                    tuning.race(lambda: partial(self._raced, choices, benchmark, offered, tuning))
                    return offered.times_ms(tuning.entry)
            if benchmark is None:  # asks whether the candidates have to be compiled
                tuning.postpone()
                return {}
            return self._measure(choices, benchmark, offered, tuning)

    def _raced(
        self, choices: Sequence[Any], benchmark: _Benchmark | None, offered: _Offered, tuning: Tuning, worth: float
    ) -> RaceOutcome | str:
        """Whether the winner of a loaded decision is still the fastest.

        Inductor measures one after the other, on inputs that it makes for each time, so they cannot take turns. The two
        that matter are measured twice, and the winner is slower where it is so by far more than the two times differ.
        """
        if benchmark is None:
            return "its candidates were not compiled"
        if choices[0].layout.device.type != "cuda":
            return "it is not on a GPU"
        entry = tuning.entry
        assert entry is not None
        winner = offered.winner(entry)
        with self._timed.measuring(tuning):
            began = HostTime.perf_counter()
            first = benchmark(choices)
            if not math.isfinite(first[winner]):
                return "it did not run"
            best = min(first, key=first.__getitem__)
            found = first[winner] / first[best] - 1
            again = benchmark([best, winner]) if found >= worth - ALLOWANCE else first
            raced = RaceOutcome(len(choices), measured_s=HostTime.perf_counter() - began)
        once_more = again[winner] / again[best] - 1
        slower = Comparison((found + once_more) / 2, abs(found - once_more) / 2)
        if not slower.is_slower(worth):
            return raced
        candidates = tuple(offered.candidate(choice, first.get(choice, math.inf)) for choice in choices)
        problem, fingerprint = tuning.lookup.identity
        new = replace(entry, problem=problem, fingerprint=fingerprint, versions=versions(), candidates=candidates)
        return replace(raced, slower=slower, best_us=again[best] * 1000, entry=new)

    def _measure(
        self, choices: Sequence[Any], benchmark: _Benchmark, offered: _Offered, tuning: Tuning
    ) -> Mapping[Any, float]:
        in_subprocess = getattr(self._module.torch._inductor.config, "autotune_in_subproc", False)
        if choices[0].layout.device.type != "cpu" and not in_subprocess:
            for choice in choices:
                _load(choice)
        with self._timed.measuring(tuning):
            times_ms = benchmark(choices)
        if not any(math.isfinite(time) for time in times_ms.values()):
            tuning.not_recorded(EVERY_CANDIDATE_FAILED)
            return times_ms
        candidates = [offered.candidate(choice, times_ms.get(choice, math.inf)) for choice in choices]
        return offered.times_ms(tuning.record(None, candidates))


class TemplateQuestion(Question):
    """Asks for the times of all candidates of an operation."""

    def __init__(self, problem: Problem, offered: _Offered) -> None:
        super().__init__(problem, label=f"{offered.number} candidates", versions=versions())
        self._offered = offered

    def offers(self, entry: Entry) -> bool:
        """Whether the candidate that won then is on offer now."""
        return self._offered.winner(entry) is not None

    def candidates(self) -> list[Candidate]:
        """Return all candidates without times."""
        return self._offered.candidates()


class _Offered:
    """The candidates of one decision, by their stable names."""

    def __init__(self, choices: Sequence[Any]) -> None:
        #: The number of candidates.
        self.number = len(choices)
        self._ids = {choice: str(choice.hash_key()) for choice in choices}
        self._labels = {choice: _label(choice) for choice in choices}
        self._number_of = Counter(self._labels.values())

    def candidates(self) -> list[Candidate]:
        """All of them, without times."""
        return [Candidate(name, label=self._labels[choice]) for choice, name in self._ids.items()]

    def candidate(self, choice: Any, time_ms: float) -> Candidate:
        """What is recorded of a candidate; a time below zero, or none, means that it failed."""
        name, label = self._ids[choice], self._labels[choice]
        if not math.isfinite(time_ms):
            return Candidate(name, failed="did not compile or run", label=label)
        return Candidate(name, time_us=rounded_us(time_ms * 1000, DIGITS), label=label)

    def winner(self, entry: Entry) -> Any:
        """The candidate now that was the fastest then; None where it is not on offer."""
        then_us = [candidate.time_us for candidate in entry.candidates if candidate.time_us is not None]
        fastest_ms = min(then_us, default=-1.0) / 1000 if entry.choice is None else _PICKED_MS
        return next((choice for choice, time_ms in self.times_ms(entry).items() if time_ms == fastest_ms), None)

    def times_ms(self, entry: Entry) -> dict[Any, float]:
        """The time of every candidate now, in milliseconds; one that was not there then counts as infinitely slow."""
        if entry.choice is not None:
            return {choice: _PICKED_MS if name == entry.choice.id else math.inf for choice, name in self._ids.items()}
        by_id = {candidate.id: candidate for candidate in entry.candidates}
        by_label = {candidate.label: candidate for candidate in entry.candidates}
        times = {}
        for choice, name in self._ids.items():
            then = by_id.get(name)
            if then is None and self._is_known_by_label(choice, entry):
                then = by_label.get(self._labels[choice])
            times[choice] = then.time_us / 1000 if then is not None and then.time_us is not None else math.inf
        return times

    def _is_known_by_label(self, choice: Any, entry: Entry) -> bool:
        """Whether a candidate may be known by what its name says.

        The name itself has a digest of the code in it, which changes with torch and, of a template, with the
        device's index. The code of others changes only with torch, or where the user writes it.
        """
        if self._number_of[self._labels[choice]] > 1 or kind(choice) == "SubgraphChoice":
            return False
        return kind(choice) != "ExternKernel" or entry.versions != versions()


def _label(choice: Any) -> str:
    name = _NUMBER.sub("", str(getattr(inner(choice), "name", "")))
    description = str(getattr(inner(choice), "description", "") or "")
    return f"{kind(choice)} {name}: {description}" if description else f"{kind(choice)} {name}"


def _load(choice: Any) -> None:
    """Load what is compiled before the device is held; what fails does so again where Inductor knows what to do."""
    if not getattr(choice, "failed", False):
        with suppress(Exception):
            choice.precompile()


def _does_not_compile(offered: _Offered, entry: Entry) -> str:
    """Why the fastest candidate cannot be compiled any more; asked only under other versions than it was tuned with."""
    if entry.versions == versions():
        return ""
    precompile = getattr(offered.winner(entry), "precompile", None)
    if precompile is None:  # a call of a library
        return ""
    try:
        precompile()
    except Exception as error:
        return does_not_compile(describe_error(error))
    return ""
