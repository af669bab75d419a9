"""Reads the values of all options from the command line, else from the ini file.

Workers read the options again, so nothing here opens a file. The table of options, a row for each, is in
:mod:`pytest_autotune.plugin.options`.

The flags of ``addopts`` and ``PYTEST_ADDOPTS`` belong to the command line. The user *typed* a flag if it stands in the
command itself. A *mode* is something that a run does besides loading and dumping, such as ``--autotune-verify``. A
*gate* is an option that fails the run because of its caches, such as ``--autotune-max-misses``.
"""

from __future__ import annotations

import os
import re
import shlex
import warnings
from collections.abc import Callable, Mapping, Sequence
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
from pytest_autotune.run.session import Mode
from pytest_autotune.tuners import TUNERS, list_third_party_tuners

#: The options that judge the run by the loaded caches.
_GATES = ("max_misses", "fail_on_unused")
#: The options beside the dump path that ``--autotune-update`` sets itself.
_DECIDED_BY_UPDATE = ("on_miss", "on_stale")
#: The brackets that a summary shows after a device's name: ``NVIDIA H200 (sm_90, 132 multiprocessors)``. A device
#: without such a number shows its architecture alone, ``(xpu)``, which begins with a small letter or is empty. A name
#: may itself end in brackets, such as ``(R)`` or ``(TM)``: these stay.
_SHOWN_AFTER_NAME = re.compile(r" \(([^()]*, \d+ (multiprocessor|thread)s?|([a-z][^()\s]*)?)\)$")
#: The value of a limit that judges nothing. It undoes the limit of an ini file.
_NO_LIMIT = "off"
#: The end of a path whose cache may be absent: ``cache.pb?optional``. The store at a URL reads this option itself.
_OPTIONAL_SUFFIX = f"?{OPTIONAL}"


@dataclass(frozen=True)
class CacheArgument:
    """A path or URL that the user named.

    :param named_by: the flag, ini value or marker that named the path, for messages.
    :param is_optional: the cache, its tuner or its GPU may be absent.
    """

    location: Location
    named_by: str
    is_optional: bool = False

    @property
    def typed(self) -> str:
        """The path as a user types it on the command line of this run."""
        return str(self.location)

    @property
    def is_flag_value(self) -> bool:
        """Whether a flag names the path, also in ``addopts``. Otherwise an ini value or a marker names it."""
        return self.named_by.startswith("--")

    def is_same_as(self, other: CacheArgument) -> bool:
        """Whether both arguments name the same file or folder."""
        try:
            return self.location.resolved == other.location.resolved
        except CacheError:
            # The path cannot be resolved. The code that reads the cache reports this error.
            return False


def path_argument(text: str, base: Path, named_by: str, config: pytest.Config) -> CacheArgument:
    """Return the path or URL that a text names.

    :param text: a URL, or a path that is relative to ``base``.
    :param named_by: the flag, ini value or marker that named the path, for messages.
    :raises CacheError: for a URL of no store.
    """
    if is_url(text):
        location = Location.parse(text, base)
        return CacheArgument(replace(location, local_copy=find_cache_folder(config)), named_by)
    typed = _relative_to_invocation(text, base, config.invocation_params.dir)
    return CacheArgument(Location.parse(text, base, typed), named_by)


def _relative_to_invocation(text: str, base: Path, invocation_folder: Path) -> str:
    """Return a path that is relative to ``base`` as a user types it in the folder in which pytest was started."""
    if base == invocation_folder or text.startswith("~") or os.path.isabs(text):
        return text
    shortened = os.path.relpath(base / text, invocation_folder)
    if text.endswith("/"):
        shortened += "/"
    # relpath shortens "link/../cache.pb" to "cache.pb", which is another file if "link" is a link to a folder.
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
        if self.load or self.dump or self.update or self.report:
            return True
        # A gate without a loaded cache judges nothing. The plugin acts, to tell the user that nothing was judged.
        if self.max_misses or self.fail_on_unused:
            return True
        # "first" needs no cache: every problem is a miss, and each kernel takes its first candidate.
        if self.on_miss == "first" or self.spread_gpus:
            return True
        # A mode that only serves loaded caches, such as compile_ahead, is not among the modes of a run without them.
        return bool(self.modes)

    @property
    def has_only_optional_caches(self) -> bool:
        """Whether the run loads caches and writes none, and every loaded cache may be absent."""
        return bool(self.load) and not self.writes and all(argument.is_optional for argument in self.load)

    @property
    def updates(self) -> bool:
        """Whether the dump path is also loaded. Such a run uses the file's entries and tunes only missing problems."""
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
        """The policy of a process that runs tests, without the number of its compile threads."""
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
        """The arguments with which the next run tunes the missing and stale problems.

        An example: ``--autotune-load=cache.pb --autotune-update``. The arguments lack a path of the ini file, because
        the next run reads it from the ini file again. The text is empty if no loaded cache can be written.
        """
        if not self.load:
            return ""
        if self.dump is None and READ_ONLY in self.load[-1].location.options:
            # An update writes the last loaded cache, and this cache is read-only.
            return ""
        arguments = [f"--autotune-load={cache.typed}" for cache in self.load if cache.is_flag_value]
        if self.dump is None or self.dump.is_same_as(self.load[-1]):
            return shlex.join([*arguments, "--autotune-update"])
        # This run writes another path, and an update would write the last loaded cache. The arguments are therefore
        # those of this run, without the options that keep a run from tuning.
        if self.dump.is_flag_value:
            arguments.append(f"--autotune-dump={self.dump.typed}")
        if self.on_miss != "tune":
            arguments.append("--autotune-on-miss=tune")
        if self.on_stale != "tune":
            arguments.append("--autotune-on-stale=tune")
        return shlex.join(arguments)


