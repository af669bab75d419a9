"""What the user asked for: command line and ini, parsed, validated, immutable.

Nothing here touches the file system: xdist's workers parse the same command line
in their own folder.
"""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import pytest

from pytest_autotune.cache.model import library_of
from pytest_autotune.report.faces import SUFFIXES, face_of
from pytest_autotune.report.gate import Limit
from pytest_autotune.run.sweep import Sweep
from pytest_autotune.run.verify import Share, Verification
from pytest_autotune.session import options as table
from pytest_autotune.session.options import OPTIONS, Option
from pytest_autotune.session.paths import CacheArgument, path_argument
from pytest_autotune.tuners import TUNERS, third_party_tuners


@dataclass(frozen=True)
class Options:
    """Everything the user asked for: a field for each row of :data:`pytest_autotune.session.options.OPTIONS`.

    :param verify_seconds: of each process.
    :param wait_timeout: in seconds.
    """

    load: tuple[CacheArgument, ...]
    dump: CacheArgument | None
    update: bool
    update_new_only: bool
    prune: bool
    on_miss: str
    on_stale: str
    max_misses: Limit | None
    fail_on_unused: bool
    report: tuple[CacheArgument, ...]
    ci: str
    tuners: tuple[str, ...] | None
    spread_gpus: bool
    verify: Share | None
    max_drift: Limit | None
    verify_seconds: float
    sweep: Sweep | None
    ignore: tuple[str, ...]
    device_alias: tuple[tuple[str, str], ...]
    keep_candidates: bool
    plain_kernels: bool
    compile_ahead: str
    wait_timeout: float

    @property
    def active(self) -> bool:
        """Whether the user asked for anything to happen in this run."""
        # A limit alone judges nothing, and a run has to say so: a load may have been forgotten.
        asks = self.load or self.dump or self.report or self.max_misses or self.spread_gpus or self.sweep
        return bool(asks or self.verify or self.fail_on_unused or self.on_miss == "first")

    @property
    def verification(self) -> Verification | None:
        """What is to be raced again."""
        return None if self.verify is None else Verification(self.verify, self.verify_seconds)

    @property
    def updates(self) -> bool:
        """Whether the dump path is also loaded: what is there is kept, what is missing is tuned."""
        return self.dump is not None and any(load.is_same_as(self.dump) for load in self.load)

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
    options = Options(**{option.name: _READERS[option.kind](_Given(config, option)) for option in OPTIONS})
    if (options.update or options.update_new_only) and options.sweep is None:
        options = _updating(config, options)
    for report in options.report:
        if face_of(report.location.path) is None:
            known = ", ".join(SUFFIXES)
            problem = f"unknown kind of report (use a name that ends in {known})"
            raise pytest.UsageError(f"{report.given}: {report.typed}: {problem}")
    if config.getoption("autotune_max_drift") and options.verify is None:
        raise pytest.UsageError("--autotune-max-drift: no choice is raced again (add --autotune-verify)")
    if config.getoption("autotune_verify_seconds") and options.verify is None:
        raise pytest.UsageError("--autotune-verify-seconds: no choice is raced again (add --autotune-verify)")
    if options.sweep is not None:
        return _without_caches(config, options)
    if config.getoption("autotune_prune") and options.dump is None:
        raise pytest.UsageError("--autotune-prune: nothing to prune without a dump (add --autotune-dump=PATH)")
    return options


def _updating(config: pytest.Config, options: Options) -> Options:
    """The options of a run that writes into what it loads."""
    if options.update and options.update_new_only:
        raise pytest.UsageError(
            "--autotune-update-new-only: leaves stale entries as they are, and --autotune-update replaces them "
            "(leave one of them out)"
        )
    flag = "--autotune-update-new-only" if options.update_new_only else "--autotune-update"
    if not options.load:
        raise pytest.UsageError(f"{flag}: nothing is loaded, so there is nothing to update (add --autotune-load=PATH)")
    for name in ("on_miss", "on_stale"):
        word = config.getoption(f"autotune_{name}")
        if word not in (None, "", "tune"):
            option = f"--autotune-{name.replace('_', '-')}={word}"
            raise pytest.UsageError(f"{flag}: {option} would leave nothing to update (leave one of them out)")
    if options.update_new_only and config.getoption("autotune_prune"):
        raise pytest.UsageError(
            f"{flag}: leaves what is there as it is, and --autotune-prune drops entries (leave one of them out)"
        )
    prune = options.prune and not options.update_new_only  # the ini file's gives way
    dump = options.dump if config.getoption("autotune_dump") else None
    if dump is not None and not options.updates:
        raise pytest.UsageError(
            f"{flag}: writes into {options.load[-1].typed}, which is loaded, and --autotune-dump={dump.typed} names "
            "another cache (leave one of them out)"
        )
    return replace(options, dump=dump or options.load[-1], prune=prune, on_miss="tune", on_stale="tune")


