"""What pruning leaves of the candidates of a call, without a trace in those of later calls.

Pruners of public libraries are generators, make candidates of their own, or change those that they are given: "no TMA
where the input is permuted". Changed candidates would stay so for all later calls, and for what was chosen before, so
that a test would not get in a suite what it gets alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def pruned_alone(autotuner: Any, prune: Callable[[], Any]) -> Any:
    """Prune copies of the candidates of an autotuner.

    :param prune: the ``prune_configs`` of the autotuner's class.
    :returns: the candidates that are left, in a list: the autotuner's own, but for those that the pruner changed.
    """
    if getattr(autotuner, "early_config_prune", None) is None:
        return prune()
    own = autotuner.configs
    copies = [_copied(config) for config in own]
    autotuner.configs = list(copies)
    try:
        left = list(prune())
    finally:
        autotuner.configs = own
    unchanged = {id(copy): config for copy, config in zip(copies, own, strict=True) if vars(copy) == vars(config)}
    return [unchanged.get(id(config), config) for config in left]


def _copied(config: Any) -> Any:
    copy = object.__new__(type(config))
    vars(copy).update(vars(config), kwargs=dict(config.kwargs))
    return copy
