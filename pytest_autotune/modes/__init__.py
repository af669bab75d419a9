"""Modes: what a run may do beside loading and dumping. Each is a module here, and a row of :data:`MODES`.

Without both it is gone. The module has what :class:`Registered` calls, and a subclass of
:class:`pytest_autotune.run.mode.Mode` with all that the mode does. It is imported where a run asks for it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pytest_autotune.run.mode import Mode


class Option(NamedTuple):
    """A flag, an ini value, or both: a row of the table in :mod:`pytest_autotune.plugin.options`.

    :param name: ``max_misses`` of ``--autotune-max-misses`` and ``autotune_max_misses``.
    :param kind: how a value is read: the name of a reader in :mod:`pytest_autotune.plugin.values`, or of the mode that
        reads it itself.
    :param about: what it does.
    :param metavar: the value in words; the words themselves, the default first, with ``|`` between them.
    :param default: in words, where it is more than nothing.
    :param only: where there is not both a flag and an ini value.
    :param alone: what the flag means without a value; empty where it takes one.
    """

    name: str
    kind: str
    about: str
    metavar: str = ""
    default: str = ""
    only: Literal["flag", "ini", ""] = ""
    alone: str = ""

    @property
    def is_flag(self) -> bool:
        """Whether the command line takes it."""
        return self.only != "ini"

    @property
    def is_ini(self) -> bool:
        """Whether the ini file takes it."""
        return self.only != "flag"

    @property
    def flag(self) -> str:
        """``--autotune-max-misses``."""
        return f"--autotune-{self.name.replace('_', '-')}"

    @property
    def ini(self) -> str:
        """``autotune_max_misses``; also the name of the flag's value in pytest's namespace of options."""
        return f"autotune_{self.name}"

    @property
    def meaning(self) -> str:
        """What it does, and what is so without it where that is more than nothing."""
        return f"{self.about} (default: {self.default})" if self.default else self.about


class Registered(NamedTuple):
    """A mode, and what users type for it.

    :param name: of the module.
    :param options: the first one asks for the mode.
    :param tells: what it finds out, in words, of choices that were tuned under other versions.
    :param without: what is so of a run with another of its flags that is not asked for the mode, in words.
    """

    name: str
    options: tuple[Option, ...]
    tells: str = ""
    without: str = ""

    def parse(self, text: str) -> Any:
        """What a value of the kind of the mode's name means.

        :raises ValueError: for what makes no sense.
        """
        return import_module(f"{__name__}.{self.name}").parse(text)

    def make(self, values: Mapping[str, Any]) -> Mode | None:
        """The mode by the values of its options; None where it is not asked for."""
        if not values[self.options[0].name]:
            return None
        mode: Mode | None = import_module(f"{__name__}.{self.name}").make(**values)
        return mode


def part_of(text: str) -> tuple[int, int] | None:
    """The part that ``"2/7"`` names, and of how many; None for anything else."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    return (int(match[1]), int(match[2])) if match and 0 < int(match[1]) <= int(match[2]) else None


MODES = (
    Registered(
        "sweep",
        (
            Option(
                "sweep",
                "sweep",
                "Run each problem with one of its candidates, which the seed and the problem pick; nothing is loaded, "
                "measured or dumped. 2/5: the second of five sweeps that together run up to five candidates of each "
                "problem",
                "SEED|I/K",
                only="flag",
            ),
        ),
    ),
    Registered(
        "verify",
        (
            Option(
                "verify",
                "verify",
                "Race loaded choices against the other candidates: of all hits, or of 2/7 the second of seven parts. A "
                "choice that is slower is listed, and replaced in a dump",
                "all|I/K",
                only="flag",
                alone="all",
            ),
            Option(
                "max_drift",
                "limit",
                "Fail the run when more than N choices, or P% of those raced, are slower",
                "N|P%|off",
                "no limit",
            ),
            Option(
                "verify_seconds",
                "seconds",
                "Seconds that each process spends on the races of --autotune-verify",
                default="300",
                only="ini",
            ),
        ),
        tells="whether the choices are still the fastest",
        without="no choice is raced again",
    ),
    Registered(
        "problems",
        (
            Option(
                "problems",
                "paths",
                "List the problems in this file that no test asks for: what pytest_autotune.use(…, report=PATH) wrote "
                "down in production. Repeatable",
                "PATH",
                only="flag",
            ),
        ),
    ),
    Registered(
        "compile_ahead",
        (
            Option(
                "compile_ahead",
                "word",
                "on: threads compile the loaded choices of Triton's kernels before tests ask for them, where each "
                "process has more than one core; always: whatever else runs on the machine",
                "on|off|always",
                "on",
                only="ini",
            ),
        ),
    ),
)
