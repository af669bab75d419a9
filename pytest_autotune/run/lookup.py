"""One request for a choice, and what became of it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from pytest_autotune.cache.model import Entry, Identity, Problem, Value
from pytest_autotune.workers.events import FAILED, TUNED, Event

#: The reason of a miss for which nobody has looked at the other entries of the kernel yet.
NO_ENTRY = "no entry"


class Outcome(str, Enum):
    """The outcome of one lookup, as reports spell it."""

    HIT = "hit"
    MISS = "miss"
    MISMATCH = "mismatch"
    STALE = "stale"
    UNCACHEABLE = "uncacheable"

    @property
    def badness(self) -> int:
        """Where processes met different outcomes of one problem, the worst is reported."""
        return list(Outcome).index(self)


#: What a lookup is in a run that loaded nothing, and in which nothing was searched.
_ASKED = "asked"
_KINDS = frozenset({TUNED, FAILED, _ASKED, *(outcome.value for outcome in Outcome)})
#: The fields that an event holds beside what was asked, entry and test.
_DATA = (
    "outcome", "reason", "label", "shared", "disturbed", "alias", "fallback", "inside", "failed",
    "unrecorded", "cache",
)  # fmt: skip


@dataclass(frozen=True, repr=False)
class Lookup:
    """One problem that a process asked for, and what became of it.

    :param outcome: None in a run that loaded nothing.
    :param reason: why it is not a hit, in words.
    :param test: the node id of the test that first asked; empty outside tests.
    :param entry: the entry that was used, or the new one where a search took place.
    :param tuned: a search took place in this process.
    :param shared: the choice came from another worker's tuning in this run.
    :param disturbed: something else may have run on the device while it was measured.
    :param fallback: what was used in place of a tuning, of which there was none: ``"first"``, the first candidate, or
        ``"nearest"``, the choice of the nearest entry; else empty.
    :param inside: the tuning, as ``tuner:kernel``, by which it was asked for; of several inside each other the first.
    :param failed: what a search recorded is that no candidate can be used.
    :param unrecorded: why a search came to nothing that could be recorded; empty where there was none, or it did.
    :param cache: that its test loads for itself, as it is typed on the command line; empty where it loads none.
    :param saved_seconds: the tuning that a hit made unnecessary, in seconds.
    """

    problem: Problem
    fingerprint: tuple[Value, ...] = ()
    outcome: Outcome | None = None
    reason: str = ""
    test: str = ""
    label: str = ""
    entry: Entry | None = None
    tuned: bool = False
    shared: bool = False
    disturbed: bool = False
    alias: str = ""
    fallback: str = ""
    inside: str = ""
    failed: bool = False
    unrecorded: str = ""
    cache: str = ""

    def __repr__(self) -> str:
        """What a user reads where a test asserts that there are no misses, and where a lookup is an error."""
        outcome = self.outcome.value.upper() if self.outcome else "ASKED"
        return f"{outcome} {self.problem}{f': {self.reason}' if self.reason else ''}"

    @property
    def event(self) -> Event:
        """The lookup as it is written down."""
        kind = FAILED if self.failed and self.tuned else TUNED if self.tuned else self.outcome or _ASKED
        data = {name: value for name in _DATA if (value := getattr(self, name))}
        return Event(str(getattr(kind, "value", kind)), self.identity, self.entry, self.test, data)

    @staticmethod
    def of(event: Event) -> Lookup | None:
        """The lookup that an event tells of; None for one of another kind.

        :raises ValueError: for an event that only looks like a lookup.
        """
        if event.asked is None or event.kind not in _KINDS:
            return None
        try:
            data = dict(event.data)
            if (outcome := data.pop("outcome", None)) is not None:
                data["outcome"] = Outcome(outcome)
            tuned = event.kind in (TUNED, FAILED)
            return Lookup(*event.asked, entry=event.entry, test=event.test, tuned=tuned, **data)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a lookup: {error}") from None

    @property
    def identity(self) -> Identity:
        """What was asked for."""
        return Identity(self.problem, self.fingerprint)

    @property
    def searched(self) -> bool:
        """The entry comes from a search in this run, whoever made it."""
        return self.tuned or self.shared

    @property
    def saved_seconds(self) -> float:
        if self.entry is None or self.entry.every_failed or self.outcome is not Outcome.HIT or self.tuned:
            return 0.0
        return self.entry.tuning_seconds
