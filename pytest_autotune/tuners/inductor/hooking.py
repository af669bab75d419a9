"""What each part of the adapter is."""

from __future__ import annotations

from types import ModuleType
from typing import Any

from pytest_autotune.run.session import Session
from pytest_autotune.tuners.shared.library import Patches


class Part:
    """One place where Inductor tunes.

    :cvar tuner: its name in options and entries: ``"inductor.config"``.
    :cvar module: the module of Inductor that it hooks when that is imported.
    """

    tuner: str
    module: str
    #: Set when it is hooked.
    _session: Session
    _module: Any = None

    def hook(self, module: ModuleType, session: Session, patches: Patches) -> None:
        """Hook it; a HookError where this version's internals are not the ones known here."""
        raise NotImplementedError
