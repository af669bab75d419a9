"""The autotuners, kernels and heuristics that there are in this process, whoever made them."""

from __future__ import annotations

import gc
from typing import Any

from pytest_autotune.tuners.triton.internals.modules import module


def of_class(*classes: Any) -> list[Any]:
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


def kernels(autotuner_class: Any) -> tuple[list[Any], list[Any]]:
    """Two lists of what there is in this process: autotuners, those of factories too, and the functions that Triton
    compiles, kernels and what they call; and the decorators ``triton.heuristics``.
    """
    functions = getattr(module("runtime.jit"), "JITFunction", None)
    return (
        of_class(autotuner_class, *(() if functions is None else (functions,))),
        of_class(module("runtime.autotuner").Heuristics),
    )
