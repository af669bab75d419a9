"""Reads the values of all options from the command line, else from the ini file.

Workers read the options again, so nothing here opens a file. The table of options is in
:mod:`pytest_autotune.plugin.options`.
"""

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
from pytest_autotune.cache.locations import OPTIONAL, READ_ONLY, Location, is_url, resolve
from pytest_autotune.cache.model import library_of
from pytest_autotune.modes import MODES, ModeRow, Option
from pytest_autotune.plugin.options import OPTIONS
from pytest_autotune.report.gate import Limit
from pytest_autotune.run.lookup import Policy
from pytest_autotune.run.mode import Mode
from pytest_autotune.tuners import TUNERS, list_third_party_tuners

_GATES = ("max_misses", "fail_on_unused")
_SHOWN_AFTER_NAME = re.compile(r" \([^()]*, \d+ (multiprocessor|thread)s?\)$")
_AGAINST_UPDATE = ("dump", "on_miss", "on_stale")
#: The value of a limit that judges nothing. It undoes the limit of an ini file.
_NO_LIMIT = "off"
#: The end of a path whose cache may be absent. At a URL, the store reads this option, too.
_OPTIONAL_SUFFIX = f"?{OPTIONAL}"


@dataclass(frozen=True)
class CacheArgument:
    """A path or URL that the user named.

    :param source: the flag, ini value or marker that named the path, for messages.
    :param is_optional: the cache, its tuner or its GPU may be absent.
    """

    location: Location
    source: str
    is_optional: bool = False

    @property
    def typed(self) -> str:
        """The path as a user types it on the command line of this run."""
        return str(self.location)

    def is_same_as(self, other: CacheArgument) -> bool:
        """Whether both name one file or folder."""
        try:
            return self.location.resolved == other.location.resolved
        except CacheError:
            # The code that reads this cache reports the error.
            return False


def path_argument(text: str, base: Path, source: str, config: pytest.Config) -> CacheArgument:
    """Return the path or URL that a text names.

    :param text: a URL, or a path that is relative to ``base``.
    :param source: the flag, ini value or marker that named the path, for messages.
    :raises CacheError: for a URL of no store.
    """
    if is_url(text):
        location = Location.parse(text, base)
        return CacheArgument(replace(location, local_copy=find_cache_folder(config)), source)
    typed = _relative_to_invocation(text, base, config.invocation_params.dir)
    return CacheArgument(Location.parse(text, base, typed), source)


def _relative_to_invocation(text: str, base: Path, invocation_folder: Path) -> str:
    """Return a path that is relative to ``base`` as a user types it in the folder in which pytest was started."""
    if base == invocation_folder or text.startswith("~") or os.path.isabs(text):
        return text
    shortened = os.path.relpath(base / text, invocation_folder)
    if text.endswith("/"):
        shortened += "/"
    # relpath removes "..", which names another file if the folder before it is missing or a link.
    if os.pardir in Path(text).parts and not _is_same_file(invocation_folder / shortened, base / text):
        return os.path.join(os.path.relpath(base, invocation_folder), text)
    return shortened


def _is_same_file(first: Path, second: Path) -> bool:
    try:
        return resolve(first) == resolve(second)
    except OSError:
        return False


def find_cache_folder(config: pytest.Config) -> Path | None:
    """Return the plugin's folder in pytest's cache, and make it; None if the cache is switched off or read-only."""
    cache: Any = getattr(config, "cache", None)
    if cache is None:
        return None
    try:
        return Path(cache.mkdir("autotune"))
    except OSError:
        return None


