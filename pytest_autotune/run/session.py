"""Session: the one door between a tuner and the cache, in one process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import NoReturn

from pytest_autotune.cache.foreign_text import one_line
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import (
    NO_VERSIONS,
    Candidate,
    Digest,
    Entry,
    Identity,
    Problem,
    Value,
    Versions,
    is_named,
)
from pytest_autotune.run.abilities import NO_ABILITIES, Abilities, MadeOf, nothing_noted
from pytest_autotune.run.claims import Claims
from pytest_autotune.run.compiled_for import CompiledAhead, CompiledFor
from pytest_autotune.run.find import Caches
from pytest_autotune.run.lookup import Lookup, Outcome
from pytest_autotune.run.notes import Notes, in_words
from pytest_autotune.run.policy import Policy, Refusal, is_ignored
from pytest_autotune.run.progress import Progress
from pytest_autotune.run.reporting import Reporting, raise_refusal
from pytest_autotune.run.sources import Loaded, OtherWorker, Remembered, Source, Verified, stand_ins, swept
from pytest_autotune.run.sweep import Sweep
from pytest_autotune.run.tuning import Asked, Process, Tuning
from pytest_autotune.run.verify import NO_WAY_IN, Races, Verdict
from pytest_autotune.workers.coordinator import Coordinator
from pytest_autotune.workers.events import Log

__all__ = ["Session", "Tuning"]


class Session(Notes):
    """What tuners in this process may use, and what they report.

    :param index: the loaded caches, or None in a run that loads nothing.
    :param asked: called once for each problem that this process asked for.
    :param refuse: raises, when the policy says that a lookup is an error.
    :param progress: is told what is tuned.
    :param log: where lookups are written down.
    """

    def __init__(
        self,
        policy: Policy,
        index: EntryIndex | None,
        coordination: Coordinator,
        asked: Callable[[Lookup], object] = lambda lookup: None,
        refuse: Callable[[str], NoReturn] = raise_refusal,
        progress: Progress | None = None,
        log: Log | None = None,
    ) -> None:
        super().__init__(policy.debug)
        self.policy = policy
        self.current_test = ""
        self.paused = False
        self.versions: dict[str, Versions] = {}
        #: In a sweep, what the current test ran with.
        self.ran_with: dict[Identity, Lookup] = {}
        #: What was compiled ahead of the tests; said when the tests are over.
        self.ahead = CompiledAhead()
        #: What choices were compiled for, in the order in which it was seen.
        self.compiled_for: dict[CompiledFor, None] = {}
        #: What is tuned now.
        self.progress = progress or Progress()
        #: What the run itself loaded, without the caches of a single test; None when nothing is.
        self.index = index
        #: (tuner, kernel) of what was looked up.
        self._asked: set[tuple[str, str]] = set()
        self._caches = Caches(() if index is None else (index,), policy.aliases, self._asked)
        self._known: dict[Identity, Entry] = {}
        #: What only other tunings have asked for yet.
        self._asked_inside: dict[Identity, Lookup] = {}
        self._of_thread = threading.local()
        self._is_isolated = False
        self._at_next_test: list[Callable[[], object]] = []
        self._reporting = Reporting(policy, self, log or Log(None, ""), asked, refuse)
        self._claims = Claims(coordination, self, self.progress)
        self._races = Races(policy.verify)
        self._process = Process(self, self._reporting, self._claims, self._races, self.progress)

    # What is loaded and known.

    @property
    def indexes(self) -> Sequence[EntryIndex]:
        """What is loaded now, the one that takes precedence first."""
        return self._caches.indexes

    def add_cache(self, index: EntryIndex) -> None:
        """Load one more cache, before all others, until :meth:`added_caches_end`."""
        self._caches = self._caches.with_index(index)

    @contextmanager
    def added_caches_end(self) -> Iterator[None]:
        """Forget, afterwards, the caches that were added inside."""
        caches = self._caches
        try:
            yield
        finally:
            self._caches = caches

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Know nothing of what was chosen before, by any worker, and afterwards nothing of what was chosen inside."""
        known, was_isolated = self._known, self._is_isolated
        self._known, self._is_isolated = {}, True
        try:
            yield
        finally:
            self._known, self._is_isolated = known, was_isolated

    # The tests.

    def begin_test(self, test: str) -> None:
        """A test begins.

        :param test: its node id.
        """
        self.current_test = test
        self.ran_with = {}
        callbacks, self._at_next_test = self._at_next_test, []
        for callback in callbacks:
            callback()

    def at_next_test(self, forget: Callable[[], object]) -> None:
        """Call something once, before the next test begins: what a tuner is to ask for anew there."""
        if forget not in self._at_next_test:
            self._at_next_test.append(forget)

    # The door.

    def ignores(self, tuner: str, kernel: str) -> bool:
        """Whether the user wants this kernel left alone."""
        wanted = self.policy.tuners
        if wanted is not None and not is_named(tuner, wanted):
            return True
        return is_ignored(tuner, kernel, self.policy.ignore)

    @contextmanager
    def tuning(
        self,
        problem: Problem,
        fingerprint: Sequence[Value],
        offered: Callable[[Entry], bool],
        versions: Versions = NO_VERSIONS,
        label: str = "",
        abilities: Abilities = NO_ABILITIES,
    ) -> Iterator[Tuning]:
        """Open the door for one problem.

        The tuner takes ``Tuning.entry`` while there is one, rejects what it cannot
        use, and where nothing is left tunes as it always does and records what it
        chose. Leaving without a record releases every claim.

        :param offered: whether an entry's choice is among the candidates now.
        :param versions: of the libraries that matter to this tuner, its own first.
        :param label: words about the call that are known only sometimes, for reports.
        :param abilities: what the tuner can do when it is asked.
        """
        self.versions.setdefault(problem.library, versions)
        if self._caches.indexes:
            self._asked.add((problem.tuner, problem.kernel))
        sorted_fingerprint = tuple(sorted(fingerprint, key=attrgetter("name")))
        test, inside = self.current_test, self._outermost
        lookup = Lookup(problem, sorted_fingerprint, test=test, label=label, inside=inside)
        made_of = abilities.made_of
        if made_of is not nothing_noted:
            made_of = partial(self._noted, problem.tuner, made_of)
        with ExitStack() as held:
            other = OtherWorker(lambda: self._claims.tuning(lookup, held, abilities.meanwhile), offered)
            loaded = Loaded(self._caches, self.policy, offered, abilities.exists, made_of)
            asked = Asked(lookup, versions, made_of, bool(self._caches.indexes))
            tuning = Tuning(self._process, asked, self._sources(lookup, offered, abilities, loaded, other), other)
            try:
                tuning.ask()
                self._of_thread.outermost = inside or problem.name
                try:
                    yield tuning
                except Refusal:
                    raise
                except Exception as error:
                    tuning.not_recorded(in_words(error))
                    raise
                except BaseException as error:
                    tuning.given_up(in_words(error))
                    raise
                finally:
                    self._of_thread.outermost = inside
            finally:
                self._close(tuning)

    @property
    def _outermost(self) -> str:
        """The tuning inside of which this thread is, as ``tuner:kernel``; of several inside each other the first."""
        name: str = getattr(self._of_thread, "outermost", "")
        return name

    def _sources(
        self,
        lookup: Lookup,
        offered: Callable[[Entry], bool],
        abilities: Abilities,
        loaded: Loaded,
        other: OtherWorker,
    ) -> Iterator[Source]:
        """Where the choice for a lookup may come from, in the order in which it is asked for."""
        yield Remembered(self._known, offered)
        sweep, candidates = self.policy.sweep, abilities.candidates
        if sweep is not None:
            yield from self._swept(sweep, lookup.problem, candidates)
        else:
            yield loaded if self.policy.verify is None else Verified(loaded, self._races.has_turn)
            if candidates is not None and self.policy.wants_no_tuning and self._caches.indexes:
                yield from stand_ins(lookup.identity, self.policy.on_miss, self._caches, offered, candidates)
        if not self._is_isolated:
            yield other

    def _swept(
        self, sweep: Sweep, problem: Problem, candidates: Callable[[], Iterable[Candidate]] | None
    ) -> Sequence[Source]:
        if candidates is None:
            self.note(f"{problem.tuner} does not say what its candidates are: in a sweep, too, it chose by itself")
            return ()
        with self.guard(problem.tuner, "candidates()"):
            return swept(sweep, problem, candidates())
        return ()

    def _noted(self, tuner: str, made_of: MadeOf) -> tuple[Digest, ...]:
        with self.guard(tuner, "made_of()"):
            return tuple(Digest(one_line(digest.id), tuple(map(one_line, digest.parts))) for digest in made_of())
        return ()

    def _close(self, tuning: Tuning) -> None:
        self.progress.end(tuning.lookup.problem)
        if tuning.to_verify:
            tuning.verified(Verdict(NO_WAY_IN))
        lookup = tuning.lookup
        entry = lookup.entry if lookup.tuned else tuning.entry
        if entry is not None:
            self._known[lookup.identity] = entry
            if self.policy.sweep is not None:
                self.ran_with[lookup.identity] = replace(lookup, entry=entry)
        first = self._asked_inside.get(lookup.identity)
        if not tuning.is_remembered:
            tuning.report()
            if lookup.inside:
                self._asked_inside[lookup.identity] = lookup
        elif first is not None and not lookup.inside:  # whichever came first: it is asked for by itself, too
            del self._asked_inside[lookup.identity]
            again = replace(first, inside="", test=lookup.test, tuned=False, shared=first.searched)
            self._reporting.report(again)

    def unportable(self, problem: Problem, reason: str) -> None:
        """Report a problem that has no form that could be written."""
        lookup = Lookup(problem, (), Outcome.UNPORTABLE, reason, self.current_test)
        self._reporting.report(lookup)
        if self._caches.indexes:
            self._reporting.refuse_errors(lookup)

    def not_asked(self, tuner: str, where: str, error: BaseException) -> None:
        """Report an error of ours that kept a call from asking: its tuner does as it would without us.

        :raises BaseException: what the run raises where a miss is an error; nobody knows what the call would have been.
        """
        words = self.call_left_alone(tuner, where, error)
        if self._caches.indexes:
            self._reporting.refuse_unknown(tuner, words)

    def observed(self, *lookups: Lookup) -> None:
        """Report lookups that a tuner made inside itself.

        All of them are reported before the first one that the policy calls an error is.
        """
        for lookup in lookups:
            lookup = replace(lookup, test=lookup.test or self.current_test, inside=self._outermost)
            if lookup.outcome is Outcome.HIT and self._races.has_turn(lookup.problem):
                lookup = replace(lookup, verdict=Verdict(NO_WAY_IN))
            self._reporting.report(lookup)
        for lookup in lookups:
            self._reporting.refuse_errors(lookup)

    # What tuners may have or say beside a tuning.

    @property
    def searches(self) -> int:
        """How many searches have begun behind the door."""
        return self.progress.searches

    def may_verify(self, problem: Problem, fingerprint: tuple[Value, ...] = ()) -> bool:
        """Whether a hit on a problem would be raced now: for tuners that have to get ready for it before they ask."""
        return (
            self._races.has_turn(problem)
            and not self._races.why_none
            and Identity(problem, fingerprint) not in self._known
            and self._caches.have(problem)
        )

    def compile_in(self, folder: Path) -> None:
        """Let threads of this process compile, too: who compiles what is seen in this folder, the run's own."""
        self._claims.compile_in(folder)

    def compiling(self, name: str, wait: bool) -> AbstractContextManager[bool]:
        """Compile something that other workers, and threads, of this run may compile, too.

        :param name: the same wherever that is compiled.
        :param wait: for who compiles it now; what that one made is there then.
        :returns: yields whether nobody else compiles it now.
        """
        return self._claims.compiling(name, wait)

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        """Have the device to oneself, for a measurement outside of a tuning; yields False where that took too long.

        :param on: names the processor where it is not the current GPU.
        """
        return self._claims.measuring(on)

    def was_compiled_for(self, entry: Entry, text: str) -> None:
        """Note what an entry's choice was compiled for, where that is to be written."""
        if self.policy.dumping:
            self.compiled_for[CompiledFor(entry.identity.digest, text)] = None
