"""``inductor.template``: the template or library call that computes a matrix product or a convolution.

Each of them is a candidate, which Inductor calls a ``choice``: the variables ``choices`` here are all candidates, and
not the ones that won. A template is source of Triton or C++ with parameters, such as the size of a block.

The part replaces ``AlgorithmSelectorCache.lookup``, the only method in which Inductor measures these candidates. An
entry holds the times of all candidates. On a hit Inductor gets all times back and decides as in the dump run: it fuses
an operation into a template, or does not, by comparing times.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry, Problem
from pytest_autotune.cache.wording import describe_error, rounded_us
from pytest_autotune.run.lookup import Question
from pytest_autotune.run.session import Session
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.tuners.inductor.benchmarks import EXACT_DIGITS, Benchmarks
from pytest_autotune.tuners.inductor.graph_caches import forget_compiled
from pytest_autotune.tuners.inductor.identity import device_of, versions
from pytest_autotune.tuners.inductor.template_key import inner_choice, kind_of_choice, template_key
from pytest_autotune.tuners.measuring.race import RaceOutcome
from pytest_autotune.tuners.measuring.times import ALLOWANCE, Comparison
from pytest_autotune.tuners.shared.candidates import EVERY_CANDIDATE_FAILED, does_not_compile
from pytest_autotune.tuners.shared.patches import CallHook, CallInstead, CallResult, HookedCall, Patches, find_definer

TUNER = "inductor.template"
#: The time of a candidate that a sweep picks. All other candidates are then infinitely slow.
_PICKED_MS = 1.0
#: The number at the end of a template's name, as in ``triton_mm_17``.
_TEMPLATE_NUMBER = re.compile(r"_\d+$")
#: Inductor's function that measures some candidates, and returns the time of each in milliseconds.
_Benchmark = Callable[[Sequence[Any]], Mapping[Any, float]]


class Templates:
    """The part of the adapter for decisions among templates."""

    tuner = TUNER
    module = "torch._inductor.select_algorithm"

    def __init__(self, benchmarks: Benchmarks) -> None:
        self._benchmarks = benchmarks

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        parameters = ["self", "choices", "op", "inputs", "benchmark", "hint_override"]
        hook = LookupHook(session, self._benchmarks, module)
        patches.replace(find_definer(module.AlgorithmSelectorCache, "lookup", "torch"), "lookup", parameters, hook)


@dataclass(frozen=True)
class TemplateSearch:
    """A search in which Inductor measures all candidates."""

    decision: TemplateDecision
    tuning: Tuning


class LookupHook(CallHook):
    """Finds the times of all candidates, in place of ``lookup``.

    Inductor calls ``lookup`` up to two times for a decision:

    1. Without the argument ``benchmark``, before it compiles the candidates. An empty result means that Inductor has to
       compile all candidates.
    2. With the function ``benchmark``, which measures the compiled candidates, if the first result was empty.

    :param module: Inductor's module ``select_algorithm``.
    """

    def __init__(self, session: Session, benchmarks: Benchmarks, module: Any) -> None:
        self._session = session
        self._benchmarks = benchmarks
        self._module = module

    def ask(self, call: HookedCall) -> CallResult | CallInstead | None:
        """Return the times of the entry; if there is none, have Inductor compile or measure the candidates."""
        session = self._session
        choices, op = call.arguments["choices"], call.arguments["op"]
        if session.leaves_alone(TUNER, op) or not choices:
            return None
        problem = self._build_problem(call.arguments)
        if session.picks_candidates:
            session.at_next_test(forget_compiled)  # the next test gets another candidate
        # The class describes the two calls of Inductor for a decision.
        if call.arguments["benchmark"] is None:
            return self._answer_first_call(call, problem)
        return self._answer_second_call(call, problem)

    def _answer_first_call(self, call: HookedCall, problem: Problem) -> CallResult:
        """Return the times of the entry, or an empty result, with which Inductor makes the second call."""
        # A mode may race the loaded decision. The race needs all candidates compiled, and begins in the second call.
        if self._session.may_race(problem):
            return CallResult({})
        decision = TemplateDecision(call.arguments["choices"])
        tuning = call.enter(self._session.tuning(TemplateQuestion(problem, decision)))
        times_ms = self._find_loaded_times(decision, tuning, benchmark=None)
        if times_ms is None:
            # The second call asks again.
            tuning.postpone()
            return CallResult({})
        return CallResult(times_ms)

    def _answer_second_call(self, call: HookedCall, problem: Problem) -> CallResult | CallInstead:
        """Return the times of the entry, or have Inductor measure the compiled candidates."""
        choices, benchmark = call.arguments["choices"], call.arguments["benchmark"]
        decision = TemplateDecision(choices)
        tuning = call.enter(self._session.tuning(TemplateQuestion(problem, decision)))
        times_ms = self._find_loaded_times(decision, tuning, benchmark)
        if times_ms is not None:
            return CallResult(times_ms)
        # The candidates are loaded before the measurement takes the device. A CPU has nothing to load. If Inductor
        # measures in another process, that process loads the candidates.
        in_subprocess = getattr(self._module.torch._inductor.config, "autotune_in_subproc", False)
        if decision.device_type != "cpu" and not in_subprocess:
            decision.load_all()
        call.enter(self._benchmarks.measuring(tuning))
        call.state = TemplateSearch(decision, tuning)  # for `note`
        # `lookup` itself would keep the times in Inductor's own file, so only its function that measures is called.
        return CallInstead(benchmark, [choices])

    def _find_loaded_times(
        self, decision: TemplateDecision, tuning: Tuning, benchmark: _Benchmark | None
    ) -> dict[Any, float] | None:
        """Return the times of an entry whose fastest candidate compiles, in milliseconds; None if there is no entry.

        :param benchmark: Inductor's function, with which a mode may race the decision; None before the candidates are
            compiled.
        """
        for entry in tuning.offered_entries():
            failure = decision.explain_failed_compilation(entry)
            if not failure:
                # The report has the result of the race. The loaded times are used in any case.
                tuning.race(TemplateRace(decision, benchmark, self._benchmarks, tuning).build)
                return decision.find_times_ms(entry)
            tuning.reject(failure)
        return None

    def _build_problem(self, arguments: Mapping[str, Any]) -> Problem:
        """Return the problem of a decision.

        :param arguments: the arguments of ``lookup`` by name.
        """
        choices, op = arguments["choices"], arguments["op"]
        key = template_key(self._module.torch, choices, op, arguments["inputs"], arguments["hint_override"])
        torch_device = choices[0].layout.device
        return Problem(TUNER, op, key, device_of(torch_device.type, torch_device.index))

    def note(self, call: HookedCall, result: Any) -> CallResult | None:
        """Record the times that Inductor measured, and return them as a load will."""
        search = call.state
        if not isinstance(search, TemplateSearch):
            return None
        times_ms: Mapping[Any, float] = result
        if not any(math.isfinite(time_ms) for time_ms in times_ms.values()):
            search.tuning.not_recorded(EVERY_CANDIDATE_FAILED)
            return None
        entry = search.tuning.record(choice=None, candidates=search.decision.build_candidates(times_ms))
        return CallResult(search.decision.find_times_ms(entry))


class TemplateQuestion(Question):
    """Asks for the times of all candidates of a decision."""

    def __init__(self, problem: Problem, decision: TemplateDecision) -> None:
        super().__init__(problem, label=f"{len(decision.choices)} candidates", versions=versions())
        self._decision = decision

    def offers(self, entry: Entry) -> bool:
        """Whether the entry's fastest candidate is on offer now."""
        return self._decision.find_winner(entry) is not None

    def candidates(self) -> list[Candidate]:
        """Return all candidates without times."""
        return self._decision.list_candidates()