@dataclass(frozen=True)
class Options:
    """The values of all options: a field for each row of the table, and the modes that the user asked for."""

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
        """Whether any option asks the plugin to act in this run."""
        # A gate without a load judges nothing. The run starts all the same and says so: the user may have forgotten it.
        if self.load or self.dump or self.update or self.report or self.max_misses or self.fail_on_unused:
            return True
        if self.spread_gpus or self.on_miss == "first":
            return True
        return any(str(mode) for mode in self.modes)

    @property
    def has_only_optional_caches(self) -> bool:
        """Whether the run loads caches, each of which may be absent, and writes none."""
        return bool(self.load) and not self.writes and all(argument.is_optional for argument in self.load)

    @property
    def updates(self) -> bool:
        """Whether the dump path is also loaded, so that the run keeps the file's entries and tunes what is missing."""
        return self.dump is not None and any(load.is_same_as(self.dump) for load in self.load)

    @property
    def writes(self) -> bool:
        """Whether the run writes a cache: the dump path, or, in an update, the caches that tests load."""
        return self.dump is not None or bool(self.update)

    @property
    def update_flag(self) -> str:
        """The flag of this update, as a user types it."""
        if self.update == "all":
            return "--autotune-update"
        return f"--autotune-update={self.update}"

    @property
    def policy(self) -> Policy:
        """The policy of a process that runs tests; the process adds its number of compile threads."""
        return Policy(
            is_dumping=self.writes,
            on_miss=self.on_miss,
            on_stale=self.on_stale,
            tuners=self.tuners,
            ignore=self.ignore,
            device_aliases=dict(self.device_alias),
            debug=self.debug,
        )

    @property
    def update_arguments(self) -> str:
        """The arguments of a run that tunes only missing problems; empty if no loaded cache can be written."""
        if not self.load or (self.dump is None and READ_ONLY in self.load[-1].location.options):
            return ""
        typed = [f"--autotune-load={load.typed}" for load in self.load if load.source.startswith("--")]
        if self.dump is None or self.dump.is_same_as(self.load[-1]):
            return shlex.join([*typed, "--autotune-update"])
        if self.dump.source.startswith("--"):
            typed.append(f"--autotune-dump={self.dump.typed}")
        if self.on_miss != "tune":
            typed.append("--autotune-on-miss=tune")
        if self.on_stale != "tune":
            typed.append("--autotune-on-stale=tune")
        return shlex.join(typed)


def read_options(config: pytest.Config) -> Options:
    """Read all options of this run.

    :raises pytest.UsageError: for a value that makes no sense, in one line.
    """
    values = {option.name: _read_option(config, option) for option in OPTIONS}
    modes = []
    for row in MODES:
        mode_values = {option.name: values.pop(option.name) for option in row.options}
        _refuse_options_without_mode(config, row, mode_values)
        mode = row.make(mode_values)
        if mode is not None and (values["load"] or not mode.needs_loaded):
            modes.append(mode)
    options = Options(**values, modes=tuple(modes))
    if options.spread_gpus and _is_spread_gpus_typed(config) and not is_distributed(config):
        raise pytest.UsageError("autotune_spread_gpus: there are no workers to spread (add -n=NUM)")
    for mode in modes:
        if mode.without_caches:
            return _with_only_mode(config, options, mode)
    # The controller has refused what is wrong. A worker has another command line than the user typed.
    if not hasattr(config, "workerinput"):
        _refuse_unjudged_gate(config, options)
    if options.update:
        _refuse_beside(config, f"{options.update_flag} tunes, and writes into what is loaded", *_AGAINST_UPDATE)
        # If no cache is loaded for all tests, the update writes the caches that tests load for themselves.
        dump = options.load[-1] if options.load else None
        return replace(options, dump=dump, on_miss="tune", on_stale="tune")
    return options


def _refuse_unjudged_gate(config: pytest.Config, options: Options) -> None:
    """Refuse a gate of the command line in a run that writes its cache anew, so that the gate would judge nothing.

    A user may type an update although a gate stands in ``addopts``.

    :raises pytest.UsageError: for the first such gate.
    """
    if options.update:
        writing_flag = writer = options.update_flag
    elif options.dump is not None and (options.updates or not options.load):
        writing_flag, writer = "--autotune-dump", options.dump.source
    else:
        return
    is_limit_typed = options.max_misses is not None and config.getoption("autotune_max_misses") is not None
    gates = {
        "--autotune-max-misses": is_limit_typed,
        "--autotune-fail-on-unused": bool(config.getoption("autotune_fail_on_unused")),
    }
    for flag, is_typed in gates.items():
        if not is_typed:
            continue
        if _is_on_command_line(config, writing_flag) and not _is_on_command_line(config, flag):
            continue
        raise pytest.UsageError(f"{flag}: {writer} writes the cache, so nothing is judged (leave one of the two out)")


