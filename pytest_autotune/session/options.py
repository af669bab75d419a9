"""What the user asked for: command line and ini, parsed, validated, immutable.

Nothing here touches the file system: xdist's workers parse the same command line
in their own folder.
"""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.cache.model import library_of
from pytest_autotune.report.faces import SUFFIXES as REPORT_SUFFIXES
from pytest_autotune.report.gate import MissLimit
from pytest_autotune.session.command_line import ON_MISS, ON_STALE
from pytest_autotune.tuners import TUNERS, third_party_tuners

WAIT_TIMEOUT_S = 120.0
_NUMBERS = ("autotune_max_misses", "autotune_wait_timeout")


@dataclass(frozen=True)
class CacheArgument:
    """A path as the user named it.

    :param text: what was written.
    :param base: the folder that it is relative to.
    :param given: where it was written: a flag, or the name of an ini value.
    :param typed: how the same path is typed on the command line of this run.
    """

    text: str
    base: Path
    given: str
    typed: str

    @property
    def location(self) -> str:
        """The absolute path as text; keeps a trailing slash, which means a folder of entries."""
        path = str(self.base / os.path.expanduser(self.text))
        return path + "/" if self.text.endswith("/") else path

    def same_place(self, other: CacheArgument) -> bool:
        """Whether both name one file or folder."""
        return os.path.realpath(self.location) == os.path.realpath(other.location)


@dataclass(frozen=True)
class Options:
    """Everything the user asked for."""

    load: tuple[CacheArgument, ...] = ()
    dump: CacheArgument | None = None
    prune: bool = False
    on_miss: str = "tune"
    on_stale: str = "tune"
    max_misses: MissLimit | None = None
    reports: tuple[CacheArgument, ...] = ()
    tuners: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    device_alias: tuple[tuple[str, str], ...] = ()
    keep_candidates: bool = False
    spread_gpus: bool = False
    wait_timeout_s: float = WAIT_TIMEOUT_S

    @property
    def active(self) -> bool:
        """Whether the user asked for anything to happen in this run."""
        # A limit alone judges nothing, and a run has to say so: a load may have been forgotten.
        return bool(self.load or self.dump or self.reports or self.max_misses or self.spread_gpus)

    @property
    def updates(self) -> bool:
        """Whether the dump path is also loaded: what is there is kept, what is missing is tuned."""
        return self.dump is not None and any(load.same_place(self.dump) for load in self.load)


def read_options(config: pytest.Config) -> Options:
    """Combine command line and ini values of this run.

    :raises pytest.UsageError: for a value that makes no sense, in one line.
    """
    reader = _Reader(config)
    dump = next(iter(reader.paths("dump")), None)
    reports = reader.paths("report")
    for report in reports:
        if Path(report.text).suffix not in REPORT_SUFFIXES:
            known = ", ".join(REPORT_SUFFIXES)
            problem = f"unknown kind of report (use a name that ends in {known})"
            raise pytest.UsageError(f"{report.given}: {report.typed}: {problem}")
    prune = bool(config.getoption("autotune_prune"))
    if prune and dump is None:
        raise pytest.UsageError("--autotune-prune: nothing to prune without a dump (add --autotune-dump=PATH)")
    return Options(
        load=reader.paths("load"),
        dump=dump,
        prune=prune or reader.ini("prune"),
        on_miss=reader.choice("on_miss", ON_MISS),
        on_stale=reader.choice("on_stale", ON_STALE),
        max_misses=_limit(reader),
        reports=reports,
        tuners=_tuners(reader),
        ignore=tuple(reader.ini("ignore")),
        device_alias=_aliases(reader.ini("device_alias")),
        keep_candidates=reader.ini("keep_candidates"),
        spread_gpus=bool(config.getoption("autotune_spread_gpus")),
        wait_timeout_s=_seconds(reader),
    )


