"""What a tuner's request for a choice comes to: hit, stale, mismatch or miss, and why."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from typing import NamedTuple

from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.made_of import by_digest, difference, digest_of
from pytest_autotune.cache.model import Entry, Identity, Problem, Value, before_pruning
from pytest_autotune.run.verify import Verdict

#: Says what the digests of a fingerprint stand for, a text for each (:mod:`pytest_autotune.cache.made_of`).
MadeOf = Callable[[], Iterable[str]]
#: The reason of a miss for which nobody has looked at the other entries of the kernel yet.
NO_ENTRY = "no entry"


def nothing_noted() -> Iterable[str]:
    """Says nothing about any digest."""
    return ()


class Outcome(str, Enum):
    """The outcome of one lookup, as reports spell it."""

    HIT = "hit"
    MISS = "miss"
    MISMATCH = "mismatch"
    STALE = "stale"
    UNPORTABLE = "unportable"

    @property
    def badness(self) -> int:
        """Where processes met different outcomes of one problem, the worst is reported."""
        return list(Outcome).index(self)


def new_id() -> str:
    """32 hexadecimal digits for :attr:`Lookup.id`: the system's own randomness, which forked children do not repeat."""
    return os.urandom(16).hex()


@dataclass(frozen=True)
class Lookup:
    """One problem that a process asked for, and what became of it.

    :param outcome: None in a run that loaded nothing.
    :param reason: why it is not a hit, in words.
    :param test: the node id of the test that first asked; empty outside tests.
    :param entry: the entry that was used, or the new one where a search took place.
    :param tuned: a search took place in this process.
    :param shared: the choice came from another worker's tuning in this run.
    :param disturbed: something else may have run on the device while it was measured.
    :param verdict: of a hit whose turn it was to be raced again.
    :param test_failed: in a sweep, what ``test`` ran with when it failed.
    :param untuned: what was used in place of a tuning, of which there was none: ``"first"``, the first candidate, or
        ``"nearest"``, the choice of the nearest entry; else empty.
    :param id: of this lookup, and of no other one that is reported in a run; it says nothing about the lookup.
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
    test_failed: bool = False
    untuned: str = ""
    verdict: Verdict | None = None
    id: str = field(default="", compare=False)
    #: The lookup as text, once :func:`pytest_autotune.run.encoding.encode_lookup` has made it.
    encoded: list[str] = field(default_factory=list, init=False, compare=False, repr=False)

    def named(self) -> Lookup:
        """The lookup with an :attr:`id`."""
        return self if self.id else replace(self, id=new_id())

    def judged(self, outcome: Outcome, reason: str, entry: Entry | None, alias: str) -> Lookup:
        """What was asked, with what the loaded caches make of it."""
        # Not replace(), which takes twice as long: every hit comes here.
        return Lookup(
            self.problem, self.fingerprint, outcome, reason, self.test, self.label, entry, alias=alias, id=self.id
        )

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


class Finding(NamedTuple):
    """What the loaded entries say about one problem.

    :param entry: the entry to use for a hit; for a stale problem the nearest one.
    :param usable: the entry's choice is on offer, though its fingerprint may differ. A hit that is not
        usable says that every candidate failed.
    :param alias: the device whose entry is used in place of this one's.
    """

    outcome: Outcome
    reason: str = ""
    entry: Entry | None = None
    usable: bool = False
    alias: str = ""


def find(
    indexes: Sequence[EntryIndex],
    problem: Problem,
    fingerprint: tuple[Value, ...],
    offered: Callable[[Entry], bool],
    aliases: Mapping[str, str],
    exists: Callable[[str], bool] = lambda kernel: True,
    made_of: MadeOf = nothing_noted,
) -> Finding:
    """Look a problem up; earlier indexes take precedence.

    :param fingerprint: sorted by name.
    :param offered: whether the tuner has the entry's choice among its candidates now.
    :param aliases: device name -> name of a device whose entries it may use.
    :param exists: whether there may still be a kernel of some name; the entries of one that is gone may be of
        one that was moved.
    :param made_of: what the digests of the fingerprint stand for; asked where the problem is stale.
    """
    same_key = [entry for index in indexes for entry in index.same_key(problem)]
    own = [entry for entry in same_key if entry.problem.device == problem.device]
    alias = ""
    if not own and (other := aliases.get(problem.device.name)):
        own = [entry for entry in same_key if entry.problem.device.name == other]
        alias = other if own else ""
    if own:
        noted = partial(_differences, fingerprint=fingerprint, indexes=indexes, made_of=made_of)
        return _among(own, fingerprint, offered, alias, noted)
    if (moved := _moved(indexes, problem, fingerprint, offered, exists)) is not None:
        return moved
    if same_key:
        devices = _listed(sorted({str(entry.problem.device) for entry in same_key}))
        return Finding(Outcome.MISMATCH, f"tuned on {devices}, running on {problem.device}", same_key[0])
    return Finding(Outcome.MISS, NO_ENTRY)


def _moved(
    indexes: Sequence[EntryIndex],
    problem: Problem,
    fingerprint: tuple[Value, ...],
    offered: Callable[[Entry], bool],
    exists: Callable[[str], bool],
) -> Finding | None:
    """The entry of a kernel with another name and the same source, that is gone; None if several chose differently."""
    if not any(value.name == "source" for value in fingerprint):
        return None
    kernels = {kernel for index in indexes for kernel in index.with_fingerprint(problem.tuner, fingerprint)}
    found: list[Entry] = []
    for kernel in sorted(kernels - {problem.kernel}):
        old = replace(problem, kernel=kernel)
        same = [entry for index in indexes for entry in index.same_key(old) if entry.problem == old]
        same = [entry for entry in same if entry.fingerprint == fingerprint and entry.choice and offered(entry)]
        if same and not exists(kernel):
            found.append(same[0])
    choices = [entry.choice for entry in found if entry.choice is not None]
    if not choices or not all(choice.same_configuration(choices[0]) for choice in choices):
        return None
    return Finding(Outcome.HIT, f"moved from {found[0].problem.kernel}", found[0], usable=True)


def _among(
    entries: Sequence[Entry],
    fingerprint: tuple[Value, ...],
    offered: Callable[[Entry], bool],
    alias: str,
    differences: Callable[[Entry], Mapping[str, str]],
) -> Finding:
    exact = [entry for entry in entries if entry.fingerprint == fingerprint]
    for entry in exact:
        if entry.every_failed:
            return Finding(Outcome.HIT, "", entry, alias=alias)
        if offered(entry):
            return Finding(Outcome.HIT, "", entry, usable=True, alias=alias)
    # The fastest of all candidates is the fastest of any part of them that it is in.
    whole = [entry for entry in entries if entry.fingerprint == before_pruning(fingerprint)]
    for entry in whole:
        if not entry.every_failed and offered(entry):
            return Finding(Outcome.HIT, "", entry, usable=True, alias=alias)
    if exact:
        reason = f"{_choice_of(exact[0])} is no longer a candidate"
        return Finding(Outcome.STALE, reason, exact[0], alias=alias)
    usable = next((entry for entry in entries if not entry.every_failed and offered(entry)), None)
    nearest = usable or entries[0]
    changed = sorted({value.name for value in set(nearest.fingerprint) ^ set(fingerprint)})
    reason = f"{_listed(changed)} changed"
    if told := differences(nearest):
        said = [told[name] if len(changed) == 1 else f"{name}: {told[name]}" for name in changed if name in told]
        reason += f" ({'; '.join(said)})"
    now = {value.name: value.type for value in fingerprint}
    if any(value.type != now.get(value.name, value.type) for value in nearest.fingerprint):
        reason += " or only the rule for its digest"
    if usable is None and not nearest.every_failed:
        reason += f", and {_choice_of(nearest)} is no longer a candidate"
    return Finding(Outcome.STALE, reason, nearest, usable=usable is not None, alias=alias)


def _differences(
    entry: Entry, fingerprint: tuple[Value, ...], indexes: Sequence[EntryIndex], made_of: MadeOf
) -> dict[str, str]:
    """What changed in the digests of a fingerprint since an entry was made, in words, as far as both sides say."""
    noted: dict[str, str] = {}
    for index in indexes:
        noted.update(index.made_of(entry.problem.tuner, entry.problem.kernel))
    now = {part.name: part for part in fingerprint}
    changed = [part for part in entry.fingerprint if part.name in now and part != now[part.name]]
    noted_now = by_digest(made_of()) if any(digest_of(part) in noted for part in changed) else {}
    found = {}
    for part in changed:
        before, after = noted.get(digest_of(part)), noted_now.get(digest_of(now[part.name]))
        if before and after and (words := difference(before, after)):
            found[part.name] = words
    return found


def _choice_of(entry: Entry) -> str:
    """What an entry chooses, in words; where it keeps the times of all candidates, the fastest."""
    if entry.choice is not None:
        return f"the choice {entry.choice}"
    timed = [candidate for candidate in entry.candidates if candidate.time_us is not None]
    fastest = min(timed, key=lambda candidate: candidate.time_us or 0.0, default=None)
    return "the choice" if fastest is None else f"the fastest one, {fastest.label or fastest},"


def _listed(words: Sequence[str]) -> str:
    return ", ".join(words)
