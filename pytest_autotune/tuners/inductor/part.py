"""What the parts of the adapter have in common."""

from __future__ import annotations

from types import ModuleType
from typing import Protocol

from pytest_autotune.run.door import TuningRun
from pytest_autotune.tuners.inductor.patches import Patches


class Part(Protocol):
    """One place where Inductor tunes."""

    @property
    def tuner(self) -> str:
        """Its name in options and entries: ``"inductor.config"``."""

    @property
    def module(self) -> str:
        """The module of Inductor that it hooks when that is imported."""

    def hook(self, module: ModuleType, run: TuningRun, patches: Patches) -> None:
        """Hook it.

        :raises HookError: when this version's internals are not the ones known here.
        """
