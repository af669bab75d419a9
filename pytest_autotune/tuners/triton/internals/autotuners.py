"""Triton's ``Autotuner``: the methods of it that are hooked, and what its objects hold once they have chosen."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from pytest_autotune.run.policy import Refusal
from pytest_autotune.tuners.shared.signatures import known
from pytest_autotune.tuners.shared.source.functions import names_in

DISK_CACHE, PRUNE = "check_disk_cache", "prune_configs"
_PARAMETERS = {DISK_CACHE: ["self", "tuning_key", "configs", "bench_fn"], PRUNE: ["self", "kwargs"]}
#: What Triton's ``run``, and those made after it, set in any call.
_SET_BY_RUN = {"nargs", "best_config"}


def disk_cache_check(autotuner_class: Any) -> Callable[..., Any]:
    """``Autotuner.check_disk_cache``: called with the candidates that pruning left, and what benchmarks them.

    :raises HookError: where there is none, or it is called otherwise.
    """
    return _known(autotuner_class, DISK_CACHE, needed="triton >= 3.4 is needed")


def pruning(autotuner_class: Any) -> Callable[..., Any]:
    """``Autotuner.prune_configs``: called where a search begins, with the keyword arguments of the call.

    :raises HookError: where there is none, or it is called otherwise.
    """
    return _known(autotuner_class, PRUNE)


def _known(autotuner_class: Any, name: str, needed: str = "") -> Callable[..., Any]:
    found = vars(autotuner_class).get(name)
    return known(found, f"Autotuner.{name}", "triton", _PARAMETERS[name], needed=needed)


def in_the_place_of(cls: Any, name: str) -> Callable[..., Any] | None:
    """What a subclass of Triton's autotuner has in the place of ``check_disk_cache`` or ``prune_configs``.

    :returns: None where it has none, one that is called otherwise, or one that goes on to Triton's.
    """
    own = vars(cls).get(name)
    if not inspect.isfunction(own) or list(inspect.signature(own).parameters) != _PARAMETERS[name]:
        return None
    return None if name in names_in(inspect.unwrap(own).__code__) else own


@contextmanager
def forgets_refused_call(autotuner: Any) -> Iterator[None]:
    """Let go of the arguments of a call that a refusal ends: Triton's ``run`` does so only where it returns."""
    try:
        yield
    except Refusal:
        autotuner.nargs = None
        raise


def was_tuned(autotuner: Any, autotuner_class: Any) -> bool:
    """Whether an autotuner holds a choice that some search made."""
    if not holds_choices(autotuner):
        return False
    # Triton >= 3.8 takes the only candidate left after pruning without asking: nothing was tuned.
    return type(autotuner).run is not autotuner_class.run or hasattr(autotuner, "bench_time")


def holds_choices(autotuner: Any) -> bool:
    """Whether an autotuner that was called holds choices, and not only what was read from a file for later calls."""
    held = getattr(autotuner, "__dict__", {})  # a copy may have slots
    if not held.keys() & _SET_BY_RUN and _SET_BY_RUN & _names_in_run(type(autotuner)):
        return False
    try:
        return len(held.get("cache", ())) > 0
    except TypeError:  # a memory of its own class's, which may be a file: has it chosen in this process?
        return "best_config" in held


def _names_in_run(cls: type) -> set[str]:
    run = inspect.unwrap(getattr(cls, "run", None) or cls.__call__)
    return set(names_in(run.__code__)) if inspect.isfunction(run) else set()
