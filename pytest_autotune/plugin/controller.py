"""The hooks of the process where a run comes together: xdist's controller, or the only process."""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import pytest

from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import to_one_line
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.merge import merge_run
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.plain import to_json
from pytest_autotune.cache.quantities import describe_count
from pytest_autotune.cache.stores.store import Store
from pytest_autotune.devices import visible_nvidia_gpus
from pytest_autotune.modes import MODES
from pytest_autotune.plugin import reports
from pytest_autotune.plugin.completeness import Completeness, find_unloaded_gate, was_interrupted
from pytest_autotune.plugin.names import INPUT_KEY, MARKER, has_marker_or_fixture
from pytest_autotune.plugin.progress import ProcessProgress, ProgressFile, make_progress_line, read_stages
from pytest_autotune.plugin.values import Options, find_cache_folder, is_distributed, path_argument
from pytest_autotune.plugin.worker import Task, TestProcess, WorkerContext
from pytest_autotune.report import ci_log, terminal
from pytest_autotune.report.gate import judge
from pytest_autotune.run.collected import ALONE, collect
from pytest_autotune.run.dumping import dump_run, dump_test_caches
from pytest_autotune.run.notes import Progress
from pytest_autotune.run.result import RunRequest, RunResult
from pytest_autotune.run.settle import InitialCaches, collect_measurements, settle
from pytest_autotune.tuners import TUNERS, third_party_tuners
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import RunFolder
from pytest_autotune.workers.locks import Locks, RunMembership, SharedFolder, remove_run_folders, shared_folder

#: How long a Ctrl-C waits for workers, which may be tuning, before xdist kills them, in seconds. What they have tuned
#: is in files.
INTERRUPTED_S = 1