def read_options(config: pytest.Config) -> Options:
    """Read all options of this run, and refuse options that contradict each other.

    :raises pytest.UsageError: for a value that makes no sense or contradicts another option, in one line.
    """
    options = _read_values(config)
    _refuse_gpus_without_workers(config, options)
    cacheless_mode = _find_cacheless_mode(options)
    if cacheless_mode is not None:
        _refuse_caches_beside(config, options, cacheless_mode)
        return _without_caches(options, cacheless_mode)
    # A worker cannot see what the user typed. The controller has checked this before it started the worker.
    is_worker = hasattr(config, "workerinput")
    if not is_worker:
        _refuse_gate_beside_writing(config, options)
    if options.update:
        if not is_worker:
            _refuse_beside_update(config, options)
        return _with_update(options)
    return options


def _read_values(config: pytest.Config) -> Options:
    """Return the options with the values of the command line and the ini file.

    :raises pytest.UsageError: for a value that makes no sense.
    """
    values = {option.name: _read_option(config, option) for option in OPTIONS}
    modes = _make_modes(config, values)
    # The modes have the values of their own options, so Options has no fields for them.
    for mode_row in MODES:
        for option in mode_row.options:
            del values[option.name]
    return Options(**values, modes=modes)


def _make_modes(config: pytest.Config, values: Mapping[str, Any]) -> tuple[Mode, ...]:
    """Return the modes that the options ask for.

    :param values: the values of all options by name.
    :raises pytest.UsageError: for an option of a mode that the user did not ask for.
    """
    modes = []
    for mode_row in MODES:
        mode_values = {option.name: values[option.name] for option in mode_row.options}
        _refuse_options_without_mode(config, mode_row, mode_values)
        mode = mode_row.make(mode_values)
        if mode is None:
            # No option asks for this mode.
            continue
        # For example, compile_ahead does nothing in a run that loads no cache.
        is_useless = mode.needs_loaded and not values["load"]
        if not is_useless:
            modes.append(mode)
    return tuple(modes)


def _refuse_gpus_without_workers(config: pytest.Config, options: Options) -> None:
    """Refuse ``-o autotune_spread_gpus=true`` in a run without xdist's workers.

    The ini file may set the option: the user then runs the suite with and without workers.

    :raises pytest.UsageError: if the command line sets the option.
    """
    if options.spread_gpus and _is_spread_gpus_typed(config) and not is_distributed(config):
        raise pytest.UsageError(
            "autotune_spread_gpus: GPUs are spread over xdist's workers, and this run has no workers (add -n=NUM)"
        )


def _refuse_beside_update(config: pytest.Config, options: Options) -> None:
    """Refuse options of the command line that a given update decides itself.

    ``--autotune-on-miss`` and ``--autotune-on-stale`` in ``addopts`` are no error beside an update that the user typed:
    ``addopts`` is meant for the other runs.

    :raises pytest.UsageError: for the first such option.
    """
    refused = ["dump"]
    for name in _DECIDED_BY_UPDATE:
        flag = f"--autotune-{name.replace('_', '-')}"
        is_for_other_runs = _is_typed(config, options.update_flag) and not _is_typed(config, flag)
        if not is_for_other_runs:
            refused.append(name)
    reason = f"{options.update_flag} always tunes, and always writes the loaded cache"
    _refuse_set_options(config, refused, reason)


