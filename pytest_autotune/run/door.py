"""TuningRun: the one door between a tuner and the cache, in one process."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import chain
from operator import attrgetter
from typing import NoReturn, TypeVar

from pytest_autotune.cache.foreign_text import one_line, words_of
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import NO_VERSIONS, Candidate, Entry, Identity, Problem, Value, Versions, library_of
from pytest_autotune.run.compiled_ahead import CompiledAhead
from pytest_autotune.run.distributed import in_distributed_run
from pytest_autotune.run.encoding import decode_lookup, encode_lookup
from pytest_autotune.run.lookup import Lookup, MadeOf, Outcome, new_id, nothing_noted
from pytest_autotune.run.policy import Policy, Refusal, refusal
from pytest_autotune.run.progress import WAITING_FOR_GPU, WAITING_FOR_WORKER, Progress
from pytest_autotune.run.sources import Loaded, OtherWorker, Remembered, Source, Verified, stand_ins, swept
from pytest_autotune.run.specialised import Specialised
from pytest_autotune.run.sweep import Sweep
from pytest_autotune.run.together.coordination import Claim, Coordination, SoleClaim
from pytest_autotune.run.together.shared_work import UndividedWork, Work
from pytest_autotune.run.verify import Verdict

_T = TypeVar("_T")


#: So many different reasons of failed candidates are kept in an entry without a choice,
REASONS = 5
#: and so many characters of each.
REASON_LENGTH = 200
#: Why a choice is not raced again of a tuner whose adapter does not ask for it.
NO_WAY_IN = "its tuner cannot race it"
#: What is said of an entry that expected a failure.
WORKS_NOW = "every candidate failed when it was tuned, and one works now"


def stable_reason(text: str) -> str:
    """Why a candidate failed, in one line that the next run and another machine would write, too.

    Without addresses and absolute paths; cut to :data:`REASON_LENGTH` characters.
    """
    text = re.sub(r"0x[0-9a-fA-F]+", "0x...", text)
    text = re.sub(r"(?<![\w.])/(?:[\w.+~-]+/)*([\w.+~-]+)", r"\1", text)
    text = re.sub(r"\btmp\w{6,}", "tmp...", text)
    text = " ".join("".join(one if one.isprintable() else " " for one in text).split())
    return text if len(text) <= REASON_LENGTH else f"{text[: REASON_LENGTH - 3]}..."


def _raise(message: str) -> NoReturn:
    raise Refusal(message)


class TuningRun:
    """What tuners in this process may use, and what they report.

    :param indexes: the loaded caches, or None in a run that loads nothing.
    :param log: called once for each problem that this process asked for.
    :param progress: is told what is tuned.
    :param refuse: raises, when the policy says that a lookup is an error.
    """

    def __init__(
        self,
        policy: Policy,
        index: EntryIndex | None,
        coordination: Coordination,
        log: Callable[[Lookup], None],
        refuse: Callable[[str], NoReturn] = _raise,
        progress: Progress | None = None,
    ) -> None:
        self.policy = policy
        self.current_test = ""
        self.paused = False
        self.notes: list[str] = []
        #: tuner -> why it could not be hooked, or which error of ours left a call of it alone.
        self.unhooked: dict[str, str] = {}
        self.versions: dict[str, Versions] = {}
        #: How many searches have begun behind the door.
        self.searches = 0
        #: Seconds spent on races of loaded choices.
        self.verifying_s = 0.0
        #: In a sweep, what the current test ran with.
        self.ran_with: dict[Identity, Lookup] = {}
        self._index = index
        self._extra: list[EntryIndex] = []
        self._coordination = coordination
        self._log = log
        self._refuse = refuse
        #: What is tuned now.
        self.progress = progress or Progress()
        self._known: dict[Identity, Entry] = {}
        #: (tuner, kernel) of what was looked up.
        self._asked: set[tuple[str, str]] = set()
        self._is_isolated = False
        self._at_next_test: list[Callable[[], object]] = []
        #: What was compiled ahead of the tests; said when the tests are over.
        self.ahead = CompiledAhead()
        #: What choices were compiled for, in the order in which it was seen.
        self.specialised: dict[Specialised, None] = {}
        self._open = 0
        self._lock = threading.Lock()

    @property
    def indexes(self) -> Sequence[EntryIndex]:
        """What is loaded now, the one that takes precedence first."""
        return [*reversed(self._extra), *([self._index] if self._index is not None else [])]

    @property
    def index(self) -> EntryIndex | None:
        """What the run itself loaded, without the caches of a single test; None when nothing is."""
        return self._index

    def ignores(self, tuner: str, kernel: str) -> bool:
        """Whether the user wants this kernel left alone."""
        wanted = self.policy.tuners
        if wanted is not None and not any(f"{tuner}.".startswith(f"{name}.") for name in wanted):
            return True
        names = {f"{tuner}:{kernel}", f"{library_of(tuner)}:{kernel}"}
        return any(fnmatchcase(name, glob) for name in names for glob in self.policy.ignore)

    def left_alone(self, tuner: str, reason: str) -> None:
        """Note for the user that a tuner, or a part of one, could not be hooked."""
        self.unhooked[tuner] = reason
        self.note(f"{tuner} was left alone: {reason}")

    def error(self, tuner: str, where: str, error: BaseException) -> None:
        """Note an error of ours in one line: it must never fail a test, or the run."""
        self.note(f"{tuner}: {self._words(where, error)}")

    def went_wrong(self, tuner: str, where: str, error: BaseException) -> None:
        """Note an error of ours for which a call was tuned without being counted: it fails a limit on misses."""
        self.error(tuner, where, error)
        self.unhooked.setdefault(tuner, self._words(where, error))

    def _words(self, where: str, error: BaseException) -> str:
        return " ".join(f"error in {where}: {type(error).__name__}: {words_of(error)}".split())

    @contextmanager
    def _guarded(self, tuner: str, held: AbstractContextManager[_T], otherwise: _T) -> Iterator[_T]:
        """Hold something of ours; ``otherwise`` is given where it cannot be had. What is raised inside passes."""
        with ExitStack() as exits:
            try:
                value = held.__enter__()
            except Exception as error:
                self.error(tuner, "the door", error)
                value = otherwise
            else:
                exits.callback(self._let_go, tuner, held)
            yield value

    def _let_go(self, tuner: str, held: AbstractContextManager[object]) -> None:
        try:
            held.__exit__(None, None, None)
        except Exception as error:
            self.error(tuner, "the door", error)

    def note(self, text: str) -> None:
        """Show the user something, once, in the summary."""
        if text not in self.notes:
            self.notes.append(text)

    def was_compiled_for(self, entry: Entry, group: str, text: str) -> None:
        """Note what an entry's choice was compiled for, where that is to be written.

        :param group: the same for all entries whose choice may be launched with this, too.
        """
        if self.policy.dumping:
            self.specialised[Specialised(entry.identity.digest, group, text)] = None

    def at_next_test(self, forget: Callable[[], object]) -> None:
        """Call something once, before the next test begins: what a tuner is to ask for anew there."""
        if forget not in self._at_next_test:
            self._at_next_test.append(forget)

    def begin_test(self, test: str) -> None:
        """A test begins.

        :param test: its node id.
        """
        self.current_test = test
        self.ran_with = {}
        callbacks, self._at_next_test = self._at_next_test, []
        for callback in callbacks:
            callback()

    def add_cache(self, index: EntryIndex) -> None:
        """Load one more cache, before all others, until :meth:`added_caches_end`."""
        self._extra.append(index)

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Know nothing of what was chosen before, by any worker, and afterwards nothing of what was chosen inside."""
        known, was_isolated = self._known, self._is_isolated
        self._known, self._is_isolated = {}, True
        try:
            yield
        finally:
            self._known, self._is_isolated = known, was_isolated

    @contextmanager
    def added_caches_end(self) -> Iterator[None]:
        """Forget, afterwards, the caches that were added inside."""
        extra = self._extra
        self._extra = list(extra)
        try:
            yield
        finally:
            self._extra = extra

    @contextmanager
    def tuning(
        self,
        problem: Problem,
        fingerprint: Sequence[Value],
        offered: Callable[[Entry], bool],
        versions: Versions = NO_VERSIONS,
        label: str = "",
        meanwhile: Callable[[Work], None] | None = None,
        exists: Callable[[str], bool] | None = None,
        candidates: Callable[[], Iterable[Candidate]] | None = None,
        made_of: MadeOf = nothing_noted,
    ) -> Iterator[Tuning]:
        """Open the door for one problem.

        The tuner takes ``Tuning.entry`` while there is one, rejects what it cannot
        use, and where nothing is left tunes as it always does and records what it
        chose. Leaving without a record releases every claim.

        :param offered: whether an entry's choice is among the candidates now.
        :param versions: of the libraries that matter to this tuner, its own first.
        :param meanwhile: called where another worker tunes this problem now, to take pieces of ``Tuning.work``
            instead of only waiting.
        :param exists: whether there may still be a kernel of some name in this process. Where there is none, an
            entry of that name with the same key, device and fingerprint, a ``source`` in it, is taken for one of
            this kernel under its old name. Left out, none is.
        :param candidates: all that are on offer now, without times, in the tuner's own order: a sweep gives one of them
            as ``Tuning.entry``, and so does a user's wish for the first one, or the nearest entry's choice, in place
            of a tuning. Left out, the tuner searches all the same.
        :param made_of: what the digests of the fingerprint stand for, a text of
            :mod:`pytest_autotune.cache.made_of` for each; called where the problem is stale, or tuned. Noted with the
            entry, so that one that is stale can say what has changed.
        """
        self.versions.setdefault(problem.library, versions)
        indexes = self.indexes
        with ExitStack() as held:
            sorted_fingerprint = tuple(sorted(fingerprint, key=attrgetter("name")))
            lookup = Lookup(problem, sorted_fingerprint, test=self.current_test, label=label, id=new_id())
            if made_of is not nothing_noted:
                made_of = partial(self._noted, problem.tuner, made_of)
            loaded = Loaded(
                indexes,
                self.policy,
                offered,
                self._may_exist(problem, exists),
                is_alone=bool(self._extra),
                made_of=made_of,
            )
            other = OtherWorker(lambda: self._claim(lookup, held, meanwhile), offered)
            sources: list[Iterable[Source]] = [(Remembered(self._known, offered),)]
            sweep, verify = self.policy.sweep, self.policy.verify
            if sweep is not None:
                sources.append(self._swept(sweep, problem, candidates))
            else:
                sources.append((loaded if verify is None else Verified(loaded, verify.has_turn),))
                if candidates is not None and self.policy.wants_no_tuning and indexes:
                    sources.append(stand_ins(lookup.identity, self.policy, indexes, offered, candidates))
            if not self._is_isolated:
                sources.append((other,))
            tuning = Tuning(self, lookup, versions, chain.from_iterable(sources), other, made_of)
            try:
                tuning._ask()
                yield tuning
            finally:
                self._close(tuning)

    def _noted(self, tuner: str, made_of: MadeOf) -> tuple[str, ...]:
        try:
            return tuple(map(one_line, made_of()))
        except Exception as error:
            self.error(tuner, "made_of()", error)
            return ()

    def _swept(
        self, sweep: Sweep, problem: Problem, candidates: Callable[[], Iterable[Candidate]] | None
    ) -> Sequence[Source]:
        if candidates is None:
            self.note(f"{problem.tuner} does not say what its candidates are: in a sweep, too, it chose by itself")
            return ()
        try:
            return swept(sweep, problem, candidates())
        except Exception as error:
            self.error(problem.tuner, "candidates()", error)
            return ()

    def _may_exist(self, problem: Problem, exists: Callable[[str], bool] | None) -> Callable[[str], bool]:
        if self.indexes:
            self._asked.add((problem.tuner, problem.kernel))
        return lambda kernel: exists is None or (problem.tuner, kernel) in self._asked or exists(kernel)

    def _claim(self, lookup: Lookup, held: ExitStack, meanwhile: Callable[[Work], None] | None) -> Claim:
        """Claim a problem until ``held`` is left."""
        with self._lock:
            nested, self._open = self._open > 0, self._open + 1
        held.callback(self._leave)
        self.progress.begin(lookup.problem, WAITING_FOR_WORKER)
        # Waiting inside a tuning could wait for a worker that waits for this one.
        claiming = self._coordination.claim(lookup.identity, wait=not nested, meanwhile=meanwhile)
        return held.enter_context(self._guarded(lookup.problem.tuner, claiming, SoleClaim()))

    def may_verify(self, problem: Problem, fingerprint: tuple[Value, ...] = ()) -> bool:
        """Whether a hit on a problem would be raced now: for tuners that have to get ready for it before they ask."""
        verify = self.policy.verify
        return (
            verify is not None
            and verify.has_turn(problem)
            and self.verifying_s < verify.seconds
            and not in_distributed_run()
            and Identity(problem, fingerprint) not in self._known
            and any(entry.problem == problem for index in self.indexes for entry in index.same_key(problem))
        )

    def _claim_verification(self, lookup: Lookup, held: ExitStack) -> Claim:
        """Claim the race of a loaded choice until ``held`` is left; waits for nobody."""
        problem, fingerprint = lookup.identity
        # Another thing than the tuning of the problem, which a worker may have at the same time.
        identity = Identity(problem, (*fingerprint, Value("verify", True)))
        claiming = self._coordination.claim(identity, wait=False)
        return held.enter_context(self._guarded(problem.tuner, claiming, SoleClaim()))

    def core(self) -> AbstractContextManager[None]:
        """Wait for a core to compile a candidate on, and hold it; may be left in another thread."""
        return self._guarded("core", self._coordination.core(), None)

    def measuring(self, on: str = "") -> AbstractContextManager[bool]:
        """Have the device to oneself, for a measurement outside of a tuning; yields False where that took too long.

        :param on: names the processor where it is not the current GPU.
        """
        return self._guarded("lock", self._coordination.measuring(on), False)

    def unportable(self, problem: Problem, reason: str) -> None:
        """Report a problem that has no form that could be written."""
        lookup = Lookup(problem, (), Outcome.UNPORTABLE, reason, self.current_test)
        self._report(lookup)
        if self.indexes:
            self._refuse_errors(lookup)

    def observed(self, *lookups: Lookup) -> None:
        """Report lookups that a tuner made inside itself.

        All of them are reported before the first one that the policy calls an error is.
        """
        verify = self.policy.verify
        for lookup in lookups:
            lookup = replace(lookup, test=lookup.test or self.current_test)
            if verify is not None and lookup.outcome is Outcome.HIT and verify.has_turn(lookup.problem):
                lookup = replace(lookup, verdict=Verdict(NO_WAY_IN))
            self._report(lookup)
        for lookup in lookups:
            self._refuse_errors(lookup)

    def _refuse_errors(self, lookup: Lookup) -> None:
        """Refuse a lookup that the policy calls an error: here, and nowhere else.

        :raises BaseException: what ``refuse`` raises.
        """
        if self.policy.is_error(lookup.outcome):
            self._refuse(refusal(lookup))

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1

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
        if not tuning.is_reported:
            self._report(lookup)

    def _report(self, lookup: Lookup) -> None:
        lookup = lookup.named()
        if lookup.tuned:
            try:
                decode_lookup(encode_lookup(lookup))
            except Exception as error:  # an adapter of another package may record what is no entry
                self.error(lookup.problem.tuner, "record()", error)
                lookup = replace(lookup, entry=None, tuned=False, label="")
        try:
            self._log(lookup)
        except Exception as error:
            self.error(lookup.problem.tuner, "the door", error)


