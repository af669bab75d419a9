"""The candidates of one kernel: as params, and which of them its autotuner has."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pytest_autotune.cache.model import Candidate, Entry, Problem, Value, plain_value
from pytest_autotune.run.question import Question
from pytest_autotune.tuners.inductor.identity import versions
from pytest_autotune.tuners.shared.candidates import rounded_us

Params = tuple[Value, ...]
#: Attributes of a configuration that are noted only where they differ from this.
DEFAULTS = {"num_ctas": 1, "maxnreg": None, "num_consumer_groups": 0, "num_buffers_warp_spec": 0}
#: So many spilled registers Inductor puts up with where it says no number.
_SPILLED = 16
_NO_DESCENT = ("TEMPLATE", "USER_AUTOTUNE", "FIXED")
_REDUCTIONS = ("REDUCTION", "PERSISTENT_REDUCTION", "SPLIT_SCAN")


def params_of(config: Any) -> Params:
    """What a configuration sets."""
    values = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    for name, default in DEFAULTS.items():
        if (value := getattr(config, name, default)) != default:
            values[name] = value
    return tuple(plain_value(name, value) for name, value in values.items())


def config_with(pattern: Any, params: Params) -> Any:
    """A configuration with these params, of the kind that the pattern is."""
    config = copy.deepcopy(pattern)
    values = {value.name: value.value for value in params}
    for name in ("num_warps", "num_stages", *DEFAULTS):
        if name in values:
            setattr(config, name, values.pop(name))
    config.kwargs = values
    return config


def candidate(params: Params, time_ms: float) -> Candidate:
    """What is recorded of a configuration; an infinite time means that it failed."""
    if not math.isfinite(time_ms):
        return Candidate(params=params, failed="spills registers, or needs more than the device has")
    return Candidate(params=params, time_us=rounded_us(time_ms * 1000))


def descends(autotuner: Any) -> bool:
    """Whether Inductor goes on by coordinate descent from the best of the list."""
    kind = getattr(autotuner.heuristic_type, "name", "")
    if autotuner.inductor_meta.get("combo_tuning_groups"):
        return True
    if not autotuner.inductor_meta.get("coordinate_descent_tuning") or kind in _NO_DESCENT:
        return False
    return not (autotuner.inductor_meta.get("deterministic") and kind in _REDUCTIONS)


@dataclass
class Search:
    """The search for one kernel, from its compilation to its first call.

    :param configs: the candidates of the list, as Inductor had them.
    :param results: what a compile worker has made of them; empty if nothing.
    :param autotuner: whose search it is.
    """

    autotuner: Any
    problem: Problem
    configs: tuple[Any, ...]
    results: tuple[Any, ...]
    label: str
    narrowed: bool = False
    #: All candidates are compiled though there may be a choice: it is raced again.
    compiles_all: bool = False
    compiled_s: float = 0.0

    def _config(self, choice: Candidate) -> Any:
        """The candidate that is the choice, or one made of it."""
        found = next((config for config in self.configs if params_of(config) == choice.params), None)
        return found if found is not None else config_with(self.configs[0], choice.params)

    def narrow(self, choice: Candidate) -> None:
        """Leave one candidate to compile, or the one that a compile worker or a thread has compiled."""
        self.narrowed = True
        results = *self.results, *self.autotuner.compile_results
        compiled = [result for result in results if params_of(result.config) == choice.params][:1]
        self.autotuner.launchers, self.autotuner.compile_results = [], compiled
        if not compiled:
            self.autotuner.configs = [self._config(choice)]
            self._load_function()

    def widen(self) -> None:
        """Give all candidates back."""
        if self.narrowed:
            self.narrowed = False
            self.autotuner.launchers, self.autotuner.compile_results = [], list(self.results)
            self.autotuner.configs = list(self.configs)

    def _load_function(self) -> None:
        """Load the kernel's function, which stays behind in the compile worker."""
        if self.autotuner.fn.fn is None:
            self.autotuner.fn = self.autotuner._reload_kernel().fn

    def settle(self, choice: Candidate) -> None:
        """Leave the launcher of the choice alone, as after a search; a LookupError where it is not there."""
        autotuner = self.autotuner
        found = [one for one in autotuner.launchers if params_of(one.config) == choice.params]
        if not found:
            raise LookupError("Inductor compiled it in another way")
        autotuner.launchers = found[:1]
        results = [result for result in autotuner.compile_results if params_of(result.config) == choice.params]
        autotuner.compile_results = results or autotuner.compile_results
        for one in (found[0], *results):
            one.config.found_by_coordesc = one.config.found_by_combo_autotune = True

    def compile_too(self, choice: Candidate) -> None:
        """Compile a choice beside the candidates that are, where it is none of these."""
        autotuner = self.autotuner
        if not any(params_of(launcher.config) == choice.params for launcher in autotuner.launchers):
            self._load_function()
            result = autotuner._precompile_config(self._config(choice))
            autotuner.compile_results.append(result)
            autotuner.launchers.append(result.make_launcher())


class SearchQuestion(Question):
    """Asks for the configuration of one kernel."""

    def __init__(self, search: Search) -> None:
        super().__init__(search.problem, label=search.label, versions=versions())
        self._search = search

    def offers(self, entry: Entry) -> bool:
        """Whether a search that begins with the candidates of the list can reach the entry's choice.

        A choice by coordinate descent need not be in the list, but it sets the same values.
        """
        if entry.choice is None:
            return False
        names = {value.name for value in entry.choice.params}
        for config in self._search.configs:
            if names >= {value.name for value in params_of(config)}:
                return True
        return False

    def candidates(self) -> list[Candidate]:
        """Return the candidates of the list."""
        return [Candidate(params=params_of(config)) for config in self._search.configs]


def may_win(autotuner: Any, launchers: Sequence[Any]) -> list[Any]:
    """Those launchers that Inductor would measure: it refuses those that spill many registers, without a launch."""
    limit = autotuner.inductor_meta.get("spill_threshold", _SPILLED)
    return [one for one in launchers if autotuner.custom_kernel or (one.n_spills or 0) <= limit]