def _with_update(options: Options) -> Options:
    """Return the options of an update: it tunes all problems that are no hits, and writes the last loaded cache.

    If no cache is loaded for all tests, the update writes the caches that tests load for themselves.
    """
    dump = None
    if options.load:
        dump = options.load[-1]
    return replace(options, dump=dump, on_miss="tune", on_stale="tune")


def _refuse_gate_beside_writing(config: pytest.Config, options: Options) -> None:
    """Refuse a gate of the command line in a run that writes the cache which the gate would judge.

    Such a run tunes each problem that is no hit, so the gate would judge nothing. A gate in ``addopts`` is no error if
    the user types the update: ``addopts`` is meant for the other runs.

    :raises pytest.UsageError: for the first such gate.
    """
    writing_option = _find_writing_option(options)
    if not writing_option:
        return
    gates = []
    # The limit "off" is no gate, and a limit of the ini file is no error.
    if options.max_misses is not None and config.getoption("autotune_max_misses") is not None:
        gates.append("--autotune-max-misses")
    if config.getoption("autotune_fail_on_unused"):
        gates.append("--autotune-fail-on-unused")
    for gate in gates:
        is_for_other_runs = _is_typed(config, writing_option) and not _is_typed(config, gate)
        if not is_for_other_runs:
            raise pytest.UsageError(
                f"{gate}: {writing_option} writes the cache, so there is nothing to check (leave one of the two out)"
            )


def _find_writing_option(options: Options) -> str:
    """Return the option that makes this run write the cache which a gate would judge; empty if there is none.

    Examples: ``--autotune-update=new``, ``autotune_dump (ini)``. A dump beside another loaded cache is no such option:
    the gate judges the loaded cache.
    """
    if options.update:
        return options.update_flag
    if options.dump is not None and (options.updates or not options.load):
        return options.dump.named_by
    return ""


def _is_typed(config: pytest.Config, flag: str) -> bool:
    """Whether the user typed a flag for this run; False for a flag of ``addopts`` or ``PYTEST_ADDOPTS``.

    :param flag: with or without a value, which does not matter: ``--autotune-update=new``.
    """
    name = flag.partition("=")[0]
    typed_names = [argument.partition("=")[0] for argument in config.invocation_params.args]
    return name in typed_names


def _refuse_options_without_mode(config: pytest.Config, mode_row: ModeRow, values: Mapping[str, Any]) -> None:
    """Refuse a mode's further options, such as ``--autotune-max-drift`` without ``--autotune-verify``.

    :param values: the values of the mode's options by name. The first option asks for the mode.
    :raises pytest.UsageError: for the first option of the command line whose mode is not asked for.
    """
    first_option, *further_options = mode_row.options
    if values[first_option.name]:
        return
    for option in further_options:
        if config.getoption(option.ini, None):
            raise pytest.UsageError(f"{option.flag}: {mode_row.without_mode} (add {first_option.flag})")


def _is_spread_gpus_typed(config: pytest.Config) -> bool:
    """Whether the command line sets ``autotune_spread_gpus`` by ``-o``."""
    overrides = config.getoption("override_ini", None) or ()
    return any(override.startswith("autotune_spread_gpus=") for override in overrides)


def _find_cacheless_mode(options: Options) -> Mode | None:
    """Return the mode that uses no caches, such as ``sweep``; None if the user asked for no such mode."""
    for mode in options.modes:
        if mode.error_with_caches:
            return mode
    return None


def _refuse_caches_beside(config: pytest.Config, options: Options, cacheless_mode: Mode) -> None:
    """Refuse a cache, a gate, or a mode that needs a loaded cache, beside a mode that uses no caches.

    :raises pytest.UsageError: for the first such option of the command line.
    """
    modes_with_caches = [mode.name for mode in options.modes if mode.error_without_loaded]
    names = ["load", "dump", "update", *_GATES, *modes_with_caches]
    _refuse_set_options(config, names, cacheless_mode.error_with_caches)


def _without_caches(options: Options, cacheless_mode: Mode) -> Options:
    """Return the options of a run whose only mode uses no caches.

    The caches and gates of the ini file are left out, so that users need no other ini file for such a run. An update
    cannot be set here, because it is only a flag.
    """
    return replace(
        options,
        load=(),
        dump=None,
        max_misses=None,
        fail_on_unused=False,
        modes=(cacheless_mode,),
        on_miss="tune",
        on_stale="tune",
    )


def is_distributed(config: pytest.Config) -> bool:
    """Whether xdist's workers run the tests: this process is a worker, or the workers' controller."""
    return hasattr(config, "workerinput") or config.getoption("dist", "no") != "no"


