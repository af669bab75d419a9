"""Which choices came by the hook, so that others can be told."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from types import FunctionType
from typing import Any

from pytest_autotune.tuners.shared.source.functions import python_function


class Seen:
    """The autotuners of this process that came by the hook, with the keys of their memory that did.

    :param at_next_test: calls something once, before the next test begins.
    """

    def __init__(self, at_next_test: Callable[[Callable[[], object]], object] = lambda look: None) -> None:
        self._at_next_test = at_next_test
        #: Of autotuners whose memory held choices before their first call: those that nobody is known to have used.
        self._held: dict[int, dict[Hashable, Any]] = {}
        self._keys: dict[int, tuple[weakref.ref[Any], set[Hashable] | None]] = {}
        #: Of all autotuners of a function: one that is copied takes its memory with it.
        self._of_functions: weakref.WeakKeyDictionary[FunctionType, set[Hashable]] = weakref.WeakKeyDictionary()

    def add(self, autotuner: Any, key: Hashable) -> None:
        """A call came by.

        :param key: of the autotuner's memory; None where that is not known: then nothing more is said of it.
        """
        if not self._knows(autotuner):
            held = self._held_unused(autotuner)
            self._keys[id(autotuner)] = weakref.ref(autotuner), set(held)
            if held:
                self._held[id(autotuner)] = held
                self._at_next_test(self._look)
        self._look_at(autotuner)
        reference, keys = self._keys[id(autotuner)]
        if key is None:
            self._keys[id(autotuner)] = reference, None
        elif keys is not None:
            keys.add(key)
            if (function := python_function(autotuner)) is not None:
                self._of_functions.setdefault(function, set()).add(key)

    def has_all(self, autotuner: Any) -> bool:
        """Whether all that an autotuner chose in this process came by, as far as its memory shows."""
        self._look_at(autotuner)
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
    def _held_unused(autotuner: Any) -> dict[Hashable, Any]:
        """What was put into a memory that no call has asked yet: read from a file, and perhaps never used."""
        was_launched = "best_config" in vars(autotuner)
        return {} if was_launched or type(autotuner.cache) is not dict else dict(autotuner.cache)

    def _look(self) -> None:
        """Look, between the tests, which of what memories held was used."""
        for number in list(self._held):
            reference, _ = self._keys[number]
            autotuner = reference()
            if autotuner is None or not self._held[number]:
                del self._held[number]
            else:
                self._look_at(autotuner)
        if self._held:
            self._at_next_test(self._look)

    def _look_at(self, autotuner: Any) -> None:
        """What was launched last may be what the memory held: then it came by in no call.

        Nothing is known of a choice that a call which came by has made as well.
        """
        held = self._held.get(id(autotuner)) if self._knows(autotuner) else None
        keys = self._keys[id(autotuner)][1] if held else None
        last = vars(autotuner).get("best_config")
        if held and keys is not None and last is not None and type(autotuner.cache) is dict:
            if any(autotuner.cache.get(key) is last for key in keys - held.keys()):
                return
            for key in [key for key, choice in held.items() if choice is last]:
                del held[key]
                keys.discard(key)
