"""The candidates of one kernel, and which of them its autotuner is left with: one, all, or those that may win."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from pytest_autotune.cache.model import Candidate, Entry, Problem
from pytest_autotune.tuners.inductor.configurations import Params, made_of, params_of

#: So many spilled registers Inductor puts up with where it says no number.
_SPILLED = 16


@dataclass
class Search:
    """The search for one kernel, from its compilation to its first call.

    :param configs: the candidates of the list, as Inductor had them.
    :param results: what a compile worker has made of them; empty if nothing.
    :param reaches: whether Inductor's search could come from a candidate to these params.
    :param rejected: the choice that could not be used, and why.
    """

    problem: Problem
    configs: tuple[Any, ...]
    results: tuple[Any, ...]
    label: str
    reaches: Callable[[Any, Params], bool]
    narrowed: bool = False
    #: All candidates are compiled though there may be a choice: it is raced again.
    compiles_all: bool = False
    compiled_s: float = 0.0
    rejected: dict[Params, str] = field(default_factory=dict)

    def offers(self, entry: Entry) -> bool:
        """Whether an entry's choice is in the list, or one that the search could have reached from there."""
        if entry.choice is None:
            return False
        params = entry.choice.params
        return any(params == params_of(config) or self.reaches(config, params) for config in self.configs)

    def candidates(self) -> list[Candidate]:
        """Those of the list."""
        return [Candidate(params=params_of(config)) for config in self.configs]

    def config(self, choice: Candidate) -> Any:
        """The candidate that is the choice, or one made of it."""
        found = next((config for config in self.configs if params_of(config) == choice.params), None)
        return found if found is not None else made_of(self.configs[0], choice.params)


def narrow(autotuner: Any, search: Search, config: Any) -> None:
    """Leave one candidate to compile, or the one that a compile worker has compiled."""
    params = params_of(config)
    compiled = [result for result in search.results if params_of(result.config) == params]
    _forget_compiled(autotuner)
    if compiled:
        autotuner.compile_results = compiled
    else:
        _load_function(autotuner)
        autotuner.configs = [config]


def widen(autotuner: Any, search: Search) -> None:
    """Give all candidates back."""
    if search.narrowed:
        search.narrowed = False
        _forget_compiled(autotuner)
        autotuner.compile_results = list(search.results)
        autotuner.configs = list(search.configs)


def _forget_compiled(autotuner: Any) -> None:
    autotuner.launchers, autotuner.compile_results = [], []


def _load_function(autotuner: Any) -> None:
    """Load the kernel's function, which stays behind in the compile worker."""
    if autotuner.fn.fn is None:
        autotuner.fn = autotuner._reload_kernel().fn


def settle(autotuner: Any, params: Params) -> None:
    """Leave the launcher of the choice alone, as after a search.

    :raises LookupError: when it is not there.
    """
    found = [launcher for launcher in autotuner.launchers if params_of(launcher.config) == params]
    if not found:
        raise LookupError("Inductor compiled it in another way")
    launcher = found[0]
    autotuner.launchers = [launcher]
    results = [result for result in autotuner.compile_results if params_of(result.config) == params]
    autotuner.compile_results = results or autotuner.compile_results
    for config in {id(one): one for one in (launcher.config, *(result.config for result in results))}.values():
        config.found_by_coordesc = config.found_by_combo_autotune = True


def compile_too(autotuner: Any, search: Search, choice: Candidate) -> None:
    """Compile a choice beside the candidates that are, where it is none of these."""
    if not any(params_of(launcher.config) == choice.params for launcher in autotuner.launchers):
        _load_function(autotuner)
        result = autotuner._precompile_config(search.config(choice))
        autotuner.compile_results.append(result)
        autotuner.launchers.append(result.make_launcher())


def may_win(autotuner: Any, launchers: Sequence[Any]) -> list[Any]:
    """Those launchers that Inductor would measure: it refuses those that spill many registers, without a launch."""
    limit = autotuner.inductor_meta.get("spill_threshold", _SPILLED)
    return [one for one in launchers if autotuner.custom_kernel or (one.n_spills or 0) <= limit]
