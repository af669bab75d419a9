"""Where the choice for a lookup may come from: sources, asked one after another.

What this process has chosen before, what is loaded, what stands in for a tuning where the user wants none, and what
another worker is tuning; a mode may have sources of its own. Each says what it makes of
the lookup, and may offer an entry; the tuner takes it or rejects it, and the next source is asked. A source decides
nothing beyond that: whether a lookup is an error says :class:`~pytest_autotune.run.tuning.Tuning`, for all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import NamedTuple

from pytest_autotune.cache.diff import winner
from pytest_autotune.cache.digest_parts import LONGEST, difference
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Candidate, Digest, Entry, Identity, Problem, Value, before_pruning, is_part
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, OnMiss, OnStale, Outcome, Policy
from pytest_autotune.run.nearest import nearest, nearest_entries
from pytest_autotune.workers.coordinator import Claim

#: Types of the values of a fingerprint that say themselves what they stand for.
_PLAIN = frozenset({"", "int", "tuple", "settings"})


@dataclass(frozen=True)
class Caches:
    """What is loaded in a process, at one time.

    :param indexes: of the caches, the one that takes precedence first.
    :param aliases: device name -> name of a device whose entries it may use.
    :param asked: (tuner, kernel) of what this process has looked up while something was loaded.
    :param own: the name of the last one that a test has loaded for itself, where what it lacks belongs into it.
    :param of_one_test: a test has loaded some of them for itself: what they lack, nobody else can say later.
    """

    indexes: Sequence[EntryIndex] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    asked: Set[tuple[str, str]] = frozenset()
    of_one_test: bool = False
    own: str = ""

    def with_index(self, index: EntryIndex, own: str = "") -> Caches:
        """One more, before all others, for one test."""
        return replace(self, indexes=(index, *self.indexes), of_one_test=True, own=own)

    def have(self, problem: Problem) -> bool:
        """Whether there is an entry of a problem, with whatever fingerprint."""
        return any(entry.problem == problem for index in self.indexes for entry in index.same_key(problem))


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
    :param digest_parts: what the digests of the fingerprint stand for.
    :param moves: entries of its source under another name may be the kernel's own.
    """

    def __init__(
        self,
        caches: Caches,
        policy: Policy,
        offered: Callable[[Entry], bool],
        digest_parts: Callable[[], Iterable[Digest]] = tuple,
        moves: bool = False,
    ) -> None:
        self._caches = caches
        self._policy = policy
        self._offered = offered
        self._digest_parts = digest_parts
        self._moves = moves

    def ask(self, lookup: Lookup) -> Answer:
        if not self._caches.indexes:
            return Answer(lookup)
        judged, is_usable = self._judged(lookup)
        if judged.outcome is Outcome.HIT and not is_usable:  # every candidate failed
            return Answer(judged, is_last=True)
        if judged.reason == NO_ENTRY:
            judged = replace(judged, reason=self._nearest(lookup.problem))
        if not is_usable or (judged.outcome is Outcome.STALE and self._policy.on_stale != OnStale.USE):
            judged = replace(judged, entry=None)
        return Answer(judged, judged.entry)

    def _judged(self, lookup: Lookup) -> tuple[Lookup, bool]:
        """What the loaded entries say about a lookup; the first cache precedes.

        :returns: the lookup, with the entry of a hit or the nearest one of a stale problem; and whether that one's
            choice is on offer, though its fingerprint may differ. A hit of which it is not says that all have failed.
        """
        problem, indexes = lookup.problem, self._caches.indexes
        same_key = [entry for index in indexes for entry in index.same_key(problem)]
        own = [entry for entry in same_key if entry.problem.device == problem.device]
        if not own and (other := self._caches.aliases.get(problem.device.name)):
            own = [entry for entry in same_key if entry.problem.device.name == other]
            lookup = replace(lookup, alias=other if own else "")
        if own:
            hit = self._hit(lookup.fingerprint, own)
            if hit is not None:
                return replace(lookup, outcome=Outcome.HIT, entry=hit), not hit.every_failed
            return self._stale(lookup, own)
        if self._moves and (moved := self._moved(lookup)) is not None:
            reason = f"moved from {moved.problem.kernel}"
            return replace(lookup, outcome=Outcome.HIT, reason=reason, entry=moved), True
        if same_key:
            devices = ", ".join(sorted({str(entry.problem.device) for entry in same_key}))
            reason = f"tuned on {devices}, running on {problem.device}"
            return replace(lookup, outcome=Outcome.MISMATCH, reason=reason), False
        return replace(lookup, outcome=Outcome.MISS, reason=NO_ENTRY), False

    def _hit(self, fingerprint: tuple[Value, ...], entries: Sequence[Entry]) -> Entry | None:
        for entry in entries:
            if entry.fingerprint == fingerprint and (entry.every_failed or self._offered(entry)):
                return entry
        # The fastest of all candidates is the fastest of any part of them that it is in.
        whole = before_pruning(fingerprint)
        for entry in entries if is_part(fingerprint) else ():
            if entry.fingerprint == whole and not entry.every_failed and self._offered(entry):
                return entry
        return None

    def _stale(self, lookup: Lookup, entries: Sequence[Entry]) -> tuple[Lookup, bool]:
        """What entries come to of which none is a hit: the nearest one, and why it is none."""
        fingerprint = lookup.fingerprint
        lookup = replace(lookup, outcome=Outcome.STALE)
        exact = next((entry for entry in entries if entry.fingerprint == fingerprint), None)
        if exact is not None:
            return replace(lookup, reason=f"{_choice_of(exact)} is no longer a candidate", entry=exact), False
        usable = next((entry for entry in entries if not entry.every_failed and self._offered(entry)), None)
        closest = usable or entries[0]
        changed = sorted({value.name for value in set(closest.fingerprint) ^ set(fingerprint)})
        reason = f"{', '.join(changed)} changed"
        if not is_part(fingerprint) and closest.fingerprint == before_pruning(fingerprint):
            reason = "pruning makes candidates that are not in the list, which were not measured"
        elif words := _differences(closest, fingerprint, self._digest_parts):
            said = [words[name] if len(changed) == 1 else f"{name}: {words[name]}" for name in changed if name in words]
            reason += f" ({'; '.join(said)})"
        if usable is None and not closest.every_failed:
            reason += f", and {_choice_of(closest)} is no longer a candidate"
        return replace(lookup, reason=reason, entry=closest), usable is not None

    def _moved(self, lookup: Lookup) -> Entry | None:
        """The entry of a kernel with the same source that nobody asked for; None if several chose differently."""
        problem, fingerprint = lookup.identity
        if not any(value.name == "source" for value in fingerprint):
            return None
        indexes = self._caches.indexes
        kernels = {kernel for index in indexes for kernel in index.with_fingerprint(problem.tuner, fingerprint)}
        found: list[Entry] = []
        for kernel in sorted(kernels - {problem.kernel}):
            old = replace(problem, kernel=kernel)
            same = [entry for index in indexes for entry in index.same_key(old) if entry.problem == old]
            same = [one for one in same if one.fingerprint == fingerprint and one.choice and self._offered(one)]
            if same and (problem.tuner, kernel) not in self._caches.asked:
                found.append(same[0])
        choices = [entry.choice for entry in found if entry.choice is not None]
        are_same = all(choice.same_configuration(choices[0]) for choice in choices)
        return found[0] if choices and are_same else None

    def _nearest(self, problem: Problem) -> str:
        """Why there is no entry; with the nearest one only where the controller, which has all, cannot name it."""
        if self._caches.of_one_test or self._policy.on_miss == OnMiss.ERROR:
            return nearest(self._caches.indexes, problem, self._caches.aliases).reason
        return NO_ENTRY

    def rejected(self, lookup: Lookup, reason: str) -> Lookup:
        return replace(lookup, outcome=Outcome.STALE, reason=reason)


