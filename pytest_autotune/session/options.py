"""The one table of options: flags, ini values, ``--help`` and what a run is asked for come from it."""

# ruff: noqa: RUF009 - a field is a row of the table

from __future__ import annotations

import argparse
import shlex
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import pytest

from pytest_autotune.modes import MODES
from pytest_autotune.session import values
from pytest_autotune.session.values import Given, Kind

if TYPE_CHECKING:
    from pytest_autotune.report.gate import Limit
    from pytest_autotune.run.mode import Mode
    from pytest_autotune.run.verify import Share, Verification
    from pytest_autotune.session.values import CacheArgument

_FLAG, _INI = "flag", "ini"


@dataclass(frozen=True)
class Option:
    """A row of the table.

    :param about: what it does.
    :param metavar: the value in words; the words themselves, the default first, with ``|`` between them.
    :param default: in words, where it is more than nothing.
    :param only: ``"flag"`` or ``"ini"`` where there is not both.
    :param alone: what the flag means without a value; empty where it takes one.
    :param name: ``max_misses`` of ``--autotune-max-misses`` and ``autotune_max_misses``.
    """

    kind: Kind
    about: str
    metavar: str = ""
    default: str = ""
    only: str = ""
    alone: str = ""
    name: str = ""

    @property
    def is_flag(self) -> bool:
        """Whether the command line takes it."""
        return self.only != _INI

    @property
    def is_ini(self) -> bool:
        """Whether the ini file takes it."""
        return self.only != _FLAG

    @property
    def flag(self) -> str:
        """``--autotune-max-misses``."""
        return f"--autotune-{self.name.replace('_', '-')}"

    @property
    def ini(self) -> str:
        """``autotune_max_misses``; also the name of the flag's value in pytest's namespace of options."""
        return f"autotune_{self.name}"

    @property
    def meaning(self) -> str:
        """What it does, and what is so without it where that is more than nothing."""
        return f"{self.about} (default: {self.default})" if self.default else self.about


def _row(kind: Kind, about: str, metavar: str = "", default: str = "", **more: str) -> Any:
    return field(metadata={"option": Option(kind, about, metavar, default, **more)})


