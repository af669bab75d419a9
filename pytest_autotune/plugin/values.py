"""The values of options, from the command line, else from the ini file. Workers read them, too: no file is opened."""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import READ_ONLY, Location, is_url, resolve
from pytest_autotune.cache.model import library_of
from pytest_autotune.modes import MODES, Option
from pytest_autotune.plugin.options import OPTIONS
from pytest_autotune.report.gate import Limit
from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.mode import Mode
from pytest_autotune.tuners import TUNERS, third_party_tuners

_GATES = ("max_misses", "fail_on_unused")
_SHOWN_AFTER_NAME = re.compile(r" \([^()]*, \d+ (multiprocessor|thread)s?\)$")
_AGAINST_UPDATE = ("dump", "on_miss", "on_stale")


@dataclass(frozen=True)
class CacheArgument:
    """A path as the user named it; ``given`` is the flag, or the ini value, that did."""

    location: Location
    given: str

    @property
    def typed(self) -> str:
        """How the same path is typed on the command line of this run."""
        return str(self.location)

    def is_same_as(self, other: CacheArgument) -> bool:
        """Whether both name one file or folder."""
        try:
            return self.location.resolved == other.location.resolved
        except CacheError:  # raised again where that cache is read
            return False


def path_argument(text: str, base: Path, given: str, config: pytest.Config) -> CacheArgument:
    """A URL, or a path that is relative to ``base``.

    :raises CacheError: for a URL of no store.
    """
    here, typed = config.invocation_params.dir, text
    if is_url(text):
        location = Location.parse(text, base)
        return CacheArgument(replace(location, local_copy=cache_folder(config)), given)
    if base != here and not (text.startswith("~") or os.path.isabs(text)):
        typed = os.path.relpath(base / text, here) + ("/" if text.endswith("/") else "")
        if os.pardir in Path(text).parts and not _is_one_file(here / typed, base / text):
            typed = os.path.join(os.path.relpath(base, here), text)
    return CacheArgument(Location.parse(text, base, typed), given)


def _is_one_file(short: Path, path: Path) -> bool:
    """Whether a path without its ``..`` names the same file: the folder before one may be missing, or be a link."""
    try:
        return resolve(short) == resolve(path)
    except OSError:
        return False


def cache_folder(config: pytest.Config) -> Path | None:
    """Our folder in pytest's cache; None where there is none, or none can be made."""
    cache: Any = getattr(config, "cache", None)
    with suppress(OSError):  # a read-only tree
        if cache is not None:
            return Path(cache.mkdir("autotune"))
    return None


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
    def update_flag(self) -> str:
        """The flag of an update, as it is typed."""
        return "--autotune-update" if self.update == "all" else f"--autotune-update={self.update}"

    @property
    def policy(self) -> Policy:
        """What a process that runs tests is to do, as far as options say it."""
        return Policy(
            is_dumping=self.writes,
            on_miss=self.on_miss,
            on_stale=self.on_stale,
            tuners=self.tuners,
            ignore=self.ignore,
            device_aliases=dict(self.device_alias),
            modes=self.modes,
            debug=self.debug,
        )

    @property
    def update_arguments(self) -> str:
        """What to type for a run that tunes what is missing and keeps the rest; empty where nothing could keep it."""
        if not self.load or (self.dump is None and READ_ONLY in self.load[-1].location.options):
            return ""
        typed = [f"--autotune-load={load.typed}" for load in self.load if load.given.startswith("--")]
        if self.dump is None or self.dump.is_same_as(self.load[-1]):
            return shlex.join([*typed, "--autotune-update"])
        if self.dump.given.startswith("--"):
            typed.append(f"--autotune-dump={self.dump.typed}")
        words = {"miss": self.on_miss, "stale": self.on_stale}
        typed += [f"--autotune-on-{outcome}=tune" for outcome, word in words.items() if word != "tune"]
        return shlex.join(typed)


def read_options(config: pytest.Config) -> Options:
    """The options of this run.

    :raises pytest.UsageError: for a value that makes no sense, in one line.
    """
    found = {option.name: _read(config, option) for option in OPTIONS}
    of_modes = [(mode, {option.name: found.pop(option.name) for option in mode.options}) for mode in MODES]
    made = (mode.make(given) for mode, given in of_modes)
    modes = tuple(mode for mode in made if mode is not None and (found["load"] or not mode.needs_loaded))
    options = Options(**found, modes=modes)
    for mode, given in of_modes:
        asks, *others = mode.options
        for option in () if given[asks.name] else others:
            if config.getoption(option.ini, None):
                raise pytest.UsageError(f"{option.flag}: {mode.without} (add {asks.flag})")
    is_typed = any(given.startswith("autotune_spread_gpus=") for given in config.getoption("override_ini", None) or ())
    if options.spread_gpus and is_typed and not is_distributed(config):
        raise pytest.UsageError("autotune_spread_gpus: there are no workers to spread (add -n=NUM)")
    for alone in modes:
        if alone.without_caches:  # what the ini file loads is left out
            others_of_loads = [other.name for other in modes if other.without_loaded]
            _refuse_beside(config, alone.without_caches, "load", "dump", "update", *_GATES, *others_of_loads)
            without = replace(options, load=(), dump=None, max_misses=None, fail_on_unused=False, modes=(alone,))
            return replace(without, on_miss="tune", on_stale="tune")
    if options.update:
        _refuse_beside(config, f"{options.update_flag} tunes, and writes into what is loaded", *_AGAINST_UPDATE)
        # Without one that is loaded for all tests, the caches that tests load for themselves are updated.
        dump = options.load[-1] if options.load else None
        return replace(options, dump=dump, on_miss="tune", on_stale="tune")
    return options


