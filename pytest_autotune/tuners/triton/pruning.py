"""What pruning leaves of the candidates of a call, without a trace in those of later calls.

Pruners of public libraries are generators, make candidates of their own, or change those that they are given: "no TMA
where the input is permuted". Changed candidates would stay so for all later calls, and for what was chosen before, so
that a test would not get in a suite what it gets alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class _Held:
    """What a candidate held before it was given to a pruner."""

    config: Any
    attributes: dict[str, Any]
    params: dict[str, Any]

    @classmethod
    def by_all(cls, configs: Iterable[Any]) -> list[_Held]:
        """What each holds; nothing of what a library has in the place of candidates."""
        known = [config for config in configs if isinstance(getattr(config, "kwargs", None), dict)]
        return [cls(config, dict(vars(config)), dict(config.kwargs)) for config in known if hasattr(config, "__dict__")]

    @property
    def is_changed(self) -> bool:
        return bool(vars(self.config) != self.attributes or self.config.kwargs != self.params)

    def put_back(self) -> Any:
        """Let the candidate be what it was.

        :returns: another one that is what it had become.
        """
        config = self.config
        changed = object.__new__(type(config))
        vars(changed).update(vars(config))
        changed.kwargs = dict(config.kwargs)
        vars(config).clear()
        vars(config).update(self.attributes, kwargs=self.params)
        return changed


def pruned_alone(autotuner: Any, prune: Callable[[], Any]) -> Any:
    """Prune for one call.

    :param prune: the ``prune_configs`` of the autotuner's class.
    :returns: the candidates that are left, in a list. Those that the pruner changed are copies, and the autotuner's own
        are as they were.
    """
    configs = getattr(autotuner, "configs", None)
    if getattr(autotuner, "early_config_prune", None) is None or not isinstance(configs, (list, tuple)):
        return prune()
    whole = list(configs)
    before = _Held.by_all(whole)
    changed: dict[int, Any] = {}
    try:
        pruned = prune()
        left = pruned if isinstance(pruned, list) and pruned is not configs else list(pruned)
    finally:
        for held in before:
            if held.is_changed:
                changed.setdefault(id(held.config), held.put_back())
        if isinstance(configs, list):
            configs[:] = whole
    return [changed.get(id(config), config) for config in left]