def _is_on_command_line(config: pytest.Config, flag: str) -> bool:
    """Whether the user typed a flag for this run; False for a flag of ``addopts`` or ``PYTEST_ADDOPTS``."""
    name = flag.partition("=")[0]
    return any(argument.partition("=")[0] == name for argument in config.invocation_params.args)


def _refuse_options_without_mode(config: pytest.Config, mode: ModeRow, values: dict[str, Any]) -> None:
    """Refuse a mode's further options if its first option, which asks for the mode, is not set.

    :raises pytest.UsageError: for the first such option.
    """
    first_option, *further_options = mode.options
    if values[first_option.name]:
        return
    for option in further_options:
        if config.getoption(option.ini, None):
            raise pytest.UsageError(f"{option.flag}: {mode.without_mode} (add {first_option.flag})")


def _is_spread_gpus_typed(config: pytest.Config) -> bool:
    """Whether the command line sets ``autotune_spread_gpus`` by ``-o``."""
    overrides = config.getoption("override_ini", None) or ()
    return any(override.startswith("autotune_spread_gpus=") for override in overrides)


def _with_only_mode(config: pytest.Config, options: Options, mode: Mode) -> Options:
    """Return the options of a run with a mode that needs a run without caches. Caches of the ini file are left out.

    :raises pytest.UsageError: if the command line asks for a cache, a gate, or another mode that needs a cache.
    """
    modes_that_load = [other.name for other in options.modes if other.without_loaded]
    _refuse_beside(config, mode.without_caches, "load", "dump", "update", *_GATES, *modes_that_load)
    return replace(
        options,
        load=(),
        dump=None,
        max_misses=None,
        fail_on_unused=False,
        modes=(mode,),
        on_miss="tune",
        on_stale="tune",
    )


def is_distributed(config: pytest.Config) -> bool:
    """Whether xdist's workers run the tests: this process is a worker, or the workers' controller."""
    return hasattr(config, "workerinput") or config.getoption("dist", "no") != "no"


def _refuse_beside(config: pytest.Config, reason: str, *names: str) -> None:
    """Refuse options of the command line that contradict another option.

    :param reason: the words that the message has after the flag.
    :param names: the names of the options to refuse, without ``autotune_``.
    :raises pytest.UsageError: for the first option that the command line sets.
    """
    for name in names:
        if config.getoption(f"autotune_{name}") not in (None, "", [], "tune"):
            raise pytest.UsageError(f"--autotune-{name.replace('_', '-')}: {reason} (leave one of the two out)")


def _read_option(config: pytest.Config, option: Option) -> Any:
    """Return the value of an option. An empty value on the command line replaces the value of the ini file.

    :raises pytest.UsageError: for a value that makes no sense.
    """
    value: Any = config.getoption(option.ini, None) if option.is_flag else None
    is_typed = value is not None
    source = option.flag if is_typed else f"{option.ini} (ini)"
    try:
        if is_typed and option.kind == "limit":
            _refuse_empty_limit(value, option)
        if not is_typed and option.is_ini:
            value = _read_ini_value(config, option)
        if option.kind not in ("path", "paths"):
            return READERS[option.kind](value, option)
        is_relative_to_ini_file = not is_typed and config.inipath is not None
        base = config.inipath.parent if is_relative_to_ini_file and config.inipath else config.invocation_params.dir
        paths = []
        for text in _list_path_texts(value):
            is_optional = option.name == "load" and text.endswith(_OPTIONAL_SUFFIX)
            if is_optional and not is_url(text):
                text = text.removesuffix(_OPTIONAL_SUFFIX)
            paths.append(replace(path_argument(text, base, source, config), is_optional=is_optional))
    except (CacheError, TypeError, ValueError, pytest.UsageError) as error:
        # A flag whose value is optional may have taken the path after it for its value.
        remedy = f" (before a path, write {option.flag}={option.alone})" if option.alone else ""
        raise pytest.UsageError(f"{source}: {error}{remedy}") from None
    if option.kind == "paths":
        return tuple(paths)
    return paths[0] if paths else None


