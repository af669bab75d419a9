"""How the value of an option is read: from the command line, else from the ini file.

What a value is made of is imported when it is read: a run that asks for nothing imports this module. Nothing here
touches the file system: xdist's workers parse the same command line in their own folder.
"""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_autotune.cache.locations import Location
    from pytest_autotune.session.options import Option

_URL = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
#: Text that TOML may give as a number.
NUMBER = "number"


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
    """A path that is relative to ``base``, for a run that was started in the folder ``here``.

    :raises CacheError: for a URL.
    """
    from pytest_autotune.cache.errors import CacheError
    from pytest_autotune.cache.locations import Location

    if _URL.match(text):
        raise CacheError(text, "is a URL, and only files and folders can be named here", "name a path")
    typed = text
    if base != here and not text.startswith("~") and not os.path.isabs(text):
        typed = os.path.relpath(base / text, here) + ("/" if text.endswith("/") else "")
    return CacheArgument(Location.of(text, base, typed), given)


class Given:
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

    def parsed(self, parse: Callable[[str], Any]) -> Any:
        """The value by a parser that raises ValueError for what makes no sense; None where nothing is given."""
        try:
            return parse(self.text) if self.text else None
        except ValueError as error:
            raise self.refused(f"{error}{self.before_path}") from None

    def _in_ini_file(self) -> Any:
        try:
            return self.config.getini(self.option.ini)
        except (TypeError, ValueError, pytest.UsageError) as error:
            if self.option.kind.ini_type == NUMBER:
                # pytest 9.0 and 9.1 take no number in native TOML for a value that may also be text.
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    value = self.config.inicfg[self.option.ini]
                value = getattr(value, "value", value)
                if isinstance(value, (int, float)) and not isinstance(value, bool):
                    return value
            raise self.refused(error) from None


@dataclass(frozen=True)
class Kind:
    """A kind of values.

    :param read: what a value means.
    :param ini_type: of pytest's ini values; None is text.
    :param action: of argparse.
    """

    read: Callable[[Given], Any]
    ini_type: str | None = None
    action: str = "store"


def _paths(given: Given) -> tuple[CacheArgument, ...]:
    from pytest_autotune.cache.errors import CacheError

    config, here = given.config, given.config.invocation_params.dir
    base = here if given.is_typed or config.inipath is None else config.inipath.parent
    texts = [given.value] if isinstance(given.value, str) else given.value or ()
    try:
        return tuple(path_argument(text, base, given.where, here) for text in texts if text)
    except CacheError as error:
        raise given.refused(error) from None


def _word(given: Given) -> str:
    """One of the words that the option's metavar lists; the first one, which may be none, where nothing is given."""
    words = given.option.metavar.split("|")
    text = given.text or ("" if given.option.alone else words[0])
    if text and text not in words:
        raise given.refused(f"expected {' or '.join(words)}, not {text!r}{given.before_path}")
    return text


def _names(given: Given) -> tuple[str, ...] | None:
    from pytest_autotune.cache.model import library_of
    from pytest_autotune.tuners import TUNERS, third_party_tuners

    parts = given.value.split(",") if given.is_typed else given.value
    names = tuple(name for part in parts for name in part.replace(",", " ").split())
    known = list(TUNERS)
    if not {library_of(name) for name in names} <= set(known):
        known += [entry_point.name for entry_point in third_party_tuners()]
    for name in names:
        if library_of(name) not in known:
            raise given.refused(f"unknown tuner {name!r} (known: {', '.join(known)})")
    return names or None


def _pairs(given: Given) -> tuple[tuple[str, str], ...]:
    pairs = []
    for line in given.value:
        device, separator, other = (part.strip() for part in line.partition("="))
        if not (device and separator and other):
            raise given.refused(f"expected 'DEVICE = OTHER DEVICE', not {line!r}")
        pairs.append((device, other))
    return tuple(pairs)


def _seconds(given: Given) -> float:
    text = given.text or given.option.default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise given.refused(f"expected a number of seconds, not {text!r}")
    return seconds


def _limit(given: Given) -> Any:
    from pytest_autotune.report.gate import Limit

    return given.parsed(Limit.parse)


def _share(given: Given) -> Any:
    from pytest_autotune.run.verify import Share

    return given.parsed(Share.parse)


def parsed(parse: Callable[[str], Any], given: Given) -> Any:
    """The value by a parser; None where nothing is given."""
    return given.parsed(parse)


PATHS = Kind(_paths, "args", "append")
PATH = Kind(lambda given: next(iter(_paths(given)), None))
WORD = Kind(_word)
SWITCH = Kind(lambda given: bool(given.value), "bool", "store_true")
NAMES = Kind(_names, "args")
LINES = Kind(lambda given: tuple(given.value), "linelist")
PAIRS = Kind(_pairs, "linelist")
SECONDS = Kind(_seconds, NUMBER)
LIMIT = Kind(_limit, NUMBER)
SHARE = Kind(_share)
