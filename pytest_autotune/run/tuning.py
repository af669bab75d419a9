"""Tuning: one problem in one process, from the first question to the recorded entry.

A problem is a kernel with a key and a device. Its lookup is the record of the question, with outcome and result. The
sources of :mod:`pytest_autotune.run.sources` offer entries: those of the loaded caches, of another worker, and others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from pytest_autotune.cache.host_time import HostTime
from pytest_autotune.cache.model import Candidate, Entry, Problem
from pytest_autotune.cache.wording import round_significant
from pytest_autotune.run.lookup import Lookup, NotRecorded, Outcome, Question, TunedEntry
from pytest_autotune.run.reporter import WAITING_FOR_GPU, Reporter
from pytest_autotune.run.sources import Rejection, Source

#: The reason why an entry is stale that says that every candidate failed.
WORKS_NOW = "every candidate failed when this entry was tuned, but one works now"


class RacingMode(Protocol):
    """A mode that races loaded choices (:class:`pytest_autotune.run.session.Mode` says more about both methods)."""

    def has_turn(self, problem: Problem, *, now: bool = False) -> bool:
        """Whether to race a loaded choice of this problem."""

    def race(self, reporter: Reporter, tuning: Tuning, contest: Callable[[], Any]) -> None:
        """Race the loaded choice of a tuning."""


@dataclass(frozen=True)
class Offer:
    """An entry that a source offers to the tuner.

    :param lookup_before: the lookup without the offered entry. It counts again if the tuner rejects the entry.
    """

    entry: Entry
    source: Source
    lookup_before: Lookup


class Tuning:
    """The handling of one lookup: an entry to use, or a search to make and record.

    A tuning in the words of the documentation is a search that really took place. An object of this class exists for
    each lookup, also if an entry is used and nothing is searched.

    The tuner uses an entry of :meth:`offered_entries`, and may :meth:`race` it before. If the tuner cannot use the
    entry, it calls :meth:`reject` to get the next entry. If there is no entry, the tuner measures inside
    :meth:`measuring` and calls :meth:`record` or :meth:`record_failure` once. A tuner that records nothing calls
    :meth:`not_recorded` with the reason, or :meth:`postpone` if it will ask again.

    :param sources: the sources of the choice, in the order in which they are asked.
    :param racers: the modes of the run.
    :param outer: the tuning that this tuning is inside of. The seconds of this tuning are not counted there again.
    """

    def __init__(
        self,
        reporter: Reporter,
        question: Question,
        lookup: Lookup,
        sources: Sequence[Source],
        racers: Sequence[RacingMode] = (),
        outer: Tuning | None = None,
    ) -> None:
        self.lookup = lookup
        self.versions = question.versions
        #: This process asked for the problem before and has reported it.
        self.is_remembered = False
        #: Something else may have used the device during the measurements.
        self.is_disturbed = False
        self._reporter = reporter
        self._question = question
        #: The sources that may still have an answer. The first of them made the offer, if there is an offer.
        self._sources = list(sources)
        #: The entry that the tuner may use now; None if no source offers one.
        self._offer: Offer | None = None
        self._racers = racers
        self._outer = outer
        self._rejections: list[Rejection] = []
        #: The beginning of the search, on the clock of :meth:`HostTime.perf_counter`.
        self._started_s = 0.0
        #: Seconds that do not count as tuning: of waiting, and of tunings inside this tuning.
        self._uncounted_s = 0.0
        self._is_reported = False
        self._has_failed = False

    @property
    def entry(self) -> Entry | None:
        """The entry to use; None if the tuner must search."""
        if self._offer is None:
            return None
        return self._offer.entry

    def ask(self) -> None:
        """Ask the sources until one offers an entry. The session calls this first.

        If a source fails, the tuner searches as it would without the plugin.

        :raises BaseException: from the session's ``refuse``, if the outcome is an error.
        """
        self._offer, self.is_remembered = None, False
        try:
            self._find_offer()
        except Exception as error:
            # A refusal of the session is a BaseException, so it is not caught here.
            self._sources.clear()
            self._reporter.report_error(self.lookup.problem.tuner, "the session", error)
            if self._reporter.indexes and self.lookup.outcome is None:
                self.lookup = replace(self.lookup, outcome=Outcome.MISS, reason="an error of pytest-autotune")
            # With --autotune-on-miss=error, no error of ours may lead to a tuning that nobody sees.
            self._reporter.refuse_errors(self.lookup)
        if self._offer is None:
            self._reporter.progress.begin_search(self.lookup.problem)
        self._started_s, self._uncounted_s = HostTime.perf_counter(), 0.0

    def _find_offer(self) -> None:
        """Ask the sources in their order, and stop at the first offer.

        The source of an offer stays among the sources. If the tuner rejects the entry, the source is asked again.
        """
        while self._sources:
            self._offer = self._ask_source(self._sources[0])
            if self._offer is not None:
                return
            self._sources.pop(0)

    def _ask_source(self, source: Source) -> Offer | None:
        """Ask a source, and note its answer in the lookup. Return its offer; None if it offers no entry."""
        answer = source.ask(self._question, self._rejections)
        # The source knows nothing about the problem, or has no further entry.
        if answer is None:
            return None
        lookup_before = self.lookup
        self.lookup = answer.fold_into(lookup_before)
        self.is_disturbed = self.is_disturbed or answer.is_disturbed
        self.is_remembered = answer.is_remembered
        if answer.entry is not None:
            return Offer(answer.entry, source, lookup_before)
        # The answer is only an outcome, such as a miss. Later sources may still offer an entry, unless it is final.
        if answer.is_final:
            self._sources = [source]
        self._reporter.refuse_errors(self.lookup)
        return None

    def offered_entries(self) -> Iterator[Entry]:
        """Yield the entries that the session offers, until the tuner can use one.

        The adapter leaves the loop with an entry that its tuner can use, and calls :meth:`reject` for every other
        entry. After the loop there is no entry, and the tuner searches.

        :raises RuntimeError: if the adapter asks for the next entry without a rejection.
        """
        while self.entry is not None:
            rejection_count = len(self._rejections)
            yield self.entry
            if len(self._rejections) == rejection_count:
                raise RuntimeError(
                    "the tuner's adapter did not say whether it used the entry (report this to its author)"
                )

    def reject(self, reason: str) -> None:
        """Reject ``entry``, which the tuner cannot use. Afterwards ``entry`` is the next entry, or None.

        :raises BaseException: from the session's ``refuse``, if a stale problem is an error.
        """
        offer = self._offer
        if offer is None:
            return
        self._rejections.append(Rejection(offer.source, offer.entry, str(reason)))
        self.lookup = offer.lookup_before
        self.ask()

    def withdraw_fallback(self) -> None:
        """Take back an offered fallback, because an error ended the lookup. Nobody knows whether the choice works."""
        if self._offer is not None and self.lookup.fallback:
            self.lookup = self._offer.lookup_before
            self._offer = None

    def race(self, contest: Callable[[], object]) -> None:
        """Let a mode race the loaded choice. The adapter calls this when it can use the choice, before it does.

        :param contest: builds the tuner's ``Contest`` or its own race (:mod:`pytest_autotune.tuners.measuring.race`),
            or returns the reason why it has no race; called only if a mode wants a race.
        """
        if self.lookup.outcome is not Outcome.HIT:
            return
        if self.is_remembered or self.lookup.is_shared:
            # The choice was raced in an earlier lookup, or this run has just tuned it.
            return
        for racer in self._racers:
            if racer.has_turn(self.lookup.problem):
                racer.race(self._reporter, self, contest)
                return

    @property
    def is_expected_to_fail(self) -> bool:
        """Whether a loaded entry says that every candidate failed.

        The tuner then searches, and the call fails as it would without the plugin.
        """
        return self.entry is None and self.lookup.outcome is Outcome.HIT and not self.lookup.is_tuned

    @contextmanager
    def measuring(self, processor: str = "") -> Iterator[None]:
        """Take the device for a measurement. No other pytest process of this user measures on the device meanwhile.

        :param processor: its name; empty for the current GPU.
        """
        progress, problem = self._reporter.progress, self.lookup.problem
        wait_started = HostTime.perf_counter()
        progress.update(problem, WAITING_FOR_GPU)
        with self._reporter.measuring(processor) as has_device:
            progress.update(problem, "")
            self._uncounted_s += HostTime.perf_counter() - wait_started
            if not has_device:
                # The wait took too long, so this measurement may overlap with another process's.
                self.mark_disturbed()
            yield

    def report_trial(self, number: int, count: int) -> None:
        """Show which candidate is compiled or measured now, for people who wait.

        :param number: from 1.
        """
        self._reporter.progress.update(self.lookup.problem, f"candidate {number} of {count}")

    def report_race(self, remaining: int, count: int) -> None:
        """Show how many candidates are still in the race, for people who wait."""
        self._reporter.progress.update(self.lookup.problem, f"{remaining} of {count} candidates race")

    def mark_disturbed(self) -> None:
        """Note that something else may have used the device during the measurements."""
        self.is_disturbed = True

    def record(
        self, choice: Candidate | None, candidates: Sequence[Candidate] = (), native: bytes = b"", label: str = ""
    ) -> Entry:
        """Record the choice after a search.

        A loaded entry may say that every candidate fails. If the search failed, too, nothing is recorded. If a
        candidate works now, the choice is recorded, and the problem is stale.

        :param candidates: every candidate with its time in microseconds, or why it failed.
        :param native: the tuner's own bytes for its choice.
        :param label: words about the call, for reports; empty for the words of the question.
        :returns: the new entry or, if both say that every candidate fails, the loaded entry.
        :raises BaseException: from the session's ``refuse``, if a stale problem is an error.
        """
        was_expected_to_fail = self.is_expected_to_fail
        tuning_seconds = self._count_seconds()
        entry = Entry(
            self.lookup.problem,
            self.lookup.fingerprint,
            choice,
            tuple(candidates),
            native,
            label or self.lookup.label,
            tuning_seconds,
            self.versions,
            digests=self._reporter.list_digests(self._question),
        )
        if was_expected_to_fail and entry.is_failure:
            # The lookup stays a hit on the loaded entry, which says the same.
            assert self.lookup.entry is not None
            return self.lookup.entry
        self.lookup = replace(self.lookup, result=TunedEntry(entry, self.is_disturbed, self._has_failed))
        if was_expected_to_fail:
            self.lookup = replace(self.lookup, outcome=Outcome.STALE, reason=WORKS_NOW)
        # The claim is still held: a worker that waits for the claim finds the event afterwards.
        self.report()
        if was_expected_to_fail:
            self._reporter.refuse_errors(self.lookup)
        return entry

    def _count_seconds(self) -> float:
        """Return the seconds of the search until now, which the outer tuning then does not count again."""
        seconds = HostTime.perf_counter() - self._started_s
        if self._outer is not None:
            self._outer._uncounted_s += seconds
        return round_significant(seconds - self._uncounted_s)

    def report(self) -> None:
        """Report the lookup, once."""
        if not self._is_reported:
            self._is_reported = True
            self._reporter.report_lookup(self.lookup)

    def postpone(self) -> None:
        """Report nothing. The tuner needs no choice yet, perhaps never, and asks again when it needs one."""
        self._is_reported = True

    def not_recorded(self, reason: str, *, is_over: bool = False) -> None:
        """Note why a search recorded nothing. The search of the next run may succeed.

        The session calls this itself if an error ends a search. The reason is ignored if the tuner used an entry, if
        the search recorded an entry, or if a loaded entry says that every candidate fails. The first reason counts.

        :param is_over: an error or ``pytest.skip`` ended the search. An update would end in the same way, so the
            problem is no miss.
        """
        if self.entry is not None or self.lookup.is_tuned or self.is_expected_to_fail:
            return
        first_reason = self.lookup.unrecorded_reason or reason
        self.lookup = replace(self.lookup, result=NotRecorded(first_reason))
        if is_over:
            self.lookup = replace(self.lookup, outcome=None)

    def record_failure(self, reasons: Iterable[str]) -> Entry:
        """Record that no candidate can be used. Later runs expect this, and their calls fail as calls always do.

        Call this only for failures that the next run will see again: a candidate does not compile, or needs more than
        the device has. Do not call it for a broken device, a time-out, or memory that another process holds.

        :param reasons: why candidates failed, each reason once or several times.
        :returns: the new entry.
        """
        self._has_failed = True
        distinct_reasons = {stable_reason(reason) for reason in reasons}
        distinct_reasons.discard("")
        # The entry is the same in each run, so the reasons are sorted.
        kept_reasons = sorted(distinct_reasons)[:MAX_REASONS]
        if not kept_reasons:
            kept_reasons = ["failed"]
        failed_candidates = [Candidate(failed=reason) for reason in kept_reasons]
        return self.record(choice=None, candidates=failed_candidates)


#: An entry without a choice keeps at most so many different reasons of failed candidates.
MAX_REASONS = 5
#: The length of a reason in characters.
MAX_REASON_LENGTH = 200


#: Patterns of texts that differ between runs or machines, and their replacements. They are applied in this order.
_UNSTABLE = (
    # An address: "0x7f3a" becomes "0x...".
    (r"0[xX][0-9a-fA-F]+", "0x..."),
    # An absolute path: "/home/me/lib.py" becomes "lib.py".
    (r"(?<![\w.])/(?:[\w.+~-]+/)*([\w.+~-]+)", r"\1"),
    # A temporary name: "tmp8kx2p1qz" becomes "tmp...".
    (r"\btmp\w{6,}", "tmp..."),
    # The number of a process or thread: "pid 4711" becomes "pid ...", and "4 warps per thread 2" stays as it is.
    (r"(?i)\b(?<!per )(?<!to )(?<!not )((?:[pt]|pp)id|process|thread)(\W{0,3}|-| id )\d+\b", r"\1\2..."),
)


def stable_reason(text: str) -> str:
    """Return the reason why a candidate failed in one line that the next run and another machine would give, too.

    Addresses, absolute paths, names of temporary files and numbers of processes are replaced, and the line is cut to
    :data:`MAX_REASON_LENGTH` characters. A reason that still differs makes no entry stale.
    """
    for unstable, replacement in _UNSTABLE:
        text = re.sub(unstable, replacement, text)
    printable = "".join(character if character.isprintable() else " " for character in text)
    text = " ".join(printable.split())
    if len(text) <= MAX_REASON_LENGTH:
        return text
    return f"{text[: MAX_REASON_LENGTH - 3]}..."
