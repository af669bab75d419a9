"""One lookup of a problem, its result, and the policy of a run for lookups."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from pytest_autotune.cache.model import Device, Entry, Fingerprint, Identity, Problem, library_of
from pytest_autotune.workers.events import Event

#: The reason of a miss for which nobody has looked at the other entries of the kernel yet.
NO_ENTRY = "no entry"


class Outcome(str, Enum):
    """The outcome of one lookup, as reports spell it; where processes met several of one problem, the last of these."""

    HIT = "hit"
    MISS = "miss"
    MISMATCH = "mismatch"
    STALE = "stale"
    UNCACHEABLE = "uncacheable"


#: The kind of an event: a lookup whose process searched, and recorded an entry.
TUNED = "tuned"
#: The kind of an event: a lookup whose process recorded no search.
_ASKED = "asked"
#: The kind of an event: a specialization that a choice was compiled for.
SPECIALIZATION = "specialization"


@dataclass(frozen=True)
class NoResult:
    """Nothing came of a lookup: no entry was used, and no search took place."""


@dataclass(frozen=True)
class UsedEntry:
    """The tuner used an entry of a loaded cache; or left the call alone, as an entry that is a failure says."""

    entry: Entry


@dataclass(frozen=True)
class UsedFallback:
    """The tuner used a choice in place of a tuning.

    :param kind: ``"first"`` for the first candidate, ``"nearest"`` for the nearest entry's choice, ``"stale"`` for the
        choice of the problem's own stale entry.
    """

    entry: Entry
    kind: str


@dataclass(frozen=True)
class TunedEntry:
    """A search of this process recorded an entry.

    :param is_disturbed: something else may have used the device during the measurements.
    :param has_failed: the search recorded that no candidate can be used.
    """

    entry: Entry
    is_disturbed: bool = False
    has_failed: bool = False


@dataclass(frozen=True)
class SharedEntry:
    """The tuner used the entry that another worker's search recorded in this run.

    :param is_disturbed: something else may have used the device during that worker's measurements.
    """

    entry: Entry
    is_disturbed: bool = False


@dataclass(frozen=True)
class NotRecorded:
    """A search took place and recorded nothing.

    :param reason: why, in words.
    """

    reason: str


LookupResult = NoResult | UsedEntry | UsedFallback | TunedEntry | SharedEntry | NotRecorded


@dataclass(frozen=True, repr=False)
class Lookup:
    """One problem that a process asked for, with its outcome and its result.

    :param outcome: None in a run that loads nothing, and after a search that an error ended.
    :param reason: why the outcome is no hit, in words.
    :param test: the node id of the test that asked first; empty outside tests.
    :param label: words about the call that are known only sometimes, for reports.
    :param outer_tuning: the outermost tuning that asked for the problem, as ``tuner:kernel``; empty if a test asked.
    :param test_cache: the cache that the test loads for itself, as a user types it; empty if it loads none.
    :param has_rejected_entry: a loaded entry with this problem and fingerprint was tried, and the tuner rejected it.
    :param process: the name of the worker that asked; empty in a run without workers, and in the process itself.
    """

    identity: Identity
    outcome: Outcome | None = None
    reason: str = ""
    test: str = ""
    label: str = ""
    result: LookupResult = NoResult()
    outer_tuning: str = ""
    test_cache: str = ""
    has_rejected_entry: bool = False
    process: str = ""

    def __repr__(self) -> str:
        """Return the lookup as a user reads it, when a test asserts on misses or when the lookup is an error."""
        outcome = self.outcome.value.upper() if self.outcome else "ASKED"
        text = f"{outcome} {self.problem}"
        return f"{text}: {self.reason}" if self.reason else text

    @property
    def problem(self) -> Problem:
        """The problem that was asked for."""
        return self.identity.problem

    @property
    def fingerprint(self) -> Fingerprint:
        """The fingerprint that was asked for."""
        return self.identity.fingerprint

    @property
    def entry(self) -> Entry | None:
        """The entry that was used or recorded."""
        if isinstance(self.result, (NoResult, NotRecorded)):
            return None
        return self.result.entry

    @property
    def is_tuned(self) -> bool:
        """Whether this process searched, and recorded an entry."""
        return isinstance(self.result, TunedEntry)

    @property
    def is_shared(self) -> bool:
        """Whether another worker of this run searched."""
        return isinstance(self.result, SharedEntry)

    @property
    def is_searched(self) -> bool:
        """Whether the entry comes from a search in this run, in whatever process."""
        return isinstance(self.result, (TunedEntry, SharedEntry))

    @property
    def has_failed(self) -> bool:
        """Whether the search recorded that no candidate can be used."""
        return isinstance(self.result, TunedEntry) and self.result.has_failed

    @property
    def is_disturbed(self) -> bool:
        """Whether something else may have used the device during the search."""
        return isinstance(self.result, (TunedEntry, SharedEntry)) and self.result.is_disturbed

    @property
    def fallback(self) -> str:
        """The kind of the choice that was used in place of a tuning; empty if there was none."""
        return self.result.kind if isinstance(self.result, UsedFallback) else ""

    @property
    def unrecorded_reason(self) -> str:
        """Why a search recorded nothing; empty if it recorded something, or did not take place."""
        return self.result.reason if isinstance(self.result, NotRecorded) else ""

    @property
    def renamed_from_entry(self) -> Entry | None:
        """The used entry, if it stands under another kernel's name; else None."""
        if isinstance(self.result, UsedEntry) and self.result.entry.problem.kernel != self.problem.kernel:
            return self.result.entry
        return None

    def with_entry(self, entry: Entry) -> Lookup:
        """Return the lookup with another form of its entry, such as one with more specializations.

        :raises ValueError: for a lookup without an entry.
        """
        if isinstance(self.result, (NoResult, NotRecorded)):
            raise ValueError(f"{self} has no entry")
        return replace(self, result=replace(self.result, entry=entry))

    def to_event(self) -> Event:
        """Return the lookup as an event of the log."""
        data: dict[str, Any] = {"result": _RESULT_NAMES[type(self.result)]}
        if self.outcome is not None:
            data["outcome"] = self.outcome.value
        for name in _TEXT_FIELDS:
            if text := getattr(self, name):
                data[name] = text
        if self.has_rejected_entry:
            data["has_rejected_entry"] = True
        for name in ("is_disturbed", "has_failed"):
            if getattr(self, name):
                data[name] = True
        if self.fallback:
            data["fallback"] = self.fallback
        if self.unrecorded_reason:
            data["unrecorded_reason"] = self.unrecorded_reason
        if self.is_tuned:
            return Event(TUNED, self.identity, self.entry, self.test, data, claim=self.identity.digest)
        return Event(_ASKED, self.identity, self.entry, self.test, data)

    @staticmethod
    def from_event(event: Event) -> Lookup | None:
        """Return the lookup that an event holds; None for an event of another kind.

        :raises ValueError: for an event that only looks like a lookup.
        """
        if event.identity is None or event.kind not in (TUNED, _ASKED):
            return None
        try:
            data = dict(event.data)
            outcome = data.pop("outcome", None)
            result = _read_result(event, data)
            return Lookup(
                event.identity,
                outcome=None if outcome is None else Outcome(outcome),
                test=event.test,
                result=result,
                **data,
            )
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a lookup: {error}") from None


