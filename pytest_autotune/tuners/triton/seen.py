"""Which choices came by the hook, so that others can be told."""

from __future__ import annotations

import weakref
from collections.abc import Hashable
from types import FunctionType
from typing import Any

from pytest_autotune.tuners.shared.source.functions import python_function


class Seen:
    """The autotuners of this process that came by the hook, with the keys of their memory that did."""

    def __init__(self) -> None:
        self._keys: dict[int, tuple[weakref.ref[Any], set[Hashable] | None]] = {}
        #: Of all autotuners of a function: one that is copied takes its memory with it.
        self._of_functions: weakref.WeakKeyDictionary[FunctionType, set[Hashable]] = weakref.WeakKeyDictionary()

    def add(self, autotuner: Any, key: Hashable) -> None:
        """A call came by.

        :param key: of the autotuner's memory; None where that is not known: then nothing more is said of it.
        """
        if not self._knows(autotuner):
            self._keys[id(autotuner)] = weakref.ref(autotuner), self._held_unused(autotuner)
        reference, keys = self._keys[id(autotuner)]
        if key is None:
            self._keys[id(autotuner)] = reference, None
        elif keys is not None:
            keys.add(key)
            if (function := python_function(autotuner)) is not None:
                self._of_functions.setdefault(function, set()).add(key)

    def has_all(self, autotuner: Any) -> bool:
        """Whether all that an autotuner chose in this process came by, as far as its memory shows."""
        keys = self._keys[id(autotuner)][1] if self._knows(autotuner) else set()
        if keys is None:
            return True
        if type(autotuner.cache) is not dict:
            return self._knows(autotuner)
        function = python_function(autotuner)
        of_function = self._of_functions.get(function, set()) if function is not None else set()
        return bool(keys | of_function) and keys | of_function >= autotuner.cache.keys()

    def _knows(self, autotuner: Any) -> bool:
        known = self._keys.get(id(autotuner))
        return known is not None and known[0]() is autotuner

    @staticmethod
    def _held_unused(autotuner: Any) -> set[Hashable]:
        """What was put into a memory that no call has asked yet: read from a file, and perhaps never used."""
        was_launched = "best_config" in vars(autotuner)
        return set() if was_launched or type(autotuner.cache) is not dict else set(autotuner.cache)
