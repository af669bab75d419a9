"""The hooks of a process that runs tests: a worker, or the only process of a run."""

from __future__ import annotations

import os
from collections.abc import Generator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pytest

from pytest_autotune import devices
from pytest_autotune.cache import stores
from pytest_autotune.cache.errors import CacheError
from pytest_autotune.cache.foreign_text import one_line, words_of
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.run.door import TuningRun
from pytest_autotune.run.encoding import ProcessFacts, encode_facts, encode_lookup
from pytest_autotune.run.imported import module_is_imported
from pytest_autotune.run.journal import Journal
from pytest_autotune.run.lookup import Lookup
from pytest_autotune.run.policy import OnMiss, OnStale, Policy
from pytest_autotune.run.progress import Progress
from pytest_autotune.run.together.coordination import Coordination
from pytest_autotune.run.together.folders import Membership
from pytest_autotune.session import MARKER, REPORT_ATTRIBUTE, marker, sweeping
from pytest_autotune.session.parsed_options import Options, path_argument
from pytest_autotune.session.preparing import MeetingPlace, prepare
from pytest_autotune.session.traffic import send_results
from pytest_autotune.tuners.hooks import Hooks


@dataclass(frozen=True)
class Surroundings:
    """What a process that runs tests finds.

    :param index: what is loaded; None when nothing is.
    :param journal: where finished tunings are kept until the run ends; None when nothing is dumped.
    :param children: where the forked children of a test keep what they look up, where nothing is dumped.
    :param known_kernels: kernels, as ``tuner:kernel``, that the caches of this run have entries for.
    :param workers: how many processes of this run share the machine.
    :param progress: is told what is tuned.
    :param prepares_in: where tuners may prepare something beside the tests; None where nothing can be.
    """

    index: EntryIndex | None
    coordination: Coordination
    journal: Journal | None = None
    children: Journal | None = None
    known_kernels: Sequence[str] = ()
    workers: int = 1
    progress: Progress | None = None
    prepares_in: MeetingPlace | None = None


