"""The protocol of an adapter: the class that hooks one tuner."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from types import ModuleType
from typing import Protocol

from pytest_autotune.run.session import Session


class HookError(Exception):
    """This version of a tuner cannot be hooked. The message says why in a few words."""


class Adapter(Protocol):
    """Stands between one tuner and a :class:`Session`.

    Each run makes the adapter once in each process. The adapter touches its library only after :meth:`hook`. An error
    inside the adapter must bypass the tuner and must not fail a test.

    An adapter may have more attributes. An error in such a method costs a line of the summary.

    - ``names_candidates``: True if the adapter acts in a sweep, although it does not act without entries.
    - ``prepare(suite)``: returns jobs that threads can do beside the tests, such as compiling the kernels that the
      tests will launch. A job is a function without arguments, and returns whether there was anything to do. The jobs
      for the first tests come first. The plugin calls ``prepare`` once in a process, before the first test, in a run
      that loads entries, if the machine has spare cores.
    """

    @property
    def module(self) -> str:
        """The name of the module whose import makes the tuner available."""

    @property
    def acts_without_entries(self) -> bool:
        """Whether to act in a run that loads no entry of this tuner. False if acting costs something by itself."""

    def hook(self, module: ModuleType, session: Session) -> None:
        """Hook the tuner, whose module is imported now.

        :raises HookError: if the internals of this version differ from those that the adapter knows.
        """

    def unhook(self) -> None:
        """Put back the functions that :meth:`hook` replaced."""

    def isolated(self) -> AbstractContextManager[None]:
        """Return a context with an empty memory of choices. Afterwards the tuner has its own memory again."""

    def untracked(self) -> Iterable[str]:
        """Return the names of kernels that were tuned without asking the session."""
