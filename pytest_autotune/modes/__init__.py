"""Modes: runs with an aim of their own. Each is a module here, and a row of :data:`MODES`; without both it is gone.

The module has a subclass of :class:`pytest_autotune.run.mode.Mode`, named ``MODE``, with all that the mode does: how
its option is read, where its choices come from, what its events are and what it says in the end. It is imported where
a run asks for it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True)
class Registered:
    """A mode, and the flag that asks for it.

    :param name: of the module, and of the flag: ``--autotune-NAME``.
    :param about: what it does.
    :param metavar: the flag's value in words.
    """

    name: str
    about: str
    metavar: str

    def parse(self, text: str) -> Any:
        """The mode that a value of the flag asks for.

        :raises ValueError: for what makes no sense.
        """
        return import_module(f"{__name__}.{self.name}").MODE.parse(text)


MODES = (
    Registered(
        "sweep",
        "Run each problem with one of its candidates, which the seed and the problem pick; nothing is loaded, measured "
        "or dumped. 2/5: the second of five sweeps that together run up to five candidates of each problem",
        "SEED|I/K",
    ),
)
