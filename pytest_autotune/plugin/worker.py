"""The hooks of a process that runs tests: an xdist worker, or the only process of a run without workers.

Under xdist, the controller and each worker exchange two messages under the key ``autotune``. They hold primitives only:

1. ``workerinput``: the controller sends a :class:`Task` when it configures the worker. If no option asks for the
   plugin, there is no task. The worker then starts the plugin as soon as a collected test has the marker or the
   fixture.
2. ``workeroutput``: the worker sends the lines of its log at its end. A worker that crashed sends nothing. If only
   tests ask for the plugin, the first such message starts the plugin on the controller.

All other communication goes through the files of the run's folder: :mod:`pytest_autotune.workers.events`.
The hooks of the controller are in :mod:`pytest_autotune.plugin.controller`.
"""

from __future__ import annotations

import functools
import os
import shlex
import socket
import sys
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace
from importlib.machinery import PathFinder
from importlib.util import find_spec
from os import getpid  # imported by name, because a test may mock os.getpid
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

import pytest

from pytest_autotune import devices
from pytest_autotune.cache import stores
from pytest_autotune.cache.codec import json_text
from pytest_autotune.cache.errors import CacheError, MissingCacheError
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache, Entry, library_of
from pytest_autotune.cache.wording import to_one_line
from pytest_autotune.plugin.completeness import IgnoredTestFiles, has_collected_parsed_paths
from pytest_autotune.plugin.options import INPUT_KEY, MARKER
from pytest_autotune.plugin.progress import ProgressFile
from pytest_autotune.plugin.values import CacheArgument, Options, path_argument
from pytest_autotune.run.collected import END, TEST_CACHE_ENTRY
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome
from pytest_autotune.run.nearest import explain_miss
from pytest_autotune.run.reporter import Progress
from pytest_autotune.run.session import Job, Mode, Session, Suite
from pytest_autotune.tuners import TUNERS
from pytest_autotune.tuners.hooks import Hooks
from pytest_autotune.tuners.source.libraries import rootdir_of_run
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Event, Log, OtherWorkers
from pytest_autotune.workers.locks import Locks, find_shared_folder


@dataclass(frozen=True)
class WorkerContext:
    """The objects that a process needs to run tests.

    :param index: the loaded caches; None in a run that loads nothing.
    :param coordination: claims problems and takes locks among the workers of this machine.
    :param log: the file to which this process writes its lookups.
    :param workers: the number of processes of this run on this machine.
    :param progress: shows the user the tunings of this process.
    :param folder: the folder of this run on this machine; None if no folder could be made.
    """

    index: EntryIndex | None
    coordination: Coordinator
    log: Log
    workers: int = 1
    progress: Progress = field(default_factory=Progress)
    folder: Path | None = None


@dataclass(frozen=True)
class Task:
    """The message that the controller sends to a worker when the worker starts.

    :param entries: the loaded entries as JSON, in the order of an index; None in a run that loads nothing.
    :param run_folder: the folder of the workers' logs; empty if no folder could be made.
    :param host: the controller's host. On another host ``run_folder`` means nothing.
    :param run_id: names the folder in which the workers of one machine share their tunings.
    :param workers: the number of workers.
    """

    entries: str | None = None
    run_folder: str = ""
    host: str = ""
    run_id: str = ""
    workers: int = 1


def build_worker_context(workerinput: Mapping[str, Any], options: Options) -> WorkerContext:
    """Build the context of a worker from the message that its controller sent.

    :param workerinput: xdist's input of the worker. It holds the controller's :class:`Task`, if the controller sent a
        task.
    """
    task = Task(**workerinput.get(INPUT_KEY, {}))
    worker_name = workerinput["workerid"]
    is_on_controller_host = task.host == socket.gethostname()
    shared = find_shared_folder()
    # All workers of this machine share this folder.
    machine_folder = None
    if task.run_id:
        machine_folder = shared.run_folder(task.run_id)
    if is_on_controller_host and task.run_folder:
        log_folder: Path | None = Path(task.run_folder)
    else:
        # The controller of another host cannot read the log, but the other workers of this machine can.
        log_folder = machine_folder
    log = Log(log_folder, worker_name)
    other_workers = None
    if machine_folder is not None and log.folder is not None:
        other_workers = OtherWorkers(log.folder, worker_name)
    progress = Progress()
    if is_on_controller_host and machine_folder is not None:
        progress = Progress(ProgressFile(machine_folder, worker_name))
    return WorkerContext(
        _decode_entries(task.entries),
        Coordinator(Locks(options.wait_timeout, shared=shared), machine_folder, other_workers),
        log,
        workers=task.workers,
        progress=progress,
        folder=machine_folder,
    )


