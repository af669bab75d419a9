"""What a run is asked for: the values of its options, from the command line, else from the ini file.

Nothing here touches the file system: xdist's workers parse the same command line in their own folder.
"""

from __future__ import annotations

import os
import shlex
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location, is_url
from pytest_autotune.cache.model import library_of
from pytest_autotune.modes import MODES, Option
from pytest_autotune.report.gate import Limit
from pytest_autotune.report.renderers import SUFFIXES, renderer_of
from pytest_autotune.run.mode import Mode
from pytest_autotune.session.options import INI_TYPES, NUMBER, OPTIONS
from pytest_autotune.tuners import TUNERS, third_party_tuners


@dataclass(frozen=True)
class CacheArgument:
    """A path as the user named it.

    :param given: where it was written: a flag, or the name of an ini value.
    """

    location: Location
    given: str

    @property
    def typed(self) -> str:
        """How the same path is typed on the command line of this run."""
        return str(self.location)

    def is_same_as(self, other: CacheArgument) -> bool:
        """Whether both name one file or folder."""
        return self.location.real == other.location.real


def path_argument(text: str, base: Path, given: str, here: Path) -> CacheArgument:
    """A URL, or a path that is relative to ``base``, for a run that was started in the folder ``here``.

    :raises CacheError: for a URL of no store.
    """
    typed = text
    if base != here and not (text.startswith("~") or os.path.isabs(text) or is_url(text)):
        typed = os.path.relpath(base / text, here) + ("/" if text.endswith("/") else "")
    return CacheArgument(Location.of(text, base, typed), given)


@dataclass(frozen=True)
class Options:
    """Everything the user asked for: a field for each row of the table."""

    load: tuple[CacheArgument, ...]
    dump: CacheArgument | None
    update: str
    on_miss: str
    on_stale: str
    max_misses: Limit | None
    fail_on_unused: bool
    report: tuple[CacheArgument, ...]
    tuners: tuple[str, ...] | None
    ignore: tuple[str, ...]
    device_alias: tuple[tuple[str, str], ...]
    keep_candidates: bool
    wait_timeout: float
    ci: str
    spread_gpus: bool
    debug: bool
    modes: tuple[Mode, ...]

    @property
    def active(self) -> bool:
        """Whether the user asked for anything to happen in this run."""
        # A limit alone judges nothing, and a run has to say so: a load may have been forgotten.
        asks = self.load or self.dump or self.update or self.report or self.max_misses or self.fail_on_unused
        return bool(asks or self.spread_gpus or self.on_miss == "first" or any(map(str, self.modes)))

    @property
    def updates(self) -> bool:
        """Whether the dump path is also loaded: what is there is kept, what is missing is tuned."""
        return self.dump is not None and any(load.is_same_as(self.dump) for load in self.load)

    @property
    def writes(self) -> bool:
        """Whether what is chosen is written down: into the dump path, or by an update into the caches of tests."""
        return self.dump is not None or bool(self.update)

    @property
    def update_arguments(self) -> str:
        """What to type for a run that tunes what is missing and keeps the rest; empty where nothing is loaded."""
        if not self.load:
            return ""
        typed = [f"--autotune-load={load.typed}" for load in self.load if load.given.startswith("--")]
        if self.dump is None or self.dump.is_same_as(self.load[-1]):
            return shlex.join([*typed, "--autotune-update"])
        if self.dump.given.startswith("--"):
            typed.append(f"--autotune-dump={self.dump.typed}")
        if self.on_miss != "tune":
            typed.append("--autotune-on-miss=tune")
        if self.on_stale != "tune":
            typed.append("--autotune-on-stale=tune")
        return shlex.join(typed)


def read_options(config: pytest.Config) -> Options:
    """Combine command line and ini values of this run.

    :raises pytest.UsageError: for a value that makes no sense, in one line.
    """
    found = {option.name: READERS[option.kind](_Given(config, option)) for option in OPTIONS}
    of_modes = [(mode, {option.name: found.pop(option.name) for option in mode.options}) for mode in MODES]
    made = (mode.make(given) for mode, given in of_modes)
    modes = tuple(mode for mode in made if mode is not None and (found["load"] or not mode.needs_loaded))
    options = Options(**found, modes=modes)
    for report in options.report:
        if report.location.url:
            raise pytest.UsageError(f"{report.given}: {report.typed}: is a URL, and a report is a file (name a path)")
        if renderer_of(report.location.path) is None:
            problem = f"unknown kind of report (use a name that ends in {', '.join(SUFFIXES)})"
            raise pytest.UsageError(f"{report.given}: {report.typed}: {problem}")
    for mode, given in of_modes:
        asks, *others = mode.options
        for option in () if given[asks.name] else others:
            if config.getoption(option.ini, None):
                raise pytest.UsageError(f"{option.flag}: {mode.without} (add {asks.flag})")
    asked_now = any(given.startswith("autotune_spread_gpus=") for given in config.getoption("override_ini", None) or ())
    is_distributed = hasattr(config, "workerinput") or config.getoption("dist", "no") != "no"
    if options.spread_gpus and asked_now and not is_distributed:
        raise pytest.UsageError("autotune_spread_gpus: there are no workers to spread (add -n=NUM)")
    alone = next((mode for mode in modes if mode.without_caches), None)
    if alone is not None:
        return _without_caches(config, options, alone)
    return _updating(config, options) if options.update else options


