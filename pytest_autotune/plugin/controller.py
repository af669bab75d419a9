"""The hooks of the process that begins and ends a run: xdist's controller, or the only process.

This process reads the loaded caches, merges the workers' logs, writes the dump and the reports, and judges the gates.
The hooks of the processes that run tests are in :mod:`pytest_autotune.plugin.worker`.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.codec.mapping import encode_for_process
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.merge import merge_run
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.stores.disk import compute_content_digest
from pytest_autotune.cache.stores.store import Store
from pytest_autotune.cache.wording import describe_count, to_one_line
from pytest_autotune.devices import visible_nvidia_gpus
from pytest_autotune.modes import MODES
from pytest_autotune.plugin import reports
from pytest_autotune.plugin.completeness import Completeness, find_missing_load, was_interrupted
from pytest_autotune.plugin.options import INPUT_KEY, MARKER, has_marker_or_fixture
from pytest_autotune.plugin.progress import ProcessProgress, ProgressFile, make_progress_line, read_stages
from pytest_autotune.plugin.values import CacheArgument, Options, find_cache_folder, is_distributed, path_argument
from pytest_autotune.plugin.worker import Task, TestProcess, WorkerContext
from pytest_autotune.report import ci_log
from pytest_autotune.report.gate import explain_no_part, judge
from pytest_autotune.report.summary import describe_dump, render_section
from pytest_autotune.run.collected import ALONE, Collected, collect
from pytest_autotune.run.dumping import dump_run, dump_test_caches
from pytest_autotune.run.finish import collect_measurements, finish_run
from pytest_autotune.run.reporter import Progress
from pytest_autotune.run.request import UPDATE_ALL, DumpPlan, NoDump, RunRequest, plan_dump
from pytest_autotune.run.result import Gate, RunResult
from pytest_autotune.run.settle import EndedRun, InitialCaches, settle_run
from pytest_autotune.tuners import TUNERS, list_third_party_tuners
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import RunFolder
from pytest_autotune.workers.locks import Locks, RunMembership, SharedFolder, find_shared_folder, remove_run_folders

if TYPE_CHECKING:
    from concurrent.futures import Future

    from pytest_autotune.workers.ranks import Ranks

#: The number of seconds for which a Ctrl-C waits for workers before xdist kills them. A worker may be tuning, and its
#: finished tunings are already in its log.
INTERRUPTED_S = 1


@dataclass(frozen=True)
class Preparation:
    """The caches and files of a run, which the controller reads and makes when pytest is configured.

    :param initial: the loaded caches, and the content of the dump path.
    :param folder: the folder of the logs. The next run finds there the tunings of a run that was killed.
    :param store: the store of the dump path; None in a run that dumps nothing.
    """

    initial: InitialCaches
    folder: RunFolder
    store: Store | None


class Controller:
    """Reads the loaded caches, collects the lookups, writes the dump, judges the gates and reports.

    The steps of its life:

    1. When pytest is configured, it reads the caches and makes the folder of the run.
    2. Each worker gets one :class:`~pytest_autotune.plugin.worker.Task`, and sends one message at its end.
    3. In ``pytest_sessionfinish``, after the last worker, it merges, dumps, judges and reports.
    4. It removes the folders as soon as no process needs them, at the latest in ``pytest_unconfigure``.

    Invariants: no other process writes the user's files. Each worker has sent its message or has crashed. The result is
    built once, after the last event. A log is removed only after its entries are in the dump.

    :raises pytest.UsageError: if a cache cannot be read, or the dump path cannot be written.
    """

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        #: The process that runs the tests here; None under xdist.
        self._process: TestProcess | None = None
        #: The lines of the logs of the processes that have ended, by the name of the log.
        self._log_lines: dict[str, list[str]] = {}
        #: The loaded entries as JSON; None until the first worker starts, and in a run that loads nothing.
        self._encoded_entries: str | None = None
        #: The workers that ended without their message.
        self._crashed_workers: list[str] = []
        self._completeness = Completeness(self._options)
        self._has_begun = False
        self._locations: dict[str, tuple[str, int | None, str]] = {}
        self._is_on_github = options.ci != "off" and os.environ.get("GITHUB_ACTIONS") == "true"
        self._result: RunResult | None = None
        self._run_id = uuid.uuid4().hex
        self._shared = find_shared_folder()
        reports.check_reports(options)
        self._folder_reports = reports.FolderReports(options.report, config, self._run_id[:12])
        preparation = _prepare_run(config, options, self._shared)
        self._initial = preparation.initial
        self._folder = preparation.folder
        self._store = preparation.store
        #: Path of a loaded cache -> digest of its bytes before the tests. The end of an update changes them.
        self._loaded_digests: dict[str, str] = {}
        if options.report:
            for argument in options.load:
                self._loaded_digests[argument.typed] = compute_content_digest(argument.location)
        #: The optional caches that are not there, as a user types them.
        self._absent_caches = [argument.typed for argument in options.load if _is_absent(argument, options)]
        self._notes = self._list_cache_notes()
        if self._shared.note:
            self._notes.append(self._shared.note)
        #: The folder in which the processes of this machine share their tunings; None if it could not be made.
        self._shared_run_folder = self._shared.run_folder(self._run_id)
        self._membership: RunMembership | None = None
        if self._shared_run_folder is not None:
            try:
                self._membership = RunMembership(self._shared_run_folder)
            except OSError:
                # Each worker tells the user.
                self._shared_run_folder = None

    def _list_cache_notes(self) -> list[str]:
        """Return a line for each cache with fields that this version does not know, or that is not there."""
        notes: list[str] = []
        if self._initial.loaded:
            notes += [f"{path} is not there, and not loaded (?optional)" for path in self._absent_caches]
        for cache in [*(cache for _, cache in self._initial.loaded), self._initial.dump_cache]:
            if not cache.lossy:
                continue
            note = str(CacheError(*cache.lossy))
            if note not in notes:
                notes.append(note)
        return notes

    def begin(self) -> TestProcess | None:
        """Return the process that runs the tests here; None if xdist's workers run them."""
        config, options = self._config, self._options
        if is_distributed(config):
            line = None
            if self._shared_run_folder is not None:
                line = make_progress_line(config, partial(read_stages, self._shared_run_folder))
            if line is not None:
                config.pluginmanager.register(line, "autotune-progress")
            return None
        context = WorkerContext(
            self._initial.index,
            Coordinator(Locks(options.wait_timeout, shared=self._shared)),
            self._folder.log(ALONE),
            progress=Progress(ProcessProgress(config)),
            folder=self._shared_run_folder,
        )
        self._process = TestProcess(config, options, context)
        return self._process

    def pytest_report_header(self) -> list[str]:
        parts = [f"load {path} ({describe_count(len(cache.entries), 'entry')})" for path, cache in self._initial.loaded]
        if self._options.dump is not None:
            parts.append(f"dump {self._options.dump.typed}")
        if self._options.on_miss in ("first", "nearest") and (self._options.load or self._options.dump is None):
            # A run that dumps and loads nothing tunes, whatever the option says.
            parts.append(f"on miss {self._options.on_miss}")
        parts += [f"{mode.name} {mode.typed_value}" for mode in self._options.modes if mode.typed_value]
        if not parts:
            return []
        return [to_one_line(f"autotune: {', '.join(parts)}")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        self._folder_reports.begin()

    # First: another plugin may deselect the test whose marker loads a cache.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        problem = find_missing_load(self._config, self._options)
        if not problem or not items or self._config.option.collectonly:
            return
        # The marker or the fixture may load a cache that the gate can judge by.
        if not any(has_marker_or_fixture(item) for item in items):
            raise pytest.UsageError(problem)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        # Pytest does not call this hook for --fixtures and similar options.
        self._has_begun = True

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        if not self._options.spread_gpus:
            return
        gpus = visible_nvidia_gpus()
        if not gpus:
            raise pytest.UsageError("autotune_spread_gpus: no NVIDIA GPU is visible (nvidia-smi lists none)")
        for number, spec in enumerate(specs):
            spec.env.setdefault("CUDA_VISIBLE_DEVICES", gpus[number % len(gpus)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        task = Task(
            entries=self._encode_loaded_entries(),
            run_folder=str(self._folder.path or ""),
            host=socket.gethostname(),
            run_id=self._run_id,
            workers=node.workerinput["workercount"],
        )
        node.workerinput[INPUT_KEY] = asdict(task)

    def _encode_loaded_entries(self) -> str | None:
        """Return the message with the loaded entries; None in a run that loads nothing."""
        # Encoding 5,000 entries takes 0.35 s, so all workers get the same text.
        if self._encoded_entries is None and self._initial.index is not None:
            self._encoded_entries = encode_for_process(self._initial.index)
        return self._encoded_entries

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        worker = node.gateway.id
        log: dict[str, list[str]] | None = getattr(node, "workeroutput", {}).get(INPUT_KEY)
        if log is not None:
            # If only a test asks for the plugin, this message is the beginning of the run here.
            self._has_begun = True
            self._log_lines |= log
        elif error and worker not in self._crashed_workers:
            self._crashed_workers.append(worker)
            if self._shared_run_folder is not None:
                # The worker's last tuning is over: the progress line must not show it any longer.
                ProgressFile(self._shared_run_folder, worker).show(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._completeness.add_report(report)
        if report.when == "setup":
            self._locations[report.nodeid] = report.location

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._completeness.add_report(report)

    # The innermost wrapper, so that the run ends before JUnit's report is written. After a Ctrl-C, pytest tears the
    # interrupted test down in this hook, and workers may still be tuning: the run ends after the other hooks.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
        has_ended = exitstatus != pytest.ExitCode.INTERRUPTED or self._stop_workers()
        if has_ended:
            self._finish(session, exitstatus)
        result = yield
        if not has_ended:
            self._finish(session, exitstatus)
        return result

    def _stop_workers(self) -> bool:
        """Let xdist stop its workers now, before its own hook runs; return whether xdist runs the tests."""
        xdist_session = self._config.pluginmanager.get_plugin("dsession")
        if xdist_session is None:
            return False
        nodes = getattr(xdist_session, "nodemanager", None)
        if nodes is not None:
            # A longer wait does not end a tuning sooner.
            nodes.EXIT_TIMEOUT = min(nodes.EXIT_TIMEOUT, INTERRUPTED_S)
        xdist_session.pytest_sessionfinish()
        return True

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        """End the run: build the result, write the dump and the reports, and set pytest's exit status."""
        has_run_tests = self._has_begun and not self._config.getoption("collectonly")
        if not has_run_tests or self._config.getoption("setupplan", False):
            self._folder.close(written=False)
            return
        if self._process is not None:
            self._log_lines |= self._process.end()
        result = self._build_result(self._collect(session, exitstatus))
        ci_run = reports.find_ci_run(self._config)
        result = replace(
            result,
            run_facts=reports.list_run_facts(ci_run.command),
            loaded_digests=self._loaded_digests,
            ci_run=ci_run,
        )
        is_written = not result.errors
        result = self._folder_reports.end(reports.write_reports(self._options.report, result))
        if self._is_on_github:
            result = reports.add_step_summary(result)
        self._result = result
        reports.add_to_junit(result, self._config)
        if result.failures:
            self._fail(session, result)
        self._folder.close(written=is_written)

    def _fail(self, session: pytest.Session, result: RunResult) -> None:
        """Set pytest's exit status, and the text that pytest shows between exclamation marks."""
        if session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED
            if result.gate.is_usage_error:
                session.exitstatus = pytest.ExitCode.USAGE_ERROR
        # -x has set a text, too, and it must not hide the failure of a gate.
        reasons = []
        if session.shouldfail:
            reasons.append(str(session.shouldfail))
        reasons += [to_one_line(failure) for failure in result.failures]
        session.shouldfail = "; ".join(reasons)

    def _collect(self, session: pytest.Session, exitstatus: int) -> Collected:
        """Return the reports of all processes, with the facts that only this process knows."""
        events, damaged_count = self._folder.collect(self._log_lines)
        recovered_events, damaged_count_before = self._folder.recovered
        if damaged_count:
            self._notes.append(f"{describe_count(damaged_count, 'line')} of this run's log cannot be read")
        if damaged_count_before:
            lines = describe_count(damaged_count_before, "line")
            self._notes.append(f"{lines} of the logs of earlier runs cannot be read")
        collected = collect(events, recovered_events)
        shortfall = self._completeness.find_shortfall(session, exitstatus, self._crashed_workers, collected)
        not_passed = self._completeness.find_not_passed(session, exitstatus, self._crashed_workers, collected)
        return replace(
            collected,
            crashed_workers=tuple(sorted(self._crashed_workers)),
            incomplete_reason=shortfall.reason,
            not_passed_reason=not_passed.reason,
            # The first failure is found before any skip, so a skip is the reason only if no test failed.
            has_only_skips=not_passed.is_skip or not_passed.is_ignored_file,
            is_only_skipped=shortfall.is_skip,
            is_interrupted=was_interrupted(session, exitstatus),
            test_counts=self._completeness.test_counts,
            notes=(*self._notes, *collected.notes),
        )

    def _build_result(self, collected: Collected) -> RunResult:
        """Write the caches that tests load and the dump, judge the gates, and return the result of the run."""
        options = self._options
        request = self._build_request(collected)
        test_dumps = []
        if options.writes:
            test_dumps = dump_test_caches(self._open_test_cache, MARKER, collected, request, self._folder)
        dump_notes = []
        dump_errors: list[str] = []
        for test_dump in test_dumps:
            note = describe_dump(test_dump)
            if note:
                dump_notes.append(note)
            dump_errors += test_dump.errors
        result = self._finish_run(replace(collected, notes=(*dump_notes, *collected.notes)), request)
        result = replace(
            result,
            errors=(*result.errors, *dump_errors),
            test_places=reports.locate_tests(self._locations, self._config.rootpath),
            has_only_optional_caches=options.has_only_optional_caches,
        )
        # Each of these steps reads the result of the step above it.
        result = replace(result, no_part_reason=self._explain_no_part(result))
        result = replace(result, gate=self._judge(result))
        return replace(result, sections=tuple(mode.build_section(result) for mode in options.modes))

    def _finish_run(self, collected: Collected, request: RunRequest) -> RunResult:
        """Return the result of the run, after writing the dump if the user asked for a dump."""
        dump = self._options.dump
        if dump is None or self._store is None:
            run = EndedRun.of_one_process(self._initial, collected, request)
            return finish_run(settle_run(run), Cache())
        return dump_run(self._store, dump.source, self._initial, collected, request, self._folder)

    def _judge(self, result: RunResult) -> Gate:
        """Return the verdict on the misses and the unused entries of the run."""
        options = self._options
        # A gate without a loaded cache is an error only here, at the end: until then, a test may load a cache.
        unloaded_gate = find_missing_load(self._config, options)
        return judge(result, options.max_misses, options.fail_on_unused, unloaded_gate)

    def _explain_no_part(self, result: RunResult) -> str:
        """Return why a run with optional caches took no part; empty if it took part."""
        has_test_caches = any(lookup.test_cache for lookup in result.collected.lookups)
        if result.has_only_optional_caches and not result.loaded and not has_test_caches:
            return f"{' and '.join(self._absent_caches)} is not there"
        return explain_no_part(result)

    def _open_test_cache(self, name: str) -> Store:
        """Return the store of a cache that a test loads, by the path that a user types."""
        argument = path_argument(name, self._config.invocation_params.dir, MARKER, self._config)
        return stores.open_store(argument.location)

    def _plan_dump(self) -> DumpPlan:
        """Return the plan for the dump of this run."""
        options = self._options
        scope = options.update or UPDATE_ALL
        is_update = options.updates or bool(options.update)
        if options.dump is None or self._store is None:
            return NoDump(scope, is_update, options.keep_candidates)
        return plan_dump(bool(options.dump.location.url), scope, is_update, options.keep_candidates)

    def _build_request(self, collected: Collected) -> RunRequest:
        """Return the user's wishes for the end of this run."""
        third_party_tuners = [entry_point.name for entry_point in list_third_party_tuners()]
        # Example: "--autotune-verify tells whether the choices are still the fastest"
        mode_hints = []
        for mode in MODES:
            if mode.answers:
                mode_hints.append(f"--autotune-{mode.name} tells {mode.answers}")
        return RunRequest(
            plan=self._plan_dump(),
            modes=self._options.modes,
            update_arguments=self._choose_update_arguments(collected),
            policy=self._options.policy,
            tuners_named_by=self._describe_tuners_option(),
            adapters=(*TUNERS, *third_party_tuners),
            mode_hints=tuple(mode_hints),
        )

    def _choose_update_arguments(self, collected: Collected) -> str:
        """Return the options that bring the cache up to date: ``--autotune-load=a.pb --autotune-update``.

        The text is empty if no options do.
        """
        options = self._options
        if options.update_arguments:
            return options.update_arguments
        has_test_caches = any(lookup.test_cache for lookup in collected.lookups)
        if has_test_caches and not options.writes:
            # The options load no cache, but the markers of tests do. An update writes into the caches of the markers.
            return "--autotune-update"
        return ""

    def _describe_tuners_option(self) -> str:
        """Return the option that names the tuners of this run, as the user wrote it: ``--autotune-tuners=triton``."""
        typed_tuners = self._config.getoption("autotune_tuners")
        if typed_tuners is None:
            return "autotune_tuners (ini)"
        return f"--autotune-tuners={typed_tuners}"

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._result is None:
            return
        reports.show_section(render_section(self._result, self._config.get_verbosity()), terminalreporter)
        if self._is_on_github:
            for line in ci_log.list_annotations(self._result):
                terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        self._folder.close(written=False)
        if self._membership is not None:
            self._membership.end()
            self._membership = None
        remove_run_folders(self._shared)


def _prepare_run(config: pytest.Config, options: Options, shared: SharedFolder) -> Preparation:
    """Read the caches of a run, and make the folder of its logs.

    :raises pytest.UsageError: if a cache cannot be read, or the dump path cannot be written.
    """
    dump = options.dump
    store: Store | None = None
    if dump is not None:
        with _usage_errors(f"{dump.source}: "):
            store = stores.open_store(dump.location)
    reader = CacheReader(options, store)
    dump_cache = Cache()
    if dump is not None and store is not None:
        with _usage_errors(f"{dump.source}: "):
            dump_cache = reader.read_dump(dump.location, store)
    folder = _make_log_folder(config, options, shared)
    loaded = _load_caches(options, reader, dump_cache, folder)
    index = None
    # With on_miss=first, a run without caches has an empty index: every lookup is a miss.
    if loaded or (options.on_miss == "first" and dump is None):
        index = EntryIndex.from_caches([cache for _, cache in loaded])
    return Preparation(InitialCaches(tuple(loaded), dump_cache, index), folder, store)


def _make_log_folder(config: pytest.Config, options: Options, shared: SharedFolder) -> RunFolder:
    """Make the folder of this run's logs in pytest's cache, else in the folder that all runs of the user share.

    Runs with one rootdir and one dump path find the logs of each other.
    """
    # An update without a dump path writes the caches that tests load.
    dump_path = options.update
    if options.dump is not None:
        dump_path = options.dump.location.resolved
    parents: list[Path] = []
    cache_folder = find_cache_folder(config)
    if cache_folder is not None:
        parents.append(cache_folder)
    if shared.path is not None:
        parents.append(shared.path / "runs")
    return RunFolder(parents, "\0".join([str(config.rootpath), dump_path]))


def _load_caches(
    options: Options, reader: CacheReader, dump_cache: Cache, folder: RunFolder
) -> list[tuple[str, Cache]]:
    """Return the loaded caches, each with its path as a user types it. The last one takes precedence.

    :param dump_cache: the content of the dump path before the run.
    :raises pytest.UsageError: if a cache cannot be read.
    """
    ranks = None
    if options.load:
        ranks = _find_ranks()
    loaded: list[tuple[str, Cache]] = []
    # A file takes precedence over a URL, so URLs are loaded first: a file was reviewed, and a shared store only adds
    # the entries that the file lacks.
    for argument in sorted(options.load, key=lambda argument: not argument.location.url):
        if _is_absent(argument, options):
            continue
        is_dump_path = options.dump is not None and argument.is_same_as(options.dump)
        with _usage_errors(f"{argument.source}: "):
            if ranks is not None and argument.location.url and not ranks.is_rank_0:
                # Other jobs may write to a shared store at any time, so only rank 0 reads the store.
                cache = ranks.receive_cache(argument.typed)
            elif is_dump_path:
                cache = Cache(dump_cache.entries, dump_cache.lossy)
            else:
                cache = reader.read(argument.location)
            if ranks is not None and argument.location.url and ranks.is_rank_0:
                cache = ranks.send_cache(argument.typed, cache)
        if is_dump_path and ranks is None:
            # Ranks recover nothing: they must load equal caches, and each could find other logs of killed runs.
            cache = _add_recovered_tunings(cache, folder)
        loaded.append((argument.typed, cache))
    if ranks is not None:
        with _usage_errors():
            ranks.check_same(loaded)
    return loaded


def _find_ranks() -> Ranks | None:
    """Return the ranks of the distributed job that torchrun started; None if this process is in no such job."""
    # torchrun sets this variable.
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return None
    from pytest_autotune.workers.ranks import Ranks

    return Ranks.of_this_job()


def _is_absent(argument: CacheArgument, options: Options) -> bool:
    """Whether an optional cache is not there. A dump of the run creates its own."""
    if not argument.is_optional or argument.location.url:
        return False
    if options.dump is not None and argument.is_same_as(options.dump):
        return False
    try:
        return not os.path.exists(argument.location.resolved)
    except CacheError:
        return True


def _add_recovered_tunings(cache: Cache, folder: RunFolder) -> Cache:
    """Return a cache with the tunings of killed runs that had the same dump path."""
    events, _ = folder.recovered
    recovered_lookups = collect((), events).recovered_lookups
    return merge_run(cache, collect_measurements(recovered_lookups)).cache


class CacheReader:
    """Reads the caches of a run. It reads several URLs at the same time: a store that is down takes seconds to fail."""

    def __init__(self, options: Options, dump_store: Store | None) -> None:
        locations = [argument.location for argument in options.load]
        if options.dump is not None and dump_store is not None:
            locations.append(options.dump.location)
        urls = {location for location in locations if location.url}
        #: The URLs that a thread reads; empty if there is at most one URL, because this thread can read it.
        self._futures: dict[Location, Future[Cache]] = {}
        if len(urls) < 2:
            return
        from concurrent.futures import ThreadPoolExecutor

        pool = ThreadPoolExecutor(len(urls))
        for url in urls:
            if options.dump is not None and dump_store is not None and url == options.dump.location:
                self._futures[url] = pool.submit(dump_store.check_writable)
            else:
                self._futures[url] = pool.submit(stores.read_cache, url)

    def read(self, location: Location) -> Cache:
        """Return the content of a cache.

        :raises CacheError: if it cannot be read.
        """
        future = self._futures.get(location)
        if future is None:
            return stores.read_cache(location)
        return future.result()

    def read_dump(self, location: Location, store: Store) -> Cache:
        """Return the content of the dump path.

        :raises CacheError: if it cannot be read or written.
        """
        future = self._futures.get(location)
        if future is None:
            return store.check_writable()
        return future.result()


@contextmanager
def _usage_errors(prefix: str = "") -> Iterator[None]:
    """Raise a cache error as an error of usage, which ends the run with one line."""
    try:
        yield
    except CacheError as error:
        raise pytest.UsageError(f"{prefix}{error}") from None
