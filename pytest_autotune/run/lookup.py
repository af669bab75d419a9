"""One request for a choice, what became of it, and what a run does about that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING

from pytest_autotune.cache.model import Entry, Identity, Problem, Value, library_of
from pytest_autotune.workers.events import Event

if TYPE_CHECKING:
    from pytest_autotune.run.mode import Mode

#: The reason of a miss for which nobody has looked at the other entries of the kernel yet.
NO_ENTRY = "no entry"


class Outcome(str, Enum):
    """The outcome of one lookup, as reports spell it; where processes met several of one problem, the last of these."""

    HIT = "hit"
    MISS = "miss"
    MISMATCH = "mismatch"
    STALE = "stale"
    UNCACHEABLE = "uncacheable"


#: The kinds of events: a search took place, and an entry came of it; a lookup for which its process searched nothing;
TUNED = "tuned"
_ASKED = "asked"
#: and what an entry's choice was compiled for.
SPECIALISATION = "specialisation"
#: The fields that an event holds beside what was asked, entry and test.
_DATA = (
    "outcome",
    "reason",
    "rejected",
    "label",
    "shared",
    "disturbed",
    "fallback",
    "inside",
    "failed",
    "unrecorded",
    "cache",
)


@dataclass(frozen=True, repr=False)
class Lookup:
    """One problem that a process asked for, and what became of it.

    :param outcome: None in a run that loaded nothing.
    :param reason: why it is not a hit, in words.
    :param rejected: the loaded entry of this very problem and fingerprint was tried, and could not be used.
    :param test: the node id of the test that first asked; empty outside tests.
    :param entry: the entry that was used, or the new one where a search took place.
    :param tuned: a search took place in this process.
    :param shared: the choice came from another worker's tuning in this run.
    :param disturbed: something else may have run on the device while it was measured.
    :param fallback: what was used in place of a tuning, of which there was none: ``"first"``, the first candidate,
        ``"nearest"``, the choice of the nearest entry, or ``"stale"``, that of its own stale one; else empty.
    :param inside: the tuning, as ``tuner:kernel``, by which it was asked for; of several inside each other the first.
    :param failed: what a search recorded is that no candidate can be used.
    :param unrecorded: why a search came to nothing that could be recorded; empty where there was none, or it did.
    :param cache: that its test loads for itself, as it is typed on the command line; empty where it loads none.
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
    fallback: str = ""
    inside: str = ""
    failed: bool = False
    unrecorded: str = ""
    cache: str = ""
    rejected: bool = False

    def __repr__(self) -> str:
        """What a user reads where a test asserts that there are no misses, and where a lookup is an error."""
        outcome = self.outcome.value.upper() if self.outcome else "ASKED"
        return f"{outcome} {self.problem}{f': {self.reason}' if self.reason else ''}"

    @property
    def event(self) -> Event:
        """The lookup as it is written down."""
        data = {name: value for name in _DATA if (value := getattr(self, name))}
        kind, claim = (TUNED, self.identity.digest) if self.tuned else (_ASKED, "")
        return Event(kind, self.identity, self.entry, self.test, data, claim)

    @staticmethod
    def of(event: Event) -> Lookup | None:
        """The lookup that an event tells of; None for one of another kind.

        :raises ValueError: for an event that only looks like a lookup.
        """
        if event.asked is None or event.kind not in (TUNED, _ASKED):
            return None
        try:
            data = dict(event.data)
            if (outcome := data.pop("outcome", None)) is not None:
                data["outcome"] = Outcome(outcome)
            return Lookup(*event.asked, entry=event.entry, test=event.test, tuned=event.kind == TUNED, **data)
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
    def old_entry(self) -> Entry | None:
        """The entry of another kernel that it was served with."""
        if self.entry is None or self.searched or self.entry.problem.kernel == self.problem.kernel:
            return None
        return self.entry


@dataclass(frozen=True)
class Policy:
    """What a run does with its lookups.

    :param dumping: what is chosen will be written down, so every search must be a real one.
    :param on_miss: ``"tune"``, ``"first"``, ``"nearest"`` or ``"error"``; applies to every outcome but a hit.
    :param on_stale: ``"tune"``, ``"use"`` or ``"error"``; applies to stale problems, beside ``on_miss``.
    :param tuners: the tuners to act on, each with those below it; None for all.
    :param ignore: globs of ``tuner:kernel`` that are bypassed.
    :param aliases: device name -> name of a device whose entries it may use.
    :param compile_threads: this process's share of the cores.
    :param modes: what the run does beside loading and dumping.
    :param debug: show the tracebacks of errors that cost no test.
    """

    dumping: bool = False
    on_miss: str = "tune"
    on_stale: str = "tune"
    tuners: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    compile_threads: int = 1
    modes: tuple[Mode, ...] = ()
    debug: bool = False

    @property
    def picks(self) -> bool:
        """Whether a mode gives candidates in place of searches, so that every test asks anew."""
        return any(mode.picks for mode in self.modes)

    def ignores(self, tuner: str, kernel: str) -> bool:
        """Whether a glob names this kernel; ``*`` is every kernel of a tuner."""
        names = (f"{tuner}:{kernel}", f"{library_of(tuner)}:{kernel}")
        return any(fnmatchcase(name, glob) for name in names for glob in self.ignore)

    def is_error(self, outcome: Outcome | None) -> bool:
        """Whether a problem with this outcome is an error, where no entry is used for it all the same."""
        if outcome is None or outcome is Outcome.HIT:
            return False
        return self.on_miss == "error" or (outcome is Outcome.STALE and self.on_stale == "error")
