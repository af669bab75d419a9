"""Reports of one process: its lookups, its events, its lines for the summary, and the progress of its tunings.

An error of pytest-autotune costs a line of the summary, never a test. ``autotune_debug`` also writes its traceback to
standard error.

A lookup is one question of a tuner about a problem (a kernel with a key and a device), with its outcome. The log of a
process is a file of events, from which the controller makes the result of the run.
"""

from __future__ import annotations

import os
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NoReturn, Protocol, TypeVar

from pytest_autotune.cache.errors import is_from_signal_handler
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Digest, Entry, Fingerprint, Identity, Problem, Versions, is_tuner_named
from pytest_autotune.cache.wording import error_message, to_one_line
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup, Outcome, Policy, Question
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Event, Log

_T = TypeVar("_T")

#: The outermost open tuning of this thread, as ``tuner:kernel``; empty outside tunings.
outermost_tuning: ContextVar[str] = ContextVar("outermost_tuning", default="")


WAITING_FOR_GPU = "waiting for the GPU"
WAITING_FOR_WORKER = "waiting for another worker's tuning"


@dataclass(frozen=True)
class Stage:
    """The stage of a tuning that runs now.

    :param kernel: ``triton:lib.matmul``.
    :param started_s: the beginning, in seconds of :func:`time.time`, which processes of one machine share.
    :param activity: the candidate that is compiled or measured now, or the thing that the tuning waits for.
    """

    kernel: str
    started_s: float
    activity: str = ""

    def describe(self, now_s: float) -> str:
        """Return the stage in words: ``triton:lib.matmul: candidate 3 of 12, 4s``."""
        seconds = f"{max(now_s - self.started_s, 0):.0f}s"
        if not self.activity:
            return f"{self.kernel}: {seconds}"
        return f"{self.kernel}: {self.activity}, {seconds}"


class ProgressDisplay(Protocol):
    """Shows the user the tuning of a process."""

    def show(self, stage: Stage | None) -> None:
        """Show the stage of now; None if nothing is tuned any more."""


class Progress:
    """The tunings of this process.

    :param display: shows the innermost tuning whenever its stage changes; None to show nothing.
    :param clock: returns the seconds of now; see :class:`Stage`.
    """

    def __init__(self, display: ProgressDisplay | None = None, clock: Callable[[], float] = time.time) -> None:
        self._display = display
        self._clock = clock
        #: The stages of open tunings, the innermost last.
        self._stages: dict[Problem, Stage] = {}

    @property
    def open_tunings(self) -> list[str]:
        """The problems that are tuned now, as ``tuner:kernel``."""
        return sorted(stage.kernel for stage in self._stages.values())

    def begin(self, problem: Problem, activity: str = "") -> None:
        """Begin a search, or the wait for the search of another process. Call :meth:`end` when the tuning is over.

        :param activity: see :class:`Stage`.
        """
        stage = self._stages.get(problem) or Stage(problem.name, self._clock())
        self._stages[problem] = replace(stage, activity=activity)
        self._show_innermost()

    def begin_search(self, problem: Problem) -> None:
        """Begin a search."""
        self.begin(problem)

    def update(self, problem: Problem, activity: str) -> None:
        """Show what an open tuning does now. A problem without an open tuning is ignored."""
        if problem in self._stages:
            self.begin(problem, activity)

    def end(self, problem: Problem) -> None:
        """End a tuning. A problem without an open tuning is ignored."""
        if self._stages.pop(problem, None) is not None:
            self._show_innermost()

    def _show_innermost(self) -> None:
        """Show the innermost open tuning, or that there is none."""
        if self._display is None:
            return
        innermost_stage = None
        if self._stages:
            innermost_stage = list(self._stages.values())[-1]
        try:
            self._display.show(innermost_stage)
        except Exception as error:
            # The test may have replaced a function that the display calls, such as json.dumps.
            if is_from_signal_handler(error):
                raise


