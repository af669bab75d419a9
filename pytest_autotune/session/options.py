"""The table of options: flags, ini values, ``--help`` and the tables of the documentation come from it.

This is all that a run imports which asks for nothing: what the values mean is
read in :mod:`pytest_autotune.session.parsed_options`, by the kind that a row has.
"""

from __future__ import annotations

from typing import Any

import pytest


# Rows are plain classes: to make a dataclass or a NamedTuple takes longer than all else here.
class Kind:
    """How values are given; how they are read goes by the kind.

    :param action: of argparse.
    :param ini_type: of pytest's ini values; ``"number"`` is text that TOML may give as a number.
    :param label: the type of the ini value in the documentation's tables.
    :param alone: what the flag means without a value; empty where it takes one.
    """

    def __init__(self, action: str = "store", ini_type: str | None = None, label: str = "", alone: str = "") -> None:
        self.action = action
        self.ini_type = ini_type
        self.label = label
        self.alone = alone


PATH = Kind()
PATHS = Kind("append", "args", "list")
SWITCH = Kind("store_true", "bool", "bool")
WORD = Kind()
NAMES = Kind(ini_type="args", label="list")
LIMIT = Kind(ini_type="number")
SECONDS = Kind(ini_type="number", label="seconds")
SHARE = Kind(alone="all")
SWEEP = Kind()
LINES = Kind(ini_type="linelist", label="lines")
PAIRS = Kind(ini_type="linelist", label="lines")


class Option:
    """A row of the table.

    :param name: ``max_misses`` of ``--autotune-max-misses`` and ``autotune_max_misses``.
    :param help: what it does, in Markdown; ``--help`` shows it without the marks.
    :param metavar: the value in words; of a kind ``WORD`` the words, the default first, with ``|`` between them.
    :param default: in words, for the documentation.
    """

    def __init__(
        self,
        name: str,
        kind: Kind,
        help: str,
        metavar: str = "",
        default: str = "nothing",
        has_flag: bool = True,
        has_ini: bool = True,
    ) -> None:
        self.name = name
        self.kind = kind
        self.help = help
        self.metavar = metavar
        self.default = default
        self.has_flag = has_flag
        self.has_ini = has_ini

    @property
    def flag(self) -> str:
        """``--autotune-max-misses``."""
        return f"--autotune-{self.name.replace('_', '-')}"

    @property
    def ini(self) -> str:
        """``autotune_max_misses``; also the name of the flag's value in pytest's namespace of options."""
        return f"autotune_{self.name}"

    @property
    def words(self) -> list[str]:
        """What may be given, of an option of the kind ``WORD``; the default first."""
        return self.metavar.split("|")

    @property
    def meaning(self) -> str:
        """What it does, and what is so without it where that is more than nothing; in Markdown."""
        return self.help if self.default in ("nothing", "false", "off") else f"{self.help} (default: {self.default})"

    @property
    def plain_meaning(self) -> str:
        """The same without Markdown."""
        return self.meaning.replace("`", "").replace("*", "")


