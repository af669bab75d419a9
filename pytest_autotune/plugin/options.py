"""The one table of options: flags, ini values and ``--help`` come from it."""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from pytest_autotune.modes import MODES, Option
from pytest_autotune.report import FILES
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
    Option("load", "paths", "Use these choices; repeatable, the last one wins. Loading never writes", "PATH"),
    Option("dump", "path", "Write what was chosen in this run; entries of other problems are kept", "PATH"),
    Option(
        "update",
        "word",
        "Tune what the loaded cache lacks, and write it there. new: only add. prune: also drop unused entries",
        "all|new|prune",
        only="flag",
        alone="all",
    ),
    Option(
        "on_miss",
        "word",
        "first, nearest: do not tune, use the first candidate or the nearest entry's choice. error: fail the test",
        "tune|first|nearest|error",
        "tune",
    ),
    Option("on_stale", "word", "use: inject the stale choice. error: fail the test", "tune|use|error", "tune"),
    Option("max_misses", "limit", "Fail when more than N problems, or P% of them, were not hits", "N|P%", "no limit"),
    Option("fail_on_unused", "switch", "Fail a complete run that leaves loaded entries unused"),
    Option("report", "paths", f"Write a report: a name that ends in {', '.join(FILES)}; repeatable", "PATH"),
    Option("tuners", "names", f"Act only on these: {', '.join(TUNERS)}, those of other packages", "NAMES", "all"),
    Option("ignore", "lines", "Globs of tuner:kernel to bypass, such as triton:mylib.fuzz.*", only="ini"),
    Option("device_alias", "pairs", "DEVICE = OTHER: the first may use the entries of the second", only="ini"),
    Option("keep_candidates", "switch", "Keep every candidate's time in the file, not only the choice", only="ini"),
    Option("wait_timeout", "seconds", "Seconds that a tuning waits for other processes", default="120", only="ini"),
    Option("ci", "word", "auto: annotations and a step summary on GitHub", "auto|off", "auto", only="ini"),
    Option("spread_gpus", "switch", "Under xdist, worker i sees only GPU i mod n of the n NVIDIA GPUs", only="ini"),
    Option("debug", "switch", "Write tracebacks of errors that cost no test to standard error", only="ini"),
    *(option for mode in MODES for option in mode.options),
)
#: Flags of earlier versions, or of what is an ini value, and what to write in their place.
OLD_FLAGS = {
    "--autotune-update-new-only": "write --autotune-update=new",
    "--autotune-prune": "write --autotune-update=prune, beside --autotune-load=PATH",
    **{one.flag: f"write -o {one.ini}=VALUE, or set it in the ini file" for one in OPTIONS if not one.is_flag},
    "--autotune-night": "name the part, as in --autotune-verify=2/7",
    "--autotune-plain-kernels": "leave it out: a kernel without an autotuner has nothing to tune",
}


class _OldFlag(argparse.Action):
    """A flag that says what has replaced it."""

    def __call__(self, parser: object, namespace: object, values: object, flag: str | None = None) -> None:
        raise pytest.UsageError(f"{flag}: there is no such option ({OLD_FLAGS[flag or '']})")


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
    try:
        is_typed = any(config.getoption(option.ini, None) for option in OPTIONS if option.is_flag)
        return is_typed or any(config.getini(option.ini) for option in OPTIONS if option.is_ini)
    except (TypeError, ValueError, pytest.UsageError):
        return True  # a value that makes no sense: reading it says so
