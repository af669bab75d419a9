"""The hooks of the process that begins and ends a run: xdist's controller, or the only process.

This process merges the logs of all processes, writes the dump and the reports, and judges the gates. A *dump* is the
cache that the run writes, at the *dump path*. A *gate* is an option that fails the run because of its caches, such as
``--autotune-max-misses``. :mod:`pytest_autotune.plugin.preparation` reads the caches before the tests. The hooks of the
processes that run tests are in :mod:`pytest_autotune.plugin.worker`.
"""

from __future__ import annotations

import os
import socket
import uuid
from collections.abc import Generator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from os import getpid  # imported by name, because a test may mock os.getpid
from typing import Any

import pytest

from pytest_autotune.cache.codec.mapping import encode_for_process
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Cache
from pytest_autotune.cache.stores.disk import compute_content_digest
from pytest_autotune.cache.wording import describe_count, to_one_line
from pytest_autotune.devices import visible_nvidia_gpus
from pytest_autotune.modes import MODES
from pytest_autotune.plugin import reports
from pytest_autotune.plugin.completeness import (
    Completeness,
    describe_chosen_tests,
    find_missing_load,
    was_interrupted,
)
from pytest_autotune.plugin.options import INPUT_KEY, MARKER, has_marker_or_fixture
from pytest_autotune.plugin.preparation import is_absent, prepare_run
from pytest_autotune.plugin.progress import ProcessProgress, ProgressFile, make_progress_line, read_stages
from pytest_autotune.plugin.values import Options, is_distributed, path_argument
from pytest_autotune.plugin.worker import Task, TestProcess, WorkerContext
from pytest_autotune.report import ci_log
from pytest_autotune.report.gate import explain_no_part, judge
from pytest_autotune.report.summary import describe_dump, render_section
from pytest_autotune.run.collected import ALONE, Collected, collect
from pytest_autotune.run.dumping import dump_run, dump_test_caches
from pytest_autotune.run.finish import finish_run
from pytest_autotune.run.reporter import Progress
from pytest_autotune.run.request import UPDATE_ALL, DumpPlan, NoDump, RunRequest, plan_dump
from pytest_autotune.run.result import Gate, RunResult
from pytest_autotune.run.settle import EndedRun, settle_run
from pytest_autotune.tuners import TUNERS, list_third_party_tuners
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.locks import Locks, RunMembership, find_shared_folder, remove_run_folders

#: The number of seconds for which a Ctrl-C waits for workers before xdist kills them. A worker may be tuning, and its
#: finished tunings are already in its log.
INTERRUPTED_S = 1


@dataclass(frozen=True)
class WrittenTestCaches:
    """The lines of the summary about the caches that single tests load, after these caches were written.

    A test loads such a cache by its marker ``autotune_cache(load=PATH)``.

    :param notes: lines for the summary, such as ``2 entries written to a.pb: 2 added``.
    :param errors: a line for each cache that could not be written. An error fails the run.
    """

    notes: Sequence[str]
    errors: Sequence[str]


