"""The one table of options: flags, ini values and ``--help`` come from it.

A run that asks for nothing imports this module, and not the one that reads values.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from pytest_autotune.modes import MODES, Option
from pytest_autotune.report.renderers import FILES
from pytest_autotune.tuners import TUNERS

#: Of a value that may also be a number in TOML.
_NUMBER: Any = str | int | float if pytest.version_tuple >= (9, 2) else None
#: Pytest's type of an ini value, by its kind; others are text.
_INI_TYPES = {
    "seconds": _NUMBER,
    "limit": _NUMBER,
    "paths": "args",
    "names": "args",
    "switch": "bool",
    "lines": "linelist",
    "pairs": "linelist",
}
_ACTIONS = {"paths": "append", "switch": "store_true"}

OPTIONS = (
    Option(
        "load",
        "paths",
        "Use these choices. Repeatable; the last one wins. Loading never writes. A missing or empty file is an error, "
        "unless it is also the dump path",
        "PATH",
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
        only="flag",
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
    ),
    Option(
        "fail_on_unused",
        "switch",
        "Fail a complete run that leaves loaded entries unused; a run of a part of the suite is not judged",
    ),
    Option("report", "paths", f"Write a report of the run: a name that ends in {', '.join(FILES)}. Repeatable", "PATH"),
    Option(
        "tuners",
        "names",
        f"Act only on these tuners, separated by commas, each with those below it: {', '.join(TUNERS)}, those of other "
        "packages",
        "NAMES",
        "all that are known",
    ),
    Option(
        "ignore", "lines", "Globs of tuner:kernel to bypass, one on a line, such as triton:mylib.fuzz.*", only="ini"
    ),
    Option(
        "device_alias",
        "pairs",
        "NVIDIA H100 PCIe = NVIDIA H100 80GB HBM3: the first may use the entries of the second",
        only="ini",
    ),
    Option("keep_candidates", "switch", "Keep every candidate's time in the file, not only the choice", only="ini"),
    Option(
        "wait_timeout",
        "seconds",
        "Seconds that one tuning waits in all for other workers' tunings and measurements",
        default="120",
        only="ini",
    ),
    Option(
        "ci",
        "word",
        "auto: on GitHub, annotations at the tests and a step summary. off: neither",
        "auto|off",
        "auto",
        only="ini",
    ),
    Option("spread_gpus", "switch", "Under xdist, worker i sees only GPU i mod n of the n NVIDIA GPUs", only="ini"),
    Option(
        "debug",
        "switch",
        "Write the tracebacks of errors that cost no test, but a line of the summary, to standard error",
        only="ini",
    ),
    *(option for mode in MODES for option in mode.options),
)
#: Flags of earlier versions, and what to write in their place.
OLD_FLAGS = {
    "--autotune-update-new-only": "write --autotune-update=new",
    "--autotune-prune": "write --autotune-update=prune, beside --autotune-load=PATH",
    "--autotune-ci": "write -o autotune_ci=off, or set it in the ini file",
    "--autotune-compile-ahead": "write -o autotune_compile_ahead=off, or set it in the ini file",
    "--autotune-verify-seconds": "write -o autotune_verify_seconds=300, or set it in the ini file",
    "--autotune-spread-gpus": "write -o autotune_spread_gpus=true, or set it in the ini file",
    "--autotune-night": "name the part, as in --autotune-verify=2/7",
    "--autotune-plain-kernels": "leave it out: a kernel without an autotuner has nothing to tune",
}


class _OldFlag(argparse.Action):
    """A flag that says what has replaced it."""

    def __call__(self, parser: object, namespace: object, values: object, flag: str | None = None) -> None:
        raise pytest.UsageError(f"{flag}: there is no such option any more ({OLD_FLAGS[flag or '']})")


def add_options(parser: pytest.Parser) -> None:
    """Register the command-line options and ini values."""
    about = (
        "autotuning cache (command line: pytest-autotune --help; documentation: docs/reference.md of its repository)"
    )
    group = parser.getgroup("autotune", about)
    for option in OPTIONS:
        action = _ACTIONS.get(option.kind, "store")
        if option.is_flag:
            # The default is None, also of a switch: what the ini file says is then another thing than "off".
            more = {} if action == "store_true" else {"metavar": option.metavar}
            more |= {"nargs": "?", "const": option.alone} if option.alone else {}
            group.addoption(option.flag, action=action, default=None, help=option.meaning.replace("%", "%%"), **more)
        if option.is_ini:
            parser.addini(option.ini, option.meaning, type=_INI_TYPES.get(option.kind), default=None)
    for flag in OLD_FLAGS:
        group.addoption(flag, action=_OldFlag, nargs="?", help=argparse.SUPPRESS)


def anything_set(config: pytest.Config) -> bool:
    """Whether this run sets any option or ini value of the plugin."""
    return any(_is_set(config, option) for option in OPTIONS)


def _is_set(config: pytest.Config, option: Option) -> bool:
    try:
        return bool(
            (option.is_flag and config.getoption(option.ini, None)) or (option.is_ini and config.getini(option.ini))
        )
    except (TypeError, ValueError, pytest.UsageError):
        return True  # a value that makes no sense: reading it says so