class Tuning:
    """One open door: an entry to use, or a search to make and record."""

    def __init__(
        self,
        run: TuningRun,
        lookup: Lookup,
        versions: Versions,
        sources: Iterator[Source],
        other: OtherWorker,
        made_of: MadeOf = nothing_noted,
    ) -> None:
        #: The entry to use; None where the tuner must search.
        self.entry: Entry | None = None
        self.lookup = lookup
        #: This process asked for the problem before and has reported it.
        self.is_reported = False
        #: The choice of ``entry`` is to be raced before it is used.
        self.to_verify = False
        self._run = run
        self._versions = versions
        self._sources = sources
        self._other = other
        self._made_of = made_of
        #: The source of ``entry``, and the lookup as it was asked.
        self._asked: tuple[Source, Lookup] | None = None
        self._started = time.perf_counter()
        self._waited_s = 0.0

    def _ask(self) -> None:
        """Ask the sources that are left, until one has an entry.

        :raises BaseException: what the run raises where an outcome is an error.
        """
        self.entry = self._asked = None
        self.to_verify = False
        try:
            for source in self._sources:
                lookup = self.lookup
                answer = source.ask(lookup)
                self.lookup, self.is_reported = answer.lookup, answer.is_reported
                if answer.entry is not None:
                    self.to_verify = answer.to_verify
                    self.entry, self._asked = answer.entry, (source, lookup)
                    break
                self._run._refuse_errors(self.lookup)
                if answer.is_last:
                    self._sources = iter(())
                    break
        except Refusal:
            raise
        except Exception as error:  # the tuner goes on without
            self._sources = iter(())
            self._run.error(self.lookup.problem.tuner, "the door", error)
            if self._run.indexes and self.lookup.outcome is None:
                self.lookup = replace(self.lookup, outcome=Outcome.MISS, reason="an error of pytest-autotune")
        if self.entry is None:
            self._run.searches += 1
            self._run.progress.begin(self.lookup.problem)
        self._started, self._waited_s = time.perf_counter(), 0.0

    def reject(self, reason: str) -> None:
        """Say why ``entry`` cannot be used; afterwards ``entry`` is another one or None.

        :raises BaseException: what the run raises where a stale problem is an error.
        """
        if self._asked is None:
            return
        source, lookup = self._asked
        self.entry = self._asked = None
        self.lookup, self.is_reported = source.rejected(lookup, reason), False
        self._run._refuse_errors(self.lookup)
        self._ask()

    @contextmanager
    def verifying(self) -> Iterator[Callable[[], bool] | None]:
        """Race the loaded choice, if it is its turn, this worker's, and there is time left for it.

        :returns: whether the time is over; None where nothing is to be done.
        """
        verify = self._run.policy.verify
        if not self.to_verify or verify is None:
            yield None
            return
        self.to_verify = False
        left_s = verify.seconds - self._run.verifying_s
        if in_distributed_run():  # ranks that race a kernel with a collective would wait for each other
            self.verified(Verdict("one of several ranks"))
        elif left_s <= 0:
            self.verified(Verdict("the time for it was over"))
        if self.lookup.verdict is not None:
            yield None
            return
        with ExitStack() as held:
            claim = self._run._claim_verification(self.lookup, held)
            if not claim.is_mine:
                yield None
                return
            started = time.perf_counter()
            try:
                yield lambda: time.perf_counter() - started > left_s
            finally:
                verdict = self.lookup.verdict
                self._run.verifying_s += verdict.seconds if verdict is not None else time.perf_counter() - started
            claim.publish(self.lookup)

    def verified(self, verdict: Verdict) -> None:
        """Report what became of the choice in a race, or why there was none."""
        self.to_verify = False
        self.lookup = replace(self.lookup, verdict=verdict)

    @property
    def known_to_fail(self) -> bool:
        """A loaded entry says that every candidate failed: the tuner does as it would without us."""
        return self.entry is None and self.lookup.outcome is Outcome.HIT and not self.lookup.tuned

    @property
    def versions(self) -> Versions:
        """Of the libraries that matter to the tuner, now."""
        return self._versions

    @property
    def work(self) -> Work:
        """What workers that wait for this tuning may do towards it."""
        claim = self._other.claim
        return claim.work if claim is not None else UndividedWork()

    @contextmanager
    def measuring(self, on: str = "") -> Iterator[None]:
        """Have the device to oneself, as far as other pytest processes go.

        :param on: names the processor where it is not the current GPU.
        """
        asked, progress, problem = time.perf_counter(), self._run.progress, self.lookup.problem
        progress.waits(problem, WAITING_FOR_GPU)
        with self._run.measuring(on) as undisturbed:
            progress.waits(problem)
            self._waited_s += time.perf_counter() - asked
            if not undisturbed:
                self.was_disturbed()
            yield

    def tries(self, number: int, of: int) -> None:
        """Say which candidate is compiled or measured now, for people who wait.

        :param number: from 1.
        """
        self._run.progress.tries(self.lookup.problem, number, of)

    def was_disturbed(self) -> None:
        """Say that something else may have run on the device while it was measured."""
        self.lookup = replace(self.lookup, disturbed=True)

    def record(
        self, choice: Candidate | None, candidates: Sequence[Candidate] = (), native: bytes = b"", label: str = ""
    ) -> Entry:
        """Record what a search that really took place has chosen.

        :param candidates: every candidate with its time in microseconds, or why it failed.
        :returns: the new entry.
        :raises BaseException: what the run raises where an outcome is an error: here, where it was
            :attr:`known_to_fail` and did not.
        """
        known_to_fail = self.known_to_fail
        seconds = time.perf_counter() - self._started - self._waited_s
        entry = Entry(
            self.lookup.problem,
            self.lookup.fingerprint,
            choice,
            tuple(candidates),
            native,
            label or self.lookup.label,
            float(f"{seconds:.3g}"),
            self._versions,
            made_of=tuple(self._made_of()),
        )
        if known_to_fail and entry.every_failed:
            assert self.lookup.entry is not None
            return self.lookup.entry
        self.lookup = replace(self.lookup, entry=entry, tuned=True)
        if known_to_fail:
            self.lookup = replace(self.lookup, outcome=Outcome.STALE, reason=WORKS_NOW)
        if self._other.claim is not None:
            try:
                self._other.claim.publish(self.lookup)
            except Exception as error:  # the others tune it themselves
                self._run.error(self.lookup.problem.tuner, "the door", error)
        if known_to_fail:
            self._run._refuse_errors(self.lookup)
        return entry

    def record_failure(self, reasons: Iterable[str]) -> Entry:
        """Record that no candidate can be used, so that later runs expect it; each call fails as it always does.

        Only for failures that the next run will see again: what does not compile, or needs more than
        the device has. Not for a device that broke, a time-out, or memory that another process holds.

        :param reasons: why; of candidates that failed for the same reason, one is enough.
        :returns: the entry.
        """
        distinct = sorted({stable_reason(reason) for reason in reasons} - {""}) or ["failed"]
        return self.record(None, [Candidate(failed=reason) for reason in distinct[:REASONS]])