class TestProcess:
    """Hooks the tuners, knows which test runs, and hands on what is looked up."""

    __test__ = False

    def __init__(self, config: pytest.Config, options: Options, surroundings: Surroundings) -> None:
        around = self._around = surroundings
        policy = Policy(
            dumping=options.dump is not None,
            on_miss=OnMiss(options.on_miss),
            on_stale=OnStale(options.on_stale),
            tuners=options.tuners,
            ignore=options.ignore,
            aliases=dict(options.device_alias),
            compile_threads=max(devices.cpu().multiprocessors // around.workers, 1),
            cores=devices.cpu().multiprocessors,
            sweep=options.sweep,
            verify=options.verification,
            known_tuners=frozenset(kernel.partition(":")[0] for kernel in around.known_kernels),
        )
        self.run = TuningRun(policy, around.index, around.coordination, self._log, self._refuse, around.progress)
        self.hooks = Hooks(self.run, options.tuners)
        #: What was looked up in the current test.
        self.in_this_test: list[Lookup] = []
        self._config = config
        self._options = options
        self._process_id = os.getpid()
        self._unsent: list[Lookup] = []
        self._deselected = 0
        self._refused = ""
        self._test_ends = ExitStack()
        self._is_isolated = False
        self._preparing: Membership | None = None

    def _log(self, lookup: Lookup) -> None:
        self.in_this_test.append(lookup)
        self._unsent.append(lookup)
        is_child = os.getpid() != self._process_id  # what it looks up reaches us in no other way
        journal = self._around.journal or (self._around.children if is_child else None)
        if journal is not None and (lookup.tuned or is_child):
            try:
                journal.append(lookup)
            except OSError as error:
                self.run.note(f"the journal of this run cannot be written, so a kill would lose tunings: {error}")

    def _refuse(self, message: str) -> NoReturn:
        self._refused = one_line(message)
        pytest.fail(self._refused, pytrace=False)

    def take_unsent(self) -> list[str]:
        """What was looked up since this was last asked, as text."""
        lookups, self._unsent = self._unsent, []
        return [encode_lookup(lookup) for lookup in lookups]

    def facts(self) -> ProcessFacts:
        """What this process reports of itself when it ends."""
        workerinput = getattr(self._config, "workerinput", {})
        self._end_preparing()
        unseen = tuple(self.hooks.unseen())  # may add a note
        return ProcessFacts(
            worker=workerinput.get("workerid", ""),
            deselected=self._deselected,
            notes=(*self.run.notes, *self._around.coordination.notes),
            unseen=unseen,
            unhooked=tuple(self.run.unhooked.items()),
            versions=tuple(self.run.versions.items()),
            imported=tuple(kernel for kernel in self._around.known_kernels if module_is_imported(kernel)),
            waited_s=self._around.coordination.waited_s,
            compiled_for=tuple(self.run.compiled_for),
            plain_kernels=tuple(self.run.plain_kernels),
            ahead=replace(self.run.ahead, itself=tuple(self.run.compiled_itself)),
        )

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> Generator[None, None, None]:
        # Shard plugins drop items without calling pytest_deselected: count what is gone.
        collected = len(items)
        yield
        self._deselected += collected - len(items)

    @pytest.hookimpl(trylast=True)
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        place = self._around.prepares_in
        if place is not None:
            try:
                self._preparing = prepare(session, self._options, place, self.hooks, self._deselected)
            except Exception as error:
                self.run.error("session", "prepare()", error)

    def _end_preparing(self) -> None:
        if self._preparing is not None and os.getpid() == self._process_id:
            self.hooks.finish()
            self._preparing.end()
            self._preparing = None

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        self.run.begin_test(item.nodeid)
        self.in_this_test = []
        try:
            with ExitStack() as self._test_ends:
                self._is_isolated = False
                if item.get_closest_marker(MARKER) is not None:
                    self._isolate()
                self._test_ends.enter_context(self.run.added_caches_end())
                self.run.paused = not marker.enabled(item)
                return (yield)
        finally:
            self.run.current_test = ""
            self.run.paused = False

    def _isolate(self) -> None:
        """Until this test ends, let nothing that was chosen before answer in the place of a cache."""
        if not self._is_isolated:
            self._is_isolated = True
            self._test_ends.enter_context(self.hooks.isolated())
            self._test_ends.enter_context(self.run.isolated())

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        for path in marker.caches(item):
            self.load(item, path)

    def load(self, item: pytest.Item, path: str) -> None:
        """Load one more cache for this test; the path is relative to the test's file.

        A cache that cannot be read fails the test with one line.
        """
        self._isolate()
        try:
            argument = path_argument(path, item.path.parent, MARKER, item.config.invocation_params.dir)
            cache = stores.read(argument.location)
        except CacheError as error:
            raise pytest.fail.Exception(f"{MARKER}: {error}", pytrace=False) from None
        self.run.add_cache(EntryIndex.of([cache]))
        self.hooks.install()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        # Triton's words for it; they name no way out.
        if call.excinfo is not None and "0 active drivers" in words_of(call.excinfo.value):
            self.run.note("Triton finds no GPU: set TRITON_INTERPRET=1 to run and tune its kernels on the CPU")
        if self._refused and report.outcome != "failed":
            report.outcome = "failed"  # the library under test has swallowed the error
            report.longrepr = self._refused
            vars(report).pop("wasxfail", None)  # pytest does not count a failure that was expected
        self._refused = ""
        if self._options.sweep is not None and report.failed:
            ran_with = list(self.run.ran_with.values())
            report.sections.append((sweeping.HEADING, sweeping.section(item, self._options, ran_with)))
            self._unsent += [replace(one, test=item.nodeid, test_failed=True, id="").named() for one in ran_with]
        if self._unsent:
            setattr(report, REPORT_ATTRIBUTE, self.take_unsent())
        return report

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        workeroutput: dict[str, Any] | None = getattr(self._config, "workeroutput", None)
        if workeroutput is not None:
            send_results(workeroutput, self.take_unsent(), encode_facts(self.facts()))

    def pytest_unconfigure(self) -> None:
        self._end_preparing()
        self.run.begin_test("")  # a run may follow in this process: what the last test of a sweep ran with is forgotten
        self.hooks.uninstall()
