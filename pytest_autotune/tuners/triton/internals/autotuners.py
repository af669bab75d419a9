"""Triton's ``Autotuner``: the methods of it that are hooked, and what its objects hold once they have chosen."""

from __future__ import annotations

import gc
import weakref
from collections import defaultdict
from collections.abc import Callable
from types import ModuleType
from typing import Any

from pytest_autotune.tuners.shared.functions import layers
from pytest_autotune.tuners.shared.library import known

DISK_CACHE, PRUNE = "check_disk_cache", "prune_configs"
_PARAMETERS = {DISK_CACHE: ["self", "tuning_key", "configs", "bench_fn"], PRUNE: ["self", "kwargs"]}


def method_of(autotuner_class: Any, name: str) -> Callable[..., Any]:
    """A method of ``Autotuner`` that is hooked.

    ``check_disk_cache`` is called with the candidates that pruning left, and what benchmarks them; ``prune_configs``
    where a search begins, with the keyword arguments of the call.

    :raises HookError: where there is none, or it is called otherwise.
    """
    found = vars(autotuner_class).get(name)
    needed = "triton >= 3.4 is needed"
    return known(found, f"Autotuner.{name}", "triton", _PARAMETERS[name], needed=needed)


def was_tuned(autotuner: Any, autotuner_class: Any) -> bool:
    """Whether an autotuner has launched what some search has chosen, and remembers it."""
    held = vars(autotuner)
    if held.get("cache") == {} or "best_config" not in held or len(autotuner.configs) < 2:
        return False
    # Triton >= 3.8 takes the only candidate left after pruning without asking: nothing was tuned.
    return "bench_time" in held or type(autotuner).run is not autotuner_class.run


def live_objects(*classes: Any) -> list[Any]:
    """The objects in this process that are of some classes, or of classes derived from them."""
    # isinstance would ask proxies for their class, which may run code of theirs. A list of all objects, of which there
    # may be a million, counts a reference to each: in a forked child that copies the memory of all of them.
    wanted = {id(cls): cls for cls in classes}
    queue = list(classes)
    while queue:
        below = [one for one in type.__subclasses__(queue.pop()) if id(one) not in wanted]
        wanted |= {id(one): one for one in below}
        queue += below
    return [one for one in gc.get_referrers(*wanted.values()) if id(type(one)) in wanted]


class HeuristicsOver:
    """The ``triton.heuristics`` over autotuners, which these know nothing of: noted where they are made.

    :param module: ``triton.runtime.autotuner``.
    :raises HookError: where they are made otherwise.
    """

    def __init__(self, module: ModuleType) -> None:
        self._class: Any = module.Heuristics
        self._original = known(
            vars(self._class).get("__init__"), "Heuristics.__init__", "triton", ["self", "fn", "arg_names", "values"]
        )
        self._autotuner_class: Any = module.Autotuner
        #: By the id of the autotuner.
        self._over: defaultdict[int, list[weakref.ref[Any]]] = defaultdict(list)
        for heuristics in live_objects(self._class):
            self._note(heuristics)
        original, note = self._original, self._note

        def __init__(self: Any, fn: Any, arg_names: Any, values: Any) -> None:
            original(self, fn, arg_names, values)
            note(self)

        self._class.__init__ = __init__

    def unhook(self) -> None:
        """Note no more."""
        self._class.__init__ = self._original

    def _note(self, heuristics: Any) -> None:
        for layer in layers(getattr(heuristics, "fn", None)):
            if isinstance(layer, self._autotuner_class):
                self._over[id(layer)].append(weakref.ref(heuristics))

    def over(self, autotuner: Any) -> list[Any]:
        """Those over an autotuner, from the inside out; all of them, where several stand side by side."""
        found = []
        for reference in self._over.get(id(autotuner), ()):
            heuristics = reference()
            if heuristics is not None:
                inner = list(layers(heuristics.fn))
                if any(layer is autotuner for layer in inner):  # the id may have been another one's
                    found.append((len(inner), heuristics))
        return [heuristics for _, heuristics in sorted(found, key=lambda pair: pair[0])]


def pruned_alone(autotuner: Any, prune: Callable[[], Any]) -> Any:
    """Prune copies of the candidates of an autotuner, so that nothing of it is left in those of later calls.

    Pruners of public libraries are generators, make candidates of their own, or change those that they are given: "no
    TMA where the input is permuted". A test would not get in a suite what it gets alone.

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