def is_distributed(config: pytest.Config) -> bool:
    """Whether xdist's workers run the tests: this process is one, or their controller."""
    return hasattr(config, "workerinput") or config.getoption("dist", "no") != "no"


def _refuse_beside(config: pytest.Config, why: str, *names: str) -> None:
    for name in names:
        if config.getoption(f"autotune_{name}") not in (None, "", [], "tune"):
            raise pytest.UsageError(f"--autotune-{name.replace('_', '-')}: {why} (leave one of the two out)")


def _read(config: pytest.Config, option: Option) -> Any:
    """The value of an option. An empty one on the command line undoes what the ini file says."""
    value: Any = config.getoption(option.ini, None) if option.is_flag else None
    is_typed = value is not None
    where = option.flag if is_typed else f"{option.ini} (ini)"
    try:
        if not is_typed and option.is_ini:
            value = _in_ini_file(config, option)
        if option.kind not in ("path", "paths"):
            return READERS[option.kind](value, option)
        base = config.invocation_params.dir if is_typed or config.inipath is None else config.inipath.parent
        texts = ["", *([value] if isinstance(value, str) else value or ())]
        given = texts[len(texts) - texts[::-1].index("") :]  # an empty one undoes those before it
        paths = tuple(path_argument(text, base, where, config) for text in given)
        return paths if option.kind == "paths" else next(iter(paths), None)
    except (CacheError, TypeError, ValueError, pytest.UsageError) as error:
        # Such a flag may have taken the path after it for its value.
        before_path = f" (before a path, write {option.flag}={option.alone})" if option.alone else ""
        raise pytest.UsageError(f"{where}: {error}{before_path}") from None


def _in_ini_file(config: pytest.Config, option: Option) -> Any:
    try:
        return config.getini(option.ini)
    except TypeError:
        # Before 9.2, pytest takes no number in native TOML for a value that may also be text.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = config.inicfg[option.ini]
        value = getattr(value, "value", value)
        if option.kind in ("seconds", "limit") and type(value) in (int, float):
            return value
        raise


def _text(value: object) -> str:
    return "" if value is None else str(value).strip()


def _word(value: object, option: Option) -> str:
    """One of the words that the option's metavar lists; the first one, which may be none, where nothing is given."""
    words = option.metavar.split("|")
    text = _text(value) or ("" if option.alone else words[0])
    if text and text not in words:
        raise ValueError(f"expected {' or '.join(words)}, not {text!r}")
    return text


def _names(value: str | Sequence[str] | None, option: Option) -> tuple[str, ...] | None:
    parts = [value] if isinstance(value, str) else value or ()
    names = tuple(name for part in parts for name in part.replace(",", " ").split())
    known = [*TUNERS, *(entry_point.name for entry_point in third_party_tuners())]
    for name in names:
        if library_of(name) not in known:
            raise ValueError(f"unknown tuner {name!r} (known: {', '.join(known)})")
    return names or None


def _pair(line: str) -> tuple[str, str]:
    # By name: what rows show after it is left out where it was copied, too.
    device, _, other = (_SHOWN_AFTER_NAME.sub("", part.strip()) for part in line.partition("="))
    if not (device and other):
        raise ValueError(f"expected 'DEVICE = OTHER DEVICE', not {line!r}")
    return device, other


def _seconds(value: object, option: Option) -> float:
    text = _text(value) or option.default
    with suppress(ValueError):
        if 0 <= (seconds := float(text)) < float("inf"):
            return seconds
    raise ValueError(f"expected a number of seconds, not {text!r}")


def _by(parse: Callable[[str], Any]) -> Callable[[object, Option], Any]:
    """Reads a value by a parser of text; None where nothing is given."""
    return lambda value, option: parse(_text(value)) if _text(value) else None


#: How the value of an option is read, by its kind; ValueError where it makes no sense.
READERS: dict[str, Callable[[Any, Option], Any]] = {
    "word": _word,
    "switch": lambda value, option: bool(value),
    "names": _names,
    "lines": lambda value, option: tuple(value or ()),
    "pairs": lambda value, option: tuple(map(_pair, value or ())),
    "seconds": _seconds,
    "limit": _by(Limit.parse),
    **{mode.name: _by(mode.parse) for mode in MODES},
}
