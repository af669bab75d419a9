"""TuningRun: the one door between a tuner and the cache, in one process."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import NoReturn, TypeVar

from pytest_autotune.cache.foreign_text import words_of
from pytest_autotune.cache.index import EntryIndex
from pytest_autotune.cache.model import Candidate, Entry, Problem, Value, library_of
from pytest_autotune.run.encoding import decode_lookup, encode_lookup
from pytest_autotune.run.lookup import NO_ENTRY, Finding, Lookup, Outcome, find
from pytest_autotune.run.nearest import Nearest
from pytest_autotune.run.together.coordination import Claim, Coordination, SoleClaim
from pytest_autotune.run.together.shared_work import UndividedWork, Work

_Key = tuple[Problem, tuple[Value, ...]]
_T = TypeVar("_T")


@dataclass(frozen=True)
class Policy:
    """What a run does with its lookups.

    :param dumping: what is chosen will be written down, so every search must be a real one.
    :param on_miss: ``"tune"`` or ``"error"``.
    :param on_stale: ``"tune"``, ``"use"`` or ``"error"``.
    :param tuners: the tuners to act on, each with those below it; None for all.
    :param ignore: globs of ``tuner:kernel`` that are left alone.
    :param aliases: device name -> name of a device whose entries it may use.
    :param compile_threads: this process's share of the cores.
    :param cores: the cores of this machine, of which :meth:`TuningRun.core` gives one at a time.
    """

    dumping: bool = False
    on_miss: str = "tune"
    on_stale: str = "tune"
    tuners: tuple[str, ...] | None = None
    ignore: tuple[str, ...] = ()
    aliases: Mapping[str, str] = field(default_factory=dict)
    compile_threads: int = 1
    cores: int = 1


#: So many different reasons of failed candidates are kept in an entry without a choice,
REASONS = 5
#: and so many characters of each.
REASON_LENGTH = 200
#: What is told of an entry that expected a failure.
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


def refusal(lookup: Lookup) -> str:
    """What a user is told when a lookup is an error."""
    outcome = lookup.outcome.value.upper() if lookup.outcome else "MISS"
    return f"autotune: {outcome} {lookup.problem}: {lookup.reason}"


class Refusal(LookupError):
    """A lookup that the policy calls an error; no guard holds it back."""


def _raise(message: str) -> NoReturn:
    raise Refusal(message)


class TuningRun:
    """What tuners in this process may use, and what they report.

    :param indexes: the loaded caches, or None in a run that loads nothing.
    :param log: called once for each problem that this process asked for.
    :param refuse: raises, when the policy says that a lookup is an error.
    """

    def __init__(
        self,
        policy: Policy,
        index: EntryIndex | None,
        coordination: Coordination,
        log: Callable[[Lookup], None],
        refuse: Callable[[str], NoReturn] = _raise,
    ) -> None:
        self.policy = policy
        self.current_test = ""
        self.paused = False
        self.notes: list[str] = []
        #: tuner -> why it could not be hooked.
        self.unhooked: dict[str, str] = {}
        self.environments: dict[str, str] = {}
        #: How many searches have begun behind the door.
        self.searches = 0
        self._index = index
        self._extra: list[EntryIndex] = []
        self._coordination = coordination
        self._log = log
        self._refuse = refuse
        self._known: dict[_Key, Entry] = {}
        #: (tuner, kernel) of what was looked up.
        self._asked: set[tuple[str, str]] = set()
        self._is_isolated = False
        self._at_next_test: list[Callable[[], object]] = []
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
        """Tell the user that a tuner, or a part of one, could not be hooked."""
        self.unhooked[tuner] = reason
        self.note(f"{tuner} was left alone: {reason}")

    def error(self, tuner: str, where: str, error: Exception) -> None:
        """Tell of an error of ours in one line: it must never fail a test, or the run."""
        self.note(" ".join(f"{tuner}: error in {where}: {type(error).__name__}: {words_of(error)}".split()))

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
        """Tell the user something, once, in the summary."""
        if text not in self.notes:
            self.notes.append(text)

    def at_next_test(self, forget: Callable[[], object]) -> None:
        """Call something once, before the next test begins: what a tuner is to ask for anew there."""
        self._at_next_test.append(forget)

    def begin_test(self, test: str) -> None:
        """A test begins.

        :param test: its node id.
        """
        self.current_test = test
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
        environment: str = "",
        label: str = "",
        meanwhile: Callable[[Work], None] | None = None,
        exists: Callable[[str], bool] | None = None,
    ) -> Iterator[Tuning]:
        """Open the door for one problem.

        The tuner takes ``Tuning.entry`` while there is one, rejects what it cannot
        use, and where nothing is left tunes as it always does and records what it
        chose. Leaving without a record releases every claim.

        :param offered: whether an entry's choice is among the candidates now.
        :param environment: versions that matter to this tuner; told, never compared.
        :param meanwhile: called where another worker tunes this problem now, to take pieces of ``Tuning.work``
            instead of only waiting.
        :param exists: whether there may still be a kernel of some name in this process. Where there is none, an
            entry of that name with the same key, device and fingerprint, a ``source`` in it, is taken for one of
            this kernel under its old name. Left out, none is.
        """
        self.environments.setdefault(problem.library, environment)
        with ExitStack() as held:
            sorted_fingerprint = tuple(sorted(fingerprint, key=lambda value: value.name))
            lookup = Lookup(problem, sorted_fingerprint, test=self.current_test, label=label)
            tuning = Tuning(self, lookup, environment)
            tuning._offers = self._told_offers(tuning, self._offers(tuning, offered, held, meanwhile, exists))
            try:
                tuning._next_offer()
                yield tuning
            finally:
                self._close(tuning)

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
        self._tell(lookup)
        if self.indexes and self.policy.on_miss == "error":
            self._refuse(refusal(lookup))

    def observed(self, *lookups: Lookup) -> None:
        """Report lookups that a tuner made inside itself.

        All of them are told before the first one that the policy calls an error is.
        """
        for lookup in lookups:
            self._tell(replace(lookup, test=lookup.test or self.current_test))
        for lookup in lookups:
            self._refuse_if_wanted(lookup)

    def _told_offers(self, tuning: Tuning, offers: Iterator[Entry]) -> Iterator[Entry]:
        """The offers; an error of ours ends them and is told, and the tuner goes on without."""
        try:
            yield from offers
        except Refusal:
            raise
        except Exception as error:
            self.error(tuning.lookup.problem.tuner, "the door", error)
            if self.indexes and tuning.lookup.outcome is None:
                tuning.lookup = replace(tuning.lookup, outcome=Outcome.MISS, reason="an error of pytest-autotune")
        self.searches += 1

    def _offers(
        self,
        tuning: Tuning,
        offered: Callable[[Entry], bool],
        held: ExitStack,
        meanwhile: Callable[[Work], None] | None,
        exists: Callable[[str], bool] | None,
    ) -> Iterator[Entry]:
        """Entries for this problem, the best first; between two, the tuner has rejected one."""
        key = tuning.lookup.problem, tuning.lookup.fingerprint
        known = self._known.get(key)
        if known is not None and not known.every_failed and offered(known):
            tuning.told = True
            yield known
            tuning.told = False
        if self.indexes:
            tuner = key[0].tuner
            self._asked.add((tuner, key[0].kernel))
            finding = find(
                self.indexes,
                *key,
                offered,
                self.policy.aliases,
                lambda kernel: exists is None or (tuner, kernel) in self._asked or exists(kernel),
            )
            self._judge(tuning, finding)
            if finding.outcome is Outcome.HIT and not finding.usable:
                tuning._take(finding.entry)
                return
            if finding.usable and (finding.outcome is Outcome.HIT or self.policy.on_stale == "use"):
                yield tuning._take(finding.entry)
                self._judge(tuning, Finding(Outcome.STALE, tuning.rejection))
        with self._lock:
            nested, self._open = self._open > 0, self._open + 1
        held.callback(self._leave)
        if self._is_isolated:
            return
        # Waiting inside a tuning could wait for a worker that waits for this one.
        claiming = self._coordination.claim(*key, wait=not nested, meanwhile=meanwhile)
        claim: Claim = held.enter_context(self._guarded(key[0].tuner, claiming, SoleClaim()))
        tuning._claim = claim
        shared = claim.result
        if shared is not None and shared.entry is not None and not shared.entry.every_failed and offered(shared.entry):
            mine = tuning.lookup
            # The outcome is told as the first worker met it, so that the count is right even if that one dies.
            tuning.lookup = replace(shared, test=mine.test, tuned=False, shared=True)
            yield shared.entry
            tuning.lookup = mine
        if claim.timed_out:
            tuning.lookup = replace(tuning.lookup, disturbed=True)

    def _judge(self, tuning: Tuning, finding: Finding) -> None:
        """Note what a lookup came to.

        :raises BaseException: what ``refuse`` raises, where the policy says that it is an error.
        """
        reason = finding.reason
        # Where the controller has all that is loaded, it finds the nearest entry for the rows of its summary.
        if reason == NO_ENTRY and (self._extra or self.policy.on_miss == "error"):
            reason = Nearest(self.indexes, self.policy.aliases).reason(tuning.lookup.problem)
        judged = replace(tuning.lookup, outcome=finding.outcome, reason=reason, alias=finding.alias, entry=None)
        tuning.lookup = judged
        if finding.outcome is Outcome.STALE and finding.usable and self.policy.on_stale == "use":
            return
        self._refuse_if_wanted(judged)

    def _refuse_if_wanted(self, lookup: Lookup) -> None:
        missed = lookup.outcome not in (None, Outcome.HIT)
        stale = lookup.outcome is Outcome.STALE
        if (missed and self.policy.on_miss == "error") or (stale and self.policy.on_stale == "error"):
            self._refuse(refusal(lookup))

    def _leave(self) -> None:
        with self._lock:
            self._open -= 1

    def _close(self, tuning: Tuning) -> None:
        lookup = tuning.lookup
        entry = lookup.entry if lookup.tuned else tuning.entry
        if entry is not None:
            self._known[lookup.problem, lookup.fingerprint] = entry
        if not tuning.told:
            self._tell(lookup)

    def _tell(self, lookup: Lookup) -> None:
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

    def __init__(self, run: TuningRun, lookup: Lookup, environment: str) -> None:
        #: The entry to use; None where the tuner must search.
        self.entry: Entry | None = None
        self.lookup = lookup
        #: Why the tuner could not use the last entry that it was given.
        self.rejection = ""
        #: This process asked for the problem before and has told of it.
        self.told = False
        self._run = run
        self._environment = environment
        self._offers: Iterator[Entry] = iter(())
        self._claim: Claim | None = None
        self._started = time.perf_counter()
        self._waited_s = 0.0

    def _next_offer(self) -> None:
        self.entry = next(self._offers, None)
        self._started, self._waited_s = time.perf_counter(), 0.0

    def _take(self, entry: Entry | None) -> Entry:
        assert entry is not None
        self.lookup = replace(self.lookup, entry=entry)
        return entry

    def reject(self, reason: str) -> None:
        """Say why ``entry`` cannot be used; afterwards ``entry`` is another one or None."""
        self.rejection = reason
        self._next_offer()

    @property
    def known_to_fail(self) -> bool:
        """A loaded entry says that every candidate failed: the tuner does as it would without us."""
        return self.entry is None and self.lookup.outcome is Outcome.HIT and not self.lookup.tuned

    @property
    def work(self) -> Work:
        """What workers that wait for this tuning may do towards it."""
        return self._claim.work if self._claim is not None else UndividedWork()

    @contextmanager
    def measuring(self, on: str = "") -> Iterator[None]:
        """Have the device to oneself, as far as other pytest processes go.

        :param on: names the processor where it is not the current GPU.
        """
        asked = time.perf_counter()
        with self._run.measuring(on) as undisturbed:
            self._waited_s += time.perf_counter() - asked
            if not undisturbed:
                self.lookup = replace(self.lookup, disturbed=True)
            yield

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
            self._environment,
        )
        if known_to_fail and entry.every_failed:
            assert self.lookup.entry is not None
            return self.lookup.entry
        self.lookup = replace(self.lookup, entry=entry, tuned=True)
        if known_to_fail:
            self.lookup = replace(self.lookup, outcome=Outcome.STALE, reason=WORKS_NOW)
        if self._claim is not None:
            try:
                self._claim.publish(self.lookup)
            except Exception as error:  # the others tune it themselves
                self._run.error(self.lookup.problem.tuner, "the door", error)
        if known_to_fail:
            self._run._refuse_if_wanted(self.lookup)
        return entry

    def record_failure(self, reasons: Iterable[str]) -> Entry:
        """Record that no candidate can be used, so that later runs expect it; each call fails as it always does.

        Only for failures that the next run will see again: what does not compile, or needs more than
        the device has. Not for a device that broke, a time-out, or memory that another process holds.

        :param reasons: why; of candidates that failed for the same reason, one is enough.
        :returns: the entry.
        """
        told = sorted({stable_reason(reason) for reason in reasons} - {""}) or ["failed"]
        return self.record(None, [Candidate(failed=reason) for reason in told[:REASONS]])
