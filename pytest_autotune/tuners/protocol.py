"""What a tuner's adapter offers to the plugin, and what it may use."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Protocol

from pytest_autotune.run.session import Session


class HookError(Exception):
    """This version of a tuner cannot be hooked; the message says why, in a few words."""


class Adapter(Protocol):
    """Stands between one tuner and a :class:`Session`.

    An adapter is made once per process and run. It touches its library only after
    :meth:`hook`, and an error inside it must bypass the tuner, not fail a test.

    What it may have besides, none of which has to be there; an error in a call costs a line of the summary:

    - ``names_candidates``: true where it is to act in a sweep although it does not act without entries.
    - ``prepare(suite)``: what can be done beside the tests, such as compiling what they will launch: functions without
      arguments, what the tests need first in front. Each is called in a thread and returns whether there was anything
      to do. Called once in a process, before its first test, in a run that loads something, where cores are left.
    """

    @property
    def module(self) -> str:
        """The module whose import makes the tuner available."""

    @property
    def acts_without_entries(self) -> bool:
        """Whether to act in a run that loads no entry of this tuner: not where that costs something by itself."""

    def hook(self, module: ModuleType, session: Session) -> None:
        """Hook the tuner, whose module is there now; a HookError where its internals are not the ones known here."""

    def unhook(self) -> None:
        """Restore what :meth:`hook` replaced."""

    def isolated(self) -> AbstractContextManager[None]:
        """Swap the tuner's own memory out, and back afterwards."""

    def untracked(self) -> Iterable[str]:
        """The names of kernels that were tuned without asking the session."""
