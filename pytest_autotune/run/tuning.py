"""Tuning: one problem in one process, from the first question to what was recorded."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from typing import TYPE_CHECKING

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Digest, Entry, Versions
from pytest_autotune.cache.quantities import round_significant
from pytest_autotune.run.lookup import Lookup, NotRecorded, Outcome, TunedEntry
from pytest_autotune.run.notes import WAITING_FOR_GPU
from pytest_autotune.run.sources import Answers

if TYPE_CHECKING:
    from pytest_autotune.run.session import Session

#: What is said of an entry that expected a failure.
WORKS_NOW = "every candidate failed when it was tuned, and one works now"


class Tuning:
    """One problem: an entry to use, or a search to make and record.

    In this order: while there is an :attr:`entry`, the tuner uses it, and may :meth:`race` it before, or calls
    :meth:`reject` for the next one; where there is none, it measures, each time inside :meth:`measuring`, and calls
    :meth:`record` or :meth:`record_failure` once. :meth:`not_recorded` says why it does neither, and :meth:`postpone`
    that it will ask again.

    :param versions: of the libraries that matter to the tuner, now.
    :param digests: what the digests of the fingerprint are made of.
    :param answers: of the sources, one after another.
    :param outer: the tuning inside of which this one is, and which does not count its seconds once more.
    """

    def __init__(
        self,
        session: Session,
        lookup: Lookup,
        versions: Versions,
        digests: Callable[[], tuple[Digest, ...]],
        answers: Answers,
        outer: Tuning | None = None,
    ) -> None:
        #: The entry to use; None where the tuner must search.
        self.entry: Entry | None = None
        self.lookup = lookup
        self.versions = versions
        #: This process asked for the problem before and has reported it.
        self.is_remembered = False
        self._session = session
        self._digests = digests
        self._answers = answers
        #: The lookup before ``entry`` was offered.
        self._before = lookup
        self._started = 0.0
        #: What is not its own: waiting, and the tunings inside.
        self._other_s = 0.0
        self._outer = outer
        self._is_reported = False
        #: Something else may have used the device during the measurements.
        self.is_disturbed = False
        self._has_failed = False

    def ask(self, rejected: str | None = None) -> None:
        """Ask the sources that are left, until one has an entry; the session does so first.

        :param rejected: why the entry before cannot be used.
        :raises BaseException: what the run raises where an outcome is an error.
        """
        self.entry, self.is_remembered = None, False
        try:
            with suppress(StopIteration):
                while self.entry is None:
                    answer = self._answers.send(rejected)
                    rejected, self._before = None, self.lookup
                    self.lookup, self.entry, self.is_remembered = answer.lookup, answer.entry, answer.is_reported
                    self.is_disturbed |= answer.is_disturbed
                    if self.entry is None:
                        self._session.refuse_errors(self.lookup)
        except Exception as error:  # the tuner goes on without
            self._session.report_error(self.lookup.problem.tuner, "the session", error)
            if self._session.indexes and self.lookup.outcome is None:
                self.lookup = replace(self.lookup, outcome=Outcome.MISS, reason="an error of pytest-autotune")
            # Whoever wants an error instead of a tuning gets none that nobody sees, either.
            self._session.refuse_errors(self.lookup)
        if self.entry is None:
            self._session.progress.begin_search(self.lookup.problem)
        self._started, self._other_s = HostTime.perf_counter(), 0.0

    def reject(self, reason: str) -> None:
        """Say why ``entry`` cannot be used; afterwards ``entry`` is another one or None.

        :raises BaseException: what the run raises where a stale problem is an error.
        """
        if self.entry is not None:
            self.lookup = self._before
            self.ask(str(reason))

    def race(self, contest: Callable[[], object]) -> None:
        """Have the loaded choice raced where a mode wants that; to be called when it can be used, before it is.

        :param contest: gives what the tuner brings for it, a ``Contest`` or a race of its own
            (:mod:`pytest_autotune.tuners.measuring.race`), or says why there can be none; called where it is wanted.
        """
        if self.lookup.outcome is Outcome.HIT and not (self.is_remembered or self.lookup.is_shared):
            mode = self._session.find_racing_mode(self.lookup.problem)
            if mode is not None:
                mode.race(self._session, self, contest)

    @property
    def is_expected_to_fail(self) -> bool:
        """A loaded entry says that every candidate failed: the tuner does as it would without us."""
        return self.entry is None and self.lookup.outcome is Outcome.HIT and not self.lookup.is_tuned

    @contextmanager
    def measuring(self, on: str = "") -> Iterator[None]:
        """Have the device to oneself, as far as other pytest processes go.

        :param on: names the processor where it is not the current GPU.
        """
        asked, progress, problem = HostTime.perf_counter(), self._session.progress, self.lookup.problem
        progress.at(problem, WAITING_FOR_GPU)
        with self._session.measuring(on) as undisturbed:
            progress.at(problem, "")
            self._other_s += HostTime.perf_counter() - asked
            if not undisturbed:
                self.mark_disturbed()
            yield

    def report_trial(self, number: int, of: int) -> None:
        """Say which candidate is compiled or measured now, for people who wait.

        :param number: from 1.
        """
        self._session.progress.at(self.lookup.problem, f"candidate {number} of {of}")

    def report_race(self, left: int, of: int) -> None:
        """Say how many candidates are still in the race, for people who wait."""
        self._session.progress.at(self.lookup.problem, f"{left} of {of} candidates race")

    def mark_disturbed(self) -> None:
        """Say that something else may have run on the device while it was measured."""
        self.is_disturbed = True

    def record(
        self, choice: Candidate | None, candidates: Sequence[Candidate] = (), native: bytes = b"", label: str = ""
    ) -> Entry:
        """Record what a search that really took place has chosen.

        :param candidates: every candidate with its time in microseconds, or why it failed.
        :returns: the new entry.
        :raises BaseException: what the run raises where an outcome is an error: here, where it was
            :attr:`known_to_fail` and did not.
        """
        known_to_fail = self.is_expected_to_fail
        seconds = HostTime.perf_counter() - self._started
        if self._outer is not None:
            self._outer._other_s += seconds
        entry = Entry(
            self.lookup.problem,
            self.lookup.fingerprint,
            choice,
            tuple(candidates),
            native,
            label or self.lookup.label,
            round_significant(seconds - self._other_s),
            self.versions,
            digests=self._digests(),
        )
        if known_to_fail and entry.is_failure:
            assert self.lookup.entry is not None
            return self.lookup.entry
        self.lookup = replace(self.lookup, result=TunedEntry(entry, self.is_disturbed, self._has_failed))
        if known_to_fail:
            self.lookup = replace(self.lookup, outcome=Outcome.STALE, reason=WORKS_NOW)
        self.report()  # now, while the claim is held: whoever waits for it finds it written down
        if known_to_fail:
            self._session.refuse_errors(self.lookup)
        return entry

    def report(self) -> None:
        """Write down what became of the lookup, once."""
        if not self._is_reported:
            self._is_reported = True
            self._session.report_lookup(self.lookup)

    def postpone(self) -> None:
        """Report nothing: the tuner needs no choice yet, perhaps never, and asks again when it does."""
        self._is_reported = True

    def not_recorded(self, reason: str, *, is_over: bool = False) -> None:
        """Say why a search came to nothing that can be recorded: what kept it from that may be gone the next time.

        The session says so itself of a search that ends with an error. Where none took place, or it has recorded
        something, or was expected to fail, nothing is said.

        :param is_over: by an error or ``pytest.skip``: it missed nothing that an update could cover.
        """
        if self.entry is None and not self.lookup.is_tuned and not self.is_expected_to_fail:
            self.lookup = replace(self.lookup, result=NotRecorded(self.lookup.unrecorded_reason or reason))
            if is_over:
                self.lookup = replace(self.lookup, outcome=None)

    def record_failure(self, reasons: Iterable[str]) -> Entry:
        """Record that no candidate can be used, so that later runs expect it; each call fails as it always does.

        Only for failures that the next run will see again: what does not compile, or needs more than
        the device has. Not for a device that broke, a time-out, or memory that another process holds.

        :param reasons: why; of candidates that failed for the same reason, one is enough.
        :returns: the entry.
        """
        self._has_failed = True
        distinct = sorted({stable_reason(reason) for reason in reasons} - {""}) or ["failed"]
        return self.record(None, [Candidate(failed=reason) for reason in distinct[:MAX_REASONS]])


#: So many different reasons of failed candidates are kept in an entry without a choice,
MAX_REASONS = 5
#: and so many characters of each.
MAX_REASON_LENGTH = 200


#: What differs from run to run, or from machine to machine, and what stands for it; in this order.
_UNSTABLE = (
    (r"0[xX][0-9a-fA-F]+", "0x..."),
    (r"(?<![\w.])/(?:[\w.+~-]+/)*([\w.+~-]+)", r"\1"),
    (r"\btmp\w{6,}", "tmp..."),
    (r"(?i)\b(?<!per )(?<!to )(?<!not )((?:[pt]|pp)id|process|thread)(\W{0,3}|-| id )\d+\b", r"\1\2..."),
)


def stable_reason(text: str) -> str:
    """Why a candidate failed, in one line that the next run and another machine would write, too.

    Without addresses, absolute paths, names of temporary files and numbers of processes; cut to :data:`REASON_LENGTH`
    characters. Other words that change cost no entry: one that says that none works is kept whatever its words.
    """
    for unstable, stands_for in _UNSTABLE:
        text = re.sub(unstable, stands_for, text)
    text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return text if len(text) <= MAX_REASON_LENGTH else f"{text[: MAX_REASON_LENGTH - 3]}..."
