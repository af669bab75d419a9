"""The base class of the adapter's parts."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.patches import Patches


class Part:
    """One place in which Inductor tunes.

    :cvar tuner: its name in options and entries, for example ``"inductor.config"``.
    :cvar module: the name of the module that the part hooks. The module is hooked when it is imported.
    """

    tuner: str
    module: str
    # Both are set when the part is hooked.
    _session: Session
    _module: Any = None

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Replace the module's functions.

        :raises HookError: if the functions of this version differ from the functions that the part knows.
        """
        raise NotImplementedError


def find_definer(cls: type, name: str) -> type:
    """Return the class that defines a method: the class itself or one of its bases."""
    return next(base for base in cls.__mro__ if name in vars(base))
