"""The session of one process, which answers the questions of the tuners, and the modes that the session calls.

An adapter hooks one tuner. It asks the session for the choice of a problem (a kernel with a key and a device) in a
tuning, :meth:`Session.tuning`: the session offers an entry of a source, such as the loaded caches, or the tuner
searches and records its choice. The lookup is the record of this: the question with its outcome and its result.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NoReturn

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.locations import Location
from pytest_autotune.cache.model import Entry, Fingerprint, Identity, Problem
from pytest_autotune.cache.wording import describe_error
from pytest_autotune.run.lookup import Lookup, Policy, Question
from pytest_autotune.run.reporter import Progress, Reporter, outermost_tuning
from pytest_autotune.run.result import RunResult, Section
from pytest_autotune.run.sources import Fallback, LoadedCaches, OtherWorker, RememberedEntry, Source
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Event, Log

#: Work that a thread can do beside the tests. Returns whether there was any work.
Job = Callable[[], bool]
#: The innermost open tuning of this thread.
_innermost_tuning: ContextVar[Tuning | None] = ContextVar("innermost_tuning", default=None)


@dataclass(frozen=True)
class Suite:
    """The collected tests.

    :param tests: the functions and values that each test is made of; the tests are in their order.
    :param is_part: the files that were collected have more tests.
    """

    tests: tuple[tuple[object, ...], ...]
    is_part: bool


class Mode:
    """A mode in one process. A method that a mode does not override does nothing.

    In a process that runs tests, pytest-autotune calls :meth:`begin_tests` once and :meth:`begin_test` for each test.
    A lookup asks the source of :meth:`build_source`. If a loaded choice is a hit, the lookup calls :meth:`has_turn`
    and :meth:`race`. :meth:`note_used` follows. :meth:`test_failed` is called for each failed test, and :meth:`end`
    after the last test.

    In the process that ends the run, with the events of all processes, :meth:`list_replacing_entries` may be called
    more than once. :meth:`build_section` is called when the run is settled and judged. ``pytest-autotune gate`` reads
    the events in the reports of other processes, and calls :meth:`check_events` first.
    """

    #: The name of the mode's module and of its flag.
    name = ""
    #: The reason, in words, why it is an error to load or dump a cache in this mode; empty if it is no error.
    error_with_caches = ""
    #: The reason, in words, why it is an error to load no cache in this mode; empty if it is no error.
    error_without_loaded = ""
    #: The mode does nothing in a run that loads no cache for all tests.
    needs_loaded = False
    #: The mode gives candidates in place of searches, so every test must ask for every problem again.
    picks_candidates = False

    @property
    def typed_value(self) -> str:
        """The value of the mode's flag, as a user types it; empty for a switch.

        The header of a run names only modes with a value.
        """
        return ""

    def begin_tests(
        self, reporter: Reporter, folder: Path | None, processes: int, jobs: Callable[[], Sequence[Job]]
    ) -> None:
        """Begin a run: all tests are collected, and none has begun.

        :param folder: the run's own folder, which all its processes on this machine share; None if there is none.
        :param processes: the number of processes that run tests on this machine.
        :param jobs: lists the work that the tuners can do beside the tests, the most urgent work first.
        """

    def begin_test(self) -> None:
        """Begin a test."""

    def build_source(self, question: Question, reporter: Reporter) -> Source | None:
        """Return the source of the candidates that the mode picks; None if it picks none for this question."""
        return None

    def has_turn(self, problem: Problem, *, now: bool = False) -> bool:
        """Whether the mode wants to race a loaded choice of this problem before the tuner uses it.

        :param now: also ask whether there is time left for the race.
        """
        return False

    def race(self, reporter: Reporter, tuning: Tuning, contest: Callable[[], Any]) -> None:
        """Race the loaded choice of a tuning. The tuner uses the choice, whatever the result is.

        :param contest: builds the contest: see :meth:`pytest_autotune.run.tuning.Tuning.race`.
        """

    def note_used(self, lookup: Lookup, entry: Entry) -> None:
        """Note that a tuner has used an entry."""

    def test_failed(self, test: str) -> tuple[Sequence[str], Sequence[Event]]:
        """Return lines for the report of a failed test, and events for the log.

        :param test: its node id.
        """
        return (), ()

    def end(self) -> Iterable[Event]:
        """Return the last events for the log. The tests are over."""
        return ()

    def list_replacing_entries(self, events: Sequence[Event], lookups: Sequence[Lookup]) -> Iterable[Entry]:
        """Return the entries that a dump holds in place of the entries that were used.

        :param events: of all modes.
        :param lookups: without those that a single test's cache gave another choice.
        """
        return ()

    def check_events(self, events: Sequence[Event]) -> None:
        """Check that the mode can read its own events.

        :param events: of all modes.
        :raises ValueError: if an event of this mode is damaged.
        """

    def build_section(self, result: RunResult) -> Section:
        """Return the words of the mode at the end. ``result.collected.mode_events`` has the events of all modes."""
        return Section(self.name, self.typed_value)


class Session(Reporter):
    """Answers the questions of the tuners in one process, and reports each lookup.

    The session is a :class:`Reporter`, because adapters ask and report through one object. Modes and sources only
    report, so they receive the session as a Reporter and cannot ask.

    An adapter opens a :meth:`tuning` for each question. The lookup is reported once: when the tuning records an entry,
    or when it ends. An error of pytest-autotune is a line of the summary, and the tuner goes on by itself.

    A claim ends with its tuning, also after an error. Tunings may be inside each other and in several threads. A tuning
    inside another tuning waits for no other worker. A problem that this process asked for before is reported again only
    inside :meth:`isolated`, where a tuner's memory is swapped out.

    :param modes: the modes of the run beside loading and dumping. The other parameters: see :class:`Reporter`.
    """

    def __init__(
        self,
        policy: Policy,
        index: EntryIndex | None,
        coordinator: Coordinator,
        refuse: Callable[[str], NoReturn],
        progress: Progress | None = None,
        log: Log | None = None,
        modes: Sequence[Mode] = (),
    ) -> None:
        super().__init__(policy, index, coordinator, refuse, progress, log)
        self._modes = modes
        #: The last cache that the current test loaded for itself, if missing entries belong to it; else None.
        self._test_cache: Location | None = None
        #: The entries that this process used or recorded.
        self._remembered: dict[Identity, Entry] = {}
        #: Whether this process answers as a new process would; see :meth:`isolated`.
        self._is_isolated = False
        #: The call-backs of tuners, to be called once when the next test begins.
        self._at_next_test: list[Callable[[], object]] = []

    @property
    def picks_candidates(self) -> bool:
        """Whether a mode gives candidates in place of searches, so that every test must ask again."""
        return any(mode.picks_candidates for mode in self._modes)

    def add_cache(self, index: EntryIndex, location: Location | None = None) -> None:
        """Load one more cache for the current test, before all others.

        :param location: of the cache, if missing entries belong to it; else None.
        """
        self.indexes = (index, *self.indexes)
        self._test_cache = location

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Answer as a new process would: without the earlier entries of this process and of other workers.

        When the context ends, the earlier entries are back, and the entries and caches of the context are forgotten.
        """
        remembered_before, was_isolated = self._remembered, self._is_isolated
        indexes_before, test_cache_before = self.indexes, self._test_cache
        self._remembered, self._is_isolated = {}, True
        try:
            yield
        finally:
            self._remembered, self._is_isolated = remembered_before, was_isolated
            self.indexes, self._test_cache = indexes_before, test_cache_before

    def begin_test(self, test: str) -> None:
        """Begin the test with this node id."""
        self.current_test = test
        for mode in self._modes:
            mode.begin_test()
        callbacks, self._at_next_test = self._at_next_test, []
        for callback in callbacks:
            with self.guard("session", "at_next_test()"):
                callback()

    def at_next_test(self, forget: Callable[[], object]) -> None:
        """Call ``forget`` once, before the next test begins, so that a tuner asks again in that test."""
        if forget not in self._at_next_test:
            self._at_next_test.append(forget)

    @contextmanager
    def tuning(self, question: Question) -> Iterator[Tuning]:
        """Ask for the choice of a problem.

        The tuner uses ``Tuning.entry``, or rejects an entry that it cannot use and gets the next one. If no entry is
        left, the tuner tunes as it would without the plugin and records its choice. When the context ends, the lookup
        is reported and every claim is released.
        """
        problem = question.problem
        self.versions.setdefault(problem.library, question.versions)
        outermost_name, outer_tuning = outermost_tuning.get(), _innermost_tuning.get()
        with ExitStack() as claims:
            tuning = self._build_tuning(question, claims)
            try:
                tuning.ask()
                # A candidate may launch other kernels. Their tunings are inside this tuning.
                outermost_tuning.set(outermost_name or problem.name)
                _innermost_tuning.set(tuning)
                yield tuning
            except BaseException as error:
                tuning.withdraw_fallback()
                # If the policy calls the outcome an error, the session itself has raised the error.
                if not self.policy.is_error(tuning.lookup.outcome):
                    tuning.not_recorded(describe_error(error), is_over=True)
                raise
            finally:
                outermost_tuning.set(outermost_name)
                _innermost_tuning.set(outer_tuning)
                self._close(tuning)

    def _build_tuning(self, question: Question, claims: ExitStack) -> Tuning:
        """Return the tuning of a question, which has asked no source yet.

        :param claims: see :meth:`_list_sources`.
        """
        lookup = Lookup(
            question.identity,
            test=self.current_test,
            label=question.label,
            outer_tuning=outermost_tuning.get(),
            may_be_renamed=question.may_use_other_names,
        )
        if self._test_cache is not None:
            lookup = replace(lookup, test_cache=str(self._test_cache), test_cache_path=self._test_cache.absolute_text)
        sources = self._list_sources(question, claims)
        return Tuning(self, question, lookup, sources, self._modes, outer=_innermost_tuning.get())

    def _list_sources(self, question: Question, claims: ExitStack) -> list[Source]:
        """Return the sources of a lookup, in the order in which the lookup asks them.

        :param claims: receives the claim that this worker takes for the problem, which is released when the stack is
            closed.
        """
        sources: list[Source] = [RememberedEntry(self._remembered.get(question.identity))]
        if self.picks_candidates:
            for mode in self._modes:
                mode_source = mode.build_source(question, self)
                if mode_source is not None:
                    sources.append(mode_source)
        elif self.indexes:
            has_test_cache = any(index is not self.index for index in self.indexes)
            sources.append(LoadedCaches(self.indexes, self.policy, has_test_cache, self))
            if self.policy.on_miss in ("first", "nearest"):
                sources.append(Fallback(self.indexes, self.policy))
        if not self._is_isolated:
            sources.append(OtherWorker(self, claims))
        return sources

    def _close(self, tuning: Tuning) -> None:
        """Report the lookup of a tuning that has ended, and remember the entry.

        A signal handler may raise an exception here, such as a time-out that the test catches. The entry is remembered
        last, because a problem that is remembered is not reported again.
        """
        lookup = tuning.lookup
        self.progress.end(lookup.problem)
        # The entry that the tuner used, or the entry of its search.
        entry = tuning.entry
        if lookup.is_tuned:
            entry = lookup.entry
        if entry is not None:
            for mode in self._modes:
                mode.note_used(lookup, entry)
        if not tuning.is_remembered:
            tuning.report()
        if entry is not None:
            self._remembered[lookup.identity] = entry

    def may_race(self, problem: Problem) -> bool:
        """Whether a hit on a problem without a fingerprint would be raced now. A tuner asks this before its lookup."""
        if Identity(problem, Fingerprint()) in self._remembered:
            # Only the first lookup of a problem is raced.
            return False
        if not any(mode.has_turn(problem, now=True) for mode in self._modes):
            return False
        # Only a loaded entry can be a hit.
        for index in self.indexes:
            for entry in index.list_same_key(problem):
                if entry.problem == problem:
                    return True
        return False
