"""Where the choice for a lookup may come from: sources, which an open door asks one after another.

What this process has chosen before, what is loaded, what stands in for a tuning where the user wants none, and what
another worker is tuning; a mode may have sources of its own. Each says what it makes of
the lookup, and may offer an entry; the tuner takes it or rejects it, and the next source is asked. A source decides
nothing beyond that: whether a lookup is an error says :class:`~pytest_autotune.run.tuning.Tuning`, for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from typing import NamedTuple

from pytest_autotune.cache.model import Candidate, Digest, Entry, Identity, Problem
from pytest_autotune.run.find import Caches, find
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome
from pytest_autotune.run.nearest import Nearest, nearest_entries
from pytest_autotune.run.policy import OnMiss, OnStale, Policy
from pytest_autotune.workers.coordinator import Claim


class Answer(NamedTuple):
    """What a source makes of a lookup.

    :param lookup: what is reported where the tuner takes the entry, or where there is none and no later source has.
    :param entry: offered to the tuner; None where the source has nothing to offer.
    :param is_last: no other source is to be asked.
    :param is_reported: this process has reported the problem before.
    """

    lookup: Lookup
    entry: Entry | None = None
    is_last: bool = False
    is_reported: bool = False


class Source(ABC):
    """One place where the choice for a lookup may come from."""

    @abstractmethod
    def ask(self, lookup: Lookup) -> Answer:
        """What this source makes of a lookup."""

    def rejected(self, lookup: Lookup, reason: str) -> Lookup:
        """The lookup, as it was asked for here, where the tuner could not use the entry; it says why."""
        return lookup


class Remembered(Source):
    """What this process has chosen before.

    :param known: by problem and fingerprint.
    :param offered: whether an entry's choice is among the candidates now.
    """

    def __init__(self, known: Mapping[Identity, Entry], offered: Callable[[Entry], bool]) -> None:
        self._known = known
        self._offered = offered

    def ask(self, lookup: Lookup) -> Answer:
        entry = self._known.get(lookup.identity)
        if entry is None or entry.every_failed or not self._offered(entry):
            return Answer(lookup)
        return Answer(lookup, entry, is_reported=True)


class Loaded(Source):
    """What is loaded; without anything loaded, it leaves a lookup as it is.

    :param offered: whether an entry's choice is among the candidates now.
    :param made_of: what the digests of the fingerprint stand for.
    :param moves: entries of its source under another name may be the kernel's own.
    """

    def __init__(
        self,
        caches: Caches,
        policy: Policy,
        offered: Callable[[Entry], bool],
        made_of: Callable[[], Iterable[Digest]] = tuple,
        moves: bool = False,
    ) -> None:
        self._caches = caches
        self._policy = policy
        self._offered = offered
        self._made_of = made_of
        self._moves = moves

    def ask(self, lookup: Lookup) -> Answer:
        if not self._caches.indexes:
            return Answer(lookup)
        found = find(self._caches, lookup.identity, self._offered, self._made_of, self._moves)
        reason = self._nearest(lookup.problem) if found.reason == NO_ENTRY else found.reason
        is_hit = found.outcome is Outcome.HIT
        is_used = found.usable and (is_hit or self._policy.on_stale == OnStale.USE)
        entry = found.entry if is_hit or is_used else None
        judged = replace(lookup, outcome=found.outcome, reason=reason, entry=entry, alias=found.alias)
        if is_hit and not is_used:  # every candidate failed
            return Answer(judged, is_last=True)
        return Answer(judged, entry)

    def _nearest(self, problem: Problem) -> str:
        """Why there is no entry; with the nearest one only where the controller, which has all, cannot name it."""
        if self._caches.of_one_test or self._policy.on_miss == OnMiss.ERROR:
            return Nearest(self._caches.indexes, self._caches.aliases).reason(problem)
        return NO_ENTRY

    def rejected(self, lookup: Lookup, reason: str) -> Lookup:
        return replace(lookup, outcome=Outcome.STALE, reason=reason)


class Fallback(Source):
    """What is used in place of a tuning, where the user wants none.

    :param entry: of the problem that is looked up, as if it had been tuned.
    :param kind: as :attr:`Lookup.fallback` says it.
    """

    def __init__(self, entry: Entry, kind: OnMiss) -> None:
        self._entry = entry
        self._kind = kind

    def ask(self, lookup: Lookup) -> Answer:
        return Answer(replace(lookup, entry=self._entry, fallback=self._kind.value), self._entry)


def fallbacks(
    identity: Identity,
    on_miss: OnMiss,
    caches: Caches,
    offered: Callable[[Entry], bool],
    candidates: Callable[[], Iterable[Candidate]],
) -> Iterator[Source]:
    """The sources in place of a tuning: the nearest entries' choices where the user wants those, then each candidate.

    :param candidates: in the tuner's own order.
    """
    problem, fingerprint = identity
    near = nearest_entries(caches.indexes, problem, caches.aliases) if on_miss == OnMiss.NEAREST else []
    choices = [(entry.choice, OnMiss.NEAREST) for entry in near if entry.choice is not None and offered(entry)]
    seen = set()
    for choice, kind in chain(choices, ((candidate, OnMiss.FIRST) for candidate in candidates())):
        if (choice.id, choice.params) not in seen:
            seen.add((choice.id, choice.params))
            # The time is another problem's.
            yield Fallback(Entry(problem, fingerprint, replace(choice, time_us=None)), kind)


class OtherWorker(Source):
    """What another worker of this run is tuning, or has tuned.

    :param enter: claims the problem; waits for a worker that tunes it now, where that may be waited for.
    :param offered: whether an entry's choice is among the candidates now.
    """

    def __init__(self, enter: Callable[[], Claim], offered: Callable[[Entry], bool]) -> None:
        self._enter = enter
        self._offered = offered
        #: The right to tune the problem, once it has been asked for.
        self.claim: Claim | None = None

    def ask(self, lookup: Lookup) -> Answer:
        self.claim = claim = self._enter()
        shared = Lookup.of(claim.result) if claim.result is not None else None
        entry = shared.entry if shared is not None else None
        if shared is not None and entry is not None and not entry.every_failed and self._offered(entry):
            # Reported as the first worker met it, so that the count is right even if that one dies.
            return Answer(replace(shared, test=lookup.test, tuned=False, shared=True, inside=lookup.inside), entry)
        return Answer(replace(lookup, disturbed=True) if claim.timed_out else lookup)
