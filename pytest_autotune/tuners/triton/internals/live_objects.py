"""The autotuners, kernels and launchers that there are in this process, whoever made them."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

from pytest_autotune.tuners.triton.internals.autotuners import PRUNE, holds_choices
from pytest_autotune.tuners.triton.internals.kernel_layers import is_heuristics, is_heuristics_class
from pytest_autotune.tuners.triton.internals.modules import module


def autotuners(autotuner_class: Any) -> list[Any]:
    """The autotuners that there are in this process, those of factories too."""
    return _live(_with_subclasses(autotuner_class))


def kernels(autotuner_class: Any) -> tuple[list[Any], list[Any]]:
    """Two lists of what there is in this process: autotuners, those of factories too, and the functions that Triton
    compiles, kernels and what they call; and the decorators ``triton.heuristics``.
    """
    functions = getattr(module("runtime.jit"), "JITFunction", None)
    of_kernels = _with_subclasses(autotuner_class) + ([] if functions is None else [functions])
    heuristics = list(filter(is_heuristics_class, _with_subclasses(object)))
    found = _live([*of_kernels, *heuristics])
    wanted = set(map(id, of_kernels))
    return (
        [one for one in found if id(type(one)) in wanted],
        [one for one in found if is_heuristics(one) and hasattr(one, "fn")],
    )


def launchers(name: str) -> list[Any]:
    """The objects of a class of this name that launch kernels as Triton's own do."""
    cls = getattr(module("runtime.jit"), "KernelInterface", None)
    return [] if cls is None else _live(one for one in _with_subclasses(cls) if one.__name__ == name)


def tuned_copies(autotuner_class: Any) -> list[Any]:
    """The objects in this process that are tuned as Triton's autotuners are, by classes that were copied from it."""
    copies = [
        cls
        for cls in _with_subclasses(object)
        if {PRUNE, "_bench"} <= vars(cls).keys() and not type.__subclasscheck__(autotuner_class, cls)
    ]
    found = _live(copies) if copies else []
    return [one for one in found if holds_choices(one) and isinstance(getattr(one, "configs", None), (list, tuple))]


def _live(classes: Iterable[type]) -> list[Any]:
    """The objects in this process that are of these classes."""
    # isinstance would ask proxies for their class, which may run code of theirs. A list of all objects, of which there
    # may be a million, counts a reference to each: in a forked child that copies the memory of all of them.
    wanted = {id(cls): cls for cls in classes}
    return [one for one in gc.get_referrers(*wanted.values()) if id(type(one)) in wanted]


def _with_subclasses(cls: type) -> list[type]:
    found = {id(cls): cls}
    queue = [cls]
    while queue:
        below: list[type] = type.__subclasses__(queue.pop())
        queue += [one for one in below if id(one) not in found]
        found |= {id(one): one for one in below}
    return list(found.values())
