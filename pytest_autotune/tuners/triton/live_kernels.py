"""The kernels that there are in a process, called or not."""

from __future__ import annotations

import sys
from types import FunctionType
from typing import Any

from pytest_autotune.tuners.protocol import Suite
from pytest_autotune.tuners.shared.reach import reached
from pytest_autotune.tuners.shared.source.functions import layers
from pytest_autotune.tuners.triton.call import Heuristics
from pytest_autotune.tuners.triton.constants import NoText, named
from pytest_autotune.tuners.triton.internals import kernel_layers, live_objects


def is_current(kernel: Any, function: FunctionType) -> bool:
    """Whether a kernel is what stands under its name in its module now; those of factories stand nowhere."""
    name = function.__qualname__
    if "<locals>" in name:
        return function.__module__ in sys.modules
    try:
        return any(layer is kernel for layer in layers(named(f"{function.__module__}:{name}")))
    except NoText:
        return False


class LiveKernels:
    """The autotuners that there are in this process, those of factories too, and the functions that Triton compiles.

    :param autotuner_class: Triton's.
    """

    def __init__(self, autotuner_class: Any) -> None:
        self.all, self._heuristics = live_objects.kernels(autotuner_class)

    def in_order(self, suite: Suite) -> list[Any]:
        """Those that the tests reach by name, in the order of the tests; then the others, if all tests are to run."""
        known = {id(one): one for one in self.all}
        found = reached(suite.tests, lambda value: id(value) in known)
        if suite.is_part:
            return found
        met = set(map(id, found))
        return found + [one for one in self.all if id(one) not in met]

    def heuristics(self, autotuner: Any) -> Heuristics:
        """The functions of ``triton.heuristics`` under and over an autotuner, as a call of it would find them."""
        under = kernel_layers.heuristics_under(autotuner)
        above: list[Any] = []
        inner: Any = autotuner
        while (outer := next((one for one in self._heuristics if one.fn is inner), None)) is not None:
            above.append(outer)
            inner = outer
        return [pair for one in (*under, *above) for pair in one.values.items()]
