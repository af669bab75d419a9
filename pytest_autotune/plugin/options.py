"""The names by which users and xdist reach the plugin: the marker, and the table of all options.

The flags, the ini values and the texts of ``--help`` are made from the table. :mod:`pytest_autotune.plugin.values`
reads the values of the options.
"""

from __future__ import annotations

import argparse
from typing import Any

import pytest

from pytest_autotune.modes import MODES, Option
from pytest_autotune.report import FILES
from pytest_autotune.tuners import TUNERS

#: The name of the marker and of the fixture for the caches of a single test.
MARKER = "autotune_cache"
#: The plugin's key in xdist's ``workerinput`` and ``workeroutput``.
INPUT_KEY = "autotune"
#: The paths that pytest read from the command line or the ini file. Other plugins may replace ``config.args`` later.
PARSED_PATHS: pytest.StashKey[tuple[str, ...]] = pytest.StashKey()

#: The type of an ini value that may also be a number in TOML, which pytest knows since 9.2.
_NUMBER: Any = str | int | float if pytest.version_tuple >= (9, 2) else None
#: Pytest's type of an ini value, by the option's kind; all other kinds are text.
_INI_TYPES = {
    "seconds": _NUMBER,
    "limit": _NUMBER,
    "paths": "args",
    "names": "args",
    "switch": "bool",
    "lines": "linelist",
    "pairs": "linelist",
}
#: The action of a flag in argparse, by the option's kind; all other kinds store one value.
_ACTIONS = {"paths": "append", "switch": "store_true"}

OPTIONS = (
    Option(
        "load", "paths", "Use the choices in this cache. Repeatable; the last cache wins. Loading never writes", "PATH"
    ),
    Option("dump", "path", "Write the choices of this run into this cache; entries of other problems are kept", "PATH"),
    Option(
        "update",
        "word",
        "Tune missing and stale problems, and write them into the loaded cache. new: only missing problems. "
        "prune: also drop unused entries",
        "all|new|prune",
        only="flag",
        alone="all",
    ),
    Option(
        "on_miss",
        "word",
        "If a problem has no entry: tune it, use the first candidate or the choice of the nearest entry, or fail the "
        "test (error)",
        "tune|first|nearest|error",
        "tune",
    ),
    Option(
        "on_stale",
        "word",
        "If the entry of a problem is stale: tune again, use its choice, or fail the test (error)",
        "tune|use|error",
        "tune",
    ),
    Option("max_misses", "limit", "Fail the run if more than N or P% of the problems are no hits", "N|P%|off", "off"),
    Option("fail_on_unused", "switch", "Fail a complete run that did not use all loaded entries"),
    Option("report", "paths", f"Write a report to this file, which ends in {', '.join(FILES)}. Repeatable", "PATH"),
    Option(
        "tuners",
        "names",
        f"Use the cache only for these tuners: {', '.join(TUNERS)}, or a tuner of another package",
        "NAMES",
        "all",
    ),
    Option(
        "ignore", "lines", "Leave these kernels alone, globs of TUNER:KERNEL such as triton:mylib.fuzz.*", only="ini"
    ),
    Option("device_alias", "pairs", "Let DEVICE use the entries of OTHER, in lines DEVICE = OTHER", only="ini"),
    Option("keep_candidates", "switch", "Keep every candidate's time in the file, not only the choice", only="ini"),
    Option(
        "wait_timeout", "seconds", "Wait at most so many seconds for another worker's tuning", default="120", only="ini"
    ),
    Option("ci", "word", "auto: write annotations and a step summary on GitHub", "auto|off", "auto", only="ini"),
    Option("spread_gpus", "switch", "With pytest-xdist and n NVIDIA GPUs, show worker i only GPU i mod n", only="ini"),
    Option("debug", "switch", "Write tracebacks of the plugin's own errors to standard error", only="ini"),
    *(option for mode in MODES for option in mode.options),
)
#: Users try these flags, but the options are ini values: flag -> the name of the ini value.
_INI_ONLY_FLAGS = {option.flag: option.ini for option in OPTIONS if not option.is_flag}


class _IniOnlyFlag(argparse.Action):
    """Refuses a flag, because its option is an ini value."""

    def __call__(self, parser: object, namespace: object, values: object, flag: str | None = None) -> None:
        ini = _INI_ONLY_FLAGS[flag or ""]
        raise pytest.UsageError(f"{flag}: there is no such option (write -o {ini}=VALUE, or set it in the ini file)")


def add_options(parser: pytest.Parser) -> None:
    """Register the command-line options and ini values."""
    title = (
        "autotuning cache (command line: pytest-autotune --help; documentation: docs/reference.md of its repository)"
    )
    group = parser.getgroup("autotune", title)
    for option in OPTIONS:
        if option.is_flag:
            group.addoption(option.flag, **_list_flag_settings(option))
        if option.is_ini:
            parser.addini(option.ini, option.help_text, type=_INI_TYPES.get(option.kind), default=None)
    for flag in _INI_ONLY_FLAGS:
        group.addoption(flag, action=_IniOnlyFlag, nargs="?", help=argparse.SUPPRESS)


def _list_flag_settings(option: Option) -> dict[str, Any]:
    """Return the arguments that a flag has in :meth:`argparse.ArgumentParser.add_argument`."""
    action = _ACTIONS.get(option.kind, "store")
    # A switch has the default None, too: a switch that is not typed takes the value of the ini file.
    settings: dict[str, Any] = {"action": action, "default": None, "help": option.help_text.replace("%", "%%")}
    if action != "store_true":
        settings["metavar"] = option.metavar
    if option.alone:
        # The flag may be typed without a value.
        settings["nargs"] = "?"
        settings["const"] = option.alone
    return settings


def is_any_option_set(config: pytest.Config) -> bool:
    """Whether the command line or the ini file sets any option of the plugin."""
    for option in OPTIONS:
        if option.is_flag:
            # Pytest has the value of a flag under the name of the ini value.
            value = config.getoption(option.ini, None)
            # An empty text is typed, too: it may be an error.
            if value is not None:
                return True
        if option.is_ini:
            try:
                value = config.getini(option.ini)
                # An empty limit is an error.
                if value or (option.kind == "limit" and value is not None):
                    return True
            except (TypeError, ValueError, pytest.UsageError):
                # The value makes no sense. The code that reads it reports the error.
                return True
    return False


def has_marker_or_fixture(item: pytest.Item) -> bool:
    """Whether a test has the marker or the fixture, so that it may load caches of its own."""
    return item.get_closest_marker(MARKER) is not None or MARKER in getattr(item, "fixturenames", ())