def _refuse_set_options(config: pytest.Config, names: Sequence[str], reason: str) -> None:
    """Raise an error if the command line sets one of some options that contradict another option.

    :param names: the names of the options, without ``autotune_``: ``on_miss``.
    :param reason: the words that the message has after the flag.
    :raises pytest.UsageError: for the first option that the user typed with a value that has an effect.
    """
    for name in names:
        value = config.getoption(f"autotune_{name}")
        # An empty value only undoes the value of the ini file.
        is_set = value not in (None, "", [])
        # --autotune-on-miss=tune is what happens without the option. --autotune-dump=tune names a path.
        is_default = name in ("on_miss", "on_stale") and value == "tune"
        if is_set and not is_default:
            raise pytest.UsageError(f"--autotune-{name.replace('_', '-')}: {reason} (leave one of the two out)")


def _read_option(config: pytest.Config, option: Option) -> Any:
    """Return the value of an option: of the command line, else of the ini file.

    An empty value on the command line is a value, too. The ini file's value is then not read.

    :raises pytest.UsageError: for a value that makes no sense.
    """
    flag_value: Any = None
    if option.is_flag:
        # Pytest has the value of a flag under the name of the ini value.
        flag_value = config.getoption(option.ini, None)
    is_flag_set = flag_value is not None
    named_by = option.flag if is_flag_set else f"{option.ini} (ini)"
    try:
        if is_flag_set:
            return _parse_flag_value(config, option, flag_value, named_by)
        return _parse_ini_value(config, option, named_by)
    except (CacheError, TypeError, ValueError, pytest.UsageError) as error:
        remedy = ""
        if option.alone:
            # In "pytest --autotune-update tests/", the flag takes the path as its value.
            remedy = f" (before a path, write {option.flag}={option.alone})"
        raise pytest.UsageError(f"{named_by}: {error}{remedy}") from None


def _parse_flag_value(config: pytest.Config, option: Option, value: Any, named_by: str) -> Any:
    """Return the parsed value of a flag. Paths are relative to the folder in which the user started pytest.

    :param named_by: the flag, for messages.
    """
    _refuse_empty_limit(option, value, option.flag)
    return _parse_value(config, option, value, named_by, config.invocation_params.dir)


def _parse_ini_value(config: pytest.Config, option: Option, named_by: str) -> Any:
    """Return the parsed value of the ini file; the option's default if the file has none.

    Paths are relative to the folder of the ini file.

    :param named_by: the name of the ini value, for messages.
    """
    value: Any = None
    if option.is_ini:
        value = _read_ini_value(config, option)
    _refuse_empty_limit(option, value, option.ini)
    folder = config.invocation_params.dir
    if config.inipath is not None:
        folder = config.inipath.parent
    return _parse_value(config, option, value, named_by, folder)


def _refuse_empty_limit(option: Option, value: Any, setting: str) -> None:
    """Refuse an empty limit, such as ``--autotune-max-misses=$LIMIT`` if the shell has no such variable.

    :param value: the value as pytest read it; None if the option is not set.
    :param setting: the flag or the ini value, as a user types it.
    :raises ValueError: if the option is a limit, and the value is empty.
    """
    if option.kind == "limit" and value is not None and not _strip_text(value):
        raise ValueError(f"the value is empty (is a variable unset?); use {setting}={_NO_LIMIT} for no limit")


def _parse_value(config: pytest.Config, option: Option, value: Any, named_by: str, folder: Path) -> Any:
    """Return the parsed value of an option; the option's default for the value None.

    :param value: the value as pytest read it.
    :param named_by: the flag or ini value that has the value, for messages.
    :param folder: the folder to which the paths in the value are relative.
    :raises ValueError: for a value that makes no sense, and :class:`CacheError` for a URL of no store.
    """
    if option.kind not in ("path", "paths"):
        return READERS[option.kind](value, option)
    caches_may_be_absent = option.name == "load"
    arguments = []
    for text in _list_path_texts(value):
        is_optional = caches_may_be_absent and text.endswith(_OPTIONAL_SUFFIX)
        # In a URL, "?optional" is an option of the store, which reads it later.
        if is_optional and not is_url(text):
            text = text.removesuffix(_OPTIONAL_SUFFIX)
        argument = path_argument(text, folder, named_by, config)
        arguments.append(replace(argument, is_optional=is_optional))
    if option.kind == "paths":
        return tuple(arguments)
    if not arguments:
        return None
    return arguments[0]