@dataclass(frozen=True)
class Options:
    """Everything the user asked for: the table, a field for each row."""

    load: tuple[CacheArgument, ...] = _row(
        values.PATHS,
        "Use these choices. Repeatable; the last one wins. Loading never writes. A missing or empty file is an error, "
        "unless it is also the dump path",
        "PATH",
    )
    dump: CacheArgument | None = _row(
        values.PATH,
        "Write what was chosen in this run. Problems of this run are added or replaced, all others kept",
        "PATH",
    )
    update: str = _row(
        values.WORD,
        "Write into the cache that is loaded, the last one of several: what is missing or stale is tuned and replaced, "
        "whatever the ini file says of on_miss and on_stale. new: only add, entries that are there stay as they are, "
        "stale ones too. prune: also drop the unused entries, after a complete run",
        "all|new|prune",
        only=_FLAG,
        alone="all",
    )
    on_miss: str = _row(
        values.WORD,
        "For a miss, stale or mismatch. first: nothing is tuned, the tuner's first candidate that works is used. "
        "nearest: the choice of the kernel's nearest entry is, where it is a candidate. "
        "Both count and are listed as misses, and never written. error: the test that asked fails at once",
        "tune|first|nearest|error",
        "tune",
    )
    on_stale: str = _row(
        values.WORD,
        "use: inject the stale choice while it is still a candidate; it is listed as stale all the same. "
        "error: the test that asked fails at once",
        "tune|use|error",
        "tune",
    )
    max_misses: Limit | None = _row(
        values.LIMIT, "Fail the run when more than N problems, or P% of them, were not hits", "N|P%", "no limit"
    )
    fail_on_unused: bool = _row(
        values.SWITCH,
        "Fail a complete run that leaves loaded entries unused; a run of a part of the suite is not judged",
    )
    report: tuple[CacheArgument, ...] = _row(
        values.PATHS, "Write a report of the run: .html, .md or .json. Repeatable", "PATH"
    )
    tuners: tuple[str, ...] | None = _row(
        values.NAMES,
        "Act only on these tuners, separated by commas, each with those below it: triton, inductor, xla, function, "
        "those of other packages",
        "NAMES",
        "all that are known",
    )
    verify: Share | None = _row(
        values.SHARE,
        "Race loaded choices against the other candidates: of all hits, or of 2/7 the second of seven parts. A choice "
        "that is slower is listed, and replaced in a dump",
        "all|I/K",
        only=_FLAG,
        alone="all",
    )
    max_drift: Limit | None = _row(
        values.LIMIT, "Fail the run when more than N choices, or P% of those raced, are slower", "N|P%", "no limit"
    )
    ignore: tuple[str, ...] = _row(
        values.LINES, "Globs of tuner:kernel to bypass, one on a line, such as triton:mylib.fuzz.*", only=_INI
    )
    device_alias: tuple[tuple[str, str], ...] = _row(
        values.PAIRS, "NVIDIA H100 PCIe = NVIDIA H100 80GB HBM3: the first may use the entries of the second", only=_INI
    )
    keep_candidates: bool = _row(
        values.SWITCH, "Keep every candidate's time in the file, not only the choice", only=_INI
    )
    wait_timeout: float = _row(
        values.SECONDS,
        "Seconds that one tuning waits in all for other workers' tunings and measurements",
        default="120",
        only=_INI,
    )
    ci: str = _row(
        values.WORD,
        "auto: on GitHub, annotations at the tests and a step summary. off: neither",
        "auto|off",
        "auto",
        only=_INI,
    )
    compile_ahead: str = _row(
        values.WORD,
        "on: threads compile the loaded choices of Triton's kernels before tests ask for them, where each process has "
        "more than one core; always: whatever else runs on the machine",
        "on|off|always",
        "on",
        only=_INI,
    )
    verify_seconds: float = _row(
        values.SECONDS, "Seconds that each process spends on the races of --autotune-verify", default="300", only=_INI
    )
    spread_gpus: bool = _row(
        values.SWITCH, "Under xdist, worker i sees only GPU i mod n of the n NVIDIA GPUs", only=_INI
    )
    debug: bool = _row(
        values.SWITCH,
        "Write the tracebacks of errors that cost no test, but a line of the summary, to standard error",
        only=_INI,
    )

    mode: Mode | None = None

    @property
    def active(self) -> bool:
        """Whether the user asked for anything to happen in this run."""
        # A limit alone judges nothing, and a run has to say so: a load may have been forgotten.
        asks = self.load or self.dump or self.report or self.max_misses or self.spread_gpus or self.mode
        return bool(asks or self.verify or self.fail_on_unused or self.on_miss == "first")

    @property
    def verification(self) -> Verification | None:
        """What is to be raced again."""
        from pytest_autotune.run.verify import Verification

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


#: What a mode is asked for with.
_OF_MODES = tuple(
    Option(Kind(partial(values.parsed, mode.parse)), mode.about, mode.metavar, only=_FLAG, name=mode.name)
    for mode in MODES
)
OPTIONS = (
    *(replace(row.metadata["option"], name=row.name) for row in fields(Options) if row.metadata),
    *_OF_MODES,
)

#: Flags of earlier versions, and what to write in their place.
OLD_FLAGS = {
    "--autotune-update-new-only": "write --autotune-update=new",
    "--autotune-prune": "write --autotune-update=prune, beside --autotune-load=PATH",
    "--autotune-ci": "write -o autotune_ci=off, or set it in the ini file",
    "--autotune-compile-ahead": "write -o autotune_compile_ahead=off, or set it in the ini file",
    "--autotune-verify-seconds": "write -o autotune_verify_seconds=300, or set it in the ini file",
    "--autotune-spread-gpus": "write -o autotune_spread_gpus=true, or set it in the ini file",
    "--autotune-night": "name the part, as in --autotune-verify=2/7",
    "--autotune-plain-kernels": "leave it out: a kernel without an autotuner has nothing to tune",
}


class _OldFlag(argparse.Action):
    """A flag that says what has replaced it."""

    def __call__(self, parser: object, namespace: object, values: object, flag: str | None = None) -> None:
        raise pytest.UsageError(f"{flag}: there is no such option any more ({OLD_FLAGS[flag or '']})")