class _Reader:
    """Reads a value from the command line, else from the ini file.

    An empty value on the command line undoes what the ini file says.
    """

    def __init__(self, config: pytest.Config) -> None:
        self.config = config

    def text(self, name: str) -> str:
        """The value as text; empty where there is none."""
        option = self.config.getoption(f"autotune_{name}", None)
        value = self.ini(name) if option is None else option
        return "" if value is None else str(value).strip()

    def paths(self, name: str) -> tuple[CacheArgument, ...]:
        """The paths that a value names."""
        config, where, here = self.config, self.where(name), self.config.invocation_params.dir
        given = config.getoption(f"autotune_{name}", None)
        base = here if given is not None or config.inipath is None else config.inipath.parent
        value = self.ini(name) if given is None else given
        texts = [value] if isinstance(value, str) else value or ()
        return tuple(path_argument(text, base, where, here) for text in texts if text)

    def ini(self, name: str) -> Any:
        """The ini value.

        :raises pytest.UsageError: for a value that pytest cannot convert.
        """
        key = f"autotune_{name}"
        try:
            return self.config.getini(key)
        except (TypeError, ValueError, pytest.UsageError) as error:
            if key in _NUMBERS and (number := self._native_number(key)) is not None:
                return number
            raise pytest.UsageError(f"{key} (ini): {error}") from None

    def _native_number(self, key: str) -> float | None:
        # pytest 9.0 and 9.1 take no number in native TOML for a value that may also be text.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = self.config.inicfg[key]
        value = getattr(value, "value", value)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None

    def where(self, name: str) -> str:
        """How the user spelt this option: its flag, or its ini name."""
        given = self.config.getoption(f"autotune_{name}", None) is not None
        return f"--autotune-{name.replace('_', '-')}" if given else f"autotune_{name} (ini)"

    def choice(self, name: str, choices: tuple[str, ...]) -> str:
        text = self.text(name) or choices[0]
        if text not in choices:
            raise pytest.UsageError(f"{self.where(name)}: expected {' or '.join(choices)}, not {text!r}")
        return text


def path_argument(text: str, base: Path, given: str, here: Path) -> CacheArgument:
    """A path that is relative to ``base``, for a run that was started in the folder ``here``."""
    typed = text
    if base != here and not text.startswith("~") and not os.path.isabs(text):
        typed = os.path.relpath(base / text, here) + ("/" if text.endswith("/") else "")
    return CacheArgument(text, base, given, typed)


def _limit(reader: _Reader) -> MissLimit | None:
    text = reader.text("max_misses")
    if not text:
        return None
    try:
        return MissLimit.parse(text)
    except ValueError as error:
        raise pytest.UsageError(f"{reader.where('max_misses')}: {error}") from None


def _tuners(reader: _Reader) -> tuple[str, ...] | None:
    given = reader.config.getoption("autotune_tuners", None)
    parts = given.split(",") if given is not None else reader.ini("tuners")
    names = tuple(name for part in parts for name in part.replace(",", " ").split())
    known = list(TUNERS)
    if not {library_of(name) for name in names} <= set(known):
        known += [entry_point.name for entry_point in third_party_tuners()]
    for name in names:
        if library_of(name) not in known:
            raise pytest.UsageError(f"{reader.where('tuners')}: unknown tuner {name!r} (known: {', '.join(known)})")
    return names or None


def _aliases(lines: list[str]) -> tuple[tuple[str, str], ...]:
    pairs = []
    for line in lines:
        device, separator, other = (part.strip() for part in line.partition("="))
        if not (device and separator and other):
            raise pytest.UsageError(f"autotune_device_alias (ini): expected 'DEVICE = OTHER DEVICE', not {line!r}")
        pairs.append((device, other))
    return tuple(pairs)


def _seconds(reader: _Reader) -> float:
    text = reader.text("wait_timeout")
    if not text:
        return WAIT_TIMEOUT_S
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise pytest.UsageError(f"autotune_wait_timeout (ini): expected a number of seconds, not {text!r}")
    return seconds
