"""What a forked child must not keep of its parent: locks of threads that it does not have."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable


def in_forked_children(renew: Callable[[], None]) -> None:
    """Call a method in every child that is forked from now on, before anything else, while its object lives.

    :param renew: a bound method.
    """
    reference = weakref.WeakMethod(renew)

    def call() -> None:
        method = reference()
        if method is not None:
            method()

    os.register_at_fork(after_in_child=call)
