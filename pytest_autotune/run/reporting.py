"""What becomes of a lookup that is settled: it is written down, and where the policy calls it an error, refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NoReturn

from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.notes import Notes, in_words
from pytest_autotune.run.policy import Policy, Refusal, refusal
from pytest_autotune.workers.events import RACED, Event, Log, race_of


def raise_refusal(message: str) -> NoReturn:
    """Refuse a lookup where no test runs that could be failed.

    :raises Refusal: always.
    """
    raise Refusal(message)


class Reporting:
    """The way of lookups out of this process.

    :param log: where they are written down.
    :param asked: called once for each problem that this process asked for.
    :param refuse: raises, when the policy says that a lookup is an error.
    """

    def __init__(
        self,
        policy: Policy,
        notes: Notes,
        log: Log,
        asked: Callable[[Lookup], object],
        refuse: Callable[[str], NoReturn],
    ) -> None:
        self._policy = policy
        self._notes = notes
        self._log = log
        self._asked = asked
        self._refuse = refuse

    def report(self, lookup: Lookup) -> None:
        """Write down what became of a lookup; an error in doing so is a line of the summary.

        An adapter of another package may record what is no entry, or ask for what is no problem.
        """
        tuner = lookup.problem.tuner
        try:
            try:
                self._log.append(lookup.event)
            except Exception as error:
                if lookup.entry is None and lookup.verdict is None:
                    raise
                self._notes.error(tuner, "record()", error)
                bare = replace(lookup, verdict=None)
                if lookup.searched:
                    bare = replace(bare, entry=None, tuned=False, shared=False, label="", unrecorded=in_words(error))
                lookup = bare
                self._log.append(lookup.event)
        except Exception as error:
            self._notes.went_wrong(tuner, "tuning()", error)
            return
        self._asked(lookup)

    def raced(self, lookup: Lookup) -> None:
        """Let the other workers know that a loaded choice was raced here."""
        self._log.append(Event(RACED, race_of(lookup.identity)))

    def refuse_errors(self, lookup: Lookup) -> None:
        """Refuse a lookup that the policy calls an error: here, and nowhere else.

        :raises BaseException: what ``refuse`` raises.
        """
        if self._policy.is_error(lookup.outcome):
            self._refuse(refusal(lookup))

    def refuse_unknown(self, tuner: str, why: str) -> None:
        """Refuse a call of which an error kept the problem from being known, where the policy calls a miss an error.

        :raises BaseException: what ``refuse`` raises.
        """
        if self._policy.is_error(Outcome.MISS):
            self._refuse(f"autotune: MISS {tuner}: {why}")