def add_options(parser: pytest.Parser) -> None:
    """Register the command-line options and ini values."""
    about = (
        "autotuning cache (command line: pytest-autotune --help; documentation: docs/reference.md of its repository)"
    )
    group = parser.getgroup("autotune", about)
    for option in OPTIONS:
        kind = option.kind
        if option.is_flag:
            # The default is None, also of a switch: what the ini file says is then another thing than "off".
            more = {} if kind.action == "store_true" else {"metavar": option.metavar}
            more |= {"nargs": "?", "const": option.alone} if option.alone else {}
            text = option.meaning.replace("%", "%%")
            group.addoption(option.flag, action=kind.action, default=None, help=text, **more)
        if option.is_ini and kind.ini_type != values.NUMBER:
            parser.addini(option.ini, option.meaning, type=kind.ini_type)
        elif option.is_ini:
            try:
                parser.addini(option.ini, option.meaning, type=str | int | float, default=None)
            except (AssertionError, TypeError, ValueError):  # pytest before 9.2 knows no unions
                parser.addini(option.ini, option.meaning)
    for flag in OLD_FLAGS:
        group.addoption(flag, action=_OldFlag, nargs="?", help=argparse.SUPPRESS)


def anything_set(config: pytest.Config) -> bool:
    """Whether this run sets any option or ini value of the plugin."""
    try:
        return any(Given(config, option).value for option in OPTIONS)
    except pytest.UsageError:
        return True  # a value that makes no sense: reading it says so


def read_options(config: pytest.Config) -> Options:
    """Combine command line and ini values of this run.

    :raises pytest.UsageError: for a value that makes no sense, in one line.
    """
    found = {option.name: option.kind.read(Given(config, option)) for option in OPTIONS}
    modes = [mode for option in _OF_MODES if (mode := found.pop(option.name)) is not None]
    options = Options(**found, mode=next(iter(modes), None))
    _check_reports(options)
    if config.getoption("autotune_max_drift") and options.verify is None:
        raise pytest.UsageError("--autotune-max-drift: no choice is raced again (add --autotune-verify)")
    asked_now = any(given.startswith("autotune_spread_gpus=") for given in config.getoption("override_ini", None) or ())
    is_distributed = hasattr(config, "workerinput") or config.getoption("dist", "no") != "no"
    if options.spread_gpus and asked_now and not is_distributed:
        raise pytest.UsageError("autotune_spread_gpus: there are no workers to spread (add -n=NUM)")
    if options.mode is not None and options.mode.without_caches:
        return _without_caches(config, options, options.mode.without_caches)
    return _updating(config, options) if options.update else options


def _check_reports(options: Options) -> None:
    for report in options.report:
        from pytest_autotune.report.renderers import SUFFIXES, renderer_of

        if renderer_of(report.location.path) is None:
            problem = f"unknown kind of report (use a name that ends in {', '.join(SUFFIXES)})"
            raise pytest.UsageError(f"{report.given}: {report.typed}: {problem}")


def _updating(config: pytest.Config, options: Options) -> Options:
    """The options of a run that writes into what it loads."""
    flag = "--autotune-update" if options.update == "all" else f"--autotune-update={options.update}"
    dump = options.dump if config.getoption("autotune_dump") else None
    if not options.load:
        add = f"write --autotune-load={dump.typed} for the dump" if dump is not None else "add --autotune-load=PATH"
        raise pytest.UsageError(f"{flag}: nothing is loaded, so there is nothing to update ({add})")
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
    return replace(options, dump=dump or options.load[-1], on_miss="tune", on_stale="tune")


def _without_caches(config: pytest.Config, options: Options, why: str) -> Options:
    """The options of a mode without caches: what the ini file loads is left out, and what is typed is refused."""
    for name in ("load", "dump", "update", "max_misses", "fail_on_unused", "verify"):
        if config.getoption(f"autotune_{name}"):
            raise pytest.UsageError(f"--autotune-{name.replace('_', '-')}: {why} (leave one of the two out)")
    without = replace(options, load=(), dump=None, max_misses=None, fail_on_unused=False, verify=None, max_drift=None)
    return replace(without, on_miss="tune", on_stale="tune")