class TemplateDecision:
    """A decision among templates. The object matches Inductor's candidates with the candidates of an entry.

    A candidate has an id, which is Inductor's key of the candidate, and a label, such as ``TritonTemplate triton_mm:
    BLOCK_M=64, BLOCK_N=32``. The id changes with every version of torch, and the label does not.

    :param choices: Inductor's candidates. There is at least one.
    """

    def __init__(self, choices: Sequence[Any]) -> None:
        self.choices = choices
        self.device_type: str = choices[0].layout.device.type
        self._id_by_choice = {choice: str(choice.hash_key()) for choice in choices}
        self._label_by_choice = {choice: _describe(choice) for choice in choices}
        #: By label: the number of candidates that have it.
        self._label_counts = Counter(self._label_by_choice.values())

    def list_candidates(self) -> list[Candidate]:
        """Return all candidates without times."""
        candidates = []
        for choice, candidate_id in self._id_by_choice.items():
            candidates.append(Candidate(candidate_id, label=self._label_by_choice[choice]))
        return candidates

    def build_candidates(self, times_ms: Mapping[Any, float]) -> list[Candidate]:
        """Return the candidates that are recorded.

        :param times_ms: the time of each candidate in milliseconds. A candidate without a finite time has failed.
        """
        candidates = []
        for choice in self.choices:
            candidate = Candidate(self._id_by_choice[choice], label=self._label_by_choice[choice])
            time_ms = times_ms.get(choice, math.inf)
            if math.isfinite(time_ms):
                candidates.append(replace(candidate, time_us=rounded_us(time_ms * 1000, EXACT_DIGITS)))
            else:
                candidates.append(replace(candidate, failed="did not compile or run"))
        return candidates

    def find_winner(self, entry: Entry) -> Any:
        """Return the candidate that is the entry's fastest; None if Inductor no longer offers it.

        If a sweep has picked a candidate, it is the winner.
        """
        fastest_ms = _find_fastest_ms(entry)
        # Every candidate of the entry failed.
        if fastest_ms is None:
            return None
        for choice, time_ms in self.find_times_ms(entry).items():
            if time_ms == fastest_ms:
                return choice
        return None

    def find_times_ms(self, entry: Entry) -> dict[Any, float]:
        """Return the entry's time for each candidate, in milliseconds.

        A candidate that the entry does not have is infinitely slow. If a sweep has picked a candidate, all other
        candidates are infinitely slow.
        """
        if entry.choice is not None:
            return self._find_times_of_pick(entry.choice)
        measured_by_id = {measured.id: measured for measured in entry.candidates}
        measured_by_label = {measured.label: measured for measured in entry.candidates}
        times_ms = {}
        for choice, candidate_id in self._id_by_choice.items():
            measured = measured_by_id.get(candidate_id)
            if measured is None and self._has_reliable_label(choice, entry):
                measured = measured_by_label.get(self._label_by_choice[choice])
            times_ms[choice] = math.inf
            if measured is not None and measured.time_us is not None:
                times_ms[choice] = measured.time_us / 1000
        return times_ms

    def _find_times_of_pick(self, pick: Candidate) -> dict[Any, float]:
        """Return a time for each candidate, with which Inductor chooses the candidate that a sweep has picked."""
        times_ms = {}
        for choice, candidate_id in self._id_by_choice.items():
            times_ms[choice] = math.inf
            if candidate_id == pick.id:
                times_ms[choice] = _PICKED_MS
        return times_ms

    def _has_reliable_label(self, choice: Any, entry: Entry) -> bool:
        """Whether a candidate whose id is not in an entry is the entry's candidate with the same label.

        An id has a digest of code, and a label has none. The code may be another text for the same candidate: it
        changes with the version of torch, and the code of a template also has the index of the device.
        """
        # Several candidates have this label.
        if self._label_counts[self._label_by_choice[choice]] > 1:
            return False
        kind = kind_of_choice(choice)
        # The candidate is a graph of several operations, which its label does not tell.
        if kind == "SubgraphChoice":
            return False
        # The id of a library call changes with torch, or with the source of a call that the user has registered. With
        # equal versions, it is the user's source that has changed.
        if kind == "ExternKernel":
            return entry.versions != versions()
        return True

    def load_all(self) -> None:
        """Load the compiled candidates, so that the measurement does not load them while it holds the device.

        Errors are ignored here, because Inductor meets and handles them again when it measures.
        """
        for choice in self.choices:
            if not getattr(choice, "failed", False):
                with suppress(Exception):
                    choice.precompile()

    def explain_failed_compilation(self, entry: Entry) -> str:
        """Compile the entry's fastest candidate if the versions of libraries have changed.

        :returns: the reason why the candidate does not compile; an empty text if nothing is known against it.
        """
        # The same versions compiled this candidate in the run that tuned it.
        if entry.versions == versions():
            return ""
        # A library call has nothing to compile.
        precompile = getattr(self.find_winner(entry), "precompile", None)
        if precompile is None:
            return ""
        try:
            precompile()
        except Exception as error:
            return does_not_compile(describe_error(error))
        return ""