#: The names of results in events.
_RESULT_NAMES = {
    NoResult: "none",
    UsedEntry: "used",
    UsedFallback: "fallback",
    TunedEntry: "tuned",
    SharedEntry: "shared",
    NotRecorded: "not recorded",
}
#: The fields of a lookup that an event holds as they are.
_TEXT_FIELDS = ("reason", "label", "outer_tuning", "test_cache")


def _read_result(event: Event, data: dict[str, Any]) -> LookupResult:
    """Take the result of a lookup out of an event's data.

    :raises ValueError: if the data and the entry do not belong together.
    """
    name = data.pop("result")
    is_disturbed, has_failed = bool(data.pop("is_disturbed", False)), bool(data.pop("has_failed", False))
    fallback, unrecorded_reason = data.pop("fallback", ""), data.pop("unrecorded_reason", "")
    if name == "not recorded":
        return NotRecorded(unrecorded_reason)
    if name == "none":
        return NoResult()
    if event.entry is None or (name == "tuned") is not (event.kind == TUNED):
        raise ValueError(f"not a lookup: a {event.kind} event with the result {name}")
    if name == "used":
        return UsedEntry(event.entry)
    if name == "fallback":
        return UsedFallback(event.entry, fallback)
    if name == "tuned":
        return TunedEntry(event.entry, is_disturbed, has_failed)
    if name == "shared":
        return SharedEntry(event.entry, is_disturbed)
    raise ValueError(f"not a lookup: the result {name}")


@dataclass(frozen=True)
class Policy:
    """How a run treats its lookups.

    :param is_dumping: the run writes its choices to a cache, so every search must be a real search.
    :param on_miss: ``"tune"``, ``"first"``, ``"nearest"`` or ``"error"``; applies to every outcome but a hit.
    :param on_stale: ``"tune"``, ``"use"`` or ``"error"``; applies to stale problems, beside ``on_miss``.
    :param tuners: the tuners to act on, matched by prefix; None for all.
    :param ignore: globs of ``tuner:kernel`` that are bypassed.
    :param device_aliases: name of a device -> name of the device that has entries which it may use.
    :param compile_threads: this process's share of the cores.
    :param debug: show the tracebacks of errors that cost no test.
    """

    is_dumping: bool = False
    on_miss: str = "tune"
    on_stale: str = "tune"
    tuners: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    device_aliases: Mapping[str, str] = field(default_factory=dict)
    compile_threads: int = 1
    debug: bool = False

    def find_alias(self, device: Device) -> str:
        """Return the name of the device whose entries this device may use if it has none; empty without alias."""
        return self.device_aliases.get(device.name, "")

    def ignores(self, tuner: str, kernel: str) -> bool:
        """Whether a glob names this kernel; ``*`` is every kernel of a tuner."""
        names = (f"{tuner}:{kernel}", f"{library_of(tuner)}:{kernel}")
        return any(fnmatchcase(name, glob) for name in names for glob in self.ignore)

    def is_error(self, outcome: Outcome | None) -> bool:
        """Whether a problem with this outcome is an error, where no entry is used for it all the same."""
        if outcome is None or outcome is Outcome.HIT:
            return False
        return self.on_miss == "error" or (outcome is Outcome.STALE and self.on_stale == "error")
