"""The modes, which a run can have besides loading and dumping. Each mode is a module here and a row of :data:`MODES`.

The module has a subclass of :class:`pytest_autotune.run.session.Mode`, with everything that the mode does, and the
functions that :class:`ModeRow` calls. The module is imported if a run asks for the mode. If a developer deletes the
module and the row, the mode is gone, and everything else works as before.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

if TYPE_CHECKING:
    from pytest_autotune.run.session import Mode


class Option(NamedTuple):
    """A flag, an ini value, or both: a row of the table in :mod:`pytest_autotune.plugin.options`.

    :param name: ``max_misses`` for ``--autotune-max-misses`` and ``autotune_max_misses``.
    :param kind: how a value is read: the name of a reader in :mod:`pytest_autotune.plugin.values`, or of the mode that
        reads it itself.
    :param explanation: the effect of the option, in words.
    :param metavar: the value in words; or the allowed words with ``|`` between them, the default first.
    :param default: the default in words; empty if it is nothing.
    :param only: the single place of the option; empty if it is a flag and an ini value.
    :param alone: the value of a flag that is typed without one; empty if the flag needs a value.
    """

    name: str
    kind: str
    explanation: str
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
    def help_text(self) -> str:
        """The explanation, with the default if there is one."""
        if self.default:
            return f"{self.explanation} (default: {self.default})"
        return self.explanation


class ModeRow(NamedTuple):
    """A mode as users type it.

    The row stands apart from the :class:`~pytest_autotune.run.session.Mode` that it makes: ``pytest --help`` lists the
    options of all modes, and must not import their modules and the code of the tuners.

    :param name: the name of the mode's module.
    :param options: the options of the mode. The first asks for the mode.
    :param answers: the question that the mode answers about choices of other versions: ``"whether the choices are still
        the fastest"``; empty if the mode answers no such question.
    :param without_mode: why the further options need the first, in words.
    """

    name: str
    options: tuple[Option, ...]
    answers: str = ""
    without_mode: str = ""

    def parse(self, text: str) -> Any:
        """Parse the value of an option whose kind is the mode's name.

        :raises ValueError: for a value that makes no sense.
        """
        return import_module(f"{__name__}.{self.name}").parse(text)

    def make(self, values: Mapping[str, Any]) -> Mode | None:
        """Make the mode from the values of its options; None if the options do not ask for it."""
        if not values[self.options[0].name]:
            return None
        mode: Mode | None = import_module(f"{__name__}.{self.name}").make(**values)
        return mode


class Portion(NamedTuple):
    """One of several equal parts, as the user types it: ``2/7`` is the second of seven.

    :param number: the number of this part, from 1 to ``total``.
    :param total: the number of parts.
    """

    number: int
    total: int

    def __str__(self) -> str:
        return f"{self.number}/{self.total}"


def parse_portion(text: str) -> Portion | None:
    """Return the part that a text such as ``2/7`` names; None for any other text."""
    match = re.fullmatch(r"(\d+)/(\d+)", text)
    if match is None:
        return None
    portion = Portion(int(match[1]), int(match[2]))
    if not 0 < portion.number <= portion.total:
        return None
    return portion


MODES = (
    ModeRow(
        "sweep",
        (
            Option(
                "sweep",
                "sweep",
                "Run each problem with a candidate that SEED picks, without tuning and without a "
                "cache. 2/5: the second of "
                "five runs that together test up to five candidates of each problem",
                "SEED|I/K",
                only="flag",
            ),
        ),
    ),
    ModeRow(
        "verify",
        (
            Option(
                "verify",
                "verify",
                "Measure whether another candidate is faster than a loaded choice, and list such choices; an update "
                "replaces them. 2/7: check only the second of seven parts",
                "all|I/K",
                only="flag",
                alone="all",
            ),
            Option(
                "max_drift",
                "limit",
                "With --autotune-verify: fail the run if more than N or P% of the checked choices are slower",
                "N|P%|off",
                "no limit",
            ),
            Option(
                "verify_seconds",
                "seconds",
                "Spend at most so many seconds of each process on --autotune-verify",
                default="300",
                only="ini",
            ),
        ),
        answers="whether the choices are still the fastest",
        without_mode="this run races no choices",
    ),
    ModeRow(
        "problems",
        (
            Option(
                "problems",
                "paths",
                "List the problems in this file that no test calls. pytest_autotune.use(…, "
                "report=PATH) writes the file in "
                "production. Repeatable",
                "PATH",
                only="flag",
            ),
        ),
    ),
    ModeRow(
        "compile_ahead",
        (
            Option(
                "compile_ahead",
                "word",
                "on: threads compile the loaded choices of Triton's kernels before the tests "
                "call them, if each process "
                "has more than one core",
                "on|off",
                "on",
                only="ini",
            ),
        ),
    ),
)