def _list_path_texts(value: str | Sequence[str] | None) -> list[str]:
    """Return the paths of an option's value. An empty path removes the paths before it.

    So ``--autotune-load= --autotune-load=b.pb`` loads ``b.pb`` alone, also if ``addopts`` loads ``a.pb``.

    :param value: a list for an option that may be repeated, else a text; None if the option is not set.
    """
    if value is None:
        return []
    if isinstance(value, str):
        value = [value]
    texts: list[str] = []
    for text in value:
        if text:
            texts.append(text)
        else:
            texts.clear()
    return texts


def _read_ini_value(config: pytest.Config, option: Option) -> Any:
    """Return the value that the ini file has for an option.

    :raises TypeError: if the type of the value is not the option's type.
    """
    try:
        return config.getini(option.ini)
    except TypeError:
        # In native TOML, a number is no text, and pytest before 9.2 refuses it. So the unchecked value is read.
        with warnings.catch_warnings():
            # Pytest warns that inicfg is deprecated.
            warnings.simplefilter("ignore")
            unchecked_value = config.inicfg[option.ini]
        # Some versions of pytest wrap the value in an object.
        unchecked_value = getattr(unchecked_value, "value", unchecked_value)
        # A bool is an int in Python, and no number here.
        is_number = type(unchecked_value) in (int, float)
        if is_number and option.kind in ("seconds", "limit"):
            return unchecked_value
        raise


def _strip_text(value: object) -> str:
    """Return a value as text without surrounding spaces; empty for None."""
    if value is None:
        return ""
    return str(value).strip()


def _read_word(value: object, option: Option) -> str:
    """Return a value that is one of the words of the option's metavar, such as ``tune|first|nearest|error``."""
    words = option.metavar.split("|")
    text = _strip_text(value)
    if not text:
        if option.alone:
            # The flag asks for something. The user did not type the flag, so nothing is asked for.
            return ""
        # The first word is the default.
        return words[0]
    if text not in words:
        raise ValueError(f"expected {' or '.join(words)}, not {text!r}")
    return text


def _read_switch(value: object, option: Option) -> bool:
    return bool(value)


def _read_tuner_names(value: str | Sequence[str] | None, option: Option) -> tuple[str, ...] | None:
    """Return the names of tuners in a value; None for all tuners.

    :param value: names with commas or spaces between them; a list in the ini file.
    """
    text = value or ""
    if not isinstance(text, str):
        text = " ".join(text)
    names = text.replace(",", " ").split()
    if not names:
        # Most runs name no tuner. To list the tuners of other packages, Python reads a file of each installed package.
        return None
    libraries = [*TUNERS, *(entry_point.name for entry_point in list_third_party_tuners())]
    for name in names:
        if library_of(name) not in libraries:
            raise ValueError(f"unknown tuner {name!r} (known: {', '.join(libraries)})")
    return tuple(names)


def _read_lines(value: Sequence[str] | None, option: Option) -> tuple[str, ...]:
    return tuple(value or ())


def _read_device_pairs(value: Sequence[str] | None, option: Option) -> tuple[tuple[str, str], ...]:
    return tuple(_read_device_pair(line) for line in value or ())


def _read_device_pair(line: str) -> tuple[str, str]:
    """Return the two device names of a line ``DEVICE = OTHER DEVICE``."""
    device_text, _, entry_device_text = line.partition("=")
    # A user may have copied a name from the summary, with the brackets that follow the name in a row.
    device = _SHOWN_AFTER_NAME.sub("", device_text.strip())
    entry_device = _SHOWN_AFTER_NAME.sub("", entry_device_text.strip())
    if not device or not entry_device:
        raise ValueError(f"expected 'DEVICE = OTHER DEVICE', not {line!r}")
    return device, entry_device


def _read_seconds(value: object, option: Option) -> float:
    text = _strip_text(value) or option.default
    with suppress(ValueError):
        seconds = float(text)
        if 0 <= seconds < float("inf"):
            return seconds
    raise ValueError(f"expected a number of seconds, not {text!r}")


def _read_limit(value: object, option: Option) -> Limit | None:
    """Return the limit of a gate; None for ``off``, and for an option that is not set."""
    text = _strip_text(value)
    if text in ("", _NO_LIMIT):
        return None
    return Limit.parse(text)


class _ModeValueReader:
    """Reads the value of an option that only a mode can parse. An empty value is read as None.

    :param parse: the mode's parser of text. It raises ValueError for text that makes no sense.
    """

    def __init__(self, parse: Callable[[str], Any]) -> None:
        self._parse = parse

    def __call__(self, value: object, option: Option) -> Any:
        text = _strip_text(value)
        if not text:
            return None
        return self._parse(text)


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
