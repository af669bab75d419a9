"""The hooks of the process where a run comes together: xdist's controller, or the only process."""

from __future__ import annotations

import os
import shlex
import socket
import stat
import uuid
from collections.abc import Generator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import pytest

from pytest_autotune import devices as device
from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.merge import merge
from pytest_autotune.cache.model import Cache
from pytest_autotune.report import terminal
from pytest_autotune.report.faces import face_of, junit_properties
from pytest_autotune.report.gate import judge
from pytest_autotune.report.summary import Request, Summary, summarise
from pytest_autotune.run.dumping import Destination, dump
from pytest_autotune.run.encoding import ProcessFacts, decode_facts, decode_lookup
from pytest_autotune.run.ending import Beginning, Collected, DumpPolicy, end, measurements
from pytest_autotune.run.journal import RunFolder, journals_in
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.together.folders import Membership, identity, remove_run_folders, shared_folder
from pytest_autotune.session.completeness import Completeness
from pytest_autotune.session.names import REPORT_ATTRIBUTE
from pytest_autotune.session.reading import Options
from pytest_autotune.session.traffic import Task, receive_results, send_task
from pytest_autotune.session.worker import TestProcess


class Controller:
    """Reads what is loaded, collects what was looked up, writes the dump, judges and tells.

    :raises pytest.UsageError: when a cache cannot be read, or the dump not be written.
    """

    def __init__(self, config: pytest.Config, options: Options) -> None:
        self._config = config
        self._options = options
        self._process: TestProcess | None = None
        self._lookups: dict[str, tuple[str, Lookup]] = {}
        self._facts: dict[str, ProcessFacts] = {}
        self._crashed: list[str] = []
        self._completeness = Completeness(config)
        self._summary: Summary | None = None
        self.run_id = uuid.uuid4().hex
        self._notes: list[str] = []
        #: Where this run's processes meet those of other runs on this machine.
        self.shared = shared_folder()
        self._check_reports()
        #: What PATH of the dump holds now.
        self._before = self._read_dump()
        self.folder = self._open_folder() if options.dump is not None else None
        self._caches = self._read_loaded()
        #: What is loaded; None when nothing is.
        self.index = EntryIndex.of([cache for _, cache in self._caches]) if self._caches else None
        self._membership = self._join()

    @cached_property
    def known_kernels(self) -> list[str]:
        """Kernels, as ``tuner:kernel``, that the caches of this run have entries for."""
        caches = [cache for _, cache in self._caches] + [self._before]
        problems = (entry.problem for cache in caches for entry in cache.entries)
        return sorted({problem.name for problem in problems})

    def serve(self, process: TestProcess) -> None:
        """Collect from a process that runs the tests itself."""
        self._process = process

    def _check_reports(self) -> None:
        for report in self._options.report:
            path, found = Path(report.location), 0
            try:
                found = path.stat().st_mode
            except (FileNotFoundError, NotADirectoryError):
                pass
            except OSError as error:
                told = f"{report.given}: {report.typed}: cannot be written: {error.strerror}"
                raise pytest.UsageError(told) from None
            if stat.S_ISDIR(found):
                raise pytest.UsageError(f"{report.given}: {report.typed}: is a directory (name a file)")
            if found and not stat.S_ISREG(found):  # a pipe without a reader would keep the run from ending
                raise pytest.UsageError(f"{report.given}: {report.typed}: is not a file")
            folder = next(folder for folder in path.parents if os.path.lexists(folder))
            if not folder.is_dir():
                raise pytest.UsageError(f"{report.given}: {report.typed}: cannot be written: {folder} is not a folder")

    def _read_dump(self) -> Cache:
        if self._options.dump is None:
            return Cache()
        try:
            return stores.check_writable(self._options.dump.store_path)
        except CacheError as error:
            raise pytest.UsageError(f"{self._options.dump.given}: {error}") from None

    def _join(self) -> Membership | None:
        """Keep the folder where workers share what they tune, and forked children keep what they look up."""
        if self.shared.note:
            self._notes.append(self.shared.note)
        try:
            return Membership(self.shared.run(self.run_id))
        except OSError as error:
            if not self.shared.note:
                self._notes.append(f"{error.filename or self.shared.path}: {error.strerror}; workers share no tunings")
            return None

    def _open_folder(self) -> RunFolder | None:
        assert self._options.dump is not None
        cache, root = getattr(self._config, "cache", None), self._config.rootpath
        try:
            if cache is not None:
                base = cache.mkdir("autotune")
            elif self.shared.of_this_run:
                return None  # the next run would not find it
            else:
                base = self.shared.locks() / "journals"
            # A folder inside of a project is its own; in another place, projects that follow each other may meet.
            is_inside = Path(os.path.realpath(base)).is_relative_to(os.path.realpath(root))
            project = "" if is_inside else identity(root)
            return RunFolder(base, os.path.realpath(self._options.dump.location), project)
        except OSError:  # a read-only tree: then a killed run loses what it has tuned
            return None

    def _read_loaded(self) -> list[tuple[str, Cache]]:
        caches = []
        for argument in self._options.load:
            path = argument.store_path
            is_dump = self._options.dump is not None and argument.same_place(self._options.dump)
            try:
                cache = self._before if is_dump else stores.read(path)
            except CacheError as error:
                raise pytest.UsageError(f"{argument.given}: {error}") from None
            if is_dump and self.folder is not None:
                cache = merge(cache, measurements(("", lookup) for lookup in self.folder.taken_over())).cache
            caches.append((argument.typed, cache))
        return caches

    def pytest_report_header(self) -> list[str]:
        parts = [f"load {path} ({_entries(len(cache.entries))})" for path, cache in self._caches]
        if self._options.dump is not None:
            parts.append(f"dump {self._options.dump.typed}")
        lines = [f"autotune: {', '.join(parts)}"] if parts else []
        lines += [f"autotune: {CacheError(*cache.lossy)}" for _, cache in self._caches if cache.lossy]
        return list(map(one_line, lines))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_setupnodes(self, specs: Sequence[Any]) -> None:
        if self._options.spread_gpus:
            gpus = device.visible_nvidia_gpus()
            if not gpus:
                raise pytest.UsageError("--autotune-spread-gpus: no NVIDIA GPU is visible (nvidia-smi lists none)")
            for number, spec in enumerate(specs):
                spec.env.setdefault("CUDA_VISIBLE_DEVICES", gpus[number % len(gpus)])

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        task = Task(
            groups=self.index.groups() if self.index is not None else None,
            known_kernels=self.known_kernels,
            journal_folder=str(self.folder.path) if self.folder is not None else "",
            host=socket.gethostname(),
            run_id=self.run_id,
            shared_folder=str(self.shared.path or ""),
            workers=node.workerinput["workercount"],
        )
        send_task(node.workerinput, task)

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any, error: object) -> None:
        worker = node.gateway.id
        results = receive_results(node)
        if results is None:
            if error and worker not in self._crashed:
                self._crashed.append(worker)
            return
        lookups, facts = results
        self._collect(worker, lookups)
        self._facts[worker] = decode_facts(facts)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._completeness.saw(report)
        worker = getattr(getattr(report, "node", None), "gateway", None)
        self._collect(getattr(worker, "id", ""), getattr(report, REPORT_ATTRIBUTE, []))

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._completeness.saw_collection(report)

    def _collect(self, worker: str, lookups: Sequence[str]) -> None:
        # A rerun test reports what it asked again; a journal repeats what a report has brought.
        for text in lookups:
            self._lookups.setdefault(text, (worker, decode_lookup(text)))

    # The innermost wrapper: before reports such as JUnit's are written, and after a Ctrl-C only
    # when xdist has stopped its workers, which may still be tuning when the hook is called.
    @pytest.hookimpl(wrapper=True, trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
        interrupted = exitstatus == pytest.ExitCode.INTERRUPTED
        if not interrupted:
            self._finish(session, exitstatus)
        result = yield
        if interrupted:
            self._finish(session, exitstatus)
        return result

    def _finish(self, session: pytest.Session, exitstatus: int) -> None:
        if self._config.option.collectonly:
            self._close(written=False)
            return
        if self._process is not None:
            self._collect("", self._process.take_unsent())
            self._facts[""] = self._process.facts()
        self._collect_journals()
        self._summary = summary = self._write_reports(self._end(session, exitstatus))
        self._add_junit_properties(summary)
        if summary.failures:
            if session.exitstatus == pytest.ExitCode.OK:
                session.exitstatus = pytest.ExitCode.TESTS_FAILED
            session.shouldfail = session.shouldfail or one_line(summary.failures[0])
        self._close(written=summary.dump is not None and not summary.dump.error)

    def _end(self, session: pytest.Session, exitstatus: int) -> Summary:
        """Settle the run, write its dump, and judge it."""
        options = self._options
        facts = [self._facts[worker] for worker in sorted(self._facts)]
        beginning = Beginning(tuple(self._caches), self._before, self.index)
        collected = Collected(
            tuple(self._lookups.values()),
            tuple(self.folder.taken_over()) if self.folder is not None else (),
            tuple(facts),
            tuple(self._crashed),
            self._completeness.reason(session, exitstatus, self._crashed, facts),
            exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR),
            tuple(self._notes),
        )
        dumped = None
        if options.dump is None:
            ending = end(beginning, collected, Cache(), None)
        else:
            destination = Destination(options.dump.store_path, options.dump.typed, options.dump.given)
            policy = DumpPolicy(options.prune, options.keep_candidates)
            ending, dumped = dump(destination, beginning, collected, policy, self.folder)
        request = Request(
            options.prune, options.updates, options.tuners or (), dict(options.device_alias), self._update_options()
        )
        summary = summarise(beginning, collected, ending, dumped, request)
        return replace(summary, gate=judge(summary, options.max_misses))

    def _collect_journals(self) -> None:
        """Collect what no report has brought: of workers that died, and of forked children."""
        known = {lookup.entry for _, lookup in self._lookups.values()}
        lines = self.folder.lines() if self.folder is not None else []
        if self._membership is not None:
            lines += journals_in(self.shared.run(self.run_id))
        for worker, text in lines:
            lookup = decode_lookup(text)
            if not lookup.tuned or lookup.entry not in known:
                self._lookups.setdefault(text, (worker, lookup))

    def _close(self, *, written: bool) -> None:
        if self.folder is not None:
            self.folder.close(written=written)
            self.folder = None

    def _write_reports(self, summary: Summary) -> Summary:
        for report in self._options.report:
            path = Path(report.location)
            face = face_of(path)
            assert face is not None, "the options refuse other suffixes"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(face.text(summary), encoding="utf-8")
            except OSError as error:
                told = f"{report.given}: {report.typed}: cannot be written: {error.strerror or error}"
                summary = replace(summary, errors=(*summary.errors, told))
        return summary

    def _add_junit_properties(self, summary: Summary) -> None:
        try:
            from _pytest.junitxml import xml_key
        except ImportError:
            return
        junit = self._config.stash.get(xml_key, None)
        if junit is not None:
            for name, value in junit_properties(summary).items():
                junit.add_global_property(name, value)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._summary is None:
            return
        lines = terminal.section(self._summary, self._config.get_verbosity())
        if not lines:
            return
        terminalreporter.write_sep("=", "autotune cache")
        for line in lines:
            markup = {line.color: True} if line.color else {}
            if line.word:
                terminalreporter.write(line.word, **markup)
                terminalreporter.write_line(line.text)
            else:
                terminalreporter.write_line(line.text, **markup)

    def _update_options(self) -> str:
        """What to type for a run that tunes what is missing and keeps the rest."""
        options = self._options
        if not options.load:
            return ""
        dump = options.dump or options.load[-1]
        typed = [f"--autotune-load={load.typed}" for load in options.load if load.given.startswith("--")]
        typed += [f"--autotune-dump={dump.typed}"] if dump.given.startswith("--") or dump is not options.dump else []
        typed += ["--autotune-on-miss=tune"] if options.on_miss != "tune" else []
        typed += ["--autotune-on-stale=tune"] if options.on_stale != "tune" else []
        return shlex.join(typed)

    def pytest_unconfigure(self) -> None:
        self._close(written=False)
        if self._membership is not None:
            self._membership.end()
            self._membership = None
        remove_run_folders(self.shared)


def _entries(number: int) -> str:
    return "1 entry" if number == 1 else f"{number} entries"
