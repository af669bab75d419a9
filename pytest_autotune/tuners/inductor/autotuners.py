"""Reads and changes Inductor's autotuners: a ``CachingAutotuner`` holds one generated kernel.

An autotuner has three lists: ``configs`` are the candidates, ``compile_results`` the compiled candidates, and
``launchers`` the loaded candidates. Inductor builds each list from the list before. All code that depends on these
private lists is here. A function with the parameter ``choice`` gets the choice of a cache, and finds it in the lists by
its params, such as ``XBLOCK=256 num_warps=4 num_stages=1``.

The name and the key of a kernel are computed in :mod:`.identity`.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pytest_autotune.cache.model import Candidate, Value, plain_value
from pytest_autotune.cache.wording import rounded_us

Params = tuple[Value, ...]
#: Attributes of a configuration, and their defaults. Params have an attribute only if it differs from its default.
DEFAULTS = {"num_ctas": 1, "maxnreg": None, "num_consumer_groups": 0, "num_buffers_warp_spec": 0}
#: The number of spilled registers that Inductor accepts if a kernel sets no other number.
_SPILLED = 16
_NO_DESCENT = ("TEMPLATE", "USER_AUTOTUNE", "FIXED")
_REDUCTIONS = ("REDUCTION", "PERSISTENT_REDUCTION", "SPLIT_SCAN")


@dataclass(frozen=True)
class CandidateList:
    """The candidates of one kernel, as its autotuner had them before anything was chosen.

    :param configs: the configurations; never empty.
    :param compile_results: the candidates that a compile worker compiled; empty if no worker did.
    """

    configs: tuple[Any, ...]
    compile_results: tuple[Any, ...]

    def find_or_build_config(self, choice: Candidate) -> Any:
        """Return the candidate with the params of a choice.

        The choice of a coordinate descent may not be in the list. A new configuration is returned for such a choice.
        """
        for config in self.configs:
            if params_of(config) == choice.params:
                return config
        return config_with(self.configs[0], choice.params)


# Configurations.


def params_of(config: Any) -> Params:
    """Return the values that a configuration sets: ``XBLOCK=256 num_warps=4 num_stages=1``."""
    values = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    for name, default in DEFAULTS.items():
        value = getattr(config, name, default)
        if value != default:
            values[name] = value
    return tuple(plain_value(name, value) for name, value in values.items())


def config_with(pattern: Any, params: Params) -> Any:
    """Return a configuration with these params, of the same class as the pattern."""
    config = copy.deepcopy(pattern)
    values = {value.name: value.value for value in params}
    for name in ("num_warps", "num_stages", *DEFAULTS):
        if name in values:
            setattr(config, name, values.pop(name))
    config.kwargs = values
    return config


def build_candidate(params: Params, time_ms: float) -> Candidate:
    """Return the candidate that is recorded for a configuration; an infinite time means that it failed."""
    if not math.isfinite(time_ms):
        return Candidate(params=params, failed="spills registers, or needs more than the device has")
    return Candidate(params=params, time_us=rounded_us(time_ms * 1000))


# Reading an autotuner.


def kind_of(autotuner: Any) -> str:
    """Return the name of the heuristic that made the candidates, for example ``"REDUCTION"``; empty if unknown."""
    return getattr(autotuner.heuristic_type, "name", "")


def descends(autotuner: Any) -> bool:
    """Whether Inductor continues with a coordinate descent from the best candidate of the list."""
    # A kernel that combines several kernels tunes each group of them, whatever the other settings are.
    if autotuner.inductor_meta.get("combo_tuning_groups"):
        return True
    kind = kind_of(autotuner)
    if not autotuner.inductor_meta.get("coordinate_descent_tuning") or kind in _NO_DESCENT:
        return False
    # Another block size would change the order of a reduction's additions, and so its result.
    is_reduction_fixed = autotuner.inductor_meta.get("deterministic") and kind in _REDUCTIONS
    return not is_reduction_fixed


def read_candidates(autotuner: Any) -> CandidateList | None:
    """Return the candidates of an autotuner; None if Inductor has nothing to choose."""
    compile_results = tuple(autotuner.compile_results)
    configs = tuple(result.config for result in compile_results) or tuple(autotuner.configs or ())
    kind = kind_of(autotuner)
    if not configs or kind in ("TEMPLATE", "FIXED"):
        return None
    # Inductor may add a candidate with a smaller block to a reduction that it has compiled.
    if len(configs) == 1 and not descends(autotuner) and kind != "REDUCTION":
        return None
    return CandidateList(configs, compile_results)


def read_whole_list(autotuner: Any, candidates: CandidateList) -> Sequence[Any]:
    """Return all configurations of a kernel's list, also those that no compile worker could compile.

    Compile workers do not hand over the latter, so the kernel's module is loaded in this process.
    """
    reload_kernel = getattr(autotuner, "_reload_kernel", None)
    if not candidates.compile_results or reload_kernel is None:
        # No compile worker compiled the kernel, so the list is whole.
        return candidates.configs
    # Inductor drops the list of a kernel that this process compiled before (precompile).
    return reload_kernel().configs or candidates.configs


def select_measurable(autotuner: Any, launchers: Sequence[Any]) -> list[Any]:
    """Return the launchers that Inductor measures: it refuses a launcher that spills many registers."""
    if autotuner.custom_kernel:
        return list(launchers)
    limit = autotuner.inductor_meta.get("spill_threshold", _SPILLED)
    return [launcher for launcher in launchers if (launcher.n_spills or 0) <= limit]


def is_chosen_by_inductor(autotuner: Any) -> bool:
    """Whether a single launcher is left, and Inductor marked it as the result of a coordinate descent."""
    launchers = autotuner.launchers
    return len(launchers) == 1 and getattr(launchers[0].config, "found_by_coordesc", False)


# Changing an autotuner.


def detach_own_cache(autotuner: Any) -> str:
    """Disconnect an autotuner from Inductor's own cache of choices, and return the digest of the list in that cache.

    The cache has the digest of the whole list. Compile workers hand over a list without the candidates that failed to
    compile, so a digest of the autotuner's list could differ from run to run.

    :returns: empty if the autotuner has no such cache.
    """
    own_cache = getattr(autotuner.save_cache_hook, "__self__", None)
    autotuner.save_cache_hook = None
    return getattr(own_cache, "configs_hash", None) or ""


def take_fresh_candidates(autotuner: Any, reload_kernel: Callable[[], Any] | None) -> None:
    """Give an autotuner its whole list of candidates again, if a compile worker has shortened it.

    A compile worker looks into Inductor's own cache of choices. On a hit the autotuner has only the choice.

    :param reload_kernel: Inductor's function that loads the kernel's module in this process and returns a new
        autotuner. It is None if no compile worker compiled the kernel.
    """
    if reload_kernel is None:
        return
    # Inductor's own precompile keeps the function under this name, too. _load_function() may need it earlier.
    autotuner._reload_kernel = reload_kernel
    info = autotuner.autotune_cache_info or {}
    if info.get("autotune_cache_state") != "hit":
        return
    fresh = reload_kernel()
    autotuner.fn = fresh.fn
    autotuner.configs = fresh.configs
    autotuner.compile_results = []
    autotuner.autotune_cache_info = {}


def keep_only_choice(autotuner: Any, candidates: CandidateList, choice: Candidate) -> None:
    """Leave only the choice in the autotuner's lists, so that Inductor compiles and loads nothing else.

    If the choice is compiled already, its compiled form is kept, and Inductor only loads it.
    """
    # Compile workers have compiled the first list, and threads of the plugin the second.
    results = [*candidates.compile_results, *autotuner.compile_results]
    results_of_choice = [result for result in results if params_of(result.config) == choice.params]
    autotuner.launchers = []
    autotuner.compile_results = results_of_choice[:1]
    if not results_of_choice:
        autotuner.configs = [candidates.find_or_build_config(choice)]
        _load_function(autotuner)


def restore_candidates(autotuner: Any, candidates: CandidateList) -> None:
    """Give an autotuner all its candidates again."""
    autotuner.launchers = []
    autotuner.compile_results = list(candidates.compile_results)
    autotuner.configs = list(candidates.configs)


def add_launcher(autotuner: Any, candidates: CandidateList, choice: Candidate) -> None:
    """Compile and load a choice beside the candidates that are loaded, unless it is loaded."""
    if find_launcher(autotuner, choice) is not None:
        return
    _load_function(autotuner)
    result = autotuner._precompile_config(candidates.find_or_build_config(choice))
    autotuner.compile_results.append(result)
    autotuner.launchers.append(result.make_launcher())


def find_launcher(autotuner: Any, choice: Candidate) -> Any:
    """Return the launcher of a choice, or None."""
    for launcher in autotuner.launchers:
        if params_of(launcher.config) == choice.params:
            return launcher
    return None


def keep_launcher(autotuner: Any, choice: Candidate) -> None:
    """Leave only the launcher of the choice, as Inductor does after a search.

    :raises LookupError: if the choice is not loaded.
    """
    launcher = find_launcher(autotuner, choice)
    if launcher is None:
        raise LookupError("Inductor compiled it in another way")
    autotuner.launchers = [launcher]
    _mark_as_found(launcher.config)
    results_of_choice = [result for result in autotuner.compile_results if params_of(result.config) == choice.params]
    if results_of_choice:
        autotuner.compile_results = results_of_choice
    for result in results_of_choice:
        _mark_as_found(result.config)


def _mark_as_found(config: Any) -> None:
    """Mark a configuration as the result of Inductor's two further searches, so that neither of them begins with it."""
    config.found_by_coordesc = True
    config.found_by_combo_autotune = True


def _load_function(autotuner: Any) -> None:
    """Load the kernel's function: a compile worker does not hand it over."""
    if autotuner.fn.fn is None:
        autotuner.fn = autotuner._reload_kernel().fn
