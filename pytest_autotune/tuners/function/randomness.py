"""The random numbers that a test draws do not depend on whether a search took place before."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from pytest_autotune.devices import torch_cuda


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Give the generators of Python, numpy and torch (on the CPU and CUDA) their state back afterwards.

    A library that is first imported inside is left as it is, and so are generators of the caller's own.
    """
    with ExitStack() as stack:
        stack.callback(random.setstate, random.getstate())
        numpy: Any = sys.modules.get("numpy.random")
        if numpy is not None:
            stack.callback(numpy.set_state, numpy.get_state())
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            stack.callback(torch.set_rng_state, torch.get_rng_state())
            # The state of a GPU cannot be read while it captures a graph; nothing can be tuned then.
            if (cuda := torch_cuda()) is not None:
                stack.callback(cuda.set_rng_state_all, cuda.get_rng_state_all())
        yield
