"""The command-line options and ini values, as pytest registers them.

This is all that a run imports which asks for nothing: what the values mean is
read in :mod:`pytest_autotune.session.options`.
"""

from __future__ import annotations

from typing import Any

import pytest

ON_MISS = ("tune", "error")
ON_STALE = ("tune", "use", "error")

_NUMBER = "number"
_INI: tuple[tuple[str, str | None, Any, str], ...] = (
    ("autotune_load", "args", [], "caches to load, relative to the ini file"),
    ("autotune_dump", None, "", "where to write what was chosen, relative to the ini file"),
    ("autotune_prune", "bool", False, "drop the entries that a complete run did not ask for"),
    ("autotune_on_miss", None, "", "tune or error"),
    ("autotune_on_stale", None, "", "tune, use or error"),
    ("autotune_max_misses", _NUMBER, None, "allowed misses: N or P%"),
    ("autotune_report", "args", [], "reports to write, relative to the ini file"),
    ("autotune_tuners", "args", [], "tuners to act on"),
    ("autotune_ignore", "linelist", [], "globs of tuner:kernel to leave alone, one on a line"),
    ("autotune_device_alias", "linelist", [], "lines 'DEVICE = OTHER': DEVICE may use the entries of OTHER"),
    ("autotune_keep_candidates", "bool", False, "keep every candidate's time in the dumped cache"),
    ("autotune_wait_timeout", _NUMBER, None, "seconds to wait for another worker's tuning or measurement"),
)
_OPTIONS = ("load", "dump", "prune", "on_miss", "on_stale", "max_misses", "report", "tuners", "spread_gpus")


def add_options(parser: pytest.Parser) -> None:
    """Register the command-line options and ini values."""
    group = parser.getgroup("autotune", "autotuning cache")
    option = group.addoption
    option(
        "--autotune-load",
        action="append",
        metavar="PATH",
        help="inject the choices of this cache (repeatable; the last one wins; empty: load nothing)",
    )
    option(
        "--autotune-dump",
        metavar="PATH",
        help="write what was chosen in this run to PATH: .textproto, .pb, .yaml, .json, or a folder ending in /",
    )
    option(
        "--autotune-prune",
        action="store_true",
        default=None,
        help="with --autotune-dump: drop the entries that a complete run did not ask for",
    )
    option(
        "--autotune-on-miss",
        metavar="|".join(ON_MISS),
        help="what a lookup without a usable entry does (default: tune)",
    )
    option(
        "--autotune-on-stale",
        metavar="|".join(ON_STALE),
        help="what a stale entry does: tune, use its choice if still on offer, error (default: tune)",
    )
    option(
        "--autotune-max-misses",
        metavar="N|P%",
        help="fail the run when more than N problems, or P%% of them, were not hits",
    )
    option("--autotune-report", action="append", metavar="PATH", help="write a report of the run (.json; repeatable)")
    option(
        "--autotune-tuners", metavar="NAMES", help="act only on these tuners, separated by commas, matched by prefix"
    )
    option(
        "--autotune-spread-gpus",
        action="store_true",
        help="under xdist, let worker i see only GPU i mod n of the n NVIDIA GPUs",
    )
    for name, type_, default, help in _INI:
        if type_ == _NUMBER:
            _add_number_ini(parser, name, help)
        else:
            parser.addini(name, help, type=type_, default=default)  # type: ignore[arg-type]


def _add_number_ini(parser: pytest.Parser, name: str, help: str) -> None:
    """Register an ini value that may be a string or, in pytest's native TOML, a number."""
    add: Any = parser.addini
    try:
        add(name, help, type=str | int | float, default=None)
    except (AssertionError, TypeError, ValueError):  # pytest before 9.2 knows no unions
        add(name, help)


def anything_set(config: pytest.Config) -> bool:
    """Whether this run sets any option or ini value of the plugin."""
    return any(config.getoption(f"autotune_{name}", None) for name in _OPTIONS) or any(
        _ini_is_set(config, name) for name, *_ in _INI
    )


def _ini_is_set(config: pytest.Config, name: str) -> bool:
    try:
        return bool(config.getini(name))
    except (TypeError, ValueError, pytest.UsageError):
        return True  # a value that makes no sense: reading it tells