class Reporter:
    """Reports the lookups of one process, and has the lines of this process for the summary.

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
        self.policy = policy
        #: The lines for the summary, each once.
        self.notes: list[str] = []
        #: tuner -> why it could not be hooked, or the error of pytest-autotune that left a call to the tuner.
        self.unhooked_tuners: dict[str, str] = {}
        #: The node id of the test that runs in this process, for all of its threads; empty outside tests.
        self.current_test = ""
        #: While the session is paused, adapters ask and record nothing.
        self.is_paused = False
        #: Whether the run has ended in this process, and its log is closed: see :meth:`leaves_alone`.
        self.has_ended = False
        #: (tuner, kernel) of the calls after the end of the run.
        self._late_kernels: set[tuple[str, str]] = set()
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
        self._log = log or Log(None, process="")
        self._refuse = refuse
        #: A copy of standard error, from before pytest captures it for a test. None without ``autotune_debug``.
        self._debug_descriptor = os.dup(2) if policy.debug else None

    def note(self, text: str) -> None:
        """Show the user a line in the summary."""
        if text not in self.notes:
            self.notes.append(text)

    def report_bypass(self, tuner: str, reason: str, error: BaseException | None = None) -> None:
        """Note for the user that a tuner, or a part of a tuner, could not be hooked."""
        self._write_traceback(error)
        self.unhooked_tuners[tuner] = reason
        self.note(f"{tuner} tunes without the plugin: {reason}")

    def report_error(
        self, tuner: str, raised_in: str, error: BaseException, consequence: str = "", *, is_counted: bool = True
    ) -> str:
        """Note an error of pytest-autotune in one line. It must never fail a test, or the run.

        Example: ``triton: internal error in digests(): KeyError: 'M'; triton tuned by itself, and nothing was saved``.

        :param raised_in: the code that raised the error: a function such as ``digests()``, or ``the session``.
        :param consequence: the end of the line.
        :param is_counted: the problem of the call is among the lookups all the same. Otherwise no lookup shows that a
            call was not answered, so the tuner counts as one that could not be hooked, which fails a limit on misses.
        :returns: the error in words.
        :raises BaseException: the error itself, if a signal handler raised it: it belongs to the test.
        """
        if is_from_signal_handler(error):
            raise error
        self._write_traceback(error)
        words = " ".join(f"internal error in {raised_in}: {type(error).__name__}: {error_message(error)}".split())
        self.note(f"{tuner}: {words}{consequence}")
        if not is_counted:
            self.unhooked_tuners.setdefault(tuner, words)
        return words

    @contextmanager
    def guard(self, tuner: str, raised_in: str) -> Iterator[None]:
        """Note an error of pytest-autotune that is raised inside, and go on after it. Ctrl-C and time-outs are raised.

        :param raised_in: the guarded code, for the line about an error: ``unhook()``, ``the log``.
        """
        try:
            yield
        except Exception as error:
            self.report_error(tuner, raised_in, error)

    @contextmanager
    def enter_under_guard(self, tuner: str, context: AbstractContextManager[_T], default: _T) -> Iterator[_T]:
        """Enter a context of pytest-autotune, such as a lock, and yield its value.

        An error of the code inside the context is raised as always. An error that entering or leaving the context
        raises is only noted. The context leaves without the error of the code inside.

        :param default: the value if the context cannot be entered.
        """
        value = default
        # Not `with`: the guard is for entering and leaving the context, and not for the code inside it.
        exits = ExitStack()
        with self.guard(tuner, "the session"):
            value = exits.enter_context(context)
        try:
            yield value
        finally:
            with self.guard(tuner, "the session"):
                exits.close()

    def _write_traceback(self, error: BaseException | None) -> None:
        """Write the traceback of an error to standard error, with ``autotune_debug``."""
        if self._debug_descriptor is not None and error is not None:
            text = "".join(traceback.format_exception(error))
            os.write(self._debug_descriptor, text.encode(errors="backslashreplace"))

    def leaves_alone(self, tuner: str, kernel: str) -> bool:
        """Whether an adapter leaves a call of a kernel to its tuner. Adapters ask before each lookup.

        An adapter leaves the call alone if the session is paused, the user left the kernel out, or the run has ended.
        After the end of the run, this method also warns the user, because no report can name the kernel any more: a
        line on standard error names it, once.
        """
        return self.is_paused or self.ignores(tuner, kernel)

    def is_left_out(self, tuner: str, kernel: str) -> bool:
        """Whether the user leaves a kernel to its tuner, by ``--autotune-tuners`` or ``autotune_ignore``."""
        named = self.policy.tuners
        if named is not None and not is_tuner_named(tuner, named):
            return True
        return self.policy.is_ignored(tuner, kernel)

    def ignores(self, tuner: str, kernel: str) -> bool:
        """Whether :meth:`leaves_alone` is true for another reason than a paused session; it warns in the same way.

        This is for adapters that ask for :attr:`is_paused` themselves.
        """
        if self.is_left_out(tuner, kernel):
            return True
        if self.has_ended:
            self._warn_of_late_call(tuner, kernel)
        return self.has_ended

    def _warn_of_late_call(self, tuner: str, kernel: str) -> None:
        """Write a line on standard error about a call after the end of the run, once for each kernel."""
        if (tuner, kernel) in self._late_kernels:
            return
        self._late_kernels.add((tuner, kernel))
        line = to_one_line(
            f"autotune: {tuner}:{kernel} was called after the end of the run, so it used no cache and is in no report "
            "(call it in a test or fixture)"
        )
        print(line, file=sys.stderr)

    def report_uncacheable(self, problem: Problem, reason: str) -> None:
        """Report a problem that has no stable form, so that no cache can hold it."""
        lookup = Lookup(Identity(problem, Fingerprint()), Outcome.UNCACHEABLE, reason, self.current_test)
        self.report_lookup(lookup)
        if self.indexes:
            self.refuse_errors(lookup)

    def report_unanswered_call(self, tuner: str, raised_in: str, error: BaseException) -> None:
        """Report an error of pytest-autotune before a call could ask. The tuner does as it would without the plugin.

        :raises BaseException: from ``refuse``, if a miss is an error. Nobody knows the outcome of the call.
        """
        consequence = f"; {tuner} tuned by itself, and nothing was saved"
        words = self.report_error(tuner, raised_in, error, consequence, is_counted=False)
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
        """Append a lookup to the log, and count it if this works."""
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

    def list_digests(self, question: Question) -> tuple[Digest, ...]:
        """Return the digests of a question as a cache file can hold them; none if the adapter fails to give them."""
        digests: tuple[Digest, ...] = ()
        with self.guard(question.problem.tuner, "digests()"):
            digests = tuple(_with_one_line_texts(digest) for digest in question.digests())
        return digests

    def compiling(self, name: str, wait: bool) -> AbstractContextManager[bool]:
        """Enter a compilation that other workers and threads of this run may make, too.

        The context yields whether nobody else compiles it now.

        :param name: the same wherever the same thing is compiled.
        :param wait: wait for the process that compiles it now; its result is there afterwards.
        """
        return self.enter_under_guard("lock", self.coordinator.compiling(name, wait), default=True)

    def measuring(self, processor: str = "") -> AbstractContextManager[bool]:
        """Take the device for a measurement outside a tuning; yields False if that took too long.

        :param processor: its name; empty for the current GPU.
        """
        return self.enter_under_guard("lock", self.coordinator.measuring(processor), default=False)


def _with_one_line_texts(digest: Digest) -> Digest:
    """Return a digest whose texts have no line ends, which a line of a text file could not hold."""
    return Digest(to_one_line(digest.id), tuple(to_one_line(part) for part in digest.parts))