def _differences(
    entry: Entry, fingerprint: tuple[Value, ...], digest_parts: Callable[[], Iterable[Digest]]
) -> dict[str, str]:
    """What changed in the parts of a fingerprint since an entry was made, in words, as far as both sides say."""
    noted = {digest.id: digest for digest in entry.digests}
    old, now = ({part.name: part for part in parts} for parts in (entry.fingerprint, fingerprint))
    differing = [name for name in old.keys() | now.keys() if old.get(name) != now.get(name)]
    found = {name: words for name in differing if (words := _in_plain(old.get(name), now.get(name)))}
    changed = [part for part in entry.fingerprint if part.name in now and part != now[part.name]]
    noted_now = {digest.id: digest for digest in digest_parts()} if any(part.value in noted for part in changed) else {}
    for part in changed:
        before, after = noted.get(str(part.value)), noted_now.get(str(now[part.name].value))
        if before and after and (words := difference(part.name, before, after)):
            found[part.name] = words
    return found


def _in_plain(old: Value | None, now: Value | None) -> str:
    """How two parts of a fingerprint differ that are no digests, such as a version; empty for others."""
    if any(value is not None and value.type not in _PLAIN for value in (old, now)):
        return ""
    return " -> ".join("none" if value is None else value.words[:LONGEST] for value in (old, now))


def _choice_of(entry: Entry) -> str:
    """What an entry chooses, in words; where it keeps the times of all candidates, the fastest."""
    best = winner(entry)
    if best is None:
        return "the choice"
    return f"the choice {best}" if entry.choice is not None else f"the fastest one, {best},"


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

    def ask(self, lookup: Lookup) -> Answer:
        claim = self._enter()
        shared = Lookup.of(claim.result) if claim.result is not None else None
        entry = shared.entry if shared is not None else None
        if shared is not None and entry is not None and not entry.every_failed and self._offered(entry):
            # Reported as the first worker met it, so that the count is right even if that one dies.
            met = replace(shared, tuned=False, shared=True)
            return Answer(replace(met, test=lookup.test, inside=lookup.inside, cache=lookup.cache), entry)
        return Answer(replace(lookup, disturbed=True) if claim.timed_out else lookup)