OPTIONS = (
    Option(
        "load",
        PATHS,
        "Use these choices. Repeatable; the last one wins. Loading never writes. A missing or empty file is an error, "
        "unless it is also the dump path",
        "PATH",
    ),
    Option(
        "dump",
        PATH,
        "Write what was chosen in this run. Problems of this run are added or replaced, all others kept",
        "PATH",
    ),
    Option(
        "update",
        SWITCH,
        "Write into the cache that is loaded, the last one of several: what is missing or stale is tuned and replaced, "
        "whatever the ini file says of `on_miss` and `on_stale`",
        default="false",
        has_ini=False,
    ),
    Option(
        "update_new_only",
        SWITCH,
        "The same, but only add: entries that are there stay as they are, stale ones too",
        default="false",
        has_ini=False,
    ),
    Option("prune", SWITCH, "With a dump: also drop the unused entries, after a complete run", default="false"),
    Option(
        "on_miss",
        WORD,
        "For a miss, stale or mismatch. `first`: nothing is tuned, the tuner's first candidate that works is used. "
        "`nearest`: the choice of the kernel's nearest entry is, where it is a candidate. "
        "Both count and are listed as misses, and never written. `error`: the test that asked fails at once",
        "tune|first|nearest|error",
        "`tune`",
    ),
    Option(
        "on_stale",
        WORD,
        "`use`: inject the stale choice while it is still a candidate; it is listed as stale all the same. "
        "`error`: the test that asked fails at once",
        "tune|use|error",
        "`tune`",
    ),
    Option(
        "max_misses",
        LIMIT,
        "Fail the run when more than `N` problems, or `P%` of them, were not hits",
        "N|P%",
        "no limit",
    ),
    Option(
        "fail_on_unused",
        SWITCH,
        "Fail a complete run that leaves loaded entries unused; a run of a part of the suite is not judged",
        default="false",
    ),
    Option(
        "report",
        PATHS,
        "Write a report of the run: `.html`, `.md`, `.json`, `.xml` (JUnit), `.codequality.json` (GitLab). Repeatable",
        "PATH",
    ),
    Option(
        "ci",
        WORD,
        "`auto`: on GitHub, annotations at the tests and a step summary; on GitLab, a section of the log that folds. "
        "`off`: neither",
        "auto|off",
        "`auto`",
    ),
    Option(
        "tuners",
        NAMES,
        "Act only on these tuners, separated by commas, each with those below it: `triton`, `inductor`, `xla`, "
        "`function`, those of other packages",
        "NAMES",
        "all that are known",
    ),
    Option(
        "spread_gpus",
        SWITCH,
        "Under xdist, worker *i* sees only GPU *i* mod *n* of the *n* NVIDIA GPUs",
        default="off",
        has_ini=False,
    ),
    Option(
        "verify",
        SHARE,
        "Race loaded choices against the other candidates: of all hits, or of `2/7` the "
        "second of seven parts. A choice that is slower is listed, and replaced in a dump",
        "SHARE",
        has_ini=False,
    ),
    Option(
        "max_drift",
        LIMIT,
        "Fail the run when more than `N` choices, or `P%` of those raced, are slower",
        "N|P%",
        "no limit",
    ),
    Option("verify_seconds", SECONDS, "Seconds that each process spends on these races", "SECONDS", "300"),
    Option(
        "sweep",
        SWEEP,
        "Run each problem with one of its candidates, which the seed and the problem pick; nothing is loaded, measured "
        "or dumped. `2/5`: the second of five sweeps that together run up to five candidates of each problem",
        "SEED|I/K",
        has_ini=False,
    ),
    Option(
        "ignore",
        LINES,
        "Globs of `tuner:kernel` to leave alone, one on a line, such as `triton:mylib.fuzz.*`",
        has_flag=False,
    ),
    Option(
        "device_alias",
        PAIRS,
        "`NVIDIA H100 PCIe = NVIDIA H100 80GB HBM3`: the first may use the entries of the second",
        has_flag=False,
    ),
    Option(
        "keep_candidates",
        SWITCH,
        "Keep every candidate's time in the file, not only the choice",
        default="false",
        has_flag=False,
    ),
    Option(
        "plain_kernels",
        SWITCH,
        "Note in a dump what Triton's kernels without an autotuner are compiled for, too, so that a load compiles them "
        "ahead",
        default="false",
        has_flag=False,
    ),
    Option(
        "compile_ahead",
        WORD,
        "`on`: as soon as cores are idle, child processes compile the loaded choices of Triton's kernels before tests "
        "ask for them; `always`: whatever else runs on the machine",
        "on|off|always",
        "`on`",
    ),
    Option(
        "wait_timeout",
        SECONDS,
        "Seconds that one tuning waits in all for other workers' tunings and measurements",
        default="120",
        has_flag=False,
    ),
)


def add_options(parser: pytest.Parser) -> None:
    """Register the command-line options and ini values."""
    group = parser.getgroup("autotune", "autotuning cache")
    for option in OPTIONS:
        if option.has_flag:
            # The default is None, also of a switch: what the ini file says is then another thing than "off".
            more = {} if option.kind.action == "store_true" else {"metavar": option.metavar}
            more |= {"nargs": "?", "const": option.kind.alone} if option.kind.alone else {}
            help = option.plain_meaning.replace("%", "%%")
            group.addoption(option.flag, action=option.kind.action, default=None, help=help, **more)
        if option.has_ini:
            _add_ini(parser, option)


def _add_ini(parser: pytest.Parser, option: Option) -> None:
    add: Any = parser.addini
    if option.kind.ini_type != "number":
        add(option.ini, option.plain_meaning, type=option.kind.ini_type)
        return
    try:
        add(option.ini, option.plain_meaning, type=str | int | float, default=None)
    except (AssertionError, TypeError, ValueError):  # pytest before 9.2 knows no unions
        add(option.ini, option.plain_meaning)


def anything_set(config: pytest.Config) -> bool:
    """Whether this run sets any option or ini value of the plugin."""
    return any(
        (option.has_flag and config.getoption(option.ini, None)) or (option.has_ini and _ini_is_set(config, option))
        for option in OPTIONS
    )


def _ini_is_set(config: pytest.Config, option: Option) -> bool:
    try:
        return bool(config.getini(option.ini))
    except (TypeError, ValueError, pytest.UsageError):
        return True  # a value that makes no sense: reading it says so
