"""Decides whether a run was complete, and whether it loads the caches that its options need.

A run is complete if every test of the suite ran and passed. Only a complete run may call an entry unused: a test that
did not run may need the entry. A gate is an option that fails the run because of its caches, such as
``--autotune-max-misses``. It needs a loaded cache.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from types import FunctionType
from typing import Any

import pytest

from pytest_autotune.cache.wording import describe_count
from pytest_autotune.modes import MODES
from pytest_autotune.plugin.options import PARSED_PATHS
from pytest_autotune.plugin.values import Options
from pytest_autotune.run.collected import Collected

#: Pytest's options that select tests, with the flags that a user types.
_SELECTING_FLAGS = {
    "keyword": "-k",
    "markexpr": "-m",
    "lf": "--lf",
    "stepwise": "--sw",
    "ignore": "--ignore",
    "ignore_glob": "--ignore-glob",
    "deselect": "--deselect",
    "setuponly": "--setup-only",
}
#: Pytest's plugins that collect tests. Without them, ``-p no:NAME`` on the command line leaves tests out.
_COLLECTING_PLUGINS = ("python", "unittest", "doctest")
#: Ini values that decide which tests pytest collects. Typed with ``-o`` they select tests.
_SELECTING_INI_VALUES = (
    "testpaths",
    "norecursedirs",
    "python_files",
    "python_classes",
    "python_functions",
    "collect_imported_tests",  # since pytest 8.4
)

_LOAD_REMEDY = "add --autotune-load=PATH"
_INI_LOAD_REMEDY = f"{_LOAD_REMEDY}; --autotune-load= with no path runs without a cache"


@dataclass(frozen=True)
class Shortfall:
    """The first reason why a run was not complete, or why a selected test did not pass.

    :param reason: in words; empty if there is none.
    :param is_skip: the reason is a test that was skipped or failed as expected, or an option of
        :func:`_describe_possible_selection`, such as ``--noconftest``. Gates then judge the run as one of the whole
        suite.
    :param is_ignored_file: the reason is a test file that was not collected.
    """

    reason: str = ""
    is_skip: bool = False
    is_ignored_file: bool = False


class Completeness:
    """Reads the reports of a run, and remembers the first reasons why the run is not complete."""

    def __init__(self, options: Options) -> None:
        self._options = options
        #: The number of tests that pytest collected in this process; see :meth:`note_collection`.
        self._collected_count = 0
        #: Node ids of the tests that ran, or that ended in their setup.
        self._ended_tests: set[str] = set()
        #: ``a.py::test_b failed``; empty if no test failed.
        self._first_failure = ""
        #: ``a.py could not be collected``; empty if all files could be collected.
        self._first_collection_error = ""
        #: (node id, outcome in pytest's words). A test has two outcomes if it passes and its teardown fails.
        self._outcomes: set[tuple[str, str]] = set()
        #: The first test that was skipped or failed as expected: ``a.py::test_b was skipped``; empty if there is none.
        self._first_skip = ""

    def add_report(self, report: pytest.TestReport | pytest.CollectReport) -> None:
        """Read the report of one phase of a test (setup, call or teardown), or of the collection of a file."""
        is_test = isinstance(report, pytest.TestReport)
        is_passed_setup = is_test and report.when == "setup" and report.passed
        # After a setup that passed, the test itself has still to run.
        if is_test and not is_passed_setup:
            self._ended_tests.add(report.nodeid)
        if report.failed:
            self._note_failure(report.nodeid, is_test=is_test)
        outcome = _read_outcome(report)
        if outcome:
            self._outcomes.add((report.nodeid, outcome))
        if self._first_skip:
            return
        if outcome == "skipped":
            self._first_skip = f"{report.nodeid} was skipped"
        elif outcome == "xfailed":
            self._first_skip = f"{report.nodeid} failed as expected"

    def _note_failure(self, node_id: str, *, is_test: bool) -> None:
        """Note the first test that failed, or the first file that could not be collected."""
        if is_test:
            self._first_failure = self._first_failure or f"{node_id} failed"
        else:
            self._first_collection_error = self._first_collection_error or f"{node_id} could not be collected"

    @property
    def test_counts(self) -> Counter[str]:
        """The number of tests by outcome, as pytest counts them."""
        return Counter(outcome for _, outcome in self._outcomes)

    def note_collection(self, session: pytest.Session) -> None:
        """Note how many tests pytest collected in this process. Later hooks may remove some of them."""
        self._collected_count = _count_collected_tests(session)

    def find_shortfall(
        self, session: pytest.Session, exitstatus: int, crashed_workers: Sequence[str], collected: Collected
    ) -> Shortfall:
        """Return the first reason why the run was not complete; without a reason if it was complete.

        :param session: pytest's session.
        :param exitstatus: pytest's exit status, as far as it is known.
        :param crashed_workers: the names of the workers that crashed.
        :param collected: the reports of all processes of this run.
        """
        breakdown = self._describe_breakdown(session, exitstatus, crashed_workers)
        if breakdown:
            return Shortfall(breakdown)
        selection = describe_selection(session.config)
        if selection:
            return Shortfall(selection)
        outside_cache = _describe_cache_outside(session.config, self._options)
        if outside_cache:
            return Shortfall(outside_cache)
        if collected.has_replaced_paths:
            return Shortfall("a plugin or conftest.py changed which paths were collected")
        if collected.deselected_count:
            return Shortfall(describe_count(collected.deselected_count, "test was deselected", "tests were deselected"))
        not_passed = self._find_first_not_passed(session, collected)
        possible_selection = _describe_possible_selection(session.config)
        if possible_selection and (not_passed.is_skip or not not_passed.reason):
            # Nothing is called unused after this run. But a limit on misses judges it as a run of the whole suite:
            # otherwise a machine that has lost its GPU could pass the gate.
            return Shortfall(possible_selection, is_skip=True)
        return not_passed

    def find_not_passed(
        self, session: pytest.Session, exitstatus: int, crashed_workers: Sequence[str], collected: Collected
    ) -> Shortfall:
        """Return the first reason why a test that was selected did not pass; without a reason if all passed.

        The parameters are those of :meth:`find_shortfall`.
        """
        breakdown = self._describe_breakdown(session, exitstatus, crashed_workers)
        if breakdown:
            return Shortfall(breakdown)
        return self._find_first_not_passed(session, collected)

    def _describe_breakdown(self, session: pytest.Session, exitstatus: int, crashed_workers: Sequence[str]) -> str:
        """Return the event that kept tests from running, such as Ctrl-C, a crash or a collection error; else empty."""
        # pytest.exit(returncode=0) ends a run with a status of its own, which pytest does not call an interruption.
        if exitstatus == pytest.ExitCode.INTERRUPTED or session.shouldstop:
            return "the run was interrupted"
        if exitstatus == pytest.ExitCode.INTERNAL_ERROR:
            return "an internal error ended the run"
        if crashed_workers:
            return f"worker {crashed_workers[0]} crashed"
        return self._first_collection_error

    def _find_first_not_passed(self, session: pytest.Session, collected: Collected) -> Shortfall:
        """Return the first test that failed, was skipped or did not run, or the first test file that was ignored.

        The result has no reason if all tests passed.
        """
        if self._first_failure:
            return Shortfall(self._first_failure)
        if session.shouldfail:
            # A plugin can end the run without a failed test.
            return Shortfall("the run stopped early")
        unrun_tests = self._describe_unrun_tests(session)
        if unrun_tests:
            return Shortfall(unrun_tests)
        if collected.ignored_test_files:
            path = collected.ignored_test_files[0]
            hooks = "collect_ignore or pytest_ignore_collect"
            if "::" in path:
                # It is the node id of a test, and not the path of a file.
                hooks = "a plugin or conftest.py left it out"
            reason = f"{path} was not collected ({hooks})"
            return Shortfall(reason, is_ignored_file=True)
        if self._first_skip:
            return Shortfall(self._first_skip, is_skip=True)
        return Shortfall()

    def find_early_end(self, session: pytest.Session) -> str:
        """Return how many tests did not run although no failure ended the run: ``2 of 3 tests did not run``.

        The text is empty for any other run.

        ``pytest.exit("x", returncode=0)`` ends a run in this way, and pytest's exit status does not show it.
        """
        if session.shouldfail or has_too_many_failures(session):
            return ""
        return self._describe_unrun_tests(session)

    def _describe_unrun_tests(self, session: pytest.Session) -> str:
        """Return how many of the collected tests did not run: ``2 of 3 tests did not run``; empty if all ran."""
        # A hook or a test may have removed tests from session.items since the collection.
        collected_count = max(_count_collected_tests(session), self._collected_count)
        missing_count = collected_count - len(self._ended_tests)
        if missing_count <= 0:
            return ""
        return f"{missing_count} of {collected_count} tests did not run"


def _count_collected_tests(session: pytest.Session) -> int:
    """Return the number of tests that pytest collected."""
    items: Sequence[pytest.Item] = getattr(session, "items", ())
    if not items:
        # Xdist's controller has no items, only their number.
        return session.testscollected
    # With --keep-duplicates several items may be the same test, which counts once.
    return len({item.nodeid for item in items})


def _read_outcome(report: pytest.TestReport | pytest.CollectReport) -> str:
    """Return the outcome that pytest counts for a report: ``"passed"``, ``"failed"``, ``"error"``, ``"skipped"`` …

    The text is empty for a phase that pytest does not count: a setup, a teardown or a collection that passed.
    """
    is_call = isinstance(report, pytest.TestReport) and report.when == "call"
    # Pytest sets this attribute for a test with the marker xfail, whether the test failed or passed.
    is_xfail = hasattr(report, "wasxfail")
    if report.failed:
        # An exception outside the test function is an error, as pytest calls it.
        return "failed" if is_call else "error"
    if report.skipped:
        # Pytest reports an expected failure as a skip.
        return "xfailed" if is_xfail else "skipped"
    if is_call:
        return "xpassed" if is_xfail else "passed"
    return ""


def was_interrupted(session: pytest.Session, exitstatus: int) -> bool:
    """Whether Ctrl-C, ``pytest.exit`` or an internal error ended the run."""
    if exitstatus == pytest.ExitCode.INTERRUPTED:
        # Xdist also gives this status to a run that -x or --maxfail has ended. Such a run is not interrupted.
        return not has_too_many_failures(session)
    return exitstatus == pytest.ExitCode.INTERNAL_ERROR


def has_too_many_failures(session: pytest.Session) -> bool:
    """Whether as many tests failed as ``-x`` or ``--maxfail`` allows, which ends the run."""
    max_failures: int = session.config.getoption("maxfail") or 0
    return 0 < max_failures <= session.testsfailed


def describe_selection(config: pytest.Config) -> str:
    """Return how the user selected a part of the suite, such as ``-k selects a part of the tests``.

    The text is empty for the whole suite."""
    path_selection = _describe_selected_paths(config)
    if path_selection:
        return path_selection
    ini_file = config.getoption("inifilename", None)
    option_selection = _describe_selecting_options(config)
    if ini_file and not option_selection:
        # Another ini file may have other test paths, or options such as -k.
        return f"-c {ini_file} may select a part of the tests"
    return option_selection


def describe_chosen_tests(config: pytest.Config) -> str:
    """Return how the user chose single tests or files, such as ``-k selects a part of the tests``; else an empty text.

    The user may have chosen the tests of the CPU. A folder is no such choice: many CI systems run ``pytest tests/`` as
    the whole suite. Nor is an option in the ini file's ``addopts``, such as ``-m "not slow"``: every run has it.
    """
    path_selection = _describe_selected_paths(config)
    if path_selection and not all(_is_folder(config, argument) for argument in config.args):
        return path_selection
    typed_options = _parse_typed_options(config)
    for option, flag in _SELECTING_FLAGS.items():
        if getattr(typed_options, option, None):
            return f"{flag} selects a part of the tests"
    return ""


def _is_folder(config: pytest.Config, argument: str) -> bool:
    """Whether an argument of the command line names a folder or, with ``--pyargs``, a package."""
    if (config.invocation_params.dir / argument).is_dir():
        return True
    if not config.getoption("pyargs"):
        return False
    try:
        spec = importlib.util.find_spec(argument)
    except (ImportError, ValueError):
        return False
    return spec is not None and spec.submodule_search_locations is not None


def _parse_typed_options(config: pytest.Config) -> argparse.Namespace:
    """Return the options that the user chose for this run, without those of the ini file's ``addopts``.

    Pytest itself keeps only one mixture with the ini file's options. So these arguments are parsed once more, by
    pytest's own parser: it knows the options of all plugins, and also reads ``-ka`` and ``-qk a``.
    """
    return config._parser.parse_known_args(_list_typed_arguments(config))


def _list_typed_arguments(config: pytest.Config) -> list[str]:
    """Return the arguments that the user chose for this run, without those of the ini file's ``addopts``.

    They stand on the command line or in the environment variable ``PYTEST_ADDOPTS``, which users and CI jobs set for a
    run.
    """
    return [*shlex.split(os.environ.get("PYTEST_ADDOPTS", "")), *map(str, config.invocation_params.args)]


def _describe_selecting_options(config: pytest.Config) -> str:
    """Return which option of the command line selects tests: ``-k selects a part of the tests``; empty if none does."""
    for option, flag in _SELECTING_FLAGS.items():
        if config.getoption(option, None):
            return f"{flag} selects a part of the tests"
    for name in _list_overridden_ini_values(config):
        if name in _SELECTING_INI_VALUES:
            return f"-o {name} selects a part of the tests"
    for name in _COLLECTING_PLUGINS:
        if _is_plugin_switched_off(config, name):
            return f"-p no:{name} leaves out a part of the tests"
    return ""


def _list_overridden_ini_values(config: pytest.Config) -> list[str]:
    """Return the names of the ini values that ``-o NAME=VALUE`` sets."""
    return [override.partition("=")[0] for override in config.getoption("override_ini", None) or ()]


def _describe_possible_selection(config: pytest.Config) -> str:
    """Return which typed option may leave out tests: ``-o addopts may select …``; empty if there is none.

    ``-o addopts`` replaces the options of the ini file. They may collect tests, as ``--doctest-modules`` does.
    ``--noconftest`` and ``--confcutdir`` may leave out a ``conftest.py`` with hooks that parametrize tests.

    A run with these options is incomplete, and gates still judge it as a run of the whole suite. So
    :func:`describe_selection` lacks these options: a selection excuses a gate of the ini file that has no loaded cache.
    """
    if "addopts" in _list_overridden_ini_values(config):
        return "-o addopts may select a part of the tests"
    typed_options = _parse_typed_options(config)
    if typed_options.noconftest:
        return "--noconftest may leave out a part of the tests"
    if typed_options.confcutdir:
        highest_folder = (config.invocation_params.dir / typed_options.confcutdir).resolve()
        if not config.rootpath.resolve().is_relative_to(highest_folder):
            return "--confcutdir may leave out a part of the tests"
    return ""


def _is_plugin_switched_off(config: pytest.Config, name: str) -> bool:
    """Whether the user typed ``-p no:NAME``, also in ``PYTEST_ADDOPTS``.

    The ini value ``addopts`` belongs to the suite, so it does not count.
    """
    arguments = " ".join(_list_typed_arguments(config))
    return re.search(rf"(^|\s)-p\s*no:{name}(\s|$)", arguments) is not None


def _describe_cache_outside(config: pytest.Config, options: Options) -> str:
    """Return why a cache outside the suite may have entries that only other suites use; empty if there is none.

    1. A cache inside the rootdir belongs to this suite.
    2. Without an ini file, the rootdir is only the folder in which pytest was started, as in ``cd tests && pytest``.
       Any cache outside may belong to a larger suite.
    3. With an ini file, a cache outside that the command line names may belong to other suites, too. An example is a
       repository with an ini file for each package. A cache that the ini file names belongs to this suite.
    """
    root = config.rootpath
    caches = list(options.load)
    if options.dump is not None:
        caches.append(options.dump)
    for cache in caches:
        if cache.location.url:
            # A store at a URL is shared, so only an explicit prune removes entries from it.
            continue
        cache_folder = Path(os.path.abspath(cache.location.path)).parent
        if cache_folder.is_relative_to(root):
            continue
        if config.inipath is None:
            return (
                f"{cache.typed} lies outside {root}, pytest's rootdir without an ini file, so other suites may use it"
            )
        if cache.is_flag_value:
            return f"{cache.typed} lies outside the rootdir {root}, so other suites may use it"
    return ""


def _describe_selected_paths(config: pytest.Config) -> str:
    """Return the paths that the user selected: ``the run was limited to tests/test_a.py``; empty for the whole suite.

    The whole suite is all tests in the ini file's ``testpaths``, else in the rootdir.
    """
    # The folder in which the user started pytest.
    invocation_folder = config.invocation_params.dir
    root = config.rootpath
    # Pytest says whether ``config.args`` is typed, comes from testpaths, or is the invocation folder.
    source = config.args_source
    if source is pytest.Config.ArgsSource.INVOCATION_DIR and invocation_folder != root:
        # The user typed no path in a subfolder of the rootdir. Pytest then collects only this folder.
        return f"the run was limited to {os.path.relpath(invocation_folder, root)}"
    if source is not pytest.Config.ArgsSource.ARGS:
        return ""
    # The user typed paths. They may still name the whole suite, as in ``pytest .`` or ``pytest tests``.
    suite_paths = _absolute_paths(config.getini("testpaths") or ["."], root)
    typed_paths = _absolute_paths(config.args, invocation_folder)
    # Without an ini file, pytest derives the rootdir from the typed paths. The suite may be larger than that.
    has_guessed_root = invocation_folder != root and config.inipath is None
    if typed_paths == suite_paths and not has_guessed_root:
        return ""
    return f"the run was limited to {' '.join(config.args)}"


def has_collected_parsed_paths(session: pytest.Session) -> bool:
    """Whether pytest has collected all paths that it read from the command line or the ini file.

    A plugin such as pytest-picked replaces ``config.args``. Another plugin may call ``session.perform_collect(paths)``.
    """
    config = session.config
    invocation_folder = config.invocation_params.dir
    parsed_paths = config.stash.get(PARSED_PATHS, tuple(config.args))
    if not _absolute_paths(parsed_paths, invocation_folder) <= _absolute_paths(config.args, invocation_folder):
        return False
    if config.getoption("pyargs"):
        # A path may be the name of a package, and only pytest knows the folder of the package.
        return True
    # A node id such as ``test_a.py::test_b`` begins with the path of its file.
    files_and_folders = [path.partition("::")[0] for path in parsed_paths]
    for absolute_path in _absolute_paths(files_and_folders, invocation_folder):
        path = Path(absolute_path)
        # Pytest leaves out a path in a folder that it collects, too.
        if not any(session.isinitpath(initial_path) for initial_path in (path, *path.parents)):
            return False
    return True


class IgnoredTestFiles:
    """Notes the test files and tests that a ``conftest.py`` keeps pytest from collecting.

    An example is a file whose package is missing. Such a file is like a skipped test. A folder that the ini value
    ``norecursedirs`` names, or that is a virtual environment, is no part of the suite.
    """

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self._rootdir = config.rootpath
        self._patterns: Sequence[str] = config.getini("python_files")
        self._skipped_folders: Sequence[str] = config.getini("norecursedirs")
        #: A folder's collector -> the test files in it for which pytest asked for a collector.
        self._files_by_folder: defaultdict[pytest.Collector, list[Path]] = defaultdict(list)
        #: A module's or class's collector -> the names of the tests in it for which pytest asked for a node.
        self._names_by_collector: defaultdict[pytest.Collector, list[str]] = defaultdict(list)
        #: The result, each item once: a test file as a path relative to the rootdir, a test or class as a node id.
        self.paths: list[str] = []

    @pytest.hookimpl(wrapper=True)
    def pytest_ignore_collect(self, collection_path: Path) -> Generator[None, bool | None, bool | None]:
        is_ignored = yield
        if is_ignored:
            test_file = self._find_test_file(collection_path)
            if test_file is not None:
                self._note_file(test_file)
        return is_ignored

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collect_file(self, file_path: Path, parent: pytest.Collector) -> Generator[None, Any, Any]:
        if self._is_test_file(file_path.name):
            self._files_by_folder[parent].append(file_path)
        return (yield)

    # Pytest calls this hook for each name in a module and in a class that it collects, whether it is a test or not.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_pycollect_makeitem(self, collector: Any, name: str, obj: object) -> Generator[None, Any, Any]:
        if _is_test(collector, name, obj):
            self._names_by_collector[collector].append(name)
        return (yield)

    # Any hook may remove files and tests, so the report of each collector is compared with these files and names.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: pytest.Collector) -> Generator[None, Any, Any]:
        report: pytest.CollectReport = yield
        # With --lf, pytest leaves files and tests out itself.
        if report.passed and not self._config.getoption("lf", False):
            self._note_missing(collector, report.result or ())
        return report

    def _note_missing(self, collector: pytest.Collector, nodes: Sequence[pytest.Item | pytest.Collector]) -> None:
        """Note the test files of a folder, or the tests of a module or class, for which pytest has no node."""
        # Derived classes collect in ways of their own, for example the doctests of a module.
        if type(collector) in (pytest.Module, pytest.Class):
            collected_names = set()
            for node in nodes:
                # A test with several parameters has a node for each. A plugin may name a node "test_a[1]" itself.
                collected_names |= {getattr(node, "originalname", None), node.name.partition("[")[0]}
            for name in self._names_by_collector[collector]:
                if name not in collected_names:
                    self.paths.append(f"{collector.nodeid}::{name}")
        elif isinstance(collector, pytest.Directory) and self._config.pluginmanager.has_plugin("python"):
            collected_paths = {node.path for node in nodes}
            for path in self._files_by_folder[collector]:
                if path not in collected_paths:
                    self._note_file(path)

    def _note_file(self, test_file: Path) -> None:
        path = os.path.relpath(test_file, self._rootdir)
        if path not in self.paths:
            self.paths.append(path)

    def _find_test_file(self, path: Path) -> Path | None:
        """Return the path if it is a test file, or the first test file in a folder; None if there is none."""
        if not path.is_dir():
            if self._is_test_file(path.name):
                return path
            return None
        for folder, folder_names, file_names in os.walk(path):
            if self._is_skipped_folder(Path(folder)):
                # os.walk enters only the folders that stay in this list.
                folder_names.clear()
                continue
            for file_name in sorted(file_names):
                if self._is_test_file(file_name):
                    return Path(folder) / file_name
            # os.walk enters the folders in the order of this list.
            folder_names.sort()
        return None

    def _is_test_file(self, name: str) -> bool:
        return name.endswith(".py") and any(fnmatch(name, pattern) for pattern in self._patterns)

    def _is_skipped_folder(self, folder: Path) -> bool:
        """Whether pytest would collect no tests in a folder, also if no ``conftest.py`` ignored the folder."""
        if folder.name == "__pycache__" or (folder / "pyvenv.cfg").is_file() or (folder / "conda-meta").is_dir():
            return True
        return any(fnmatch(folder.name, pattern) for pattern in self._skipped_folders)


def _is_test(collector: Any, name: str, value: object) -> bool:
    """Whether the name of a function or class in a module or class makes it a test, such as ``test_a`` or ``TestA``.

    :param collector: pytest's collector of the module or class.
    """
    # Look at the type first: an attribute of any other object may raise an error, as in a proxy without a target.
    if issubclass(type(value), type):
        is_test = collector.istestclass(value, name)
    else:
        is_test = type(value) is FunctionType and collector.istestfunction(value, name)
    # A user writes "test_helper.__test__ = False" if it is no test.
    return bool(is_test and getattr(value, "__test__", True))


def _absolute_paths(paths: Iterable[str], folder: Path) -> set[str]:
    return {os.path.abspath(folder / path) for path in paths}


def find_missing_load(config: pytest.Config, options: Options) -> str:
    """Return the error of an option that needs a loaded cache, if the options load none; else an empty text.

    An example: ``--autotune-max-misses: no cache is loaded, so there is nothing to check (add --autotune-load=PATH)``.
    Without a loaded cache a gate would pass, although it has compared nothing. The marker of a test may still load a
    cache, so the text is an error only if no test has loaded a cache.
    """
    if options.load:
        return ""
    if options.update:
        return f"{options.update_flag}: no cache is loaded, so there is nothing to update ({_LOAD_REMEDY})"
    mode_error = _find_mode_without_load(config, options)
    if mode_error:
        return mode_error
    if options.dump is not None:
        # The run makes a new cache, so it is right that nothing is loaded.
        return ""
    options_that_judge = _list_gates(options)
    if options.on_miss == "nearest":
        # Without a loaded entry there is no nearest entry.
        options_that_judge.append("on_miss")
    for name in options_that_judge:
        error = _describe_judging_nothing(config, name)
        if error:
            return error
    return ""


def _list_gates(options: Options) -> list[str]:
    """Return the names of the options that judge the misses and unused entries of a run: ``max_misses``."""
    gates = []
    if options.max_misses is not None:
        gates.append("max_misses")
    if options.fail_on_unused:
        gates.append("fail_on_unused")
    if options.on_miss == "error":
        gates.append("on_miss")
    if options.on_stale == "error":
        gates.append("on_stale")
    return gates


def describe_unjudged_exit(config: pytest.Config, options: Options) -> str:
    """Return the error of a run with a gate that ``pytest.exit`` has ended before any test.

    The text is empty if the user set no gate, if the run updates its cache, or if its caches are optional.
    """
    if options.has_only_optional_caches or options.update or options.updates:
        return ""
    if not options.load or options.dump is not None or config.option.collectonly or config.option.setupplan:
        # Nothing is checked in these runs, with or without pytest.exit.
        return ""
    gates = _list_gates(options)
    for mode_row in MODES:
        for option in mode_row.options:
            if option.kind == "limit" and config.getoption(option.ini, None) not in (None, "off"):
                gates.append(option.name)
    if not gates:
        return ""
    return f"pytest.exit ended the run before any test, so --autotune-{gates[0].replace('_', '-')} checked nothing"


def _find_mode_without_load(config: pytest.Config, options: Options) -> str:
    """Return the error of the first mode that needs a loaded cache, such as ``verify``; empty if no mode needs one."""
    if _is_empty_load_typed(config):
        return ""
    for mode in options.modes:
        if mode.error_without_loaded:
            return f"--autotune-{mode.name}: no cache is loaded, so {mode.error_without_loaded} ({_INI_LOAD_REMEDY})"
    return ""


def _describe_judging_nothing(config: pytest.Config, name: str) -> str:
    """Return the error of an option that has no caches to judge; empty if the user left out the caches on purpose.

    :param name: the name of the option, without ``autotune_``: ``max_misses``.
    """
    if config.getoption(f"autotune_{name}") is not None:
        # The user typed the option for this run.
        flag = f"--autotune-{name.replace('_', '-')}"
        return f"{flag}: no cache is loaded, so there is nothing to check ({_LOAD_REMEDY})"
    # The ini file sets the option for the whole suite. A user who runs a part of the suite need not load a cache.
    if _is_empty_load_typed(config) or describe_selection(config):
        return ""
    return f"autotune_{name} (ini): no cache is loaded, so there is nothing to check ({_INI_LOAD_REMEDY})"


def _is_empty_load_typed(config: pytest.Config) -> bool:
    """Whether the command line has ``--autotune-load=``, in a run that loads nothing.

    The empty path undoes the caches of the ini file, and the options of the ini file that need these caches.
    """
    return config.getoption("autotune_load") is not None