def _without_caches(config: pytest.Config, options: Options) -> Options:
    """The options of a sweep: what the ini file loads for other runs is left out, and what is typed is refused."""
    for name in ("load", "dump", "update", "update_new_only", "prune", "max_misses", "fail_on_unused", "verify"):
        if config.getoption(f"autotune_{name}"):
            raise pytest.UsageError(
                f"--autotune-{name.replace('_', '-')}: a sweep loads and dumps nothing (leave one of the two out)"
            )
    without = replace(
        options, load=(), dump=None, prune=False, max_misses=None, fail_on_unused=False, verify=None, max_drift=None
    )
    return replace(without, on_miss="tune", on_stale="tune")


class _Given:
    """What is given for an option: on the command line, else in the ini file.

    An empty value on the command line undoes what the ini file says.

    :raises pytest.UsageError: for an ini value that pytest cannot convert.
    """

    def __init__(self, config: pytest.Config, option: Option) -> None:
        self.config = config
        self.option = option
        self.value: Any = config.getoption(option.ini, None) if option.has_flag else None
        self.is_typed = self.value is not None
        if not self.is_typed and option.has_ini:
            self.value = self._in_ini_file()

    @property
    def text(self) -> str:
        """The value as text; empty where there is none."""
        return "" if self.value is None else str(self.value).strip()

    def refused(self, problem: str) -> pytest.UsageError:
        """The error of a value that makes no sense."""
        return pytest.UsageError(f"{self.where}: {problem}")

    @property
    def where(self) -> str:
        """How the user spelt this option: its flag, or its ini name."""
        return self.option.flag if self.is_typed else f"{self.option.ini} (ini)"

    def _in_ini_file(self) -> Any:
        try:
            return self.config.getini(self.option.ini)
        except (TypeError, ValueError, pytest.UsageError) as error:
            if self.option.kind.ini_type == "number" and (number := self._native_number()) is not None:
                return number
            raise self.refused(str(error)) from None

    def _native_number(self) -> float | None:
        # pytest 9.0 and 9.1 take no number in native TOML for a value that may also be text.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            value = self.config.inicfg[self.option.ini]
        value = getattr(value, "value", value)
        return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _paths(given: _Given) -> tuple[CacheArgument, ...]:
    config, here = given.config, given.config.invocation_params.dir
    base = here if given.is_typed or config.inipath is None else config.inipath.parent
    texts = [given.value] if isinstance(given.value, str) else given.value or ()
    return tuple(path_argument(text, base, given.where, here) for text in texts if text)


def _path(given: _Given) -> CacheArgument | None:
    return next(iter(_paths(given)), None)


def _switch(given: _Given) -> bool:
    return bool(given.value)


def _word(given: _Given) -> str:
    words = given.option.words
    text = given.text or words[0]
    if text not in words:
        raise given.refused(f"expected {' or '.join(words)}, not {text!r}")
    return text


def _limit(given: _Given) -> Limit | None:
    try:
        return Limit.parse(given.text) if given.text else None
    except ValueError as error:
        raise given.refused(str(error)) from None


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


def _lines(given: _Given) -> tuple[str, ...]:
    return tuple(given.value)


def _pairs(given: _Given) -> tuple[tuple[str, str], ...]:
    pairs = []
    for line in given.value:
        device, separator, other = (part.strip() for part in line.partition("="))
        if not (device and separator and other):
            raise given.refused(f"expected 'DEVICE = OTHER DEVICE', not {line!r}")
        pairs.append((device, other))
    return tuple(pairs)


def _share(given: _Given) -> Share | None:
    try:
        return Share.parse(given.text) if given.text else None
    except ValueError as error:
        raise given.refused(f"{error} (before a path, write {given.option.flag}={given.option.kind.alone})") from None


def _sweep(given: _Given) -> Sweep | None:
    try:
        return Sweep.parse(given.text) if given.text else None
    except ValueError as error:
        raise given.refused(str(error)) from None


def _seconds(given: _Given) -> float:
    text = given.text or given.option.default
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise given.refused(f"expected a number of seconds, not {text!r}")
    return seconds


_READERS: dict[table.Kind, Callable[[_Given], Any]] = {
    table.PATH: _path,
    table.PATHS: _paths,
    table.SWITCH: _switch,
    table.WORD: _word,
    table.NAMES: _names,
    table.LIMIT: _limit,
    table.SECONDS: _seconds,
    table.SHARE: _share,
    table.SWEEP: _sweep,
    table.LINES: _lines,
    table.PAIRS: _pairs,
}
