"""Session: what the tuners of one process ask, are answered by, and record in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import replace
from functools import partial
from operator import attrgetter
from typing import NoReturn

from pytest_autotune.cache.foreign_text import describe_error, to_one_line
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
    is_tuner_named,
)
from pytest_autotune.run.lookup import SPECIALIZATION, Lookup, Outcome, Policy
from pytest_autotune.run.mode import Mode
from pytest_autotune.run.notes import WAITING_FOR_WORKER, Notes, Progress
from pytest_autotune.run.sources import Answer, Answers, Loaded, answer_of_other_worker, list_fallbacks
from pytest_autotune.run.tuning import Tuning
from pytest_autotune.workers.coordinator import Claim, Coordinator
from pytest_autotune.workers.events import Event, Log

#: The tunings inside of which this thread is: the first one as ``tuner:kernel``, and the last one.
_OUTER: ContextVar[tuple[str, Tuning | None]] = ContextVar("outer", default=("", None))


class Session(Notes):
    """What the tuners of one process may use, and what they report.

    For each problem a tuner opens a :meth:`tuning`; what became of it is written to the log once, at its record or when
    it ends, whichever comes first. An error of ours on the way is a line of the summary and bypasses the tuner.

    Attributes: ``policy``, what the user wants; ``current_test``, a fact of the process and of no thread; ``paused``,
    nothing is asked or recorded; ``versions`` of the libraries of what was asked.

    Invariants: a claim lasts as long as its tuning, however that ends. Tunings may be inside each other and in several
    threads; one inside another waits for nobody. Within one memory of the tuners a problem is reported once.

    :param index: the loaded caches, or None in a run that loads nothing.
    :param refuse: raises what no guard holds back, when the policy says that a lookup is an error.
    :param progress: is told what is tuned.
    :param log: where lookups are written down.
    """

    def __init__(
        self,
        policy: Policy,
        index: EntryIndex | None,
        coordinator: Coordinator,
        refuse: Callable[[str], NoReturn],
        progress: Progress | None = None,
        log: Log | None = None,
    ) -> None:
        super().__init__(policy.debug)
        self.policy = policy
        self.current_test = ""
        self.is_paused = False
        #: What was asked for in this process for the first time; whoever looks for a test's own empties it before.
        self.lookups: list[Lookup] = []
        self.versions: dict[str, Versions] = {}
        #: (entry, text) of what choices were compiled for.
        self._specializations: set[tuple[str, str]] = set()
        self.progress = progress or Progress()
        #: What the run itself loaded, without the caches of a single test; None when nothing is.
        self.index = index
        #: (tuner, kernel) of what was looked up.
        self._asked: set[tuple[str, str]] = set()
        #: What is loaded now, the one that takes precedence first.
        self.indexes: Sequence[EntryIndex] = () if index is None else (index,)
        #: The last cache that the current test has loaded for itself, where what it lacks belongs into it.
        self._own_cache = ""
        self._known: dict[Identity, Entry] = {}
        self._is_isolated = False
        self._at_next_test: list[Callable[[], object]] = []
        self._log = log or Log(None, "")
        self._refuse = refuse
        self.coordinator = coordinator

    # What is loaded and known.

    def add_cache(self, index: EntryIndex, name: str = "") -> None:
        """Load one more cache for a test, before all others; with a name, what it lacks belongs into it."""
        self.indexes, self._own_cache = (index, *self.indexes), name

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Know nothing of what was chosen before, by any worker; nor afterwards of what was chosen or added inside."""
        before = self._known, self._is_isolated, self.indexes, self._own_cache
        self._known, self._is_isolated = {}, True
        try:
            yield
        finally:
            self._known, self._is_isolated, self.indexes, self._own_cache = before

    # The tests.

    def begin_test(self, test: str) -> None:
        """The test with this node id begins."""
        self.current_test = test
        for mode in self.policy.modes:
            mode.begin_test()
        callbacks, self._at_next_test = self._at_next_test, []
        for callback in callbacks:
            with self.guard("session", "at_next_test()"):
                callback()

    def at_next_test(self, forget: Callable[[], object]) -> None:
        """Call something once, before the next test begins: what a tuner is to ask for anew there."""
        if forget not in self._at_next_test:
            self._at_next_test.append(forget)

    # A lookup.

    def ignores(self, tuner: str, kernel: str) -> bool:
        """Whether the user wants this kernel bypassed."""
        wanted = self.policy.tuners
        return (wanted is not None and not is_tuner_named(tuner, wanted)) or self.policy.ignores(tuner, kernel)

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
        meanwhile: Callable[[], object] = tuple,
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
        if self.indexes:
            self._asked.add((problem.tuner, problem.kernel))
        sorted_fingerprint = tuple(sorted(fingerprint, key=attrgetter("name")))
        (inside, outer), own = _OUTER.get(), self._own_cache
        lookup = Lookup(
            Identity(problem, sorted_fingerprint),
            test=self.current_test,
            label=str(label),
            outer_tuning=inside,
            test_cache=own,
        )
        digest_parts = partial(self._parts, problem.tuner, digests)
        with ExitStack() as held:
            is_own = len(self.indexes) > (self.index is not None)
            loaded = Loaded(self.indexes, self.policy, self._asked, is_own, offered, digest_parts, moves)
            answers = self._answers(lookup, loaded, candidates, lambda: self._claim(lookup, held, meanwhile))
            tuning = Tuning(self, lookup, versions, digest_parts, answers, outer)
            try:
                tuning.ask()
                _OUTER.set((inside or problem.name, tuning))
                yield tuning
            except BaseException as error:
                if not self.policy.is_error(tuning.lookup.outcome):  # else it is our own refusal that ends the test
                    tuning.not_recorded(describe_error(error), is_over=True)
                raise
            finally:
                _OUTER.set((inside, outer))
                self._close(tuning)

    def _answers(
        self,
        lookup: Lookup,
        loaded: Loaded,
        candidates: Callable[[], Iterable[Candidate]] | None,
        claim: Callable[[], Claim],
    ) -> Answers:
        """Where the choice for a lookup may come from, in the order in which it is asked for."""
        known = self._known.get(lookup.identity)
        if known is not None and not known.is_failure and loaded.offered(known):
            yield Answer(lookup, known, is_reported=True)
        if self.policy.picks_candidates:
            for mode in self.policy.modes:
                yield from mode.list_answers(self, lookup, candidates)
        elif loaded.indexes:
            judged = loaded.judge(lookup)
            if judged.entry is not None and judged.entry.is_failure:
                yield Answer(judged)
                return
            rejected = yield Answer(judged, judged.entry)
            if judged.entry is not None:
                is_own = judged.entry.identity == lookup.identity
                judged = replace(lookup, outcome=Outcome.STALE, reason=rejected, has_rejected_entry=is_own)
                yield Answer(judged)
            lookup = judged
            if candidates is not None and self.policy.on_miss in ("first", "nearest"):
                yield from list_fallbacks(lookup, loaded, candidates)
        if not self._is_isolated:
            yield answer_of_other_worker(claim(), lookup, loaded.offered)

    def _claim(self, lookup: Lookup, held: ExitStack, meanwhile: Callable[[], object]) -> Claim:
        """Claim a problem until ``held`` is left; waits for a worker that tunes it now, unless inside of a tuning."""
        # Waiting inside a tuning could wait for a worker that waits for this one.
        is_nested = bool(self.progress.open_tunings)
        self.progress.begin(lookup.problem, WAITING_FOR_WORKER)
        claiming = self.coordinator.claim(lookup.identity.digest, None if is_nested else meanwhile)
        return held.enter_context(self.guarded(lookup.problem.tuner, claiming, Claim()))

    def _parts(self, tuner: str, digests: Callable[[], Iterable[Digest]]) -> tuple[Digest, ...]:
        with self.guard(tuner, "digests()"):
            return tuple(Digest(to_one_line(digest.id), tuple(map(to_one_line, digest.parts))) for digest in digests())
        return ()

    def _close(self, tuning: Tuning) -> None:
        self.progress.end(tuning.lookup.problem)
        lookup = tuning.lookup
        entry = lookup.entry if lookup.is_tuned else tuning.entry
        if entry is not None:
            self._known[lookup.identity] = entry
            for mode in self.policy.modes:
                mode.note_used(lookup, entry)
        if not tuning.is_remembered:
            tuning.report()

    def report_uncacheable(self, problem: Problem, reason: str) -> None:
        """Report a problem that has no form that could be written."""
        lookup = Lookup(Identity(problem, ()), Outcome.UNCACHEABLE, reason, self.current_test)
        self.report_lookup(lookup)
        if self.indexes:
            self.refuse_errors(lookup)

    def report_unanswered_call(self, tuner: str, where: str, error: BaseException) -> None:
        """Report an error of ours that kept a call from asking: its tuner does as it would without us.

        :raises BaseException: what the run raises where a miss is an error; nobody knows what the call would have been.
        """
        left = f"; that call was left to {tuner}, and not recorded"
        words = self.report_error(tuner, where, error, left, is_counted=False)
        if self.indexes and self.policy.is_error(Outcome.MISS):
            self._refuse(f"autotune: MISS {tuner}: {words}")

    def report_observed(self, *lookups: Lookup) -> None:
        """Report lookups that a tuner made inside itself, before the first one that is an error is refused."""
        for lookup in lookups:
            lookup = replace(lookup, test=lookup.test or self.current_test, outer_tuning=_OUTER.get()[0])
            self.report_lookup(lookup)
        for lookup in lookups:
            self.refuse_errors(lookup)

    def report_lookup(self, lookup: Lookup) -> None:
        """Write down what became of a lookup; an error in doing so is a line of the summary."""
        try:
            self._log.append(lookup.to_event())
        except Exception as error:
            self.report_error(lookup.problem.tuner, "tuning()", error, is_counted=False)
        else:
            self.lookups.append(lookup)

    def refuse_errors(self, lookup: Lookup) -> None:
        """Refuse a lookup that the policy calls an error: here, and nowhere else."""
        if self.policy.is_error(lookup.outcome):
            self._refuse(f"autotune: {lookup}")

    # What tuners may have or say beside a tuning.

    def find_racing_mode(self, problem: Problem, *, now: bool = False) -> Mode | None:
        """The mode that races the loaded choice of a problem before it is used, and with ``now`` has time for that."""
        return next((mode for mode in self.policy.modes if mode.has_turn(problem, now=now)), None)

    def may_race(self, problem: Problem) -> bool:
        """Whether a hit on a problem without a fingerprint would be raced now, for who gets ready before it asks."""
        if Identity(problem, ()) in self._known or self.find_racing_mode(problem, now=True) is None:
            return False
        return any(entry.problem == problem for index in self.indexes for entry in index.list_same_key(problem))

    def append_event(self, event: Event) -> None:
        """Write down what is no lookup."""
        with self.guard(event.identity.problem.tuner if event.identity is not None else "session", "the log"):
            self._log.append(event)

    def compiling(self, name: str, wait: bool) -> AbstractContextManager[bool]:
        """Compile something that other workers, and threads, of this run may compile, too.

        :param name: the same wherever that is compiled.
        :param wait: for who compiles it now; what that one made is there then.
        :returns: yields whether nobody else compiles it now.
        """
        return self.guarded("lock", self.coordinator.compiling(name, wait), True)

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        """Have the device to oneself, for a measurement outside of a tuning; yields False where that took too long.

        :param on: names the processor where it is not the current GPU.
        """
        return self.guarded("lock", self.coordinator.measuring(on), False)

    def report_specialization(self, entry: Entry, text: str) -> None:
        """Write down what an entry's choice was compiled for, where a dump is to have it."""
        met = (entry.identity.digest, text)
        if self.policy.is_dumping and met not in self._specializations:
            self._specializations.add(met)
            self.append_event(Event(SPECIALIZATION, data={"entry": met[0], "text": text}))
