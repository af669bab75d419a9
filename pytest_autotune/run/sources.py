"""Where the choice for a lookup may come from: sources, asked one after another.

What this process has chosen before, what is loaded, what stands in for a tuning where the user wants none, and what
another worker is tuning; a mode may have sources of its own. Each says what it makes of the lookup, and may offer an
entry; the tuner takes it or rejects it, and the next one is asked. Their order stands in
:class:`~pytest_autotune.run.session.Session`; whether a lookup is an error says
:class:`~pytest_autotune.run.tuning.Tuning`, for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence, Set
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, NamedTuple

from pytest_autotune.cache.diff import find_winner
from pytest_autotune.cache.digest_parts import describe_changes
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Candidate, Digest, Entry, Identity, Value, before_pruning, is_part
from pytest_autotune.run.lookup import NO_ENTRY, Lookup, Outcome, Policy, SharedEntry, UsedEntry, UsedFallback
from pytest_autotune.run.nearest import entries_of, nearest, nearest_entries
from pytest_autotune.workers.coordinator import Claim


class Answer(NamedTuple):
    """What a source makes of a lookup.

    :param lookup: what is reported where the tuner takes the entry, or where there is none and no later source has.
    :param entry: offered to the tuner; None where the source has nothing to offer.
    :param is_reported: this process has reported the problem before.
    :param is_disturbed: another worker may still measure while this one does.
    """

    lookup: Lookup
    entry: Entry | None = None
    is_reported: bool = False
    is_disturbed: bool = False


#: One after another, until the tuner takes an entry; sent back is why it could not use the one before.
Answers = Generator[Answer, Any, None]


@dataclass(frozen=True)
class Loaded:
    """What is loaded.

    :param indexes: of the caches, the one that takes precedence first.
    :param asked: (tuner, kernel) of what this process has looked up while something was loaded.
    :param of_one_test: a test has loaded some of them for itself: what they lack, nobody else can say later.
    :param offered: whether an entry's choice is among the candidates now.
    :param moves: entries of its source under another name may be the kernel's own.
    """

    indexes: Sequence[EntryIndex]
    policy: Policy
    asked: Set[tuple[str, str]]
    of_one_test: bool
    offered: Callable[[Entry], bool]
    digest_parts: Callable[[], Iterable[Digest]]
    moves: bool

    def judge(self, lookup: Lookup) -> Lookup:
        """What the loaded entries say about a lookup, with the entry to offer; the first cache precedes.

        A hit on an entry that says that every candidate failed offers nothing.
        """
        problem, indexes = lookup.problem, self.indexes
        same_key = [entry for index in indexes for entry in index.list_same_key(problem)]
        own = [entry for entry in same_key if entry.problem.device == problem.device]
        if not own and (other := self.policy.device_aliases.get(problem.device.name, "")):
            own = [entry for entry in same_key if entry.problem.device.name == other]
        if own:
            hit = self._hit(lookup.fingerprint, own)
            return (
                replace(lookup, outcome=Outcome.HIT, result=UsedEntry(hit))
                if hit is not None
                else self._stale(lookup, own)
            )
        if self.moves and (moved := self._moved(lookup)) is not None:
            return replace(
                lookup, outcome=Outcome.HIT, reason=f"moved from {moved.problem.kernel}", result=UsedEntry(moved)
            )
        if same_key:
            devices = ", ".join(sorted({str(entry.problem.device) for entry in same_key}))
            reason = f"tuned on {devices}, running on {problem.device}"
            return replace(lookup, outcome=Outcome.MISMATCH, reason=reason)
        reason = NO_ENTRY
        if self.of_one_test or self.policy.on_miss == "error":  # else the controller looks, which has all
            reason = nearest(indexes, problem, self.policy.device_aliases.get(problem.device.name, "")).text
        return replace(lookup, outcome=Outcome.MISS, reason=reason)

    def _hit(self, fingerprint: tuple[Value, ...], entries: Sequence[Entry]) -> Entry | None:
        for entry in entries:
            if entry.fingerprint == fingerprint and (entry.is_failure or self.offered(entry)):
                return entry
        # The fastest of all candidates is the fastest of any part of them that it is in.
        whole = before_pruning(fingerprint)
        for entry in entries if is_part(fingerprint) else ():
            if entry.fingerprint == whole and not entry.is_failure and self.offered(entry):
                return entry
        return None

    def _stale(self, lookup: Lookup, entries: Sequence[Entry]) -> Lookup:
        """Why none of these entries is a hit; the one to use all the same, where the user wants that."""
        fingerprint = lookup.fingerprint
        stale = replace(lookup, outcome=Outcome.STALE)
        exact = next((entry for entry in entries if entry.fingerprint == fingerprint), None)
        if exact is not None:
            return replace(stale, reason=f"{_choice_of(exact)} is no longer a candidate")
        digests = tuple(self.digest_parts())
        made_of = _made_of(fingerprint, digests)
        # Of several, as of kernels of one factory, the one that differs least.
        entries = sorted(entries, key=lambda entry: len(made_of ^ _made_of(entry.fingerprint, entry.digests)))
        usable = next((entry for entry in entries if not entry.is_failure and self.offered(entry)), None)
        closest = usable or entries[0]
        if not is_part(fingerprint) and closest.fingerprint == before_pruning(fingerprint):
            reason = "pruning makes candidates that are not in the list, which were not measured"
        else:
            reason = describe_changes(closest.fingerprint, fingerprint, (*digests, *closest.digests))
        if usable is None and not closest.is_failure:
            reason += f", and {_choice_of(closest)} is no longer a candidate"
        stale = replace(stale, reason=reason)
        if usable is not None and self.policy.on_stale == "use":
            return replace(stale, result=UsedFallback(usable, "stale"))
        return stale

    def _moved(self, lookup: Lookup) -> Entry | None:
        """The entry of a kernel with the same source that nobody asked for; None if several chose differently."""
        problem, fingerprint = lookup.identity
        if not any(value.name == "source" for value in fingerprint):
            return None
        indexes, found = self.indexes, dict[str, Entry]()
        kernels = {
            kernel for index in indexes for kernel in index.list_kernels_with_fingerprint(problem.tuner, fingerprint)
        }
        for kernel in sorted(kernels - {problem.kernel}):
            old = Identity(replace(problem, kernel=kernel), fingerprint)
            for entry in (entry for index in indexes for entry in index.list_same_key(old.problem)):
                if entry.identity == old and entry.choice is not None and self.offered(entry):
                    found.setdefault(kernel, entry)
        free = [entry for kernel, entry in found.items() if (problem.tuner, kernel) not in self.asked]
        choices = [entry.choice for entry in free if entry.choice is not None]
        return free[0] if choices and all(one.is_same_configuration(choices[0]) for one in choices) else None


def _made_of(fingerprint: Iterable[Value], digests: Iterable[Digest]) -> set[Value | str]:
    parts = [part for digest in digests for part in digest.parts]
    return {*fingerprint, *parts, *(part.rpartition(" ")[0] for part in parts)}  # what has changed has still its name


def _choice_of(entry: Entry) -> str:
    """What an entry chooses, in words; where it keeps the times of all candidates, the fastest."""
    return f"the choice {find_winner(entry) or ''}".rstrip()


def list_fallbacks(lookup: Lookup, loaded: Loaded, candidates: Callable[[], Iterable[Candidate]]) -> Answers:
    """What is used in place of a tuning: the nearest entries' choices where the user wants those, then each candidate.

    :param candidates: in the tuner's own order.
    """
    (problem, fingerprint), policy = lookup.identity, loaded.policy
    entries = entries_of(loaded.indexes, problem) if policy.on_miss == "nearest" else []
    near = nearest_entries(entries, problem, policy.device_aliases.get(problem.device.name, ""))
    choices = [(one.choice, "nearest") for one in near if one.choice is not None and loaded.offered(one)]
    for choice, kind in chain(choices, ((candidate, "first") for candidate in candidates())):
        entry = Entry(problem, fingerprint, replace(choice, time_us=None))  # the time is another problem's
        yield Answer(replace(lookup, result=UsedFallback(entry, kind)), entry)


def answer_of_other_worker(claim: Claim, lookup: Lookup, offered: Callable[[Entry], bool]) -> Answer:
    """What another worker of this run has tuned, where there is such a one.

    :param offered: whether an entry's choice is among the candidates now.
    """
    shared = Lookup.from_event(claim.result) if claim.result is not None else None
    entry = shared.entry if shared is not None else None
    if shared is not None and entry is not None and not entry.is_failure and offered(entry):
        # Reported as the first worker met it, so that the count is right even if that one dies.
        met = replace(shared, result=SharedEntry(entry, shared.is_disturbed))
        return Answer(
            replace(met, test=lookup.test, outer_tuning=lookup.outer_tuning, test_cache=lookup.test_cache), entry
        )
    return Answer(lookup, is_disturbed=claim.has_timed_out)