def _updating(config: pytest.Config, options: Options) -> Options:
    """The options of a run that writes into what it loads."""
    flag = "--autotune-update" if options.update == "all" else f"--autotune-update={options.update}"
    dump = options.dump if config.getoption("autotune_dump") else None
    if not options.load and dump is not None:
        instead = f"write --autotune-load={dump.typed} for the dump"
        raise pytest.UsageError(f"{flag}: nothing is loaded, so there is nothing to update ({instead})")
    for name in ("on_miss", "on_stale"):
        word = config.getoption(f"autotune_{name}")
        if word not in (None, "", "tune"):
            option = f"--autotune-{name.replace('_', '-')}={word}"
            raise pytest.UsageError(f"{flag}: {option} would leave nothing to update (leave one of them out)")
    if dump is not None and not options.updates:
        raise pytest.UsageError(
            f"{flag}: writes into {options.load[-1].typed}, which is loaded, and --autotune-dump={dump.typed} names "
            "another cache (leave one of them out)"
        )
    # Without one that is loaded for all tests, the caches that tests load for themselves are updated.
    return replace(options, dump=options.load[-1] if options.load else None, on_miss="tune", on_stale="tune")


def _without_caches(config: pytest.Config, options: Options, mode: Mode) -> Options:
    """The options of a mode without caches: what the ini file loads is left out, and what is typed is refused."""
    others = [other.name for other in options.modes if other.without_loaded]
    for name in ("load", "dump", "update", "max_misses", "fail_on_unused", *others):
        if config.getoption(f"autotune_{name}"):
            raise pytest.UsageError(
                f"--autotune-{name.replace('_', '-')}: {mode.without_caches} (leave one of the two out)"
            )
    without = replace(options, load=(), dump=None, max_misses=None, fail_on_unused=False, modes=(mode,))
    return replace(without, on_miss="tune", on_stale="tune")


class _Given:
    """What is given for an option. An empty value on the command line undoes what the ini file says.

    :raises pytest.UsageError: for an ini value that pytest cannot convert.
    """

    def __init__(self, config: pytest.Config, option: Option) -> None:
        self.config = config
        self.option = option
        self.value: Any = config.getoption(option.ini, None) if option.is_flag else None
        self.is_typed = self.value is not None
        #: The flag, or the ini value, as the user spelt it.
        self.where = option.flag if self.is_typed else f"{option.ini} (ini)"
        #: What to write in place of a flag that has taken the path after it for its value.
        self.before_path = f" (before a path, write {option.flag}={option.alone})" if option.alone else ""
        if not self.is_typed and option.is_ini:
            self.value = self._in_ini_file()

    @property
    def text(self) -> str:
        """The value as text; empty where there is none."""
        return "" if self.value is None else str(self.value).strip()

    def refused(self, problem: object) -> pytest.UsageError:
        """The error of a value that makes no sense."""
        return pytest.UsageError(f"{self.where}: {problem}")

    def _in_ini_file(self) -> Any:
        try:
            return self.config.getini(self.option.ini)
        except (TypeError, ValueError, pytest.UsageError) as error:
            if INI_TYPES.get(self.option.kind) == NUMBER:
                # pytest 9.0 and 9.1 take no number in native TOML for a value that may also be text.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    value = self.config.inicfg[self.option.ini]
                value = getattr(value, "value", value)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    return value
            raise self.refused(error) from None


def _paths(given: _Given) -> tuple[CacheArgument, ...]:
    config, here = given.config, given.config.invocation_params.dir
    base = here if given.is_typed or config.inipath is None else config.inipath.parent
    texts = [given.value] if isinstance(given.value, str) else given.value or ()
    try:
        return tuple(path_argument(text, base, given.where, here) for text in texts if text)
    except CacheError as error:
        raise given.refused(error) from None


def _word(given: _Given) -> str:
    """One of the words that the option's metavar lists; the first one, which may be none, where nothing is given."""
    words = given.option.metavar.split("|")
    text = given.text or ("" if given.option.alone else words[0])
    if text and text not in words:
        raise given.refused(f"expected {' or '.join(words)}, not {text!r}{given.before_path}")
    return text


def _names(given: _Given) -> tuple[str, ...] | None:
    parts = given.value.split(",") if given.is_typed else given.value
    names = tuple(name for part in parts for name in part.replace(",", " ").split())
    known = list(TUNERS)
    if not {library_of(name) for name in names} <= set(known):
        known += [entry_point.name for entry_point in third_party_tuners()]
    for name in names:
        if library_of(name) not in known:
            raise given.refused(f"unknown tuner {name!r} (known: {', '.join(known)})")
    return names or None


def _pairs(given: _Given) -> tuple[tuple[str, str], ...]:
    pairs = []
    for line in given.value:
        device, separator, other = (part.strip() for part in line.partition("="))
        if not (device and separator and other):
            raise given.refused(f"expected 'DEVICE = OTHER DEVICE', not {line!r}")
        pairs.append((device, other))
    return tuple(pairs)


def _seconds(given: _Given) -> float:
    text = given.text or given.option.default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise given.refused(f"expected a number of seconds, not {text!r}")
    return seconds


def _by(parse: Callable[[str], Any]) -> Callable[[_Given], Any]:
    """Reads a value by a parser that raises ValueError for what makes no sense; None where nothing is given."""

    def read(given: _Given) -> Any:
        try:
            return parse(given.text) if given.text else None
        except ValueError as error:
            raise given.refused(f"{error}{given.before_path}") from None

    return read


#: How the value of an option is read, by its kind.
READERS: dict[str, Callable[[_Given], Any]] = {
    "paths": _paths,
    "path": lambda given: next(iter(_paths(given)), None),
    "word": _word,
    "switch": lambda given: bool(given.value),
    "names": _names,
    "lines": lambda given: tuple(given.value),
    "pairs": _pairs,
    "seconds": _seconds,
    "limit": _by(Limit.parse),
    **{mode.name: _by(mode.parse) for mode in MODES},
}
