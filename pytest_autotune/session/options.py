"""The one table of options: flags, ini values and ``--help`` come from it.

This is all that a run imports which asks for nothing: what the values mean is read in
:mod:`pytest_autotune.session.parsed_options`.
"""

from __future__ import annotations

import argparse
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Option:
    """A row of the table.

    :param name: ``max_misses`` of ``--autotune-max-misses`` and ``autotune_max_misses``.
    :param kind: how a value is read, in :mod:`pytest_autotune.session.parsed_options`.
    :param help: what it does.
    :param metavar: the value in words; the words themselves, the default first, with ``|`` between them.
    :param default: in words, where it is more than nothing.
    :param action: of argparse; empty where there is no flag.
    :param ini_type: of pytest's ini values; ``"number"`` is text that TOML may give as a number; empty: there is none.
    :param alone: what the flag means without a value; empty where it takes one.
    """

    name: str
    kind: str
    help: str
    metavar: str = ""
    default: str = ""
    action: str = "store"
    ini_type: str = "string"
    alone: str = ""

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
        return f"{self.help} (default: {self.default})" if self.default else self.help


OPTIONS = (
    Option(
        "load",
        "paths",
        "Use these choices. Repeatable; the last one wins. Loading never writes. A missing or empty file is an error, "
        "unless it is also the dump path",
        "PATH",
        action="append",
        ini_type="args",
    ),
    Option(
        "dump",
        "path",
        "Write what was chosen in this run. Problems of this run are added or replaced, all others kept",
        "PATH",
    ),
    Option(
        "update",
        "word",
        "Write into the cache that is loaded, the last one of several: what is missing or stale is tuned and replaced, "
        "whatever the ini file says of on_miss and on_stale. new: only add, entries that are there stay as they are, "
        "stale ones too. prune: also drop the unused entries, after a complete run",
        "all|new|prune",
        ini_type="",
        alone="all",
    ),
    Option(
        "on_miss",
        "word",
        "For a miss, stale or mismatch. first: nothing is tuned, the tuner's first candidate that works is used. "
        "nearest: the choice of the kernel's nearest entry is, where it is a candidate. "
        "Both count and are listed as misses, and never written. error: the test that asked fails at once",
        "tune|first|nearest|error",
        "tune",
    ),
    Option(
        "on_stale",
        "word",
        "use: inject the stale choice while it is still a candidate; it is listed as stale all the same. "
        "error: the test that asked fails at once",
        "tune|use|error",
        "tune",
    ),
    Option(
        "max_misses",
        "limit",
        "Fail the run when more than N problems, or P% of them, were not hits",
        "N|P%",
        "no limit",
        ini_type="number",
    ),
    Option(
        "fail_on_unused",
        "switch",
        "Fail a complete run that leaves loaded entries unused; a run of a part of the suite is not judged",
        action="store_true",
        ini_type="bool",
    ),
    Option(
        "report",
        "paths",
        "Write a report of the run: .html, .md or .json. Repeatable",
        "PATH",
        action="append",
        ini_type="args",
    ),
    Option(
        "tuners",
        "names",
        "Act only on these tuners, separated by commas, each with those below it: triton, inductor, xla, function, "
        "those of other packages",
        "NAMES",
        "all that are known",
        ini_type="args",
    ),
    Option(
        "verify",
        "share",
        "Race loaded choices against the other candidates: of all hits, or of 2/7 the second of seven parts. A choice "
        "that is slower is listed, and replaced in a dump",
        "all|I/K",
        ini_type="",
        alone="all",
    ),
    Option(
        "max_drift",
        "limit",
        "Fail the run when more than N choices, or P% of those raced, are slower",
        "N|P%",
        "no limit",
        ini_type="number",
    ),
    Option(
        "sweep",
        "sweep",
        "Run each problem with one of its candidates, which the seed and the problem pick; nothing is loaded, measured "
        "or dumped. 2/5: the second of five sweeps that together run up to five candidates of each problem",
        "SEED|I/K",
        ini_type="",
    ),
    Option(
        "ignore",
        "lines",
        "Globs of tuner:kernel to leave alone, one on a line, such as triton:mylib.fuzz.*",
        action="",
        ini_type="linelist",
    ),
    Option(
        "device_alias",
        "pairs",
        "NVIDIA H100 PCIe = NVIDIA H100 80GB HBM3: the first may use the entries of the second",
        action="",
        ini_type="linelist",
    ),
    Option(
        "keep_candidates",
        "switch",
        "Keep every candidate's time in the file, not only the choice",
        action="",
        ini_type="bool",
    ),
    Option(
        "wait_timeout",
        "seconds",
        "Seconds that one tuning waits in all for other workers' tunings and measurements",
        default="120",
        action="",
        ini_type="number",
    ),
    Option(
        "ci",
        "word",
        "auto: on GitHub, annotations at the tests and a step summary. off: neither",
        "auto|off",
        "auto",
        action="",
    ),
    Option(
        "compile_ahead",
        "word",
        "on: threads compile the loaded choices of Triton's kernels before tests ask for them, where each process has "
        "more than one core; always: whatever else runs on the machine",
        "on|off|always",
        "on",
        action="",
    ),
    Option(
        "verify_seconds",
        "seconds",
        "Seconds that each process spends on the races of --autotune-verify",
        default="300",
        action="",
        ini_type="number",
    ),
    Option(
        "spread_gpus",
        "switch",
        "Under xdist, worker i sees only GPU i mod n of the n NVIDIA GPUs",
        action="",
        ini_type="bool",
    ),
    Option(
        "debug",
        "switch",
        "Write the tracebacks of errors that cost no test, but a line of the summary, to standard error",
        action="",
        ini_type="bool",
    ),
)