class Controller:
    """Reads the loaded caches, collects the lookups, writes the dump, judges the gates and reports.

    The steps of its life:

    1. When pytest is configured, it reads the caches and makes the folders of the run.
    2. Each worker gets one :class:`~pytest_autotune.plugin.worker.Task`, and sends one message at its end.
    3. In ``pytest_sessionfinish``, after the last worker, it merges, dumps, judges and reports.
    4. It removes the folders as soon as no process needs them, at the latest in ``pytest_unconfigure``.

    Invariants: no other process writes the user's files. Each worker has sent its message or has crashed. The result is
    built once, after the last event. A log is removed only after its entries are in the dump.

    :raises pytest.UsageError: if a cache cannot be read, or the dump path cannot be written.
    """

    def __init__(self, config: pytest.Config, options: Options) -> None:
        reports.prepare_reports(options)
        self._config = config
        self._options = options
        self._run_id = uuid.uuid4().hex
        self._is_on_github = options.ci != "off" and os.environ.get("GITHUB_ACTIONS") == "true"
        self._folder_reports = reports.FolderReports(options.report, config, self._run_id)
        self._init_caches_and_folders()
        # The rest changes during the run.
        #: The ID of the process that runs pytest's session. A plugin may fork pytest after the configuration, so the ID
        #: is set again when the tests begin.
        self._pid = getpid()
        #: The process that runs the tests here; None under xdist.
        self._process: TestProcess | None = None
        #: Whether pytest has begun to run tests. Options such as --fixtures only list things.
        self._has_begun = False
        #: The name of a log -> its lines, for each process that has ended.
        self._log_lines: dict[str, list[str]] = {}
        #: The loaded entries as JSON; None until the first worker starts, and in a run that loads nothing.
        self._encoded_entries: str | None = None
        #: The workers that ended without their message.
        self._crashed_workers: list[str] = []
        self._completeness = Completeness(self._options)
        #: Node id of a test -> path, line from 0 (or None) and name of its definition, as pytest reports them.
        self._locations: dict[str, tuple[str, int | None, str]] = {}
        #: The result of the run; None until the run has ended.
        self._result: RunResult | None = None

    def _init_caches_and_folders(self) -> None:
        """Read the caches, make the folders of the run, and note what the user is to know about them."""
        options = self._options
        #: The folder for all runs of this user on this machine.
        self._shared_folder = find_shared_folder()
        preparation = prepare_run(self._config, options, self._shared_folder)
        #: The loaded caches, and the old content of the dump path.
        self._initial_caches = preparation.initial
        #: The folder with the logs of this run's processes.
        self._log_folder = preparation.folder
        #: The store that the dump is written to; None without a dump.
        self._dump_store = preparation.store
        #: Path of a loaded cache -> digest of its bytes before the tests. The end of an update changes the bytes.
        self._loaded_digests: dict[str, str] = {}
        if options.report:
            for cache in options.load:
                self._loaded_digests[cache.typed] = compute_content_digest(cache.location)
        #: The optional caches that are not there, as a user types them.
        self._absent_caches = [cache.typed for cache in options.load if is_absent(cache, options)]
        #: Lines for the summary.
        self._notes = self._list_cache_notes()
        if self._shared_folder.note:
            self._notes.append(self._shared_folder.note)
        #: The folder in which the processes of this machine share their tunings; None if it could not be made.
        self._shared_run_folder = self._shared_folder.run_folder(self._run_id)
        #: Keeps other runs from removing this folder.
        self._membership: RunMembership | None = None
        self._join_shared_run_folder()

    def _join_shared_run_folder(self) -> None:
        """Make the folder in which the processes of this machine share their tunings, if that is possible."""
        if self._shared_run_folder is None:
            return
        try:
            self._membership = RunMembership(self._shared_run_folder)
        except OSError:
            # Each worker tells the user.
            self._shared_run_folder = None

    def _list_cache_notes(self) -> list[str]:
        """Return a line for each cache with fields that this version does not know, or that is not there."""
        notes: list[str] = []
        if self._initial_caches.loaded:
            notes += [
                f"{path} does not exist, so it was not loaded (?optional in the load path allows this)"
                for path in self._absent_caches
            ]
        caches = [cache for _, cache in self._initial_caches.loaded]
        caches.append(self._initial_caches.dump_cache)
        for cache in caches:
            # The file of a lossy cache has unknown fields.
            if not cache.lossy:
                continue
            note = str(CacheError(*cache.lossy))
            # An update loads the dump path, too.
            if note not in notes:
                notes.append(note)
        return notes

    @property
    def _is_in_forked_child(self) -> bool:
        """Whether this process is a forked child of a test."""
        return getpid() != self._pid

    @property
    def has_result(self) -> bool:
        """Whether the run has ended with a result, which its gates have judged."""
        return self._result is not None

    def make_test_process(self) -> TestProcess | None:
        """Return the object that runs the tests in this process; None if xdist's workers run them."""
        config, options = self._config, self._options
        if is_distributed(config):
            self._show_progress_of_workers()
            return None
        context = WorkerContext(
            self._initial_caches.index,
            Coordinator(Locks(options.wait_timeout, shared=self._shared_folder)),
            self._log_folder.log(ALONE),
            progress=Progress(ProcessProgress(config)),
            folder=self._shared_run_folder,
        )
        self._process = TestProcess(config, options, context)
        return self._process

    def _show_progress_of_workers(self) -> None:
        """Show the workers' long tunings on the terminal until the run ends, if there is a terminal."""
        if self._shared_run_folder is None:
            # The workers have no folder to write their progress into.
            return
        progress_line = make_progress_line(self._config, partial(read_stages, self._shared_run_folder))
        if progress_line is not None:
            self._config.pluginmanager.register(progress_line, "autotune-progress")

    def pytest_report_header(self) -> list[str]:
        # Example: "autotune: load cache.pb (12 entries), dump cache.pb"
        parts = []
        for path, cache in self._initial_caches.loaded:
            parts.append(f"load {path} ({describe_count(len(cache.entries), 'entry')})")
        if self._options.dump is not None:
            parts.append(f"dump {self._options.dump.typed}")
        if self._options.on_miss in ("first", "nearest") and (self._options.load or self._options.dump is None):
            # A run that dumps and loads nothing tunes, whatever the option says.
            parts.append(f"on miss {self._options.on_miss}")
        for mode in self._options.modes:
            if mode.typed_value:
                parts.append(f"{mode.name} {mode.typed_value}")
        if not parts:
            return []
        return [to_one_line(f"autotune: {', '.join(parts)}")]

    @pytest.hookimpl(tryfirst=True)
    def pytest_sessionstart(self) -> None:
        self._folder_reports.begin()

    # First: another plugin may deselect the test whose marker loads a cache.
    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, items: Sequence[pytest.Item]) -> None:
        error = find_missing_load(self._config, self._options)
        if not error or not items or self._config.option.collectonly:
            return
        # The marker or the fixture may load a cache that the gate can judge by.
        may_load = any(has_marker_or_fixture(item) for item in items)
        if not may_load:
            raise pytest.UsageError(error)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._completeness.note_collection(session)

    # A wrapper is called even if a conftest.py runs no test with a hook of its own.
    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtestloop(self) -> Generator[None, object, object]:
        # Pytest does not call this hook for --fixtures and similar options.
        self._has_begun = True
        self._pid = getpid()
        return (yield)

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        if not self._options.spread_gpus:
            return
        gpus = visible_nvidia_gpus()
        if not gpus:
            raise pytest.UsageError(
                "autotune_spread_gpus: no NVIDIA GPU is visible (nvidia-smi lists none; do not set this ini value here)"
            )
        for number, spec in enumerate(specs):
            spec.env.setdefault("CUDA_VISIBLE_DEVICES", gpus[number % len(gpus)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        task = Task(
            entries=self._encode_loaded_entries(),
            run_folder=str(self._log_folder.path or ""),
            host=socket.gethostname(),
            run_id=self._run_id,
            workers=node.workerinput["workercount"],
        )
        node.workerinput[INPUT_KEY] = asdict(task)

    def _encode_loaded_entries(self) -> str | None:
        """Return the message with the loaded entries; None in a run that loads nothing."""
        # Encoding 5,000 entries takes 0.35 s, so all workers get the same text.
        if self._encoded_entries is None and self._initial_caches.index is not None:
            self._encoded_entries = encode_for_process(self._initial_caches.index)
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

    # The innermost wrapper, so that the run ends before pytest writes JUnit's report.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
        is_interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        xdist_session = self._config.pluginmanager.get_plugin("dsession")
        if is_interrupted and xdist_session is None:
            # After a Ctrl-C, pytest tears the interrupted test down in this hook, and a fixture may tune.
            result = yield
            self._end_run(session, exitstatus)
            return result
        if is_interrupted:
            # Workers may still be tuning.
            _stop_workers(xdist_session)
        self._end_run(session, exitstatus)
        result = yield
        # Plugins such as pytest-custom-exit-code set the status here. They look only at the status before the gates.
        if self._result is not None and self._result.failures:
            _set_failed_status(session, self._result)
        return result

    def _end_run(self, session: pytest.Session, exitstatus: int) -> None:
        """Build the result of the run, write the dump and the reports, and set pytest's exit status."""
        only_lists_tests = self._config.getoption("collectonly") or self._config.getoption("setupplan", False)
        if only_lists_tests or not self._has_begun:
            self._close_log_folder(written=False)
            return
        if self._process is not None:
            self._log_lines |= self._process.end()
        result = self._build_result(self._collect(session, exitstatus))
        # After an error, the next run with this dump path recovers the tunings from the logs.
        is_written = not result.errors
        self._result = self._write_reports(result)
        if self._result.failures:
            self._fail(session, self._result)
        self._close_log_folder(written=is_written)

    def _close_log_folder(self, *, written: bool) -> None:
        """Close the folder with the logs, unless this process is a forked child of a test.

        If a child raises an exception instead of calling ``os._exit``, it goes on as a second pytest, and ends a second
        run. Its parent still needs the child's log, so only the parent closes the folder.

        :param written: whether the dump has the entries of the logs. Then the logs are removed.
        """
        if not self._is_in_forked_child:
            self._log_folder.close(written=written)

    def _write_reports(self, result: RunResult) -> RunResult:
        """Write all reports of the run except the terminal's summary.

        :returns: the result as the reports show it. It has an error for each file that could not be written.
        """
        ci_run = reports.find_ci_run(self._config, self._run_id)
        result = replace(
            result,
            run_facts=reports.list_run_facts(ci_run.command),
            loaded_digests=self._loaded_digests,
            ci_run=ci_run,
        )
        result = reports.write_reports(self._options.report, result)
        # The reports in folders were begun before the tests, so that a killed process leaves a report, too.
        result = self._folder_reports.end(result)
        if self._is_on_github:
            result = reports.add_step_summary(result)
        reports.add_to_junit(result, self._config)
        return result

    def _fail(self, session: pytest.Session, result: RunResult) -> None:
        """Make pytest's run red for the failures of a result.

        Set the exit status, and the text that pytest shows between exclamation marks.
        """
        _set_failed_status(session, result)
        # -x has set a text, too, and it must not hide the failure of a gate.
        reasons = []
        if session.shouldfail:
            reasons.append(str(session.shouldfail))
        reasons += [to_one_line(failure) for failure in result.failures]
        session.shouldfail = "; ".join(reasons)

    def _collect(self, session: pytest.Session, exitstatus: int) -> Collected:
        """Return the events of all processes, with the facts that only this process knows."""
        events, damaged_count = self._log_folder.collect(self._log_lines)
        # The next events come from the logs of killed runs with the same dump path.
        recovered_events, damaged_recovered_count = self._log_folder.recovered
        if damaged_count:
            self._notes.append(
                f"{describe_count(damaged_count, 'line')} in the log of this run cannot be read, so some results of "
                f"the workers may be missing"
            )
        if damaged_recovered_count:
            lines = describe_count(damaged_recovered_count, "line")
            self._notes.append(f"{lines} in the logs of earlier runs cannot be read, so the tunings in them are lost")
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
            is_only_skipped=shortfall.is_skip or shortfall.is_ignored_file,
            chosen_tests=describe_chosen_tests(self._config),
            is_interrupted=was_interrupted(session, exitstatus),
            early_end=self._completeness.find_early_end(session),
            test_counts=self._completeness.test_counts,
            notes=(*self._notes, *collected.notes),
        )

    def _build_result(self, collected: Collected) -> RunResult:
        """Write the caches that tests load and the dump, judge the gates, and return the result of the run."""
        request = self._build_request(collected)
        test_caches = self._write_test_caches(collected, request)
        collected = replace(collected, notes=(*test_caches.notes, *collected.notes))
        result = self._write_dump(collected, request)
        result = replace(
            result,
            errors=(*result.errors, *test_caches.errors),
            test_places=reports.locate_tests(self._locations, self._config.rootpath),
            has_only_optional_caches=self._options.has_only_optional_caches,
        )
        # Each of these steps reads the result of the step above it.
        result = replace(result, no_part_reason=self._explain_no_part(result))
        result = replace(result, gate=self._judge(result))
        sections = [mode.build_section(result) for mode in self._options.modes]
        return replace(result, sections=tuple(sections))

    def _write_test_caches(self, collected: Collected, request: RunRequest) -> WrittenTestCaches:
        """Write the caches that single tests load for themselves, if this run writes caches."""
        notes = []
        errors: list[str] = []
        if self._options.writes:
            for dump in dump_test_caches(self._locate_test_cache, MARKER, collected, request, self._log_folder):
                note = describe_dump(dump)
                if note:
                    notes.append(note)
                errors += dump.errors
        return WrittenTestCaches(notes, errors)

    def _write_dump(self, collected: Collected, request: RunRequest) -> RunResult:
        """Write the dump, if the user asked for one, and return the result of the run."""
        dump = self._options.dump
        if dump is None or self._dump_store is None:
            run = EndedRun.of_one_process(self._initial_caches, collected, request)
            return finish_run(settle_run(run), Cache())
        return dump_run(self._dump_store, dump.named_by, self._initial_caches, collected, request, self._log_folder)

    def _judge(self, result: RunResult) -> Gate:
        """Return the verdict on the misses and the unused entries of the run."""
        options = self._options
        # A gate without a loaded cache is an error only here, at the end: until then, a test may load a cache.
        missing_load = find_missing_load(self._config, options)
        return judge(result, options.max_misses, options.fail_on_unused, missing_load)

    def _explain_no_part(self, result: RunResult) -> str:
        """Return why a run with optional caches took no part; empty if it took part."""
        has_test_caches = any(lookup.test_cache for lookup in result.collected.lookups)
        if result.has_only_optional_caches and not result.loaded and not has_test_caches:
            return f"{' and '.join(self._absent_caches)} does not exist"
        return explain_no_part(result)

    def _locate_test_cache(self, name: str) -> Location:
        """Return the location of a cache that a test loads, by the path that a user types."""
        return path_argument(name, self._config.invocation_params.dir, MARKER, self._config).location

    def _plan_dump(self) -> DumpPlan:
        """Return the plan for the dump of this run."""
        options = self._options
        scope = options.update or UPDATE_ALL
        is_update = options.updates or bool(options.update)
        if options.dump is None or self._dump_store is None:
            return NoDump(scope, is_update, options.keep_candidates)
        return plan_dump(bool(options.dump.location.url), scope, is_update, options.keep_candidates)

    def _build_request(self, collected: Collected) -> RunRequest:
        """Return the facts about the options of this run that decide on the dump and on the words of the summary."""
        third_party_tuners = [entry_point.name for entry_point in list_third_party_tuners()]
        mode_hints = []
        for mode in MODES:
            if mode.answers:
                # Example: "--autotune-verify tells whether the choices are still the fastest"
                mode_hints.append(f"--autotune-{mode.name} checks {mode.answers}")
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
            # Only the markers of tests load caches. An update writes into these caches.
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
        if self._is_in_forked_child:
            # The folders belong to the parent.
            return
        self._close_log_folder(written=False)
        if self._membership is not None:
            self._membership.end()
            self._membership = None
        remove_run_folders(self._shared_folder)


def _stop_workers(xdist_session: Any) -> None:
    """Let xdist stop its workers now, before its own ``pytest_sessionfinish``.

    :param xdist_session: xdist's plugin, which has started the workers.
    """
    nodes = getattr(xdist_session, "nodemanager", None)
    if nodes is not None:
        # A longer wait does not end a tuning sooner.
        nodes.EXIT_TIMEOUT = min(nodes.EXIT_TIMEOUT, INTERRUPTED_S)
    xdist_session.pytest_sessionfinish()


def _set_failed_status(session: pytest.Session, result: RunResult) -> None:
    """Set pytest's exit status for the failures of a result, unless the status is already a failure.

    A run whose files were all skipped has the status :attr:`~pytest.ExitCode.NO_TESTS_COLLECTED`. Some CI scripts
    accept this status, so it must not hide a failed gate. The status stays if only a marker of a test could have loaded
    a cache, because no test was there.
    """
    replaced = [pytest.ExitCode.OK]
    failed_status = pytest.ExitCode.USAGE_ERROR
    if not result.gate.is_usage_error:
        replaced.append(pytest.ExitCode.NO_TESTS_COLLECTED)
        failed_status = pytest.ExitCode.TESTS_FAILED
    if session.exitstatus in replaced:
        session.exitstatus = failed_status