class Controller:
    """Reads what is loaded, collects what was looked up, writes the dump, judges and reports.

    Attributes: ``_folder``, the log of the run, and ``_meeting``, where the processes of this machine share what they
    tune; ``_process``, what runs tests here (None under xdist); ``_handed_on``, the logs of those that have ended;
    ``_crashed``, workers that ended without their message; ``_result``, from the end of the run on.

    In this order: caches and the folder of the run are read and made when the run is configured; each worker gets one
    :class:`~pytest_autotune.plugin.worker.Task` and sends one message at its end; once all have ended, the run is
    settled, dumped, judged and reported, in ``pytest_sessionfinish``; the folders go when nothing needs them any more,
    at the latest in ``pytest_unconfigure``.

    Invariants: nobody else writes the user's files. Each worker has either sent its message or crashed. The result is
    made once, after the last event, and changes no more; a log is removed only when what it holds is written.

    :raises pytest.UsageError: when a cache cannot be read, or the dump not be written.
    """

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._process: TestProcess | None = None
        self._handed_on: dict[str, list[str]] = {}
        self._crashed: list[str] = []
        self._completeness = Completeness()
        self._has_begun = False
        self._locations: dict[str, tuple[str, int | None, str]] = {}
        self._is_on_github = options.ci != "off" and os.environ.get("GITHUB_ACTIONS") == "true"
        self._result: RunResult | None = None
        self._run_id = uuid.uuid4().hex
        self._shared = shared_folder()
        reports.check_reports(options)
        self._beginning, self._folder, self._store = _begin(config, options, self._shared)
        caches = [*(cache for _, cache in self._beginning.loaded), self._beginning.dump_cache]
        self._notes = list(dict.fromkeys(str(CacheError(*cache.lossy)) for cache in caches if cache.lossy))
        self._notes += filter(None, [self._shared.note])
        #: Where they meet each other, and forked children keep what they look up.
        self._meeting, self._membership = self._shared.run_folder(self._run_id), None
        try:
            self._membership = RunMembership(self._meeting) if self._meeting is not None else None
        except OSError:  # each worker says so
            self._meeting = None

    def begin(self) -> TestProcess | None:
        """What runs the tests in this process; None where xdist's workers do."""
        config, options = self._config, self._options
        if is_distributed(config):
            line = None
            if self._meeting is not None:
                line = make_progress_line(config, partial(read_stages, self._meeting))
            if line is not None:
                config.pluginmanager.register(line, "autotune-progress")
            return None
        context = WorkerContext(
            self._beginning.index,
            Coordinator(Locks(options.wait_timeout, shared=self._shared)),
            self._folder.log(ALONE),
            progress=Progress(ProcessProgress(config)),
            folder=self._meeting,
        )
        self._process = TestProcess(config, options, context)
        return self._process

    def pytest_report_header(self) -> list[str]:
        parts = [
            f"load {path} ({describe_count(len(cache.entries), 'entry')})" for path, cache in self._beginning.loaded
        ]
        if self._options.dump is not None:
            parts.append(f"dump {self._options.dump.typed}")
        if self._options.on_miss in ("first", "nearest") and (self._options.load or self._options.dump is None):
            parts.append(f"on miss {self._options.on_miss}")  # a dump alone tunes all the same
        parts += [f"{mode.name} {mode}" for mode in self._options.modes if str(mode)]
        return [to_one_line(f"autotune: {', '.join(parts)}")] if parts else []

    @pytest.hookimpl(tryfirst=True)  # before others deselect a test whose marker loads a cache
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        problem = find_unloaded_gate(self._config, self._options)
        if not problem or not items or self._config.option.collectonly:
            return
        # The marker or the fixture may load a cache that the gate can judge by.
        if not any(has_marker_or_fixture(item) for item in items):
            raise pytest.UsageError(problem)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self) -> None:
        self._has_begun = True  # never for --fixtures and its like

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        if self._options.spread_gpus:
            gpus = visible_nvidia_gpus()
            if not gpus:
                raise pytest.UsageError("autotune_spread_gpus: no NVIDIA GPU is visible (nvidia-smi lists none)")
            for number, spec in enumerate(specs):
                spec.env.setdefault("CUDA_VISIBLE_DEVICES", gpus[number % len(gpus)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        task = Task(
            entries=to_json(tuple(index)) if (index := self._beginning.index) is not None else None,
            run_folder=str(self._folder.path or ""),
            host=socket.gethostname(),
            run_id=self._run_id,
            workers=node.workerinput["workercount"],
        )
        node.workerinput[INPUT_KEY] = asdict(task)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        worker = node.gateway.id
        log: dict[str, list[str]] | None = getattr(node, "workeroutput", {}).get(INPUT_KEY)
        if log is not None:
            self._has_begun = True  # where only a test has asked for this run
            self._handed_on |= log
        elif error and worker not in self._crashed:
            self._crashed.append(worker)
            if self._meeting is not None:
                ProgressFile(self._meeting, worker)(None)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._completeness.add_report(report)
        if report.when == "setup":
            self._locations[report.nodeid] = report.location

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._completeness.add_report(report)

    # The innermost wrapper: before reports such as JUnit's are written. After a Ctrl-C, the test that it struck is torn
    # down by pytest in this hook, and workers may still be tuning.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
        if is_over := exitstatus != pytest.ExitCode.INTERRUPTED or self._stop_workers():
            self._finish(session, exitstatus)
        result = yield
        if not is_over:
            self._finish(session, exitstatus)
        return result

    def _stop_workers(self) -> bool:
        """Have xdist stop its workers before its turn comes, when it finds none; whether there is xdist."""
        xdist_session = self._config.pluginmanager.get_plugin("dsession")
        if (nodes := getattr(xdist_session, "nodemanager", None)) is not None:
            nodes.EXIT_TIMEOUT = min(nodes.EXIT_TIMEOUT, INTERRUPTED_S)  # a tuning does not end sooner for waiting
        if xdist_session is not None:
            xdist_session.pytest_sessionfinish()
        return xdist_session is not None

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        if not self._has_begun or self._config.getoption("collectonly") or self._config.getoption("setupplan", False):
            self._folder.close(written=False)
            return
        if self._process is not None:
            self._handed_on |= self._process.end()
        result = replace(self._end(session, exitstatus), run_facts=reports.list_run_facts(self._config))
        is_written = not result.errors
        result = reports.write_reports(self._options.report, result)
        if self._is_on_github:
            result = reports.add_step_summary(result)
        self._result = result
        reports.add_to_junit(result, self._config)
        if result.failures:
            if session.exitstatus == pytest.ExitCode.OK:
                status = pytest.ExitCode.USAGE_ERROR if result.gate.is_usage_error else pytest.ExitCode.TESTS_FAILED
                session.exitstatus = status
            # What pytest says between exclamation marks is one text: -x must not hide why the run fails.
            why = [str(session.shouldfail)] if session.shouldfail else []
            session.shouldfail = "; ".join([*why, *map(to_one_line, result.failures)])
        self._folder.close(written=is_written)

    def _end(self, session: pytest.Session, exitstatus: int) -> RunResult:
        options = self._options
        events, damaged = self._folder.collect(self._handed_on)
        recovered, damaged_before = self._folder.recovered
        for count, whose in ((damaged, "this run's log"), (damaged_before, "the logs of earlier runs")):
            if count:
                self._notes.append(f"{describe_count(count, 'line')} of {whose} cannot be read")
        collected = collect(events, recovered)
        incomplete = self._completeness.describe_incompleteness(
            session, exitstatus, self._crashed, collected.deselected_count
        )
        collected = replace(
            collected,
            crashed_workers=tuple(sorted(self._crashed)),
            incomplete_reason=incomplete,
            is_only_skipped=bool(incomplete) and incomplete == self._completeness.first_skip,
            is_interrupted=was_interrupted(session, exitstatus),
            test_counts=self._completeness.test_counts,
            notes=(*self._notes, *collected.notes),
        )
        update = options.update_arguments
        if any(lookup.test_cache for _, lookup in collected.lookups) and not options.writes:
            update = update or "--autotune-update"
        request = self._request(update)
        of_tests = []
        if options.writes:
            of_tests = dump_test_caches(self._cache_of_tests, MARKER, collected, request, self._folder)
        written = filter(None, map(terminal.describe_dump, of_tests))
        collected = replace(collected, notes=(*written, *collected.notes))
        if options.dump is None or self._store is None:
            result = settle(self._beginning, collected, Cache(), request)
        else:
            result = dump_run(self._store, options.dump.source, self._beginning, collected, request, self._folder)
        errors = (*result.errors, *(error for one in of_tests for error in one.errors))
        result = replace(
            result, errors=errors, test_places=reports.locate_tests(self._locations, self._config.rootpath)
        )
        # Workers cannot refuse the run, and a test that may load a cache need not: by now it is clear whether one did.
        gate = judge(result, options.max_misses, options.fail_on_unused, find_unloaded_gate(self._config, options))
        result = replace(result, gate=gate)
        return replace(result, sections=tuple(mode.build_section(result) for mode in options.modes))

    def _cache_of_tests(self, name: str) -> Store:
        return stores.open_store(path_argument(name, self._config.invocation_params.dir, MARKER, self._config).location)

    def _request(self, update: str) -> RunRequest:
        options, names = self._options, self._config.getoption("autotune_tuners")
        return RunRequest(
            is_dumping=options.dump is not None,
            prune=options.update == "prune",
            new_only=options.update == "new",
            keep_candidates=options.keep_candidates,
            is_update=options.updates or bool(options.update),
            update_arguments=update,
            policy=options.policy,
            tuners_named_by=f"--autotune-tuners={names}" if names is not None else "autotune_tuners (ini)",
            adapters=(*TUNERS, *(entry_point.name for entry_point in third_party_tuners())),
            version_checks=tuple(f"--autotune-{mode.name} tells {mode.tells}" for mode in MODES if mode.tells),
        )

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._result is not None:
            reports.show_section(terminal.render_section(self._result, self._config.get_verbosity()), terminalreporter)
            for line in ci_log.github_annotations(self._result) if self._is_on_github else ():
                terminalreporter.write_line(line)

    def pytest_unconfigure(self) -> None:
        self._folder.close(written=False)
        if self._membership is not None:
            self._membership.end()
            self._membership = None
        remove_run_folders(self._shared)


def _begin(
    config: pytest.Config, options: Options, shared: SharedFolder
) -> tuple[InitialCaches, RunFolder, Store | None]:
    """Read the caches of a run, and make the folder of its log, where the next one finds what a killed one has tuned.

    :raises pytest.UsageError: when a cache cannot be read, or the dump not be written.
    """
    dump, held, store = options.dump, Cache(), None
    if dump is not None:
        with _refusing(f"{dump.source}: "):
            store = stores.open_store(dump.location)
    reading = _reading_at_once(options, store)
    if dump is not None and store is not None:
        with _refusing(f"{dump.source}: "):
            held = reading.get(dump.location, store.check_writable)()
    purpose = "\0".join([str(config.rootpath), dump.location.resolved if dump is not None else options.update])
    bases = (find_cache_folder(config), shared.path and shared.path / "runs")
    folder = RunFolder(filter(None, bases), purpose)
    ranks = None
    if options.load and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True":  # what torchrun says
        from pytest_autotune.workers.ranks import Ranks

        ranks = Ranks.of_this_job()
    loaded = []
    # Whatever the order: a file was reviewed, and a store that many share fills in what it lacks. The last one wins.
    for argument in sorted(options.load, key=lambda argument: not argument.location.url):
        is_dump = dump is not None and argument.is_same_as(dump)
        read = reading.get(argument.location, partial(stores.read_cache, argument.location))
        if is_dump:
            read = partial(Cache, held.entries, held.lossy)
        with _refusing(f"{argument.source}: "):
            # From a store that others write to meanwhile, one rank of a job reads for all.
            cache = ranks.read(argument.typed, read) if ranks is not None and argument.location.url else read()
        if is_dump and ranks is None:
            cache = merge_run(
                cache, collect_measurements(("", one) for one in collect((), folder.recovered[0]).recovered_lookups)
            ).cache
        loaded.append((argument.typed, cache))
    if ranks is not None:
        with _refusing():
            ranks.check_same(loaded)
    # Without any cache, too, the first candidate may stand in for a tuning: then every lookup is a miss.
    is_judged = bool(loaded) or (options.on_miss == "first" and dump is None)
    index = EntryIndex.from_caches([cache for _, cache in loaded]) if is_judged else None
    return InitialCaches(tuple(loaded), held, index), folder, store


def _reading_at_once(options: Options, store: Store | None) -> dict[Location, Callable[[], Cache]]:
    """What waits for each of several stores at URLs: one that is down takes seconds to say nothing."""
    reads: dict[Location, Callable[[], Cache]]
    reads = {one.location: partial(stores.read_cache, one.location) for one in options.load if one.location.url}
    if options.dump is not None and store is not None and options.dump.location.url:
        reads[options.dump.location] = store.check_writable
    if len(reads) < 2:
        return {}
    from concurrent.futures import ThreadPoolExecutor

    pool = ThreadPoolExecutor(len(reads))
    return {url: pool.submit(read).result for url, read in reads.items()}


@contextmanager
def _refusing(where: str = "") -> Iterator[None]:
    try:
        yield
    except CacheError as error:
        raise pytest.UsageError(f"{where}{error}") from None