def _find_fastest_ms(entry: Entry) -> float | None:
    """Return the time of an entry's fastest candidate, as :meth:`TemplateDecision.find_times_ms` returns it.

    :returns: None if every candidate failed.
    """
    # Only a sweep gives an entry a choice: the candidate that it has picked.
    if entry.choice is not None:
        return _PICKED_MS
    times_us = [candidate.time_us for candidate in entry.candidates if candidate.time_us is not None]
    if not times_us:
        return None
    return min(times_us) / 1000


def _describe(choice: Any) -> str:
    """Return the label of a candidate: ``TritonTemplate triton_mm: BLOCK_M=64, …``.

    The label has no number of the template, because Inductor counts templates through the whole process.
    """
    inner = inner_choice(choice)
    name = _TEMPLATE_NUMBER.sub("", str(getattr(inner, "name", "")))
    words = f"{kind_of_choice(choice)} {name}"
    description = getattr(inner, "description", "")
    if description:
        words += f": {description}"
    return words


@dataclass(frozen=True)
class TemplateRace:
    """The race of a loaded decision, which finds out whether the entry's fastest candidate is still the fastest.

    Inductor makes new inputs for each candidate, so candidates cannot take turns. Inductor measures all candidates, and
    then measures the fastest and the loaded candidate a second time. The two results for this pair tell how much a
    measurement may be wrong.

    :param benchmark: Inductor's function; None if Inductor has not compiled the candidates.
    :param tuning: the tuning that offers the entry.
    """

    decision: TemplateDecision
    benchmark: _Benchmark | None
    benchmarks: Benchmarks
    tuning: Tuning

    def build(self) -> Callable[[float], RaceOutcome | str]:
        """Return the race, for a mode that may run it."""
        return self.run

    def run(self, threshold: float) -> RaceOutcome | str:
        """Race the loaded decision. Return the outcome, or the reason why there is no outcome.

        :param threshold: the decision counts as slower if it is slower by this share of the best time: 0.05 is 5 %.
        """
        if self.benchmark is None:
            return "the other candidates were not compiled"
        if self.decision.device_type != "cuda":
            return "the kernel is not on a GPU"
        entry = self.tuning.entry
        assert entry is not None
        loaded = self.decision.find_winner(entry)
        choices = self.decision.choices
        with self.benchmarks.measuring(self.tuning):
            began_s = HostTime.perf_counter()
            times_ms = self.benchmark(choices)
            if not math.isfinite(times_ms[loaded]):
                return "it did not run"
            # Inductor gives a candidate that failed an infinite time.
            finite_times_ms = list(filter(math.isfinite, times_ms.values()))
            if len(finite_times_ms) < 2:
                return "no candidate except the choice can be launched"
            fastest = min(times_ms, key=times_ms.__getitem__)
            # A second measurement only decides about a candidate that the first measurement found slower.
            second_times_ms = times_ms
            if times_ms[loaded] / times_ms[fastest] - 1 >= threshold - ALLOWANCE:
                second_times_ms = self.benchmark([fastest, loaded])
            measured_s = HostTime.perf_counter() - began_s
        outcome = RaceOutcome(len(choices), measured_s=measured_s)
        slower = _compare_twice(times_ms, second_times_ms, loaded, fastest)
        if not slower.is_slower(threshold):
            return outcome
        best_us = second_times_ms[fastest] * 1000
        return replace(outcome, slower=slower, best_us=best_us, entry=self._build_entry(entry, times_ms))

    def _build_entry(self, entry: Entry, times_ms: Mapping[Any, float]) -> Entry:
        """Return the entry with the times that this race measured."""
        problem, fingerprint = self.tuning.lookup.identity
        candidates = tuple(self.decision.build_candidates(times_ms))
        return replace(entry, problem=problem, fingerprint=fingerprint, versions=versions(), candidates=candidates)


def _compare_twice(
    times_ms: Mapping[Any, float], second_times_ms: Mapping[Any, float], choice: Any, fastest: Any
) -> Comparison:
    """Compare a candidate with the fastest in two measurements. The error is half the difference of the two results.

    Example: slower by 8 % in the first and by 6 % in the second measurement gives 7 % with an error of 1 %.
    """
    first = times_ms[choice] / times_ms[fastest] - 1
    second = second_times_ms[choice] / second_times_ms[fastest] - 1
    return Comparison((first + second) / 2, abs(first - second) / 2)
