"""How the parts of the adapter hook Inductor: functions known by their signature are replaced, and put back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.library import guarded, known


class Patches:
    """The functions of Inductor that were replaced; an error of a replacement leaves Inductor to itself.

    :param tuner: the part that replaces them.
    """

    def __init__(self, session: Session, tuner: str) -> None:
        self._session = session
        self._tuner = tuner
        self._originals: list[tuple[Any, str, Any]] = []

    def replace(
        self,
        owner: Any,
        name: str,
        parameters: Sequence[str],
        replacement: Callable[..., Any],
        *,
        and_others: bool = False,
    ) -> None:
        """Replace a function of a module, or a method of a class.

        :param parameters: the names of its parameters, in order.
        :param replacement: is called with the original before what it is called with.
        :param and_others: later versions have further parameters, which are handed on.
        :raises HookError: when it is not there, or takes others.
        """
        original = self.known(owner, name, parameters, and_others=and_others)

        def call(*args: Any, **kwargs: Any) -> Any:
            return replacement(original, *args, **kwargs)

        setattr(owner, name, guarded(call, original, self._session, self._tuner))

    def known(self, owner: Any, name: str, parameters: Sequence[str], *, and_others: bool = False) -> Any:
        """A function, or a class, that is about to be replaced, and is put back at the end.

        :raises HookError: when it is not there, or takes other parameters.
        """
        where = f"{owner.__name__.rpartition('.')[2]}.{name}"
        original = known(vars(owner).get(name), where, "torch", parameters, and_others=and_others)
        self._originals.append((owner, name, original))
        return original

    def undo(self) -> None:
        """Put back what was there, the last one first."""
        while self._originals:
            owner, name, original = self._originals.pop()
            setattr(owner, name, original)


class Part:
    """One place where Inductor tunes.

    :cvar tuner: its name in options and entries: ``"inductor.config"``.
    :cvar module: the module of Inductor that it hooks when that is imported.
    """

    tuner: str
    module: str
    #: Set when it is hooked.
    _session: Session

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Hook it.

        :raises HookError: when this version's internals are not the ones known here.
        """
        raise NotImplementedError