def _decode_entries(text: str | None) -> EntryIndex | None:
    """Return the index of the entries that the controller sent; None for None."""
    if text is None:
        return None
    return EntryIndex(json_text.decode(text, "the controller's message").entries)


class TestProcess:
    """Hooks the tuners, tells the session which test runs, and loads the caches of single tests.

    The steps of its life:

    1. :meth:`begin` hooks the tuners when pytest is configured.
    2. After the collection the modes begin, for example to compile ahead.
    3. For each test it loads the test's own caches before the fixtures, and drops them after the fixtures.
    4. :meth:`end` ends the session and writes the last event of the log.
    5. ``pytest_unconfigure`` gives the tuners back the memory that they had before the run.
    6. The plugin's own ``pytest_unconfigure`` restores the tuners, after the hooks of all conftests.

    Attributes: ``session``, which the adapters ask; ``hooks``, the adapters.
    """

    __test__ = False

    def __init__(self, config: pytest.Config, options: Options, context: WorkerContext) -> None:
        self._context = context
        cores_per_worker = max(devices.count_usable_cores() // context.workers, 1)
        self.session = Session(
            replace(options.policy, compile_threads=cores_per_worker),
            context.index,
            context.coordination,
            self._refuse,
            context.progress,
            context.log,
            modes=options.modes,
        )
        self.hooks = Hooks(self.session, options.tuners)
        self._config = config
        self._options = options
        self._process_id = getpid()
        #: All tests that pytest collected, before options or plugins removed any, each with its node id at that time.
        self._collected_tests: list[tuple[pytest.Item, str]] = []
        #: The number of tests that options, plugins or a conftest.py removed.
        self._deselected_count = 0
        #: Pytest's session, which has the tests to run; None until pytest collects.
        self._pytest_session: pytest.Session | None = None
        #: Whether a plugin changed which paths pytest collects. It is True until pytest has collected the tests: a run
        #: that ends before is not complete.
        self._has_replaced_paths = True
        self._ignored_test_files = IgnoredTestFiles(config)
        config.pluginmanager.register(self._ignored_test_files)
        #: Node ids of the tests whose arguments Hypothesis draws.
        self._hypothesis_tests: set[str] = set()
        #: Node ids of the tests whose marker bypasses the tuners.
        self._disabled_tests: set[str] = set()
        #: The empty or absent caches that tests load in a run that writes, as a user types them.
        self._missing_caches: set[str] = set()
        #: The caches of tests whose entries the log has, as a user types them.
        self._reported_test_caches: set[str] = set()
        #: The message with which the session failed the current test, for example for a miss; empty if it did not.
        self._refusal = ""
        #: The contexts that end with the run, and with the current test.
        self._run_exits = ExitStack()
        self._test_exits = ExitStack()
        #: Whether the choices of earlier tests are hidden from the current test: see :meth:`_isolate`.
        self._is_test_isolated = False
        # A URL is read once for each run: a server that is down takes seconds to fail.
        self._read_url = functools.cache(stores.read_cache)

    def begin(self, *, hides_earlier_run: bool) -> None:
        """Hook the tuners.

        :param hides_earlier_run: whether to give the tuners an empty memory until this run ends.
        """
        self._run_exits.enter_context(rootdir_of_run(self._config.rootpath))
        # A test may mock open(). So /proc/cpuinfo is read now, before the first test.
        devices.find_cpu_arch()
        self.hooks.install()
        if hides_earlier_run:
            self._run_exits.enter_context(self.hooks.isolated())
        self._config.pluginmanager.register(_KeptModules())

    def _refuse(self, message: str) -> NoReturn:
        """Fail the current test, because the user wants an error for the outcome of a lookup."""
        self._refusal = to_one_line(message)
        pytest.fail(self._refusal, pytrace=False)

    def end(self) -> dict[str, list[str]]:
        """Write the last event of the log; return the name of the log with all its lines.

        A hook of a conftest may still call kernels. The session leaves these calls to their tuners, and warns the user.
        """
        # From here on, threads that still tune ask nothing more.
        self.session.is_paused = True
        log = self._context.log
        self._end_modes()
        log.close(Event(END, data=self._build_end_data()))
        self.session.has_ended = True
        # Paused adapters do not ask the session, and the user would get no warning.
        self.session.is_paused = False
        return {log.name: log.lines}

    def _build_end_data(self) -> dict[str, Any]:
        """Return the facts that the controller needs from this process. ``run/collected.py`` reads them."""
        session = self.session
        # These lines come before the notes are read, because they may add notes.
        untracked = self.hooks.untracked()
        open_tunings = session.progress.open_tunings
        if open_tunings:
            session.note(
                f"not saved, because a thread still tuned after the tests (wait for it in the "
                f"test): {', '.join(open_tunings)}"
            )
        log_error = self._context.log.error
        if log_error:
            session.note(
                f"the log of this run cannot be written, so tunings would be lost if the run is killed: {log_error}"
            )
        imported_kernels: list[str] = []
        if self._context.index is not None:
            imported_kernels = list(filter(_is_module_imported, self._context.index.list_kernels()))
        return {
            "notes": [*session.notes, *self._context.coordination.notes],
            "untracked": sorted(untracked),
            "unhooked": session.unhooked_tuners,
            "versions": {tuner: str(versions) for tuner, versions in session.versions.items()},
            "imported_kernels": imported_kernels,
            "unavailable": self._list_unavailable(),
            "missing_packages": self._find_missing_packages(),
            "has_visible_gpu": not self._has_lost_gpu(),
            "hypothesis_tests": sorted(self._hypothesis_tests),
            "disabled_tests": sorted(self._disabled_tests),
            "missing_caches": sorted(self._missing_caches),
            "ignored_test_files": self._ignored_test_files.paths,
            "deselected": self._deselected_count,
            "has_replaced_paths": self._has_replaced_paths,
        }

    def _list_unavailable(self) -> list[str]:
        """Return why the entries of optional caches cannot be used here: no library, no GPU."""
        index = self._context.index
        if index is None or not self._options.has_only_optional_caches:
            return []
        reasons = [f"{package} is not installed" for package in self._find_missing_packages().values()]
        if self._has_lost_gpu():
            reasons.append("no GPU is visible")
        return reasons

    def _find_missing_packages(self) -> dict[str, str]:
        """Return tuner of loaded entries -> the package of its library, for the packages that are not installed."""
        index = self._context.index
        if index is None:
            return {}
        missing_packages = {}
        for library in sorted({library_of(tuner) for tuner in index.list_tuners()}):
            built_in_tuner = TUNERS.get(library)
            if built_in_tuner is None:
                # A tuner of another package: only its adapter knows the package of the library.
                continue
            package = built_in_tuner.module.partition(".")[0]
            if not _is_installed(package):
                missing_packages[library] = package
        return missing_packages

    def _has_lost_gpu(self) -> bool:
        """Whether loaded entries are for GPUs, and this process cannot see any GPU."""
        index = self._context.index
        if index is None or not any(entry.problem.device.is_gpu for entry in index):
            return False
        # A test may have left a broken replacement of a function of torch.
        with suppress(Exception):
            return not devices.has_visible_gpu()
        return False

    def pytest_itemcollected(self, item: pytest.Item) -> None:
        self._collected_tests.append((item, item.nodeid))

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._pytest_session = session
        self._deselected_count = self._count_removed_tests(session)
        self._has_replaced_paths = not has_collected_parsed_paths(session)
        # No test will run.
        if not session.items or session.config.option.collectonly:
            return

        # Listing the kernels takes time, so a mode calls this function only if it compiles them ahead.
        def list_jobs() -> Sequence[Job]:
            return self.hooks.prepare(self._build_suite(session))

        for mode in self._options.modes:
            with self.session.guard("session", mode.name):
                mode.begin_tests(self.session, self._context.folder, self._context.workers, list_jobs)

    def _count_removed_tests(self, session: pytest.Session) -> int:
        """Return how many of the collected tests are missing from ``session.items``.

        Shard plugins remove tests without a call of ``pytest_deselected``. Plugins may also add tests, or replace a
        test by a copy with the same node id, so a comparison of the numbers of tests would be wrong. Before pytest 9.2,
        xdist changes node ids with ``--dist=loadgroup`` after ``pytest_itemcollected``. So each test counts by the node
        id that it was collected with. If a hook gave several tests one node id, the reports cannot tell them apart, so
        all but the last count as missing.
        """
        node_id_by_item_id = {id(item): node_id for item, node_id in self._collected_tests}
        collected_id_by_current_id: dict[str, str] = {}
        for item in session.items:
            if id(item) in node_id_by_item_id:
                collected_id_by_current_id[item.nodeid] = node_id_by_item_id[id(item)]
            else:
                # A plugin added this test. If it is a copy of a test with this node id, that test keeps its place.
                collected_id_by_current_id.setdefault(item.nodeid, item.nodeid)
        return len(set(node_id_by_item_id.values()) - set(collected_id_by_current_id.values()))

    def _build_suite(self, session: pytest.Session) -> Suite:
        """Return the objects that the collected tests may call, and whether the tests are a part of the suite."""
        invocation_folder = session.config.invocation_params.dir
        names_only_folders = all((invocation_folder / argument).is_dir() for argument in session.config.args)
        is_part = self._deselected_count > 0 or not names_only_folders
        objects_by_test = [tuple(_list_test_objects(item)) for item in session.items]
        return Suite(tuple(objects_by_test), is_part)

    def _end_modes(self) -> None:
        """End the modes and write their last events."""
        # In a forked child of a test, the threads of a mode belong to the parent.
        if getpid() != self._process_id:
            return
        for mode in self._options.modes:
            for event in mode.end():
                self.session.append_event(event)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.session.begin_test(item.nodeid)
        # The fixture shows only the lookups of its own test.
        self.session.lookups.clear()
        test_function = getattr(item, "obj", None)
        if getattr(test_function, "is_hypothesis_test", False):
            self._hypothesis_tests.add(item.nodeid)
        try:
            with ExitStack() as self._test_exits:
                self._is_test_isolated = False
                # A test with a cache of its own must not get the choices of earlier tests.
                if item.get_closest_marker(MARKER) is not None:
                    self._isolate()
                # The marker has enabled=False, so the tuners work as without the plugin.
                if not _is_enabled(item):
                    self._disabled_tests.add(item.nodeid)
                    self.session.is_paused = True
                return (yield)
        finally:
            self.session.current_test = ""
            self.session.is_paused = False

    def _isolate(self) -> None:
        """Hide the choices of earlier tests until this test ends, so that only a cache can answer a lookup."""
        if not self._is_test_isolated:
            self._is_test_isolated = True
            self._test_exits.enter_context(self.hooks.isolated())
            self._test_exits.enter_context(self.session.isolated())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for path in _list_marker_caches(item):
            self.load(item, path)

    def load(self, item: pytest.Item, path: str) -> None:
        """Load one more cache for a test; if the cache cannot be read, fail the test with one line.

        :param path: relative to the file of the test.
        """
        self._isolate()
        try:
            argument = path_argument(path, item.path.parent, MARKER, item.config)
            cache = self._read_test_cache(argument.location)
        except MissingCacheError as error:
            raise _build_test_failure(error.for_cache_of_test()) from None
        except CacheError as error:
            raise _build_test_failure(error) from None
        if cache.lossy:
            self.session.note(str(CacheError(*cache.lossy)))
        dump = self._options.dump
        if dump is not None and argument.is_same_as(dump):
            # The dump path gets the tunings of all tests, so it is no cache of single tests.
            location = None
        else:
            location = argument.location
            self._note_test_cache(argument, cache)
        self.session.add_cache(EntryIndex.from_caches([cache]), location)
        # The cache may have entries of tuners that did not act before.
        self.hooks.install()

    def _note_test_cache(self, argument: CacheArgument, cache: Cache) -> None:
        """Note a cache of tests that this run may write. The run writes the tunings of these tests into it."""
        if not self._options.writes or argument.location.url:
            return
        if not cache.entries:
            self._missing_caches.add(argument.typed)
        self._report_test_cache(argument.typed, cache)

    def _read_test_cache(self, location: Location) -> Cache:
        """Return the content of a cache; an empty cache if it is absent and this run may create it.

        :raises CacheError: if the cache cannot be read.
        """
        may_be_absent = self._options.writes
        if location.url:
            return self._read_url(location, may_be_absent)
        return stores.read_cache(location, may_be_absent)

    def _report_test_cache(self, name: str, cache: Cache) -> None:
        """Send the controller the entries of a test's own cache. If a test deletes the file, the update has them."""
        if name not in self._reported_test_caches:
            self._reported_test_caches.add(name)
            for entry in cache.entries:
                self.session.append_event(Event(TEST_CACHE_ENTRY, entry=entry, data={"cache": name}))

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if self._refusal and report.outcome != "failed":
            # The library under test swallowed the error, or the test is expected to fail.
            report.outcome = "failed"
            report.longrepr = self._refusal
            # pytest would not count an expected failure.
            vars(report).pop("wasxfail", None)
        self._refusal = ""
        if report.failed:
            self._tell_modes_of_failure(item, report)
        return report

    def _tell_modes_of_failure(self, item: pytest.Item, report: pytest.TestReport) -> None:
        """Add the sections of the modes, with a command that runs the failed test again, to its report."""
        for mode in self._options.modes:
            lines, events = mode.test_failed(item.nodeid)
            if lines:
                section = [*lines, f"rerun: {_build_rerun_command(item, self._options, mode)}"]
                report.sections.append((f"autotune {mode.name}", "\n".join(section)))
            for event in events:
                self.session.append_event(event)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        workeroutput: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if workeroutput is not None:
            workeroutput[INPUT_KEY] = self.end()

    def pytest_unconfigure(self) -> None:
        self._end_modes()
        # Another run may follow in this process: it begins without the state of the last test.
        self.session.begin_test("")
        self._run_exits.close()


class _KeptModules:
    """Puts the modules of this package back that a fixture has removed from ``sys.modules``.

    A fixture may remove all modules that were imported after its conftest. If modules of this package were imported
    again, they would know of no run. None in place of a module stays, because the test wants an ImportError.
    """

    def __init__(self) -> None:
        self._modules: dict[str, ModuleType] = {}
        for name, module in list(sys.modules.items()):
            if name.partition(".")[0] == "pytest_autotune":
                self._modules[name] = module

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_setup(self) -> Generator[None, object, object]:
        self._restore()
        try:
            return (yield)
        finally:
            self._restore()

    def _restore(self) -> None:
        for name, module in self._modules.items():
            sys.modules.setdefault(name, module)


class CacheFixture:
    """The value of the ``autotune_cache`` fixture.

    Its lookups are of the problems that this test was the first to ask for.
    """

    def __init__(self, process: TestProcess, item: pytest.Item) -> None:
        self._process = process
        self._item = item

    def _list_lookups(self, outcome: Outcome) -> tuple[Lookup, ...]:
        """Return this test's lookups with an outcome. The reason of a miss names the nearest entry."""
        session = self._process.session
        lookups = []
        for lookup in session.lookups:
            if lookup.outcome is not outcome:
                continue
            if lookup.reason == NO_ENTRY:
                miss = explain_miss(session.indexes, lookup.problem, session.policy)
                lookup = replace(lookup, reason=miss.text)
            lookups.append(lookup)
        return tuple(lookups)

    @property
    def hits(self) -> tuple[Lookup, ...]:
        """The lookups that a loaded cache answered."""
        return self._list_lookups(Outcome.HIT)

    @property
    def misses(self) -> tuple[Lookup, ...]:
        """The lookups of problems without an entry."""
        return self._list_lookups(Outcome.MISS)

    @property
    def stale(self) -> tuple[Lookup, ...]:
        """The lookups of problems whose entry was made for other code or other candidates."""
        return self._list_lookups(Outcome.STALE)

    @property
    def mismatches(self) -> tuple[Lookup, ...]:
        """The lookups of problems that have entries for other devices only."""
        return self._list_lookups(Outcome.MISMATCH)

    @property
    def entries(self) -> tuple[Entry, ...]:
        """The entries that are loaded now; those of the cache that takes precedence come first."""
        return tuple(entry for index in self._process.session.indexes for entry in index)

    def load(self, path: str | Path) -> None:
        """Load one more cache until this test ends; the path is relative to the file of the test."""
        self._process.load(self._item, str(path))

    def tune(self, kernel: str, **request: Any) -> Any:
        """Choose a configuration for a hand-written kernel: :func:`pytest_autotune.tune`, with its arguments."""
        from pytest_autotune.tuners.function.tuner import tune

        return tune(kernel, **request)

    def loss(self, config: object, **request: Any) -> Any:
        """Measure the cost of a choice on this device: :func:`pytest_autotune.loss`, with its arguments."""
        from pytest_autotune.tuners.function.tuner import loss

        return loss(config, **request)


def _build_test_failure(error: CacheError) -> BaseException:
    """Return the failure of a test whose cache cannot be read."""
    return pytest.fail.Exception(f"{MARKER}: {error}", pytrace=False)


def _is_enabled(item: pytest.Item) -> bool:
    """Whether the tuners may act in a test. The nearest marker with ``enabled`` decides."""
    for mark in item.iter_markers(MARKER):
        if "enabled" in mark.kwargs:
            return bool(mark.kwargs["enabled"])
    return True


def _list_marker_caches(item: pytest.Item) -> list[str]:
    """Return the paths of the caches that a test's markers load.

    Markers can stand at the test, at its class and at its module. The path of the marker that is nearest to the test is
    last: the cache that is loaded last takes precedence. A marker with other arguments fails the test.
    """
    paths: list[str] = []
    # Pytest lists the nearest marker first.
    for mark in reversed(list(item.iter_markers(MARKER))):
        load = mark.kwargs.get("load", [])
        if not isinstance(load, (list, tuple)):
            load = [load]
        if not _has_marker_arguments(mark, load):
            _fail_test_of_marker(mark)
        paths += [str(path) for path in load]
    return paths


def _has_marker_arguments(mark: pytest.Mark, load: Sequence[object]) -> bool:
    """Whether a marker has arguments such as ``load="a.pb"``, ``load=["a.pb", "b.pb"]`` and ``enabled=False``.

    :param load: the argument of this name, as a list.
    """
    if mark.args or not mark.kwargs.keys() <= {"load", "enabled"}:
        return False
    if not isinstance(mark.kwargs.get("enabled", True), bool):
        return False
    return all(isinstance(path, (str, Path)) for path in load)


def _fail_test_of_marker(mark: pytest.Mark) -> NoReturn:
    """Fail the test with one line that has the arguments of its marker."""
    arguments = [repr(argument) for argument in mark.args]
    arguments += [f"{name}={value!r}" for name, value in mark.kwargs.items()]
    pytest.fail(
        f"marker {MARKER}: expected load=PATH, load=[PATH, PATH] or enabled=False, not {', '.join(arguments)}",
        pytrace=False,
    )


def _build_rerun_command(item: pytest.Item, options: Options, mode: Mode) -> str:
    """Return the command that runs a test again in a mode: ``pytest --autotune-sweep=7 tests/test_a.py::test_b``."""
    flag = f"--autotune-{mode.name}"
    if mode.typed_value:
        flag += f"={mode.typed_value}"
    words = ["pytest", flag]
    if options.tuners is not None:
        words.append(f"--autotune-tuners={','.join(options.tuners)}")
    # The path of a node id is relative to the rootdir, and the user types paths in the folder where pytest was started.
    _, colons, name = item.nodeid.partition("::")
    path = os.path.relpath(item.path, item.config.invocation_params.dir)
    words.append(f"{path}{colons}{name}")
    return shlex.join(words)


def _list_test_objects(item: pytest.Item) -> Iterator[object]:
    """Yield the objects that a test may call: its function, its parameters and the functions of its fixtures.

    A mode compiles the kernels among these objects ahead. Some attributes are private to pytest, and all of them can be
    absent in items of other plugins.
    """
    untyped_item: Any = item
    yield getattr(untyped_item, "obj", None)
    with suppress(AttributeError):
        yield from untyped_item.callspec.params.values()
    with suppress(AttributeError, TypeError, IndexError):
        definitions: Sequence[Any]
        # Name of a fixture -> its definitions. The last definition overrides the others.
        for definitions in untyped_item._fixtureinfo.name2fixturedefs.values():
            yield definitions[-1].func


def _is_installed(package: str) -> bool:
    if package in sys.modules:
        return True
    try:
        return find_spec(package) is not None
    except (ImportError, ValueError):
        return False


def _is_module_imported(kernel: str) -> bool:
    """Whether this process imported the module that should define a kernel.

    :param kernel: ``tuner:module.qualname``, such as ``triton:lib.ops.Matmul.kernel``. The name does not tell where the
        module ends: here it may be ``lib.ops.Matmul``, ``lib.ops`` or ``lib``.
    """
    names = kernel.partition(":")[2].split(".")
    longest = len(names) - 1
    for length in range(longest, 0, -1):
        module = sys.modules.get(".".join(names[:length]))
        if module is None:
            continue
        # Only a package has this path, in which Python searches the modules of the package.
        search_path = getattr(module, "__path__", None)
        if length == longest or search_path is None:
            return True
        # The kernel may be in a module of this package that exists and was not imported.
        unimported_module = PathFinder.find_spec(".".join(names[: length + 1]), search_path)
        return unimported_module is None
    return False
