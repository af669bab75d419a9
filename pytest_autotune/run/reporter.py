"""Reporter: the lookups, events and notes that one process reports, and its access to the shared locks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import replace
from typing import NoReturn

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Entry, Fingerprint, Identity, Problem, Versions, is_tuner_named
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup, Outcome, Policy
from pytest_autotune.run.notes import Notes, Progress
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Event, Log

#: The outermost open tuning of this thread, as ``tuner:kernel``; empty outside tunings.
outermost_tuning: ContextVar[str] = ContextVar("outermost_tuning", default="")


class Reporter(Notes):
    """Reports what one process looks up.

    An error of pytest-autotune in reporting is a line of the summary and never fails a test.

    :param index: the loaded caches; None in a run that loads nothing.
    :param refuse: raises an error that fails the test, when the policy says that a lookup is an error.
    :param progress: shows the user the tunings of this process.
    :param log: receives the events.
    """

    def __init__(
        self,
        policy: Policy,
        index: EntryIndex | None,
        coordinator: Coordinator,
        refuse: Callable[[str], NoReturn],
        progress: Progress | None = None,
        log: Log | None = None,
    ) -> None:
        super().__init__(policy.debug)
        self.policy = policy
        #: The node id of the test that runs in this process, for all of its threads; empty outside tests.
        self.current_test = ""
        #: While the session is paused, adapters ask and record nothing.
        self.is_paused = False
        #: The problems that this process asked for, once each. A test that counts its own empties the list before.
        self.lookups: list[Lookup] = []
        #: library -> its versions, for the libraries of all tuners that asked.
        self.versions: dict[str, Versions] = {}
        #: The cache that the run itself loaded, without the caches of a single test; None if it loaded none.
        self.index = index
        #: The caches that are loaded now; the first takes precedence.
        self.indexes: Sequence[EntryIndex] = ()
        if index is not None:
            self.indexes = (index,)
        self.progress = progress or Progress()
        self.coordinator = coordinator
        #: (digest of an entry, specialization) of the choices that were compiled.
        self._specializations: set[tuple[str, str]] = set()
        self._log = log or Log(None, "")
        self._refuse = refuse

    def ignores(self, tuner: str, kernel: str) -> bool:
        """Whether the user wants this kernel to be bypassed."""
        named = self.policy.tuners
        if named is not None and not is_tuner_named(tuner, named):
            return True
        return self.policy.ignores(tuner, kernel)

    def report_uncacheable(self, problem: Problem, reason: str) -> None:
        """Report a problem that has no stable form, so that no cache can hold it."""
        lookup = Lookup(Identity(problem, Fingerprint()), Outcome.UNCACHEABLE, reason, self.current_test)
        self.report_lookup(lookup)
        if self.indexes:
            self.refuse_errors(lookup)

    def report_unanswered_call(self, tuner: str, place: str, error: BaseException) -> None:
        """Report an error of pytest-autotune before a call could ask. The tuner does as it would without the plugin.

        :raises BaseException: from ``refuse``, if a miss is an error. Nobody knows the outcome of the call.
        """
        consequence = f"; that call was left to {tuner}, and not recorded"
        words = self.report_error(tuner, place, error, consequence, is_counted=False)
        if self.indexes:
            self._refuse_if_error(Outcome.MISS, f"MISS {tuner}: {words}")

    def report_observed(self, *lookups: Lookup) -> None:
        """Report lookups that a tuner made inside itself. All of them are reported before an error is raised."""
        for lookup in lookups:
            test = lookup.test or self.current_test
            self.report_lookup(replace(lookup, test=test, outer_tuning=outermost_tuning.get()))
        for lookup in lookups:
            self.refuse_errors(lookup)

    def report_lookup(self, lookup: Lookup) -> None:
        """Append a lookup to the log."""
        try:
            self._log.append(lookup.to_event())
        except Exception as error:
            self.report_error(lookup.problem.tuner, "tuning()", error, is_counted=False)
        else:
            self.lookups.append(lookup)

    def refuse_errors(self, lookup: Lookup) -> None:
        """Fail the test if the policy calls the outcome of a lookup an error."""
        self._refuse_if_error(lookup.outcome, str(lookup))

    def _refuse_if_error(self, outcome: Outcome | None, text: str) -> None:
        """Fail the test if the policy calls an outcome an error. No other place fails a test for an outcome.

        :param text: the lookup in words.
        """
        if self.policy.is_error(outcome):
            self._refuse(f"autotune: {text}")

    def append_event(self, event: Event) -> None:
        """Append an event that is no lookup to the log."""
        tuner = "session"
        if event.identity is not None:
            tuner = event.identity.problem.tuner
        with self.guard(tuner, "the log"):
            self._log.append(event)

    def report_specialization(self, entry: Entry, text: str) -> None:
        """Report that an entry's choice was compiled for a specialization, if the run dumps."""
        specialization = (entry.identity.digest, text)
        if self.policy.is_dumping and specialization not in self._specializations:
            self._specializations.add(specialization)
            self.append_event(Event(SPECIALIZATION, data={"entry": entry.identity.digest, "text": text}))

    def compiling(self, name: str, wait: bool) -> AbstractContextManager[bool]:
        """Enter a compilation that other workers and threads of this run may make, too.

        The context yields whether nobody else compiles it now.

        :param name: the same wherever the same thing is compiled.
        :param wait: wait for the process that compiles it now; its result is there afterwards.
        """
        return self.guarded("lock", self.coordinator.compiling(name, wait), True)

    def measuring(self, processor: str = "") -> AbstractContextManager[bool]:
        """Take the device for a measurement outside a tuning; yields False if that took too long.

        :param processor: its name; empty for the current GPU.
        """
        return self.guarded("lock", self.coordinator.measuring(processor), False)