#: Flags that there were, by the names of their values, and what to write now.
OLD_FLAGS = {
    "update_new_only": "write --autotune-update=new",
    "prune": "write --autotune-load=PATH --autotune-update=prune, which writes into the cache that it loads",
    "ci": "write -o autotune_ci=off, or set it in the ini file",
    "compile_ahead": "write -o autotune_compile_ahead=off, or set it in the ini file",
    "verify_seconds": "write -o autotune_verify_seconds=300, or set it in the ini file",
    "spread_gpus": "write -o autotune_spread_gpus=true, or set it in the ini file",
    "night": "name the part, as in --autotune-verify=2/7",
}


def add_options(parser: pytest.Parser) -> None:
    """Register the command-line options and ini values."""
    about = (
        "autotuning cache (command line: pytest-autotune --help; documentation: docs/reference.md of its repository)"
    )
    group = parser.getgroup("autotune", about)
    for option in OPTIONS:
        if option.action:
            # The default is None, also of a switch: what the ini file says is then another thing than "off".
            more = {} if option.action == "store_true" else {"metavar": option.metavar}
            more |= {"nargs": "?", "const": option.alone} if option.alone else {}
            help = option.meaning.replace("%", "%%")
            group.addoption(option.flag, action=option.action, default=None, help=help, **more)
        if option.ini_type:
            _add_ini(parser, option)
    for name in OLD_FLAGS:
        flag = f"--autotune-{name.replace('_', '-')}"
        group.addoption(flag, dest=f"old_autotune_{name}", nargs="?", const="", default=None, help=argparse.SUPPRESS)


def _add_ini(parser: pytest.Parser, option: Option) -> None:
    add: Any = parser.addini
    if option.ini_type != "number":
        # pytest 8.0 knows no type of this name.
        add(option.ini, option.meaning, type=None if option.ini_type == "string" else option.ini_type)
        return
    try:
        add(option.ini, option.meaning, type=str | int | float, default=None)
    except (AssertionError, TypeError, ValueError):  # pytest before 9.2 knows no unions
        add(option.ini, option.meaning)


def anything_set(config: pytest.Config) -> bool:
    """Whether this run sets any option or ini value of the plugin."""
    return any(_is_set(config, option) for option in OPTIONS) or bool(old_flag(config))


def _is_set(config: pytest.Config, option: Option) -> bool:
    if option.action and config.getoption(option.ini, None):
        return True
    try:
        return bool(option.ini_type and config.getini(option.ini))
    except (TypeError, ValueError, pytest.UsageError):
        return True  # a value that makes no sense: reading it says so


def old_flag(config: pytest.Config) -> str:
    """The name of the first flag that there was, and is given all the same; empty where none is."""
    return next((name for name in OLD_FLAGS if config.getoption(f"old_autotune_{name}", None) is not None), "")