def _refuse_empty_limit(text: str, option: Option) -> None:
    """Refuse an empty limit on the command line.

    :raises ValueError: if the text is empty.
    """
    if not text.strip():
        raise ValueError(
            f"the value is empty, as of a variable that is not set (write {option.flag}={_NO_LIMIT} to judge nothing)"
        )


def _list_path_texts(value: str | Sequence[str] | None) -> list[str]:
    """Return the paths of an option's value. An empty path removes the paths before it."""
    if isinstance(value, str):
        return [value] if value else []
    texts: list[str] = []
    for text in value or ():
        if text:
            texts.append(text)
        else:
            texts.clear()
    return texts


def _read_ini_value(config: pytest.Config, option: Option) -> Any:
    """Return the value that the ini file has for an option.

    :raises TypeError: for a value of another type than the option has.
    """
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


def _strip_text(value: object) -> str:
    """Return a value as text without surrounding spaces; empty for None."""
    return "" if value is None else str(value).strip()


def _read_word(value: object, option: Option) -> str:
    """Return a word of the option's metavar. Without a value it is empty for an optional word, else the first word."""
    words = option.metavar.split("|")
    text = _strip_text(value)
    if not text:
        return "" if option.alone else words[0]
    if text not in words:
        raise ValueError(f"expected {' or '.join(words)}, not {text!r}")
    return text


def _read_switch(value: object, option: Option) -> bool:
    return bool(value)


def _read_tuner_names(value: str | Sequence[str] | None, option: Option) -> tuple[str, ...] | None:
    """Return names of tuners, which commas or spaces separate; None for all tuners."""
    texts = [value] if isinstance(value, str) else value or ()
    names: list[str] = []
    for text in texts:
        names += text.replace(",", " ").split()
    libraries = [*TUNERS, *(entry_point.name for entry_point in list_third_party_tuners())]
    for name in names:
        if library_of(name) not in libraries:
            raise ValueError(f"unknown tuner {name!r} (known: {', '.join(libraries)})")
    return tuple(names) or None


def _read_lines(value: Sequence[str] | None, option: Option) -> tuple[str, ...]:
    return tuple(value or ())


def _read_device_pairs(value: Sequence[str] | None, option: Option) -> tuple[tuple[str, str], ...]:
    return tuple(_read_device_pair(line) for line in value or ())


def _read_device_pair(line: str) -> tuple[str, str]:
    """Return the two device names of a line ``DEVICE = OTHER DEVICE``."""
    # A user may have copied a name from the summary with the brackets that a row shows after it.
    device, _, other = (_SHOWN_AFTER_NAME.sub("", part.strip()) for part in line.partition("="))
    if not (device and other):
        raise ValueError(f"expected 'DEVICE = OTHER DEVICE', not {line!r}")
    return device, other


def _read_seconds(value: object, option: Option) -> float:
    text = _strip_text(value) or option.default
    with suppress(ValueError):
        seconds = float(text)
        if 0 <= seconds < float("inf"):
            return seconds
    raise ValueError(f"expected a number of seconds, not {text!r}")


def _read_limit(value: object, option: Option) -> Limit | None:
    """Return the limit of a gate; None for ``off``, and for an empty value of an ini file."""
    text = _strip_text(value)
    return None if text in ("", _NO_LIMIT) else Limit.parse(text)


class _ModeValueReader:
    """Reads a value by a mode's parser of text; None for an empty value.

    :param parse: the parser of a mode's option; raises ValueError.
    """

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def __call__(self, value: object, option: Option) -> Any:
        text = _strip_text(value)
        return self._parse(text) if text else None


#: The reader of an option's value, by the option's kind. A reader raises ValueError for a value that makes no sense.
READERS: dict[str, Callable[[Any, Option], Any]] = {
    "word": _read_word,
    "switch": _read_switch,
    "names": _read_tuner_names,
    "lines": _read_lines,
    "pairs": _read_device_pairs,
    "seconds": _read_seconds,
    "limit": _read_limit,
    **{mode.name: _ModeValueReader(mode.parse) for mode in MODES},
}
