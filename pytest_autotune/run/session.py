"""Session: what the tuners of one process ask, are answered by, and record in."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
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
from pytest_autotune.run.lookup import Lookup, Outcome, Policy, Refusal, is_ignored
from pytest_autotune.run.mode import Mode
from pytest_autotune.run.notes import WAITING_FOR_WORKER, Notes, Progress, in_words
from pytest_autotune.run.sources import Caches, Loaded, OtherWorker, Remembered, Source, fallbacks
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.workers.coordinator import Claim, Coordinator
from pytest_autotune.workers.events import SPECIALISATION, Event, Log


def raise_refusal(message: str) -> NoReturn:
    """Refuse a lookup where no test runs that could be failed.

    :raises Refusal: always.
    """
    raise Refusal(message)


class Session(Notes):
    """What the tuners of one process may use, and what they report.

    For each problem a tuner opens a :meth:`tuning`; what became of it is written to the log once, at its record or when
    it ends, whichever comes first. An error of ours on the way is a line of the summary and bypasses the tuner.

    Attributes: ``policy``, what the user wants; ``current_test``, a fact of the process and of no thread; ``paused``,
    nothing is asked or recorded; ``versions`` of the libraries of what was asked.

    Invariants: a claim lasts as long as its tuning, however that ends. Tunings may be inside each other and in several
    threads; one inside another waits for nobody. Within one memory of the tuners a problem is reported once.

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
        coordinator: Coordinator,
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
        #: (entry, text) of what choices were compiled for.
        self._specialisations: set[tuple[str, str]] = set()
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
        self._log = log or Log(None, "")
        self._was_asked = asked
        self._refuse = refuse
        self._coordinator = coordinator
        #: How many tunings are open, in all threads.
        self._open = 0
        self._mutex = threading.Lock()

    # What is loaded and known.

    @property
    def indexes(self) -> Sequence[EntryIndex]:
        """What is loaded now, the one that takes precedence first."""
        return self._caches.indexes

    def add_cache(self, index: EntryIndex, name: str = "") -> None:
        """Load one more cache, before all others, until :meth:`isolated` ends.

        :param name: of the cache, where what the test is not served with belongs into it.
        """
        self._caches = self._caches.with_index(index, name)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Know nothing of what was chosen before, by any worker.

        Afterwards nothing is known of what was chosen inside, and the caches that were added inside are forgotten.
        """
        before = self._known, self._is_isolated, self._caches
        self._known, self._is_isolated = {}, True
        try:
            yield
        finally:
            self._known, self._is_isolated, self._caches = before

    # The tests.

    def begin_test(self, test: str) -> None:
        """A test begins.

        :param test: its node id.
        """
        self.current_test = test
        for mode in self.policy.modes:
            mode.begin_test()
        callbacks, self._at_next_test = self._at_next_test, []
        for callback in callbacks:
            callback()

    def at_next_test(self, forget: Callable[[], object]) -> None:
        """Call something once, before the next test begins: what a tuner is to ask for anew there."""
        if forget not in self._at_next_test:
            self._at_next_test.append(forget)

    # A lookup.

    def ignores(self, tuner: str, kernel: str) -> bool:
        """Whether the user wants this kernel bypassed."""
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
        candidates: Callable[[], Iterable[Candidate]] | None = None,
        digests: Callable[[], Iterable[Digest]] = tuple,
        meanwhile: Callable[[], None] | None = None,
        moves: bool = False,
    ) -> Iterator[Tuning]:
        """Ask for the choice of one problem.

        The tuner takes ``Tuning.entry`` while there is one, rejects what it cannot use, and where nothing is left tunes
        as it always does and records what it chose. Leaving without a record releases every claim.

        :param offered: whether an entry's choice is among the candidates now.
        :param versions: of the libraries that matter to this tuner, its own first.
        :param label: words about the call that are known only sometimes, for reports.
        :param candidates: all that are on offer now, without times, in the tuner's own order: a sweep gives one of them
            as ``Tuning.entry``, and so does a user's wish for the first one, or the nearest entry's choice, in place of
            a tuning. Left out, the tuner searches all the same.
        :param digests: what the digests of the fingerprint are made of, so that an entry that is stale can say what has
            changed; called where the problem is stale, or tuned.
        :param meanwhile: called where another worker tunes the problem now, to help it instead of only waiting.
        :param moves: the kernel is named by where its code stands: an entry with its source, under a name that nobody
            asks for, is its own.
        """
        self.versions.setdefault(problem.library, versions)
        if self._caches.indexes:
            self._asked.add((problem.tuner, problem.kernel))
        sorted_fingerprint = tuple(sorted(fingerprint, key=attrgetter("name")))
        inside = self._outermost
        own = self._caches.own
        lookup = Lookup(problem, sorted_fingerprint, test=self.current_test, label=label, inside=inside, cache=own)
        digest_parts = partial(self._parts, problem.tuner, digests)
        with ExitStack() as held:
            other = OtherWorker(lambda: self._claim(lookup, held, meanwhile), offered)
            loaded = Loaded(self._caches, self.policy, offered, digest_parts, moves)
            sources = self._sources(lookup, offered, candidates, loaded, other)
            tuning = Tuning(self, lookup, versions, digest_parts, sources)
            try:
                tuning.ask()
                self._of_thread.outermost = inside or problem.name
                try:
                    yield tuning
                except Refusal:
                    raise
                except BaseException as error:
                    if not self.policy.is_error(tuning.lookup.outcome):  # else it is our own refusal that ends the test
                        tuning.given_up(in_words(error))
                    raise
                finally:
                    self._of_thread.outermost = inside
            finally:
                self._close(tuning)

    def _claim(self, lookup: Lookup, held: ExitStack, meanwhile: Callable[[], None] | None) -> Claim:
        """Claim a problem until ``held`` is left; waits for a worker that tunes it now, unless inside of a tuning."""
        with self._mutex:
            nested, self._open = self._open > 0, self._open + 1
        held.callback(self._leave)
        self.progress.begin(lookup.problem, WAITING_FOR_WORKER)
        # Waiting inside a tuning could wait for a worker that waits for this one.
        claiming = self._coordinator.claim(lookup.identity, wait=not nested, meanwhile=meanwhile)
        return held.enter_context(self.guarded(lookup.problem.tuner, claiming, Claim()))

    def _leave(self) -> None:
        with self._mutex:
            self._open -= 1

    @property
    def _outermost(self) -> str:
        """The tuning inside of which this thread is, as ``tuner:kernel``; of several inside each other the first."""
        name: str = getattr(self._of_thread, "outermost", "")
        return name

    def _sources(
        self,
        lookup: Lookup,
        offered: Callable[[Entry], bool],
        candidates: Callable[[], Iterable[Candidate]] | None,
        loaded: Loaded,
        other: OtherWorker,
    ) -> Iterator[Source]:
        """Where the choice for a lookup may come from, in the order in which it is asked for."""
        yield Remembered(self._known, offered)
        if self.policy.picks:
            yield from chain.from_iterable(mode.sources(self, lookup.problem, candidates) for mode in self.policy.modes)
        else:
            yield loaded
            if candidates is not None and self.policy.wants_no_tuning and self._caches.indexes:
                yield from fallbacks(lookup.identity, self.policy.on_miss, self._caches, offered, candidates)
        if not self._is_isolated:
            yield other

    def _parts(self, tuner: str, digests: Callable[[], Iterable[Digest]]) -> tuple[Digest, ...]:
        with self.guard(tuner, "digests()"):
            return tuple(Digest(one_line(digest.id), tuple(map(one_line, digest.parts))) for digest in digests())
        return ()

    def _close(self, tuning: Tuning) -> None:
        self.progress.end(tuning.lookup.problem)
        lookup = tuning.lookup
        entry = lookup.entry if lookup.tuned else tuning.entry
        if entry is not None:
            self._known[lookup.identity] = entry
            for mode in self.policy.modes:
                mode.used(lookup, entry)
        first = self._asked_inside.get(lookup.identity)
        if not tuning.is_remembered:
            tuning.report()
            if lookup.inside:
                self._asked_inside[lookup.identity] = lookup
        elif first is not None and not lookup.inside:  # whichever came first: it is asked for by itself, too
            del self._asked_inside[lookup.identity]
            again = replace(first, inside="", test=lookup.test, tuned=False, shared=first.searched)
            self.report(again)

    def uncacheable(self, problem: Problem, reason: str) -> None:
        """Report a problem that has no form that could be written."""
        lookup = Lookup(problem, (), Outcome.UNCACHEABLE, reason, self.current_test)
        self.report(lookup)
        if self._caches.indexes:
            self.refuse_errors(lookup)

    def not_asked(self, tuner: str, where: str, error: BaseException) -> None:
        """Report an error of ours that kept a call from asking: its tuner does as it would without us.

        :raises BaseException: what the run raises where a miss is an error; nobody knows what the call would have been.
        """
        left = f"; that call was left to {tuner}, and not recorded"
        words = self.error(tuner, where, error, left, is_counted=False)
        if self._caches.indexes and self.policy.is_error(Outcome.MISS):
            self._refuse(f"autotune: MISS {tuner}: {words}")

    def observed(self, *lookups: Lookup) -> None:
        """Report lookups that a tuner made inside itself.

        All of them are reported before the first one that the policy calls an error is.
        """
        for lookup in lookups:
            lookup = replace(lookup, test=lookup.test or self.current_test, inside=self._outermost)
            self.report(lookup)
        for lookup in lookups:
            self.refuse_errors(lookup)

    def report(self, lookup: Lookup) -> None:
        """Write down what became of a lookup; an error in doing so is a line of the summary.

        An adapter of another package may record what is no entry, or ask for what is no problem.
        """
        tuner = lookup.problem.tuner
        try:
            try:
                self._log.append(lookup.event)
            except Exception as error:
                if not lookup.searched or lookup.entry is None:
                    raise
                self.error(tuner, "record()", error)
                why = in_words(error)
                lookup = replace(lookup, entry=None, tuned=False, shared=False, label="", unrecorded=why)
                self._log.append(lookup.event)
        except Exception as error:
            self.error(tuner, "tuning()", error, is_counted=False)
            return
        self._was_asked(lookup)

    def refuse_errors(self, lookup: Lookup) -> None:
        """Refuse a lookup that the policy calls an error: here, and nowhere else.

        :raises BaseException: what the run raises then.
        """
        if self.policy.is_error(lookup.outcome):
            self._refuse(f"autotune: {lookup}")

    # What tuners may have or say beside a tuning.

    @property
    def searches(self) -> int:
        """How many searches have begun through the session."""
        return self.progress.searches

    def racer(self, problem: Problem, *, now: bool = False) -> Mode | None:
        """The mode that races the loaded choice of a problem before it is used.

        :param now: it has time left for that.
        """
        return next((mode for mode in self.policy.modes if mode.has_turn(problem, now=now)), None)

    def may_race(self, problem: Problem, fingerprint: tuple[Value, ...] = ()) -> bool:
        """Whether a hit on a problem would be raced now: for tuners that have to get ready for it before they ask."""
        is_known = Identity(problem, fingerprint) in self._known
        return not is_known and self.racer(problem, now=True) is not None and self._caches.have(problem)

    @contextmanager
    def claimed(self, asked: Identity) -> Iterator[bool]:
        """Claim something beside a tuning; yields False where another worker is at it, or has done it."""
        claiming = self._coordinator.claim(asked, wait=False)
        with self.guarded(asked.problem.tuner, claiming, Claim()) as claim:
            yield claim.is_mine

    def append(self, event: Event) -> None:
        """Write down what is no lookup."""
        with self.guard(event.asked.problem.tuner if event.asked is not None else "session", "the log"):
            self._log.append(event)

    def compile_in(self, folder: Path) -> None:
        """Let threads of this process compile, too: who compiles what is seen in this folder, the run's own."""
        self._coordinator.compile_in(folder)

    def compiling(self, name: str, wait: bool) -> AbstractContextManager[bool]:
        """Compile something that other workers, and threads, of this run may compile, too.

        :param name: the same wherever that is compiled.
        :param wait: for who compiles it now; what that one made is there then.
        :returns: yields whether nobody else compiles it now.
        """
        return self.guarded("lock", self._coordinator.compiling(name, wait), True)

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        """Have the device to oneself, for a measurement outside of a tuning; yields False where that took too long.

        :param on: names the processor where it is not the current GPU.
        """
        return self.guarded("lock", self._coordinator.measuring(on), False)

    def specialised(self, entry: Entry, text: str) -> None:
        """Write down what an entry's choice was compiled for, where a dump is to have it."""
        met = (entry.identity.digest, text)
        if self.policy.dumping and met not in self._specialisations:
            self._specialisations.add(met)
            self.append(Event(SPECIALISATION, data={"entry": met[0], "text": text}))
