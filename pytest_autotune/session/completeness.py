"""Whether a run can be judged: complete, or no entry can be called unused, and with something loaded to judge it by.

A limit on misses, an error for each, or a race of each choice would be green for nothing in a run that loads none.
"""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from pytest_autotune.cache.counted import counted
from pytest_autotune.cache.model import Cache
from pytest_autotune.session.values import Options

_SELECTING = {
    "keyword": "-k",
    "markexpr": "-m",
    "lf": "--lf",
    "last_failed": "--lf",
    "stepwise": "--sw",
    "ignore": "--ignore",
    "ignore_glob": "--ignore-glob",
    "deselect": "--deselect",
    "pyargs": "--pyargs",
    "splits": "--splits",
    "num_shards": "--num-shards",
    "setuponly": "--setup-only",
}
_NO_SHARDS = {"num_shards": 1}
#: Ini values that ``-o`` may narrow a run with.
_SELECTING_INI = {"testpaths", "python_files", "python_classes", "python_functions", "norecursedirs"}


class Completeness:
    """Watches a run for the first reason why not every test can be said to have run whole."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._failed = ""
        self._failures = 0
        self._skipped = ""
        self._collection_error = ""
        self._ran: set[str] = set()

    def saw(self, report: pytest.TestReport) -> None:
        """Note the report of a phase of a test."""
        if report.when != "setup" or not report.passed:
            self._ran.add(report.nodeid)
        if report.failed:
            self._failures += 1
            self._failed = self._failed or report.nodeid
        elif report.skipped:
            what = "failed as expected" if hasattr(report, "wasxfail") else "was skipped"
            self._skipped = self._skipped or f"{report.nodeid} {what}"

    def saw_collection(self, report: pytest.CollectReport) -> None:
        """Note the report of a collector."""
        if report.failed:
            self._collection_error = self._collection_error or report.nodeid
        elif report.skipped:
            self._skipped = self._skipped or f"{report.nodeid} was skipped"

    def was_interrupted(self, exitstatus: int) -> bool:
        """Whether something else than the tests, or ``-x``, ended the run; xdist reports an end by ``-x`` as one."""
        limit = self._config.getoption("maxfail", 0) or 0
        if exitstatus == pytest.ExitCode.INTERRUPTED:
            return not 0 < limit <= self._failures
        return exitstatus == pytest.ExitCode.INTERNAL_ERROR

    def is_only_skipped(self, reason: str) -> bool:
        """Whether all that kept the whole suite from being complete is that tests were skipped.

        :param reason: what :meth:`reason` said.
        """
        return bool(reason) and reason == self._skipped

    def reason(self, session: pytest.Session, exitstatus: int, crashed: Sequence[str], deselected: int) -> str:
        """The first reason why the run was not complete; empty when it was.

        :param deselected: how many of the collected tests were not to run.
        """
        if exitstatus == pytest.ExitCode.INTERRUPTED or session.shouldstop:
            return "the run was interrupted"
        if exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            return "an internal error ended the run"
        if crashed:
            return f"worker {crashed[0]} crashed"
        if self._collection_error:
            return f"{self._collection_error} could not be collected"
        if part := selection(self._config):
            return part
        if deselected:
            return counted(deselected, "test deselected", "tests deselected")
        if self._failed:
            return f"{self._failed} failed"
        if session.shouldfail:
            return "the run stopped early"
        # What ends a run with a status of its own, such as pytest.exit(returncode=0), is no interruption to pytest.
        items: Sequence[pytest.Item] = getattr(session, "items", ())
        collected = len({item.nodeid for item in items}) or session.testscollected
        left = collected - len(self._ran)
        return f"{left} of {collected} tests did not run" if left > 0 else self._skipped


def selection(config: pytest.Config) -> str:
    """How the user asked for a part of the suite; empty where all of it is to run."""
    if config.args_source is pytest.Config.ArgsSource.ARGS and not _names_the_whole(config):
        return f"only {' '.join(config.args)} was asked for"
    here, root = config.invocation_params.dir, config.rootpath
    if config.args_source is pytest.Config.ArgsSource.INVOCATION_DIR and here != root:
        return f"only {os.path.relpath(here, root)} was asked for"
    flag = selecting_flag(config)
    return f"{flag} selects tests" if flag else ""


def _names_the_whole(config: pytest.Config) -> bool:
    """Whether what was typed is what pytest would have taken without it."""
    here = config.invocation_params.dir
    if here != config.rootpath:  # then pytest takes no testpaths
        return False
    patterns = config.getini("testpaths")
    paths = [path for pattern in patterns for path in glob.iglob(pattern, root_dir=here, recursive=True)]
    return _absolute(here, config.args) == _absolute(here, paths or ["."])


def _absolute(here: Path, paths: Iterable[str]) -> set[str]:
    return {os.path.abspath(here / path) for path in paths}  # as pytest makes them: links stay


def selecting_flag(config: pytest.Config) -> str:
    """The option by which the user asked for some of the tests; empty where there is none."""
    for option, flag in _SELECTING.items():
        value = config.getoption(option, None)
        if value and value != _NO_SHARDS.get(option):
            return flag
    names = (given.partition("=")[0].strip() for given in config.getoption("override_ini", None) or ())
    return next((f"-o {name}" for name in names if name in _SELECTING_INI), "")


def unloaded_gate(config: pytest.Config, options: Options) -> str:
    """What is wrong with judging this run, in one line; empty where nothing is.

    Nothing is wrong where a cache is loaded, where a new one is dumped and nothing is to be raced again, or where an
    empty ``--autotune-load=`` says that nothing is to be loaded. Markers may still load some for single tests, which
    only the tests know.
    """
    if options.update and not options.load:
        flag = "--autotune-update" if options.update == "all" else f"--autotune-update={options.update}"
        return f"{flag}: nothing is loaded, so there is nothing to update (add --autotune-load=PATH)"
    if options.load or config.getoption("autotune_load") is not None:
        return ""
    on_purpose = "add --autotune-load=PATH; an empty --autotune-load= loads nothing on purpose"
    for mode in options.modes:
        if mode.without_loaded:
            return f"--autotune-{mode.name}: nothing is loaded, so {mode.without_loaded} ({on_purpose})"
    if options.dump is not None:
        return ""
    gate = _gate(config, options, on_miss=("error", "nearest"))  # without entries, none could be the nearest
    return gate and f"{gate}: nothing is loaded, so there is nothing to judge ({on_purpose})"


def empty_gate(config: pytest.Config, options: Options, loaded: Sequence[tuple[str, Cache]]) -> str:
    """What is wrong with judging this run by what it loads, in one line; empty where nothing is.

    :param loaded: (path as the user wrote it, what it held) of each loaded cache.
    """
    if options.updates or not loaded or any(cache.entries for _, cache in loaded):
        return ""
    gate = _gate(config, options)
    paths = ", ".join(path for path, _ in loaded)
    has = "has" if len(loaded) == 1 else "have"
    return gate and f"{gate}: {paths} {has} no entries, so there is nothing to judge (add them with --autotune-update)"


def _gate(config: pytest.Config, options: Options, on_miss: Sequence[str] = ("error",)) -> str:
    """The first option that is to judge this run, as the user spelt it; empty where none is.

    :param on_miss: the words of that option that judge.

    Who runs a part of a suite is not kept from it by what the ini file asks of the whole.
    """
    asks = {
        "max_misses": options.max_misses is not None,
        "fail_on_unused": options.fail_on_unused,
        "on_miss": options.on_miss in on_miss,
        "on_stale": options.on_stale == "error",
    }
    for name in (name for name, is_asked in asks.items() if is_asked):
        if config.getoption(f"autotune_{name}") is not None:
            return f"--autotune-{name.replace('_', '-')}"
        if not selection(config):
            return f"autotune_{name} (ini)"
    return ""
