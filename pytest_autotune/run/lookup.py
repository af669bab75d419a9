"""The question of an adapter about one problem, the lookup with its outcome and result, and the policy for lookups.

An adapter hooks one tuner, such as Triton's autotuner. It asks before the tuner searches, that is, measures its
candidates. A problem is a kernel with a key and a device. Its fingerprint has digests of all that the choice depends
on, such as the kernel's source. Problem and fingerprint are the identity of an entry of a cache.

Each process writes its lookups as events to its log. The controller and ``pytest-autotune gate`` read them back.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from fnmatch import fnmatchcase
from typing import Any

from pytest_autotune.cache.model import (
    NO_VERSIONS,
    Candidate,
    Device,
    Digest,
    Entry,
    Fingerprint,
    Identity,
    Problem,
    Value,
    Versions,
    library_of,
)
from pytest_autotune.workers.events import Event

#: The reason of a miss before anything has compared it with the other entries of the kernel.
NO_ENTRY = "no entry"


class Question(ABC):
    """The question of an adapter which choice to use for a problem. An adapter makes one for each lookup.

    Each adapter has a class of its own. Its :meth:`offers` says which choices the tuner can use. The adapter overrides
    the other methods as far as its tuner has an answer: the methods here answer that nothing is known.

    :param fingerprint: the values that must be equal for an entry to be trusted; empty if an equal key is enough.
    :param label: words about the call that are known only sometimes, for reports; never compared.
    :param versions: the versions of the libraries that matter to the tuner, its own library first.
    :param may_be_renamed: the kernel's name is the name of its function, which a user may change. An entry with the
        same source under another name is then good for the kernel, too.
    """

    def __init__(
        self,
        problem: Problem,
        fingerprint: Iterable[Value] = (),
        *,
        label: str = "",
        versions: Versions = NO_VERSIONS,
        may_be_renamed: bool = False,
    ) -> None:
        self.problem = problem
        self.fingerprint = Fingerprint(fingerprint)
        self.label = str(label)
        self.versions = versions
        self.may_be_renamed = may_be_renamed

    @property
    def identity(self) -> Identity:
        """The problem and its fingerprint."""
        return Identity(self.problem, self.fingerprint)

    @property
    def may_use_other_names(self) -> bool:
        """Whether an entry under another kernel's name is good for the problem, if all else is equal.

        Without a digest of the source, unlike kernels could have equal fingerprints.
        """
        return self.may_be_renamed and any(value.name == "source" for value in self.fingerprint)

    @abstractmethod
    def offers(self, entry: Entry) -> bool:
        """Whether the choice of an entry is among the candidates now."""

    def candidates(self) -> Sequence[Candidate]:
        """Return all candidates in the tuner's own order, each without a time; none if they are not known yet.

        The session asks for the candidates in a sweep, and if a candidate or a near entry's choice replaces a tuning.
        If the tuner does not know them before its search, it searches.
        """
        return ()

    def digests(self) -> Iterable[Digest]:
        """Return the parts that the digests of the fingerprint are made of.

        The session asks for the parts when a tuning is recorded, and to name the changed parts of a stale problem.
        """
        return ()

    def help(self) -> None:
        """Help another worker that tunes this problem now, for example by compiling candidates."""
        return


class Outcome(str, Enum):
    """The outcome of a lookup, as reports spell it. The members are in order, from the best to the worst.

    If the lookups of one problem have several outcomes, the worst outcome counts.
    """

    HIT = "hit"
    MISS = "miss"
    MISMATCH = "mismatch"
    STALE = "stale"
    UNCACHEABLE = "uncacheable"


#: The kind of an event: a lookup whose process searched, and recorded an entry.
TUNED = "tuned"
#: The kind of an event: any other lookup.
_ASKED = "asked"
#: The kind of an event: a specialization that a choice was compiled for.
SPECIALIZATION = "specialization"


@dataclass(frozen=True)
class NoResult:
    """Nothing came of a lookup: no entry was used, and no search took place."""


@dataclass(frozen=True)
class UsedEntry:
    """The tuner used an entry of a loaded cache. For an entry that says that every candidate failed, it used none."""

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

    A test, a report and the log see a lookup. At the end of a run, all lookups of a problem become one
    :class:`~pytest_autotune.run.rows.ProblemRow`.

    :param outcome: None in a run that loads nothing, and after a search that an error ended.
    :param reason: why the outcome is no hit, in words.
    :param changed: the names of the parts of the fingerprint that changed, for a stale problem: ``("source",)``.
    :param test: the node id of the test that asked first; empty outside tests.
    :param label: words about the call that are known only sometimes, for reports.
    :param outer_tuning: the outermost tuning that asked for the problem, as ``tuner:kernel``; empty if a test asked.
    :param test_cache: the cache that the test loads for itself, as a user types it; empty if it loads none.
    :param test_cache_path: the same cache as a user may type it in any folder. A run that recovers the lookup may have
        begun in another folder.
    :param has_rejected_entry: a loaded entry with this problem and fingerprint was tried, and the tuner rejected it.
    :param process: the name of the worker that asked; empty in a run without workers, and in the process itself.
    :param may_be_renamed: an entry with the same source under another kernel's name is good for the problem, too.
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
    changed: tuple[str, ...] = ()
    test_cache_path: str = ""
    may_be_renamed: bool = False

    def __repr__(self) -> str:
        """Return the lookup as a user reads it in the message of a failed test.

        Example: ``MISS triton:lib.add (n=64): no entry``.
        """
        outcome = "ASKED"
        if self.outcome is not None:
            outcome = self.outcome.value.upper()
        if not self.reason:
            return f"{outcome} {self.problem}"
        return f"{outcome} {self.problem}: {self.reason}"

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
        if not isinstance(self.result, UsedFallback):
            return ""
        return self.result.kind

    @property
    def unrecorded_reason(self) -> str:
        """Why a search recorded nothing; empty if it recorded something, or did not take place."""
        if not isinstance(self.result, NotRecorded):
            return ""
        return self.result.reason

    @property
    def entry_of_other_kernel(self) -> Entry | None:
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
        """Return the lookup as an event of the log; :meth:`from_event` reads it back.

        Only a recorded search answers the claim of its problem, because other workers wait for its entry.
        """
        data: dict[str, Any] = {"result": _RESULT_NAMES[type(self.result)]}
        if self.outcome is not None:
            data["outcome"] = self.outcome.value
        for name in _EVENT_FIELDS:
            value = getattr(self, name)
            if value:
                data[name] = value
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
            result = _read_result(event)
            # The rest of the data has the names of a lookup's own fields.
            fields = {name: value for name, value in event.data.items() if name not in _RESULT_FIELDS}
            if "outcome" in fields:
                fields["outcome"] = Outcome(fields["outcome"])
            if "changed" in fields:
                # JSON has lists only.
                fields["changed"] = tuple(fields["changed"])
            return Lookup(event.identity, test=event.test, result=result, **fields)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"not a valid record of a problem: {error}") from None


#: The names of results in events.
_RESULT_NAMES = {
    NoResult: "none",
    UsedEntry: "used",
    UsedFallback: "fallback",
    TunedEntry: "tuned",
    SharedEntry: "shared",
    NotRecorded: "not recorded",
}
#: The attributes of a lookup that an event holds unless they are empty or False.
_EVENT_FIELDS = (
    "reason",
    "label",
    "outer_tuning",
    "test_cache",
    "test_cache_path",
    "changed",
    "has_rejected_entry",
    "may_be_renamed",
    "is_disturbed",
    "has_failed",
    "fallback",
    "unrecorded_reason",
)
#: The data of an event from which :func:`_read_result` makes the result of a lookup.
_RESULT_FIELDS = ("result", "is_disturbed", "has_failed", "fallback", "unrecorded_reason")


def _read_result(event: Event) -> LookupResult:
    """Return the result of the lookup that an event holds.

    :raises ValueError, KeyError: if the data and the entry do not belong together, or if the data has no result.
    """
    data = event.data
    name = data["result"]
    if name == "not recorded":
        return NotRecorded(data.get("unrecorded_reason", ""))
    if name == "none":
        return NoResult()
    # All other results have an entry.
    is_recorded_search = name == "tuned"
    if event.entry is None or is_recorded_search is not (event.kind == TUNED):
        raise ValueError(f"not a valid record of a problem: a {event.kind} event with the result {name}")
    is_disturbed = bool(data.get("is_disturbed", False))
    if name == "used":
        return UsedEntry(event.entry)
    if name == "fallback":
        return UsedFallback(event.entry, data.get("fallback", ""))
    if name == "tuned":
        return TunedEntry(event.entry, is_disturbed, bool(data.get("has_failed", False)))
    if name == "shared":
        return SharedEntry(event.entry, is_disturbed)
    raise ValueError(f"not a valid record of a problem: the result {name}")


@dataclass(frozen=True)
class Policy:
    """How a run treats its lookups.

    :param is_dumping: the run writes its choices to a cache, so every search must be a real search.
    :param on_miss: ``"tune"``, ``"first"``, ``"nearest"`` or ``"error"``; applies to every outcome but a hit.
    :param on_stale: ``"tune"``, ``"use"`` or ``"error"``; applies to stale problems, beside ``on_miss``.
    :param tuners: the tuners to act on, matched by prefix; None for all.
    :param ignore: globs of ``tuner:kernel`` that are bypassed.
    :param device_aliases: name of a device -> name of another device, whose entries it may use.
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

    def may_use_entries_of(self, device: Device, entry_device: Device) -> bool:
        """Whether a device may use an entry of a device: of itself, or of its alias.

        A lookup uses the entries of an alias only if the device has no entry of its own.
        """
        return entry_device == device or entry_device.name == self.device_aliases.get(device.name)

    def is_ignored(self, tuner: str, kernel: str) -> bool:
        """Whether a glob of ``autotune_ignore`` matches a kernel.

        A glob names the tuner or its library: ``inductor.config:lib.*`` or ``inductor:lib.*``.

        :param kernel: ``"*"`` asks whether all kernels of the tuner are ignored.
        """
        names = (f"{tuner}:{kernel}", f"{library_of(tuner)}:{kernel}")
        for glob in self.ignore:
            if any(fnmatchcase(name, glob) for name in names):
                return True
        return False

    def is_error(self, outcome: Outcome | None) -> bool:
        """Whether the user wants an error for a problem with this outcome, if no entry is used for it."""
        if outcome is None or outcome is Outcome.HIT:
            return False
        return self.on_miss == "error" or (outcome is Outcome.STALE and self.on_stale == "error")
