"""Replacing functions of Inductor that are known by their signature, and putting them back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from pytest_autotune.run.door import TuningRun
from pytest_autotune.tuners.shared.guard import guarded
from pytest_autotune.tuners.shared.signatures import known


class Patches:
    """The functions of Inductor that were replaced; an error of a replacement leaves Inductor to itself.

    :param tuner: the part that replaces them.
    """

    def __init__(self, run: TuningRun, tuner: str) -> None:
        self._run = run
        self._tuner = tuner
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(
        self, owner: Any, name: str, parameters: Sequence[str], make: Callable[[Any], Any], *, and_others: bool = False
    ) -> None:
        """Replace a function of a module, or a method of a class, by what ``make`` makes of it.

        :param parameters: the names of its parameters, in order.
        :param and_others: later versions have further parameters, which are handed on.
        :raises HookError: when it is not there, or takes others.
        """
        original = self._known(owner, name, parameters, and_others)
        setattr(owner, name, guarded(make(original), original, self._run, self._tuner))

    def replace_class(self, owner: Any, name: str, parameters: Sequence[str], make: Callable[[Any], Any]) -> None:
        """Replace a class of a module by another one, which is to catch its own errors.

        :param parameters: the names of what it is made of, in order.
        :raises HookError: when it is not there, or takes others.
        """
        setattr(owner, name, make(self._known(owner, name, parameters)))

    def _known(self, owner: Any, name: str, parameters: Sequence[str], and_others: bool = False) -> Any:
        where = f"{owner.__name__.rpartition('.')[2]}.{name}"
        original = known(vars(owner).get(name), where, "torch", parameters, and_others=and_others)
        self._originals.append((owner, name, original))
        return original

    def undo(self) -> None:
        """Put back what was there, the last one first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            with suppress(AttributeError):
                setattr(owner, name, original)
