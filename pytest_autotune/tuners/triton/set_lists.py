"""Lists of candidates that are set while a suite runs: tests do so to tune less, libraries to fit a call.

Triton's memory goes on to answer with what was chosen from the list before, so a test would get in a suite a choice
that it does not get alone, and that may be none of its candidates.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from pytest_autotune.run.door import TuningRun


class SetLists:
    """A descriptor for ``configs`` that only sees when a list is set; what is read is the instance's own.

    It has no ``__get__``, which each launch would call. An autotuner without a list reads the descriptor itself.

    What was chosen from another list is forgotten: at once what an earlier test has chosen, and before the next test
    what this one has, since Triton's memory holds for one test. Kernels that are left alone forget nothing.
    """

    def __init__(self, run: TuningRun) -> None:
        self._run = run
        #: The keys of choices, by the id of an autotuner.
        self._chosen: dict[int, set[Hashable]] = {}
        self._chosen_in_this_test: dict[int, set[Hashable]] = {}

    def __set__(self, autotuner: Any, configs: Any) -> None:
        held = vars(autotuner)
        before = held.get("configs")
        held["configs"] = configs
        if before is None or before is configs or type(held.get("cache")) is not dict or _are_equal(before, configs):
            return
        cache = held["cache"]
        of_this_test = self._chosen_in_this_test.get(id(autotuner), set())
        for key in self._chosen.get(id(autotuner), set()) - of_this_test:
            cache.pop(key, None)
        if of_this_test:
            keys = frozenset(of_this_test)

            def forget() -> None:
                for key in keys:
                    cache.pop(key, None)

            self._run.at_next_test(forget)

    def __delete__(self, autotuner: Any) -> None:
        del vars(autotuner)["configs"]

    def chosen(self, autotuner: Any, key: Hashable) -> None:
        """A test has chosen something."""
        if not self._chosen_in_this_test:
            self._run.at_next_test(self._chosen_in_this_test.clear)
        for keys in (self._chosen, self._chosen_in_this_test):
            keys.setdefault(id(autotuner), set()).add(key)


def _are_equal(before: Any, configs: Any) -> bool:
    try:
        return bool(list(before) == list(configs))
    except Exception:  # what a library compares there, or has in the place of a list, is its own
        return False
